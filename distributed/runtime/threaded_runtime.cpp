// The threaded runtime: threads, the steady clock, futexes. This file has timers, services, start and stop.
// The pool is in threaded_pool.cpp, waits are in threaded_event.cpp, polling is in poll_group.cpp.
#include <random>
#include <system_error>
#include <thread>

#include <weft/distributed/runtime/inner/task_state.h>
#include <weft/distributed/runtime/inner/threaded_core.h>
#include <weft/distributed/runtime/inner/time_slice.h>
#include <weft/distributed/runtime/runtime.h>
#include <weft/distributed/runtime/sync.h>
#include <weft/kernels/cpu/limits.h>

namespace weft::rpc {
namespace {

using inner::clock_now;
using inner::Core;
using inner::Latch;

/// Starts a thread of the runtime's own. Throws: Overloaded when the system gives no more.
template <class Body> std::thread start_own(const std::string& name, Duration slice, Body body) {
  try {
    return std::thread([slice, run = std::move(body)]() mutable {
      inner::ask_for_time_slice(slice);
      run();
    });
  } catch (const std::system_error& e) {
    throw Overloaded(str("cannot start a thread for ", name, ": ", e.what()));
  }
}

class ThreadService final : public Service {
 public:
  ThreadService(const std::string& name, Duration slice, Task body)
      : thread_(start_own(name, slice, [b = std::move(body)]() mutable { inner::run_task(b); })) {}
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

/// The Service of the shared poller.
class GroupService final : public Service {
 public:
  GroupService(std::shared_ptr<Core> core, std::shared_ptr<inner::PollGroup> group)
      : core_(std::move(core)), group_(std::move(group)) {
    group_->start(core_->options.time_slice, core_);
  }
  ~GroupService() override { GroupService::join(); }
  void join() override {
    group_->join();
    MutexLock lock(core_->mutex);
    if (core_->group != group_) return;
    core_->open_group = nullptr;
    group_->earlier = std::exchange(core_->ended_groups, nullptr);
    if (core_->unregistered == 0) group_->earlier = nullptr;
    else core_->ended_groups = group_;
    core_->group.reset();
  }

 private:
  std::shared_ptr<Core> core_;
  std::shared_ptr<inner::PollGroup> group_;
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
    core_->self = core_;
    std::random_device device;
    seed_ = (uint64_t{device()} << 32) ^ device();
  }
  ~ThreadedRuntime() override { ThreadedRuntime::stop(std::chrono::seconds(10)); }

  TimePoint now() override { return clock_now(); }
  TimePoint lease_time() override {
    timespec t{};
    if (clock_gettime(CLOCK_BOOTTIME, &t) != 0) return clock_now();
    return TimePoint(std::chrono::seconds(t.tv_sec) + std::chrono::nanoseconds(t.tv_nsec));
  }

  void post(Task task) override { inner::pool_post(core_, std::move(task), false); }
  void post_or_refuse(Task task) override { inner::pool_post(core_, std::move(task), true); }

  TimerId call_at(TimePoint when, Task task) override {
    MutexLock lock(core_->timer_mutex);
    if (core_->stopping.load()) return {};
    const uint64_t id = core_->next_timer++;
    core_->timer_times.emplace(id, when);
    try {
      core_->timers.emplace(std::pair(when, id), std::move(task));
    } catch (...) {  // no memory
      core_->timer_times.erase(id);
      throw;
    }
    if (!core_->timer_thread.joinable()) {
      core_->timer_thread =
          start_own("timers", core_->options.time_slice, [core = core_] { timer_main(core); });
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

  std::unique_ptr<Service> start_service(std::string name, Task body) override {
    return std::make_unique<ThreadService>(name, core_->options.time_slice, std::move(body));
  }

  std::unique_ptr<Service> start_poller(std::string name, Poller& poller, bool shared) override {
    if (shared && core_->poll_group() == nullptr) {
      auto group = std::make_shared<inner::PollGroup>(poller, *core_);
      auto service = std::make_unique<GroupService>(core_, group);
      MutexLock lock(core_->mutex);
      if (core_->group != nullptr) return service;  // its own two threads poll it
      core_->group = std::move(group);
      core_->open_group = core_->group.get();
      return service;
    }
    return Runtime::start_poller(std::move(name), poller, shared);
  }

  std::unique_ptr<EventImpl> make_event(const char* what) override {
    return inner::make_threaded_event(core_, what);
  }

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
    stats.size = core_->options.threads;
    stats.max_threads = core_->options.max_threads;
    return stats;
  }

  void trace(std::string_view) override {}
  bool tracing() const override { return false; }
  bool simulated() const override { return false; }

  int stop(Duration limit) override {
    std::deque<inner::Queued> queue;
    std::map<std::pair<TimePoint, uint64_t>, Task> timers;
    std::thread timer_thread;
    std::shared_ptr<inner::PollGroup> group;
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
    const int own = inner::pool_core() == core_.get() ? 1 : 0;  // a task may drop the last reference
    {
      MutexLock lock(core_->mutex);
      queue.swap(core_->queue);
      core_->queued = 0;
      for (Latch* wait : core_->waits) wait->nudge();
      for (Latch* wait : core_->long_waits) wait->nudge();
      for (auto worker : core_->idle) worker->wake.nudge();
      group = core_->group;
      core_->drained = drained;
      if (core_->stats.threads == 0) drained->set();
    }
    if (group != nullptr) group->kick();  // a waiting thread that polls
    queue.clear();
    timers.clear();
    const TimePoint deadline = clock_now() + (own > 0 ? Duration::zero() : limit);
    while (!drained->announce() && clock_now() < deadline) drained->sleep(deadline);
    inner::Workers gone;
    {
      MutexLock lock(core_->mutex);
      gone.splice(gone.end(), core_->finished);
      core_->drained.reset();
      for (auto& worker : core_->workers) {  // they move themselves to `finished`, where no thread joins them
        if (worker.thread.joinable()) worker.thread.detach();
      }
    }
    inner::join_all(gone);
    MutexLock lock(core_->mutex);
    return core_->stats.threads;
  }

 private:
  std::shared_ptr<Core> core_;
  std::atomic<uint64_t> seed_{0};
};

}  // namespace

std::shared_ptr<Runtime> make_threaded_runtime(ThreadedOptions options) {
  if (options.threads < 1)
    throw ValueError(str("make_threaded_runtime: threads is ", options.threads, ", at least 1 is needed"));
  if (options.max_threads < options.threads) {
    throw ValueError(str("make_threaded_runtime: max_threads is ", options.max_threads, ", below threads, ",
                         options.threads));
  }
  if (options.spin < Duration::zero()) {
    // With two cores the peer needs the core that would spin; measured, spinning slows a round trip there.
    options.spin = kernels::usable_cpus() > 2 ? std::chrono::microseconds(20) : Duration::zero();
  }
  return std::make_shared<ThreadedRuntime>(options);
}

}  // namespace weft::rpc
