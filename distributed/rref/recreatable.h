// RecreatableRRef<T>: a remote value that its creator can recreate on a successor of the lost owner.
//
//   rpc::RecreatableRRef<Table> table([] {
//     auto made = rpc::remote<Table>("ps", 1000, 64);
//     made.rpc_sync<&Table::load>("table.safetensors");      // the state comes from the factory too
//     return made;
//   });
//   Tensor e = table.use([&](const rpc::RRef<Table>& t) { return t.rpc_sync<&Table::forward>(ids); });
//
// Only the worker with this object recreates the value. References sent to other workers refer to one
// creation, and throw OwnerLost after its loss. Such a worker asks the creator for the new reference.
// Everything derived from the old value must be made again: gradients, optimizers and references to parts of
// it. creations() shows that the value has changed. Copies share one value. Thread safety: every member may
// be called from any thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include <weft/distributed/rpc/fenced.h>
#include <weft/distributed/rref/rref.h>
#include <weft/distributed/runtime/sync.h>

namespace weft::rpc {

/// A remote T that is made again on a successor of its lost owner.
template <class T> class RecreatableRRef {
 public:
  using Factory = std::function<RRef<T>()>;
  static constexpr Duration kPatience = std::chrono::seconds(60);

  /// Makes the value; blocks until it is made. The factory runs on the calling thread, now and at each
  /// recreation. Throws: its errors; Timeout as recreate.
  explicit RecreatableRRef(Factory factory, Duration timeout = kPatience)
      : part_(std::make_shared<Part>(std::move(factory))) {
    const RRef<T> first = make(timeout);
    MutexLock lock(part_->mutex);
    part_->current = first;
    part_->creations = 1;
  }

  /// The current reference; the owner may be lost. Does not block.
  RRef<T> get() const {
    MutexLock lock(part_->mutex);
    return part_->current;
  }
  /// The number of times that the value was made.
  int64_t creations() const {
    MutexLock lock(part_->mutex);
    return part_->creations;
  }

  /// Makes the value again in the place of `lost`, and returns the new reference. Does nothing if another
  /// thread has recreated it, and waits for a recreation under way. While the owner is lost or fenced, the
  /// factory is retried, at most for `timeout`. Throws: Timeout with the last error; other errors of the
  /// factory. After an error the old reference stays.
  RRef<T> recreate(const RRef<T>& lost, Duration timeout = kPatience) const {
    Future<RRef<T>> result(current_agent()->runtime());
    bool mine = false;
    {
      MutexLock lock(part_->mutex);
      if (part_->current != lost) return part_->current;
      mine = !part_->making;
      if (mine) part_->making = result;
      else result = *part_->making;
    }
    if (!mine) return result.wait_for(timeout);
    try {
      const RRef<T> made = make(timeout);
      {
        MutexLock lock(part_->mutex);
        part_->current = made;
        ++part_->creations;
        part_->making.reset();
      }
      result.set_result(made);
      return made;
    } catch (...) {
      {
        MutexLock lock(part_->mutex);
        part_->making.reset();
      }
      result.set_error(std::current_exception());
      throw;
    }
  }

  /// Calls f(reference). When it throws because the value's owner is lost, makes the value again and calls f
  /// once more. So f may run more than once. Throws: the errors of f and of recreate.
  template <class F> auto use(F&& f, Duration timeout = kPatience) const {
    const auto runtime = current_agent()->runtime();
    const TimePoint deadline = runtime->now() + timeout;
    while (true) {
      const RRef<T> now = get();
      try {
        return f(now);
      } catch (const PeerLost& e) {
        if (e.peer != now.owner_name() || runtime->now() >= deadline) throw;
        recreate(now, deadline - runtime->now());
      }
    }
  }

 private:
  struct Part {
    explicit Part(Factory f) : factory(std::move(f)) {}
    const Factory factory;
    mutable Mutex mutex;
    RRef<T> current WEFT_GUARDED_BY(mutex);
    int64_t creations WEFT_GUARDED_BY(mutex) = 0;
    std::optional<Future<RRef<T>>> making WEFT_GUARDED_BY(mutex);
  };

  RRef<T> make(Duration timeout) const {
    const auto runtime = current_agent()->runtime();
    const TimePoint deadline = runtime->now() + timeout;
    Duration pause = std::chrono::milliseconds(10);
    const auto again = [&](const std::exception& e) {
      if (runtime->now() + pause >= deadline)
        throw Timeout(str("a remote value could not be made for ",
                          std::chrono::duration<double>(timeout).count(), " s; the last error: ", e.what()));
      runtime->sleep_for(pause);
      pause = std::min(pause * 2, Duration(std::chrono::milliseconds(500)));
    };
    while (true) {
      try {
        const RRef<T> made = part_->factory();
        made.created().wait_for(std::max(deadline - runtime->now(), Duration::zero()));
        return made;
      } catch (const PeerLost& e) {
        again(e);
      } catch (const Fenced& e) {
        again(e);
      }
    }
  }

  std::shared_ptr<Part> part_;
};

}  // namespace weft::rpc
