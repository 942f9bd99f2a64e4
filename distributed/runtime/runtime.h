// The runtime: clock, threads, timers and blocking waits. Nothing else in distributed/ calls a clock, sleep,
// std::thread or a condition variable. So the same protocol code runs on threads (make_threaded_runtime) and
// in a simulation with one thread and virtual time (sim_runtime.h). A simulated test replays from its seed.
//
// How it is used:
//   auto rt = make_threaded_runtime();               // or SimRuntime
//   rt->post([...] { handle(request); });   // a handler: it may block in Event::wait
//   TimerId t = rt->call_at(rt->now() + 50ms, [...] { resend(); });   // must be short and must not block
//   Event done(*rt, "the reply of w1");     // any thread (in simulation: any fiber) may wait for it
//   if (!done.wait_until(deadline)) throw Timeout(...);
//
// Rules: never hold a Mutex across Event::wait, since all fibers of a simulation share one thread.
// Callbacks of timers and of the transport must not block: a wait there throws. State of the current call
// goes into a FiberLocal. A thread_local of a lower floor (grad mode) is registered with
// register_thread_state, so that it follows its fiber.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include <weft/distributed/runtime/error.h>
#include <weft/distributed/runtime/task.h>
#include <weft/kernels/error.h>

namespace weft::rpc {

using Duration = std::chrono::nanoseconds;
/// A point in nanoseconds on the runtime's own clock. In simulation time is virtual and begins at the epoch.
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, std::chrono::nanoseconds>;
/// The deadline of a wait without a limit.
inline constexpr TimePoint kNever = TimePoint::max();

/// A wait ended because its runtime stopped.
class WEFT_API RuntimeStopped : public RpcError {
 public:
  using RpcError::RpcError;
};
/// There is no room for more work now: a full send queue, too many open requests, or no further thread.
class WEFT_API Overloaded : public RpcError {
 public:
  using RpcError::RpcError;
};
/// Simulation only: no task can run, no timer is set, and a task waits without a deadline.
/// The text names the waits.
class WEFT_API Deadlock : public RpcError {
 public:
  using RpcError::RpcError;
};

/// Handle of a timer; 0: no timer.
struct TimerId {
  uint64_t value = 0;
};

/// Counters of the handler pool (debug info).
struct PoolStats {
  int size = 0;            ///< tasks that may compute at once; 0: no limit (simulation)
  int threads = 0;         ///< live pool threads (fibers in simulation)
  int idle = 0;            ///< threads without a task
  int blocked = 0;         ///< threads that wait inside a task; other threads run in their place
  int queued = 0;          ///< tasks not begun
  int peak_threads = 0;    ///< most threads at once so far
  int max_threads = 0;     ///< upper limit of `threads`
  uint64_t completed = 0;  ///< tasks that have ended
};

/// Implementation of an Event; one class per runtime. Thread safety: as Event.
class WEFT_API EventImpl {
 public:
  virtual ~EventImpl() = default;
  virtual void set() = 0;
  virtual void reset() = 0;
  virtual bool is_set() const = 0;
  virtual bool wait_until(TimePoint deadline) = 0;
};

/// A thread (a fiber in simulation) that a component runs for its whole life. The destructor joins it.
class WEFT_API Service {
 public:
  virtual ~Service() = default;
  /// Waits without a deadline for the body to return.
  virtual void join() = 0;
};

/// A source of events that must be polled, such as a completion queue. Only the runtime calls poll and kick.
/// It may poll on any thread, one poll at a time.
class WEFT_API Poller {
 public:
  virtual ~Poller() = default;
  /// Waits for an event until `deadline` and handles it. False: the source has ended and is not polled again.
  /// After a bad_alloc, polling continues.
  virtual bool poll(TimePoint deadline) = 0;
  /// Makes the current poll, or the next one, return soon.
  virtual void kick() = 0;
};

/// Time, tasks, timers and waits. A Runtime outlives the Events, Services and components made from it.
/// Thread safety: every member may be called from any thread (in simulation: from the thread that drives it).
class WEFT_API Runtime {
 public:
  virtual ~Runtime() = default;

  /// The time on this runtime's clock, in nanoseconds.
  virtual TimePoint now() = 0;
  /// A clock that also counts the time in which the machine is suspended (CLOCK_BOOTTIME). It is for leases
  /// that another machine counts. Compare its times with each other only.
  virtual TimePoint lease_time() { return now(); }

  /// Queues `task` for the handler pool. The task may block in Event::wait. The pool then starts another
  /// thread in its place, up to PoolStats::max_threads, so blocked tasks do not delay runnable ones.
  /// An exception that leaves a task is dropped; a simulation writes it to its trace. After stop() the task
  /// is destroyed without having run.
  virtual void post(Task task) = 0;
  /// The same for a task that may be refused when all pool threads are blocked and no further thread can be
  /// made. A refused task runs at once, on the calling thread or on a thread that begins to wait. Inside it,
  /// refusal() is not null. It must then end soon and must not block.
  virtual void post_or_refuse(Task task) { post(std::move(task)); }

  /// Runs `task` on the timer thread at `when`, or at once if `when` has passed. The task must be short and
  /// must not block. After stop() it is destroyed without having run.
  virtual TimerId call_at(TimePoint when, Task task) = 0;
  /// Cancels a timer. True: its task had not begun and never will; the closure is destroyed
  /// before the return.
  virtual bool cancel(TimerId id) = 0;

  /// Starts a thread (a fiber in simulation) that runs `body` once. `body` may block. Throws: Overloaded when
  /// the system gives no more threads.
  virtual std::unique_ptr<Service> start_service(std::string name, Task body) = 0;

  /// Polls `poller` until it ends; the Service's join waits for that end. With `shared`, threads that wait
  /// for an Event may poll it too, and its handlers may run on the polling thread. That saves wake-ups per
  /// message. A threaded runtime shares one poller at a time; each further poller gets its own thread.
  /// Throws: Overloaded when the system gives no more threads; then nothing polls.
  virtual std::unique_ptr<Service> start_poller(std::string name, Poller& poller, bool shared);

  /// Makes the implementation of an Event. A Deadlock names the event by `what`, a text that outlives it.
  virtual std::unique_ptr<EventImpl> make_event(const char* what) = 0;

  /// A random number for incarnations and jitter, not for cryptography. In simulation it comes from the seed.
  virtual uint64_t random() = 0;

  /// The counters of the handler pool.
  virtual PoolStats pool_stats() = 0;

  /// Adds a line to the event log of a simulation; without effect on threads. Build the line only if
  /// tracing() is true.
  virtual void trace(std::string_view line) = 0;
  /// True when trace() keeps its lines.
  virtual bool tracing() const = 0;
  /// True for virtual time.
  virtual bool simulated() const = 0;

  /// Stops the runtime: queued tasks and timers are dropped, and every wait throws RuntimeStopped from now
  /// on. Waits at most `limit` for running tasks and returns the number of tasks still running. Their
  /// threads keep the memory they use alive. Idempotent. Do not call it from inside a task.
  virtual int stop(Duration limit = std::chrono::seconds(10)) = 0;

  /// Blocks for `d` on this runtime's clock. Throws: as Event::wait_until.
  void sleep_for(Duration d);
};

/// A manual-reset event, the only way to block in distributed/. It may be destroyed as soon as a wait has
/// returned true, even while set() is still returning in another thread.
/// Thread safety: all members may be called from any thread or fiber of its runtime. In simulation a wait
/// outside any fiber drives the scheduler.
class WEFT_API Event {
 public:
  explicit Event(Runtime& runtime, const char* what = "an event") : impl_(runtime.make_event(what)) {}

  /// Sets the event and wakes all waits. Does not block.
  void set() { impl_->set(); }
  /// Clears the event, so that later waits block.
  void reset() { impl_->reset(); }
  bool is_set() const { return impl_->is_set(); }

  /// Blocks until set() or `deadline`. False: `deadline` came first.
  /// Throws: RuntimeStopped; Deadlock (simulation); Error inside a callback that must not block.
  bool wait_until(TimePoint deadline) { return impl_->wait_until(deadline); }
  /// Blocks until set(), without a deadline. Throws: as wait_until.
  void wait() { impl_->wait_until(kNever); }

 private:
  std::unique_ptr<EventImpl> impl_;
};

/// A thread-local pointer that follows tasks: the current agent, the current autograd context. In simulation
/// each fiber has its own. A new task begins with null. At most 16 exist; make them at namespace scope.
/// Throws (constructor): Error beyond 16. Thread safety: get and set affect the calling thread or fiber only.
class WEFT_API FiberLocal {
 public:
  FiberLocal();
  /// The pointer of the calling thread or fiber; null if it was not set.
  void* get() const;
  void set(void* value) const;

 private:
  int slot_;
};

/// Sets a FiberLocal for a scope and restores the old value at its end.
class FiberLocalScope {
 public:
  FiberLocalScope(const FiberLocal& local, void* value) : local_(local), old_(local.get()) {
    local.set(value);
  }
  ~FiberLocalScope() { local_.set(old_); }
  FiberLocalScope(const FiberLocalScope&) = delete;
  FiberLocalScope& operator=(const FiberLocalScope&) = delete;

 private:
  const FiberLocal& local_;
  void* old_;
};

/// A thread_local word of a lower floor (grad mode) that follows its fiber. `get` reads it when the fiber is
/// switched out, `set` writes it when the fiber is switched in. A new task begins with `initial`.
struct ThreadState {
  uint64_t (*get)();
  void (*set)(uint64_t);
  uint64_t initial;
};
/// Registers a thread_local word; call it before the first simulation starts. A word may be registered again
/// without effect. Throws: Error beyond 16 words. Thread safety: any thread.
WEFT_API void register_thread_state(ThreadState state);

/// Marks a scope in which a wait throws Error (callbacks of timers and of the transport).
class WEFT_API NoBlockScope {
 public:
  explicit NoBlockScope(const char* where);
  ~NoBlockScope();
  NoBlockScope(const NoBlockScope&) = delete;
  NoBlockScope& operator=(const NoBlockScope&) = delete;

 private:
  void* old_;
};

/// In a refused task the reason: "cannot start another thread: 4 run, all blocked; ...". Null elsewhere.
WEFT_API const char* refusal();

/// Options of the threaded runtime.
struct ThreadedOptions {
  int threads = 16;        ///< tasks that may compute at once; threads are started when needed
  int max_threads = 8192;  ///< upper limit of threads, including threads with blocked tasks
  Duration idle_limit = std::chrono::seconds(5);  ///< an idle thread ends after this time
  /// time that a wait spins before it blocks; negative: chosen from the core count
  Duration spin = std::chrono::microseconds(-1);
  /// Time slice that the runtime's threads request from Linux 6.12 and later. A shorter slice lets a woken
  /// thread run earlier. Zero: the system's default.
  Duration time_slice = std::chrono::microseconds(100);
  /// For tests: called with the number of threads before another thread of the pool or of the shared poller
  /// starts. False: the start fails, as if the system had no more threads.
  std::function<bool(int threads)> may_start{};
};

/// The runtime of threads and real time. Throws: ValueError for options out of range.
WEFT_API std::shared_ptr<Runtime> make_threaded_runtime(ThreadedOptions options = {});

}  // namespace weft::rpc
