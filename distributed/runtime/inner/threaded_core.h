// The shared state of the threads of the threaded runtime: pool, waits and timers. Internal to that runtime.
#pragma once

#include <deque>
#include <list>
#include <map>
#include <thread>
#include <unordered_map>
#include <vector>

#include <weft/distributed/runtime/inner/latch.h>
#include <weft/distributed/runtime/inner/poll_group.h>
#include <weft/distributed/runtime/inner/task_state.h>

namespace weft::rpc::inner {

/// Hides the state of a thread from foreign work that runs on it: a delivery, a refused task.
class ForeignWork {
 public:
  ForeignWork() : outside_(current_state()) {
    save_thread_states(saved_);
    load_thread_states(initial_thread_states());
    current_state() = &state_;
  }
  ~ForeignWork() {
    current_state() = outside_;
    load_thread_states(saved_);
  }
  ForeignWork(const ForeignWork&) = delete;
  ForeignWork& operator=(const ForeignWork&) = delete;

 private:
  TaskState state_;
  TaskState* outside_;
  SavedThreadStates saved_;
};

/// A task that is not begun. `may_refuse`: it was posted by post_or_refuse.
struct Queued {
  Task task;
  bool may_refuse = false;
};

/// The tasks that a dispatch refuses. They run without the lock.
struct Refused {
  std::vector<Task> tasks;
  std::string why;
  /// Runs the tasks. Inside a refused task it leaves them to the outer run.
  void run();
};

/// A pool thread and its task.
struct Worker {
  Task task;
  Latch wake;
  std::thread thread;
};
using Workers = std::list<Worker>;

/// Threads own the Core, not the Runtime, so a thread that outlives stop() touches only live memory.
struct Core final : PollHost {
  explicit Core(const ThreadedOptions& o) : options(o) {}

  bool has_waiters() override;
  void wake_a_waiter() override;
  void run_inline(Task& task) override;
  bool has_queued() override;
  void give_to_pool(Task& task, bool may_refuse) override;
  bool may_start(int threads) override { return !options.may_start || options.may_start(threads); }

  const ThreadedOptions options;
  std::atomic<bool> stopping{false};

  Mutex mutex;
  std::deque<Queued> queue WEFT_GUARDED_BY(mutex);
  Workers workers WEFT_GUARDED_BY(mutex);
  Workers finished WEFT_GUARDED_BY(mutex);  // threads about to return, to be joined
  std::vector<Workers::iterator> idle WEFT_GUARDED_BY(mutex);
  std::atomic<size_t> queued{0};                         // size of `queue`, after each change
  std::atomic<bool> waking{false};                       // a thread was given a task and has not begun it
  std::list<Latch*> waits WEFT_GUARDED_BY(mutex);        // that take the poll role
  std::list<Latch*> long_waits WEFT_GUARDED_BY(mutex);   // that leave it to others
  std::list<Latch*> spare_waits WEFT_GUARDED_BY(mutex);  // memory of waits that have ended
  std::atomic<int> wait_count{0};                        // size of `waits`
  PoolStats stats WEFT_GUARDED_BY(mutex);
  std::shared_ptr<Latch> drained WEFT_GUARDED_BY(mutex);  // set when the last pool thread leaves after a stop
  std::shared_ptr<PollGroup> group WEFT_GUARDED_BY(mutex);
  // `group`, for waits that take no lock. One that ends meanwhile is kept until there is no such wait.
  std::atomic<PollGroup*> open_group{nullptr};
  std::atomic<int> unregistered{0};  // those waits
  std::shared_ptr<PollGroup> ended_groups WEFT_GUARDED_BY(mutex);
  std::weak_ptr<Core> self;

  Mutex timer_mutex;
  std::map<std::pair<TimePoint, uint64_t>, Task> timers WEFT_GUARDED_BY(timer_mutex);
  std::unordered_map<uint64_t, TimePoint> timer_times WEFT_GUARDED_BY(timer_mutex);
  uint64_t next_timer WEFT_GUARDED_BY(timer_mutex) = 1;
  TimePoint timer_sleeps_until WEFT_GUARDED_BY(timer_mutex) = TimePoint::min();
  Latch timer_wake;
  std::thread timer_thread;

  std::shared_ptr<PollGroup> poll_group() {
    MutexLock lock(mutex);
    return group;
  }
};

/// The core for whose pool this thread works now; null on other threads.
Core*& pool_core();

/// Queues a task, or keeps it for the calling thread, if that is a polling one.
void pool_post(const std::shared_ptr<Core>& core, Task task, bool may_refuse);
/// Gives a queued task to a thread, if the pool's rule allows it. Tasks that it refuses go to `refused`;
/// null: it refuses none.
void dispatch(Core& core, Refused* refused) WEFT_REQUIRES(core.mutex);
/// Joins threads that have announced their end.
void join_all(Workers& gone);

std::unique_ptr<EventImpl> make_threaded_event(std::shared_ptr<Core> core, const char* what);

}  // namespace weft::rpc::inner
