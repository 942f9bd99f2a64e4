// The real runtime: threads, the steady clock, futexes.
//
// Pool. A task runs on one of the pool's threads. Threads that are inside Event::wait count as blocked; at most `threads` may be
// neither blocked nor idle. The rule that keeps nested calls from hanging is kept at three moments - a post, the begin of a wait,
// the end of a task: if a task is queued and fewer than `threads` run, an idle thread (the one that went idle last, whose cache is
// warm) takes it, or a new thread is started. A thread that comes back from a wait runs on even if that makes one too many; it
// takes no further task until the number fits again.
//
// Event. One futex word: clear, set, or clear with waiters. set() touches nothing after its exchange but the address it wakes, so
// an event may be destroyed as soon as a wait returned. A waiter registers itself with the core before it sleeps; stop() walks that
// list.
//
// Life. Threads hold the Core, not the Runtime: stop() leaves behind whoever does not end in time, and they stay harmless.
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <ctime>
#include <deque>
#include <list>
#include <map>
#include <random>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <vector>

#include <weft/distributed/runtime.h>
#include <weft/distributed/sync.h>
#include <weft/distributed/task_state.h>

namespace weft::rpc {
namespace {

TimePoint clock_now() { return std::chrono::time_point_cast<Duration>(std::chrono::steady_clock::now()); }

/// Sleeps while *word == expected, until `deadline` at most; may wake for no reason.
void futex_wait(std::atomic<uint32_t>& word, uint32_t expected, TimePoint deadline) {
  timespec ts{};
  timespec* limit = nullptr;
  if (deadline != kNever) {
    const auto ns = std::max<int64_t>(0, deadline.time_since_epoch().count());
    ts.tv_sec = ns / 1'000'000'000;
    ts.tv_nsec = ns % 1'000'000'000;
    limit = &ts;
  }
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_BITSET_PRIVATE, expected, limit, nullptr, FUTEX_BITSET_MATCH_ANY);
}
void futex_wake(std::atomic<uint32_t>& word, int count) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

constexpr uint32_t kClear = 0, kSet = 1, kWaited = 2;

/// A futex word that is set once by one side and waited for by others.
class Latch {
 public:
  void set() {
    if (word_.exchange(kSet, std::memory_order_acq_rel) == kWaited) futex_wake(word_, INT32_MAX);
  }
  void reset() {
    uint32_t expected = kSet;
    word_.compare_exchange_strong(expected, kClear, std::memory_order_acq_rel);
  }
  bool is_set() const { return word_.load(std::memory_order_acquire) == kSet; }
  /// Wakes the sleepers without setting it.
  void nudge() {
    uint32_t expected = kWaited;
    if (word_.compare_exchange_strong(expected, kClear, std::memory_order_seq_cst)) futex_wake(word_, INT32_MAX);
  }
  bool spin(Duration limit) const {
    if (is_set()) return true;
    if (limit <= Duration::zero()) return false;
    const TimePoint end = clock_now() + limit;
    do {
      for (int i = 0; i < 16; ++i) {
        cpu_relax();
        if (is_set()) return true;
      }
    } while (clock_now() < end);
    return false;
  }
  /// Marks it as waited for; true if it is set already.
  bool announce() {
    uint32_t expected = kClear;
    word_.compare_exchange_strong(expected, kWaited, std::memory_order_seq_cst);
    return expected == kSet;
  }
  void sleep(TimePoint deadline) { futex_wait(word_, kWaited, deadline); }

 private:
  std::atomic<uint32_t> word_{kClear};
};

struct Worker {
  Task task;
  Latch wake;
  std::thread thread;
};

using Workers = std::list<Worker>;

/// Everything the threads share.
struct Core {
  explicit Core(const ThreadedOptions& o) : options(o) {}
  const ThreadedOptions options;
  std::atomic<bool> stopping{false};

  Mutex mutex;
  std::deque<Task> queue WEFT_GUARDED_BY(mutex);
  Workers workers WEFT_GUARDED_BY(mutex);
  Workers finished WEFT_GUARDED_BY(mutex);  // threads about to return, to be joined
  std::vector<Workers::iterator> idle WEFT_GUARDED_BY(mutex);
  std::list<Latch*> waits WEFT_GUARDED_BY(mutex);
  PoolStats stats WEFT_GUARDED_BY(mutex);
  std::shared_ptr<Latch> drained WEFT_GUARDED_BY(mutex);  // set when the last pool thread leaves after a stop

  Mutex timer_mutex;
  std::map<std::pair<TimePoint, uint64_t>, Task> timers WEFT_GUARDED_BY(timer_mutex);
  std::unordered_map<uint64_t, TimePoint> timer_times WEFT_GUARDED_BY(timer_mutex);
  uint64_t next_timer WEFT_GUARDED_BY(timer_mutex) = 1;
  TimePoint timer_sleeps_until WEFT_GUARDED_BY(timer_mutex) = TimePoint::min();
  Latch timer_wake;
  std::thread timer_thread;
};

thread_local Core* tl_pool_core = nullptr;  // set on pool threads only

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
  if (self->wake.spin(core.options.spin)) return true;
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
  tl_pool_core = core.get();
  {  // the starter still writes self->thread under the lock
    MutexLock lock(core->mutex);
  }
  Workers gone;
  while (true) {
    inner::run_task(self->task);
    inner::current_state()->slots.fill(nullptr);
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

class ThreadedEvent final : public EventImpl {
 public:
  ThreadedEvent(std::shared_ptr<Core> core, const char* what) : core_(std::move(core)), what_(what) {}

  void set() override { latch_.set(); }
  void reset() override { latch_.reset(); }
  bool is_set() const override { return latch_.is_set(); }

  bool wait_until(TimePoint deadline) override {
    if (latch_.is_set()) return true;
    inner::check_may_block(what_);
    if (clock_now() >= deadline) return false;
    const Duration spin = core_->options.spin;
    if (latch_.spin(deadline == kNever ? spin : std::min(spin, Duration(deadline - clock_now())))) return true;
    const bool pool = tl_pool_core == core_.get();
    std::list<Latch*> node{&latch_};
    const auto place = node.begin();
    {
      MutexLock lock(core_->mutex);
      if (core_->stopping.load()) throw_stopped();
      core_->waits.splice(core_->waits.end(), node);
      if (pool) {
        ++core_->stats.blocked;
        dispatch(core_);
      }
    }
    const Registered here{*this, place, pool, deadline};
    return here.sleep();
  }

 private:
  /// A wait on the core's list, until the end of its scope.
  struct Registered {
    ThreadedEvent& event;
    std::list<Latch*>::iterator place;
    bool pool;
    TimePoint deadline;
    bool sleep() const {
      while (!event.latch_.announce()) {
        if (event.core_->stopping.load()) {
          if (event.latch_.is_set()) return true;
          event.throw_stopped();
        }
        if (deadline != kNever && clock_now() >= deadline) return false;
        event.latch_.sleep(deadline);
      }
      return true;
    }
    ~Registered() {
      MutexLock lock(event.core_->mutex);
      event.core_->waits.erase(place);
      if (pool) --event.core_->stats.blocked;
    }
  };

  [[noreturn]] void throw_stopped() const { throw RuntimeStopped(str("wait for ", what_, ": the runtime has stopped")); }

  std::shared_ptr<Core> core_;
  const char* what_;
  Latch latch_;
};

class ThreadService final : public Service {
 public:
  explicit ThreadService(Task body) : thread_([b = std::move(body)]() mutable { inner::run_task(b); }) {}
  ~ThreadService() override { ThreadService::join(); }
  void join() override {
    if (!thread_.joinable()) return;
    if (thread_.get_id() == std::this_thread::get_id()) {
      thread_.detach();
    } else {
      thread_.join();
    }
  }

 private:
  std::thread thread_;
};

void timer_main(const std::shared_ptr<Core>& core) {
  MutexLock lock(core->timer_mutex);
  while (!core->stopping.load()) {
    core->timer_wake.reset();
    const TimePoint now = clock_now();
    if (!core->timers.empty() && core->timers.begin()->first.first <= now) {
      auto first = core->timers.begin();
      Task task = std::move(first->second);
      core->timer_times.erase(first->first.second);
      core->timers.erase(first);
      core->timer_sleeps_until = TimePoint::min();
      lock.unlock();
      {
        NoBlockScope scope("a timer callback");
        inner::run_task(task);
      }
      lock.lock();
      continue;
    }
    core->timer_sleeps_until = core->timers.empty() ? kNever : core->timers.begin()->first.first;
    const TimePoint until = core->timer_sleeps_until;
    lock.unlock();
    if (!core->timer_wake.announce() && !core->stopping.load()) core->timer_wake.sleep(until);
    lock.lock();
  }
}

class ThreadedRuntime final : public Runtime {
 public:
  explicit ThreadedRuntime(const ThreadedOptions& options) : core_(std::make_shared<Core>(options)) {
    std::random_device device;
    seed_ = (uint64_t{device()} << 32) ^ device();
  }
  ~ThreadedRuntime() override { ThreadedRuntime::stop(std::chrono::seconds(10)); }

  TimePoint now() override { return clock_now(); }

  void post(Task task) override {
    MutexLock lock(core_->mutex);
    if (core_->stopping.load()) return;  // destroyed by the caller's frame, after the lock
    core_->queue.push_back(std::move(task));
    dispatch(core_);
  }

  TimerId call_at(TimePoint when, Task task) override {
    MutexLock lock(core_->timer_mutex);
    if (core_->stopping.load()) return {};
    const uint64_t id = core_->next_timer++;
    core_->timers.emplace(std::pair(when, id), std::move(task));
    core_->timer_times.emplace(id, when);
    if (!core_->timer_thread.joinable()) {
      core_->timer_thread = std::thread([core = core_] { timer_main(core); });
    } else if (when < core_->timer_sleeps_until) {
      core_->timer_sleeps_until = when;
      lock.unlock();
      core_->timer_wake.set();
    }
    return {id};
  }

  bool cancel(TimerId id) override {
    Task dropped;  // destroyed after the lock
    MutexLock lock(core_->timer_mutex);
    auto time = core_->timer_times.find(id.value);
    if (time == core_->timer_times.end()) return false;
    auto timer = core_->timers.find(std::pair(time->second, id.value));
    dropped = std::move(timer->second);
    core_->timers.erase(timer);
    core_->timer_times.erase(time);
    lock.unlock();
    return true;
  }

  std::unique_ptr<Service> start_service(std::string, Task body) override { return std::make_unique<ThreadService>(std::move(body)); }

  std::unique_ptr<EventImpl> make_event(const char* what) override { return std::make_unique<ThreadedEvent>(core_, what); }

  uint64_t random() override {  // splitmix64 over a random start
    uint64_t z = seed_.fetch_add(0x9e3779b97f4a7c15ULL) + 0x9e3779b97f4a7c15ULL;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }

  PoolStats pool_stats() override {
    MutexLock lock(core_->mutex);
    PoolStats stats = core_->stats;
    stats.queued = static_cast<int>(core_->queue.size());
    stats.max_threads = core_->options.max_threads;
    return stats;
  }

  void trace(std::string_view) override {}
  bool tracing() const override { return false; }
  bool simulated() const override { return false; }

  int stop(Duration limit) override {
    std::deque<Task> queue;
    std::map<std::pair<TimePoint, uint64_t>, Task> timers;
    std::thread timer_thread;
    {
      MutexLock lock(core_->timer_mutex);
      core_->stopping.store(true);
      timers.swap(core_->timers);
      core_->timer_times.clear();
      timer_thread.swap(core_->timer_thread);
    }
    core_->timer_wake.set();
    if (timer_thread.joinable()) {
      if (timer_thread.get_id() == std::this_thread::get_id()) {
        timer_thread.detach();
      } else {
        timer_thread.join();
      }
    }
    auto drained = std::make_shared<Latch>();
    const int own = tl_pool_core == core_.get() ? 1 : 0;  // the last reference may be dropped by a task
    {
      MutexLock lock(core_->mutex);
      queue.swap(core_->queue);
      for (Latch* wait : core_->waits) wait->nudge();
      for (auto worker : core_->idle) worker->wake.nudge();
      core_->drained = drained;
      if (core_->stats.threads == 0) drained->set();
    }
    queue.clear();
    timers.clear();
    const TimePoint deadline = clock_now() + (own > 0 ? Duration::zero() : limit);
    while (!drained->announce() && clock_now() < deadline) drained->sleep(deadline);
    Workers gone, left;
    {
      MutexLock lock(core_->mutex);
      gone.splice(gone.end(), core_->finished);
      core_->drained.reset();
      for (auto& worker : core_->workers) {  // they move themselves to `finished`; nobody joins them any more
        if (worker.thread.joinable()) worker.thread.detach();
      }
    }
    join_all(gone);
    MutexLock lock(core_->mutex);
    return core_->stats.threads;
  }

 private:
  std::shared_ptr<Core> core_;
  std::atomic<uint64_t> seed_{0};
};

}  // namespace

std::shared_ptr<Runtime> make_threaded_runtime(ThreadedOptions options) {
  if (options.threads < 1) throw ValueError(str("make_threaded_runtime: threads is ", options.threads, ", at least 1 is needed"));
  if (options.max_threads < options.threads) {
    throw ValueError(str("make_threaded_runtime: max_threads is ", options.max_threads, ", below threads, ", options.threads));
  }
  if (options.spin < Duration::zero()) {
    options.spin = std::thread::hardware_concurrency() > 1 ? std::chrono::microseconds(20) : Duration::zero();
  }
  return std::make_shared<ThreadedRuntime>(options);
}

}  // namespace weft::rpc
