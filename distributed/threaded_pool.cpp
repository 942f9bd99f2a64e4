// The handler pool. At most `threads` of its threads may be neither blocked nor idle; a thread inside Event::wait counts as blocked. The
// rule that keeps nested calls from hanging is kept at three moments - a post, the begin of a wait, the end of a task: if a task is
// queued and fewer than `threads` run, an idle thread (the one that went idle last, whose cache is warm) takes it, or a new thread is
// started. A thread that comes back from a wait runs on even if that makes one too many; it takes no further task until the number
// fits again. A handler that runs on a polling thread counts as a thread of the pool while it lasts.
#include <weft/distributed/threaded_core.h>

#include <system_error>

#include <weft/distributed/task_state.h>

namespace weft::rpc::inner {

Core*& pool_core() {
  static thread_local Core* core = nullptr;
  return core;
}

/// Ends a thread that has announced its return.
void join_all(Workers& gone) {
  for (auto& worker : gone) {
    if (worker.thread.joinable()) worker.thread.join();
  }
}

void worker_main(std::shared_ptr<Core> core, Workers::iterator self);

/// Starts as many queued tasks as the rule at the head allows. The lock is held.
void dispatch(const std::shared_ptr<Core>& core) WEFT_REQUIRES(core->mutex) {
  auto& c = *core;
  while (!c.queue.empty() && c.stats.threads - c.stats.idle - c.stats.blocked < c.options.threads) {
    if (!c.idle.empty()) {
      auto worker = c.idle.back();
      c.idle.pop_back();
      --c.stats.idle;
      worker->task = std::move(c.queue.front());
      c.queue.pop_front();
      worker->wake.set();
      continue;
    }
    if (c.stats.threads >= c.options.max_threads) return;
    c.workers.emplace_back();
    auto worker = std::prev(c.workers.end());
    worker->task = std::move(c.queue.front());
    try {
      worker->thread = std::thread(worker_main, core, worker);
    } catch (const std::system_error&) {  // the system has no more threads: the task waits for one that ends
      c.queue.front() = std::move(worker->task);
      c.workers.pop_back();
      return;
    }
    c.queue.pop_front();
    ++c.stats.threads;
    c.stats.peak_threads = std::max(c.stats.peak_threads, c.stats.threads);
  }
}

/// Spare time of a worker without a task. True if it has a new one.
bool wait_for_task(Core& core, Workers::iterator self) {
  const TimePoint limit = clock_now() + core.options.idle_limit;
  while (!self->wake.announce()) {
    if (clock_now() >= limit || core.stopping.load()) {
      MutexLock lock(core.mutex);
      auto it = std::find(core.idle.begin(), core.idle.end(), self);
      if (it == core.idle.end()) continue;  // chosen meanwhile: the wake is on its way
      core.idle.erase(it);
      --core.stats.idle;
      return false;
    }
    self->wake.sleep(limit);
  }
  return true;
}

void worker_main(std::shared_ptr<Core> core, Workers::iterator self) {
  pool_core() = core.get();
  {  // the starter still writes self->thread under the lock
    MutexLock lock(core->mutex);
  }
  Workers gone;
  while (true) {
    run_task(self->task);
    current_state()->slots.fill(nullptr);
    MutexLock lock(core->mutex);
    ++core->stats.completed;
    gone.splice(gone.end(), core->finished);
    if (!core->stopping.load()) {
      const int running = core->stats.threads - core->stats.idle - core->stats.blocked;
      if (!core->queue.empty() && running <= core->options.threads) {
        self->task = std::move(core->queue.front());
        core->queue.pop_front();
        lock.unlock();
        join_all(gone);
        gone.clear();
        continue;
      }
      self->wake.reset();
      core->idle.push_back(self);
      ++core->stats.idle;
      lock.unlock();
      join_all(gone);
      gone.clear();
      if (wait_for_task(*core, self)) continue;
      lock.lock();
    }
    core->finished.splice(core->finished.end(), core->workers, self);
    --core->stats.threads;
    if (core->stats.threads == 0 && core->drained != nullptr) core->drained->set();
    lock.unlock();
    join_all(gone);
    return;
  }
}

void pool_post(const std::shared_ptr<Core>& core, Task task) {
  auto& c = *core;
  MutexLock lock(c.mutex);
  if (c.stopping.load()) return;  // destroyed with the argument, after the lock
  const InlinePlace& place = inline_place();
  if (place.task != nullptr && place.host == core.get() && !*place.task && c.queue.empty() &&
      c.stats.threads - c.stats.idle - c.stats.blocked < c.options.threads) {
    ++c.stats.threads;
    c.stats.peak_threads = std::max(c.stats.peak_threads, c.stats.threads);
    *place.task = std::move(task);
    return;
  }
  c.queue.push_back(std::move(task));
  dispatch(core);
}

void Core::run_inline(Task& task) {
  pool_core() = this;
  run_task(task);
  pool_core() = nullptr;
  current_state()->slots.fill(nullptr);
  MutexLock lock(mutex);
  ++stats.completed;
  --stats.threads;
  if (stats.threads == 0 && drained != nullptr) drained->set();
  if (auto held = self.lock(); held != nullptr && !stopping.load()) dispatch(held);
}

bool Core::has_waiters() { return wait_count.load() > 0; }

void Core::wake_a_waiter() {
  MutexLock lock(mutex);
  for (Latch* latch : waits) {
    if (latch->nudge()) return;
  }
}

}  // namespace weft::rpc::inner
