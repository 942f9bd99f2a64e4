// The moving role of the poller; the idea stands at the head of poll_group.h.
#include <weft/distributed/poll_group.h>

#include <weft/distributed/task_state.h>

namespace weft::rpc::inner {

InlinePlace& inline_place() {
  static thread_local InlinePlace place;
  return place;
}

void PollGroup::start(const std::shared_ptr<void>& keep) {
  for (size_t i = 0; i < threads_.size(); ++i) {
    threads_[i] = std::thread([self = shared_from_this(), keep, i] { self->serve(i); });
  }
}

void PollGroup::join() {
  for (auto& thread : threads_) {
    if (!thread.joinable()) continue;
    if (thread.get_id() == std::this_thread::get_id()) {
      thread.detach();
    } else {
      thread.join();
    }
  }
}

bool PollGroup::poll(TimePoint deadline) {
  Poller* poller = nullptr;
  {
    MutexLock lock(mutex_);
    poller = poller_;
  }
  if (poller == nullptr) return false;
  if (poller->poll(deadline)) return true;
  {
    MutexLock lock(mutex_);
    poller_ = nullptr;
    finished_.store(true);
  }
  for (auto& latch : wake_) latch.set();
  return false;
}

void PollGroup::release(bool wake) {
  moves_.fetch_add(1);
  taken_.store(
      false);  // sequentially consistent: a thread that then falls asleep sees it, or we see it asleep
  if (wake) host_.wake_a_waiter();
  if (ticking_.load() > 0) return;
  for (size_t i = 0; i < wake_.size(); ++i) {
    if (asleep_[i].exchange(false)) {
      wake_[i].set();
      return;
    }
  }
}

void PollGroup::kick() {
  MutexLock lock(mutex_);
  if (poller_ != nullptr) poller_->kick();
}

void PollGroup::serve(size_t index) {
  Task task;
  bool offered = false;  // to a waiting thread, and not taken up
  while (!finished_.load()) {
    if (!try_take()) {
      offered = false;
      rest(index);
      continue;
    }
    bool more = true;
    while (more && !task && (offered || !host_.has_waiters())) {
      offered = false;
      if (inline_running_.load() == 0) inline_place() = {&task, &host_};
      more = poll(kNever);
      inline_place() = {};
    }
    if (task) inline_running_.fetch_add(1);
    offered = host_.has_waiters();
    release(offered);
    if (task) {
      host_.run_inline(task);
      inline_running_.fetch_sub(1);
    } else if (more) {
      rest(index);
    }
  }
}

/// Waits until the role has lain free for a tick.
void PollGroup::rest(size_t index) {
  Latch& latch = wake_[index];
  ticking_.fetch_add(1);
  uint64_t seen = moves_.load();
  for (int still = 0; !finished_.load();) {
    latch.reset();
    if (still < kRestAfter) {
      if (!latch.announce()) latch.sleep(clock_now() + kTick);
    } else {  // whoever holds the role holds it for long: sleep until it is laid down
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
