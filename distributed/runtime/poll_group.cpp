// The leader/followers poll group of the threaded runtime; poll_group.h describes the pattern. Waiting
// threads take the role in threaded_event.cpp, the two service threads here.
#include <weft/distributed/runtime/inner/poll_group.h>

#include <new>
#include <system_error>

#include <weft/distributed/runtime/inner/task_state.h>
#include <weft/distributed/runtime/inner/time_slice.h>
#include <weft/distributed/runtime/runtime.h>
#include <weft/kernels/str.h>

namespace weft::rpc::inner {

InlinePlace& inline_place() {
  static thread_local InlinePlace place;
  return place;
}

namespace {

thread_local const PollGroup* polled_group = nullptr;

class PollsHere {
 public:
  explicit PollsHere(const PollGroup& group) { polled_group = &group; }
  ~PollsHere() { polled_group = nullptr; }
  PollsHere(const PollsHere&) = delete;
};

}  // namespace

const PollGroup* PollGroup::polled_here() { return polled_group; }

void PollGroup::start(Duration slice, const std::shared_ptr<void>& keep) {
  try {
    for (size_t i = 0; i < threads_.size(); ++i) {
      if (!host_.may_start(static_cast<int>(i)))
        throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
      threads_[i] = std::thread([self = shared_from_this(), slice, keep, i] {
        ask_for_time_slice(slice);
        self->serve(i);
      });
    }
  } catch (const std::system_error& e) {
    finish();
    kick();  // the thread that has started may poll
    join();
    throw Overloaded(str("cannot start a thread that polls: ", e.what()));
  }
}

void PollGroup::finish() {
  finished_.store(true);
  finished_.notify_all();
  for (auto& latch : wake_) latch.set();
}

void PollGroup::join() {
  finished_.wait(false);  // from here on no thread polls, nor takes up a handler
  for (size_t i = 0; i < threads_.size(); ++i) {
    std::thread& thread = threads_[i];
    if (!thread.joinable()) continue;
    if (thread.get_id() == std::this_thread::get_id() || in_handler_[i].load()) {
      thread.detach();
    } else {
      thread.join();
    }
  }
}

bool PollGroup::poll(TimePoint deadline) {
  Poller* const poller = poller_;
  if (poller == nullptr) return false;
  try {
    const PollsHere here(*this);
    if (poller->poll(deadline)) return true;
  } catch (const std::bad_alloc&) {  // the next poll goes on; no other thread may end by it
    return true;
  }
  {
    MutexLock lock(mutex_);
    poller_ = nullptr;
  }
  finish();
  return false;
}

void PollGroup::release(bool wake) {
  moves_.fetch_add(1);
  // sequentially consistent: either a thread that falls asleep sees this store, or this thread sees it asleep
  taken_.store(false);
  if (wake) host_.wake_a_waiter();
  if (ticking_.load() > 0) return;
  for (size_t i = 0; i < wake_.size(); ++i) {
    if (asleep_[i].exchange(false)) {
      wake_[i].set();
      return;
    }
  }
}

void PollGroup::pass_to_service() {
  passed_.store(true);
  release(false);
  wake_[in_handler_[0].load() ? 1 : 0].set();
}

void PollGroup::kick() {
  MutexLock lock(mutex_);
  if (Poller* const poller = poller_) poller->kick();
}

void PollGroup::serve(size_t index) {
  Task task;
  bool offered = false;  // the role was offered to a waiting thread, which has not taken it
  while (!finished_.load()) {
    if (!try_take()) {
      offered = false;
      rest(index);
      continue;
    }
    bool more = true;
    while (more && !task && !finished_.load() && (offered || !host_.has_waiters())) {
      offered = false;
      InlinePlace& place = inline_place();
      if (!in_handler_[1 - index].load()) place = {&task, &host_};
      more = poll(kNever);
      if (task && host_.has_queued()) host_.give_to_pool(task, place.may_refuse);
      place = {};
    }
    if (task) in_handler_[index].store(true);
    offered = host_.has_waiters();
    release(offered);
    if (task) {
      host_.run_inline(task);
      in_handler_[index].store(false);
    } else if (more) {
      rest(index);
    }
  }
}

/// Waits until the role has been free for a tick, or was passed on.
void PollGroup::rest(size_t index) {
  Latch& latch = wake_[index];
  ticking_.fetch_add(1);
  uint64_t seen = moves_.load();
  for (int still = 0; !finished_.load();) {
    latch.reset();
    if (passed_.exchange(false)) break;
    if (still < kRestAfter) {
      if (!latch.announce()) latch.sleep(clock_now() + kTick);
    } else {  // the leader keeps the role for long: sleep until it gives it up
      ticking_.fetch_sub(1);
      asleep_[index].store(true);
      if (taken_.load() && !finished_.load()) {
        while (!latch.announce() && !finished_.load()) latch.sleep(kNever);
      }
      asleep_[index].store(false);
      ticking_.fetch_add(1);
      still = 0;
      seen = moves_.load();
      continue;
    }
    const uint64_t now = moves_.load();
    if (now == seen) {
      if (!taken_.load()) break;
      ++still;
    } else {
      still = 0;
      seen = now;
    }
  }
  ticking_.fetch_sub(1);
}

}  // namespace weft::rpc::inner
