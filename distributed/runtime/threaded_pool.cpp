// The handler pool: idle, running and blocked threads, and the queue of tasks. Its rules of dispatch and
// refusal follow the includes.
#include <weft/distributed/runtime/inner/threaded_core.h>

#include <new>
#include <system_error>

#include <weft/distributed/runtime/inner/task_state.h>
#include <weft/distributed/runtime/inner/time_slice.h>

// The handler pool. At most `threads` of its threads run; the others are idle or blocked in Event::wait. The
// pool applies its dispatch rule at a post, at the begin of a wait and at the end of a task. While a task is
// queued and fewer than `threads` run, an idle thread takes it, or a new thread starts. So nested calls
// cannot hang. One thread is woken at a time, and it applies the rule again when it begins. Until then the
// running threads take the short tasks of a burst, without a wake-up for each. The thread that went idle last
// comes first, since its cache is warm. A thread that returns from a wait continues even above the limit, but
// takes no further task until the number is below it. A handler on a polling thread counts as a pool thread.
//
// A queued task that needs a new thread when none can be made waits while a thread of the pool runs. When all
// are blocked, perhaps by each other, a task of post_or_refuse is refused; others wait for the next free one.

namespace weft::rpc::inner {

Core*& pool_core() {
  static thread_local Core* core = nullptr;
  return core;
}

/// Joins threads that have announced their end.
void join_all(Workers& gone) {
  for (auto& worker : gone) {
    if (worker.thread.joinable()) worker.thread.join();
  }
}

void worker_main(std::shared_ptr<Core> core, Workers::iterator self);

namespace {

struct Refusal {
  const char* why = nullptr;
  Refused* running = nullptr;
};
Refusal& current_refusal() {
  static thread_local Refusal refusal;
  return refusal;
}

/// Takes the tasks out of the queue that may be refused, if no thread of the pool runs. `limit`: as text, and
/// a number or an error.
template <class More>
void refuse_queued(Core& core, Refused* refused, const char* limit, const More& more)
    WEFT_REQUIRES(core.mutex) {
  if (refused == nullptr || core.stats.threads > core.stats.blocked) return;
  refused->why = str("cannot start another thread: ", core.stats.threads, " run, all blocked; ", limit, more);
  for (auto it = core.queue.begin(); it != core.queue.end();) {
    if (!it->may_refuse) {
      ++it;
      continue;
    }
    refused->tasks.push_back(std::move(it->task));
    it = core.queue.erase(it);
  }
  core.queued = core.queue.size();
}

}  // namespace

void Refused::run() {
  if (tasks.empty()) return;
  Refusal& current = current_refusal();
  if (current.running != nullptr) {
    for (Task& task : tasks) current.running->tasks.push_back(std::move(task));
    tasks.clear();
    return;
  }
  const ForeignWork work;
  const NoBlockScope scope("a refused task");
  current = {why.c_str(), this};
  for (size_t i = 0; i < tasks.size(); ++i) {  // a task may add further ones
    Task task = std::move(tasks[i]);
    run_task(task);
  }
  current = {};
}

namespace {

/// Gives a queued task to a thread, if the rule at the head allows it. Throws: bad_alloc, with all tasks
/// queued or refused.
void try_dispatch(Core& core, Refused* refused) WEFT_REQUIRES(core.mutex) {
  if (core.queue.empty() || core.waking ||
      core.stats.threads - core.stats.idle - core.stats.blocked >= core.options.threads)
    return;
  if (!core.idle.empty()) {
    auto worker = core.idle.back();
    core.idle.pop_back();
    --core.stats.idle;
    worker->task = std::move(core.queue.front().task);
    core.queue.pop_front();
    core.queued = core.queue.size();
    core.waking = true;  // before the thread can begin
    worker->wake.set();
  } else {
    if (core.stats.threads >= core.options.max_threads)
      return refuse_queued(core, refused, "max_threads is ", core.options.max_threads);
    const size_t before = core.workers.size();
    try {
      if (!core.may_start(core.stats.threads))
        throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
      // a thread that has ended its task needs no memory to become idle
      if (core.idle.capacity() <= before) core.idle.reserve(2 * before + 8);
      core.workers.emplace_back();
      const auto worker = std::prev(core.workers.end());
      worker->task = std::move(core.queue.front().task);
      worker->thread = std::thread(worker_main, core.self.lock(), worker);
    } catch (const std::exception& e) {  // a system_error or bad_alloc
      if (core.workers.size() > before) {
        if (core.workers.back().task) core.queue.front().task = std::move(core.workers.back().task);
        core.workers.pop_back();
      }
      return refuse_queued(core, refused, "the system gives no more: ", e.what());
    }
    ++core.stats.threads;
    core.stats.peak_threads = std::max(core.stats.peak_threads, core.stats.threads);
    core.queue.pop_front();
    core.queued = core.queue.size();
    core.waking = true;  // the thread begins with the lock
  }
}

}  // namespace

void dispatch(Core& core, Refused* refused) WEFT_REQUIRES(core.mutex) {
  try {
    try_dispatch(core, refused);
  } catch (const std::bad_alloc&) {  // the tasks wait for the next dispatch
  }
}

/// The thread that was woken, or started, begins its task. It takes the lock if a task is queued. One that is
/// queued later finds that no thread is being woken: both words are sequentially consistent.
void begin_task(Core& core) {
  core.waking = false;
  if (core.queued == 0) return;
  Refused refused;
  MutexLock lock(core.mutex);
  if (!core.stopping.load()) dispatch(core, &refused);
  lock.unlock();
  refused.run();
}

/// Waits for a task, at most for the idle limit. False: the worker must end.
bool wait_for_task(Core& core, Workers::iterator self) {
  const TimePoint limit = clock_now() + core.options.idle_limit;
  while (!self->wake.announce()) {
    if (clock_now() >= limit || core.stopping.load()) {
      MutexLock lock(core.mutex);
      auto it = std::find(core.idle.begin(), core.idle.end(), self);
      if (it == core.idle.end()) continue;  // it was given a task meanwhile; its wake-up follows
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
  ask_for_time_slice(core->options.time_slice);
  { MutexLock lock(core->mutex); }  // the starter still writes self->thread
  begin_task(*core);
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
        self->task = std::move(core->queue.front().task);
        core->queue.pop_front();
        core->queued = core->queue.size();
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
      if (wait_for_task(*core, self)) {
        begin_task(*core);
        continue;
      }
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

void pool_post(const std::shared_ptr<Core>& core, Task task, bool may_refuse) {
  auto& c = *core;
  Refused refused;
  MutexLock lock(c.mutex);
  if (c.stopping.load()) return;  // destroyed with the argument, after the lock
  InlinePlace& place = inline_place();
  if (place.task != nullptr && place.host == core.get() && !*place.task && c.queue.empty() &&
      c.stats.threads - c.stats.idle - c.stats.blocked < c.options.threads) {
    ++c.stats.threads;
    c.stats.peak_threads = std::max(c.stats.peak_threads, c.stats.threads);
    *place.task = std::move(task);
    place.may_refuse = may_refuse;
    return;
  }
  c.queue.push_back({std::move(task), may_refuse});
  c.queued = c.queue.size();
  // the poster of other tasks may hold a lock, under which no refused task must run
  dispatch(c, may_refuse ? &refused : nullptr);
  lock.unlock();
  refused.run();
}

void Core::run_inline(Task& task) {
  pool_core() = this;
  run_task(task);
  pool_core() = nullptr;
  current_state()->slots.fill(nullptr);
  Refused refused;
  MutexLock lock(mutex);
  ++stats.completed;
  --stats.threads;
  if (stats.threads == 0 && drained != nullptr) drained->set();
  // This keeps the core for the threads that it may start.
  if (const auto held = self.lock(); held != nullptr && !stopping.load()) {
    dispatch(*this, &refused);
    lock.unlock();
    refused.run();
  }
}

bool Core::has_queued() { return queued.load() > 0; }

void Core::give_to_pool(Task& task, bool may_refuse) {
  MutexLock lock(mutex);
  if (stopping.load()) return;
  // Another thread of the pool has to run: perhaps none can be started.
  if (idle.empty() && stats.threads - stats.blocked <= 1) return;
  try {
    queue.emplace_front();
  } catch (const std::bad_alloc&) {
    return;
  }
  queue.front() = {std::move(task), may_refuse};
  task = {};
  queued = queue.size();
  --stats.threads;  // pool_post has counted this thread
  dispatch(*this, nullptr);
}

bool Core::has_waiters() { return wait_count.load() > 0; }

void Core::wake_a_waiter() {
  MutexLock lock(mutex);
  for (Latch* latch : waits) {
    if (latch->nudge()) return;
  }
}

}  // namespace weft::rpc::inner

namespace weft::rpc {

const char* refusal() { return inner::current_refusal().why; }

}  // namespace weft::rpc
