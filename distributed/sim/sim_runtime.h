// The simulated runtime: one thread, virtual time, a fiber for each task (deterministic simulation). The seed
// decides which runnable task runs next, and whether a task is preempted between two critical sections. A
// test sees a different interleaving for each seed, and the same interleaving in every run of a seed.
// log_hash() shows that two runs were equal.
//
// How it is used:
//   SimRuntime rt({.seed = 7});
//   rt.post([&] { ... event.wait(); ... });   // a wait switches to another fiber
//   rt.run_until_idle();   // or run_for(2s); an Event::wait outside any fiber drives the tasks as well
//
// A task must not be preempted while it holds a lock that is not a Mutex (sync.h). User code that calls the
// library under such a lock needs preempt = 0.
//
// Time stands still while any task can run, then jumps to the next timer or deadline. A deadlock is a state
// where no task can run, no timer is set and a task waits without a deadline. The wait (or run_until_idle)
// then throws Deadlock with the names of the waits.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <weft/distributed/runtime/runtime.h>

namespace weft::rpc {

/// Options of a simulation.
struct SimOptions {
  uint64_t seed = 1;
  bool shuffle = true;  ///< false: tasks run in the order in which they became runnable
  /// a task that releases its last lock is preempted with probability 1 / preempt; 0: never
  uint32_t preempt = 8;
  size_t stack_bytes = 1 << 20;  ///< stack of a fiber; the system provides pages at their first use
  bool keep_log = true;          ///< keep trace lines; the hash is always kept
  /// virtual time after which the driver's wait without a deadline throws Deadlock
  Duration max_wait = std::chrono::hours(1);
  /// task switches at one point in time after which a livelock throws Deadlock
  uint64_t max_steps_at_once = 20'000'000;
};

/// Thread safety: none; all calls come from the thread that made it.
class WEFT_API SimRuntime final : public Runtime {
 public:
  explicit SimRuntime(SimOptions options = {});
  ~SimRuntime() override;

  /// Runs until no task can run and no timer is set. Throws: Deadlock if tasks still wait without a deadline.
  void run_until_idle();
  /// Runs all tasks and timers of the next `d` of virtual time.
  void run_for(Duration d);

  /// Simulates a suspended machine: lease_time() advances by `d`, now() does not.
  void suspend(Duration d) { suspended_ += d; }

  /// The trace lines, each with its virtual time.
  const std::vector<std::string>& log() const;
  /// A hash over every trace line and every scheduling choice.
  uint64_t log_hash() const;
  /// The waits of the blocked tasks, one text per task.
  std::vector<std::string> blocked() const;

  TimePoint now() override;
  TimePoint lease_time() override { return now() + suspended_; }
  void post(Task task) override;
  TimerId call_at(TimePoint when, Task task) override;
  bool cancel(TimerId id) override;
  std::unique_ptr<Service> start_service(std::string name, Task body) override;
  std::unique_ptr<EventImpl> make_event(const char* what) override;
  uint64_t random() override;
  PoolStats pool_stats() override;
  void trace(std::string_view line) override;
  bool tracing() const override { return true; }
  bool simulated() const override { return true; }
  int stop(Duration limit = std::chrono::seconds(10)) override;

  class Scheduler;  ///< defined in sim_runtime.cpp

 private:
  std::unique_ptr<Scheduler> scheduler_;
  Duration suspended_{0};
};

}  // namespace weft::rpc
