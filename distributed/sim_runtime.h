// The simulated runtime: one thread, virtual time, a fiber for each task. Which of the runnable tasks goes on next is drawn from
// the seed, and so is whether a task is switched out between two critical sections, as a thread may be: a test sees a different
// interleaving per seed and the same one each time it runs a seed; log_hash() proves it.
//
// How it is used:
//   SimRuntime rt({.seed = 7});
//   rt.post([&] { ... event.wait(); ... });   // blocking is a switch to another fiber
//   rt.run_until_idle();                      // or run_for(2s); an Event::wait outside any fiber drives the tasks as well
//
// A task that holds a lock which is not a Mutex (sync.h) must not be switched out: user code in simulation that calls the library under such
// a lock takes preempt = 0.
//
// Time stands still while anything can run, then jumps to the next timer or deadline. Where an Event is waited for without a
// deadline and nothing can run and no timer is set, the wait (or run_until_idle) throws Deadlock and names the waits.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <weft/distributed/runtime.h>

namespace weft::rpc {

struct SimOptions {
  uint64_t seed = 1;
  bool shuffle = true;  ///< false: tasks run in the order they became runnable
  uint32_t preempt =
      8;  ///< a task that gives back its last lock is switched out one time in this many; 0: it runs until it waits
  size_t stack_bytes = 1 << 20;  ///< per fiber; pages are used only when touched
  bool keep_log = true;          ///< keep trace lines (the hash is kept in any case)
  Duration max_wait =
      std::chrono::hours(1);  ///< virtual time after which a driver's wait without deadline is a Deadlock
  uint64_t max_steps_at_once =
      20'000'000;  ///< task switches without time moving, after which it is a livelock: Deadlock
};

/// Thread safety: none; everything happens on the thread that made it.
class WEFT_API SimRuntime final : public Runtime {
 public:
  explicit SimRuntime(SimOptions options = {});
  ~SimRuntime() override;

  /// Runs until nothing can run and no timer is set. Throws: Deadlock if tasks are left that wait without a deadline.
  void run_until_idle();
  /// Runs everything that happens in the next `d` of virtual time.
  void run_for(Duration d);

  /// The trace lines, each with its time.
  const std::vector<std::string>& log() const;
  /// A hash over every trace line and every scheduling choice.
  uint64_t log_hash() const;
  /// What the blocked tasks wait for, one text per task.
  std::vector<std::string> blocked() const;

  TimePoint now() override;
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
};

}  // namespace weft::rpc
