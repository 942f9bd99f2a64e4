// Event of the threaded runtime. A wait registers itself with the core, for stop(), and gives up its place in
// the pool if it has one. Then it polls (poll_group.h) or sleeps on the event's latch until the event is set,
// the deadline comes or the runtime stops.
//
// A waiting thread that polls also runs unrelated deliveries. They see fresh FiberLocals and thread states.
#include <weft/distributed/runtime/inner/threaded_core.h>

namespace weft::rpc::inner {
namespace {

class ThreadedEvent final : public EventImpl {
 public:
  ThreadedEvent(std::shared_ptr<Core> core, const char* what) : core_(std::move(core)), what_(what) {}

  void set() override {
    Core* core = core_.get();  // the event may be gone after set()
    if (!latch_.set()) return;
    if (auto group = core->poll_group()) group->kick();
  }
  void reset() override { latch_.reset(); }
  bool is_set() const override { return latch_.is_set(); }

  bool wait_until(TimePoint deadline) override {
    if (latch_.is_set()) return true;
    check_may_block(what_);
    if (clock_now() >= deadline) return false;
    Registered here(*this);
    here.refused.run();
    while (true) {
      if (latch_.is_set()) return true;
      if (core_->stopping.load()) throw RuntimeStopped(str("wait for ", what_, ": the runtime has stopped"));
      if (deadline != kNever && clock_now() >= deadline) return false;
      if (here.group != nullptr && here.group->try_take()) {
        poll(*here.group, deadline);
        continue;
      }
      if (here.group == nullptr && latch_.spin(core_->options.spin)) return true;
      if (!latch_.announce() && !core_->stopping.load()) latch_.sleep(deadline);
    }
  }

 private:
  /// Polls until the event is set, the deadline comes or the runtime stops.
  void poll(PollGroup& group, TimePoint deadline) {
    if (!latch_.announce_poll()) {
      ForeignWork work;
      bool more = true;
      while (more && !latch_.is_set() && !core_->stopping.load() &&
             (deadline == kNever || clock_now() < deadline)) {
        more = group.poll(deadline);
      }
      latch_.end_poll();
    }
    group.release(core_->wait_count.load() > 1);
  }

  /// Keeps a wait on the core's list for its scope.
  struct Registered {
    explicit Registered(ThreadedEvent& e) : event(e), pool(pool_core() == e.core_.get()) {
      auto& core = *event.core_;
      MutexLock lock(core.mutex);
      if (core.spare_waits.empty()) core.spare_waits.push_back(nullptr);
      place = core.spare_waits.begin();
      *place = &event.latch_;
      core.waits.splice(core.waits.end(), core.spare_waits, place);
      core.wait_count.fetch_add(1);
      group = core.group;
      if (pool) {
        ++core.stats.blocked;
        if (!core.stopping.load()) dispatch(core, &refused);
      }
    }
    ~Registered() {
      auto& core = *event.core_;
      MutexLock lock(core.mutex);
      core.spare_waits.splice(core.spare_waits.begin(), core.waits, place);
      core.wait_count.fetch_sub(1);
      if (pool) --core.stats.blocked;
    }
    ThreadedEvent& event;
    const bool pool;
    std::list<Latch*>::iterator place;
    std::shared_ptr<PollGroup> group;
    Refused refused;  ///< tasks for which the last running thread of the pool was needed
  };

  std::shared_ptr<Core> core_;
  const char* what_;
  Latch latch_;
};

}  // namespace

std::unique_ptr<EventImpl> make_threaded_event(std::shared_ptr<Core> core, const char* what) {
  return std::make_unique<ThreadedEvent>(std::move(core), what);
}

}  // namespace weft::rpc::inner
