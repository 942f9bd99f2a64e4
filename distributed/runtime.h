// Where time, threads and blocking come from. Nothing else in distributed/ calls a clock, sleep, std::thread or a condition
// variable, so the same protocol code runs on threads (make_threaded_runtime, here) and on one simulated thread with virtual
// time, where a whole test replays from its seed (sim_runtime.h).
//
// How it is used:
//   auto rt = make_threaded_runtime();               // or SimRuntime
//   rt->post([...] { handle(request); });            // a handler: may block in Event::wait, the pool makes up for it
//   TimerId t = rt->call_at(rt->now() + 50ms, [...] { resend(); });   // must be short and must not block
//   Event done(*rt, "the reply of w1");              // waited for by any thread, or by any fiber in simulation
//   if (!done.wait_until(deadline)) throw Timeout(...);
//
// Rules: never hold a Mutex across Event::wait (in simulation all fibers share one thread). Callbacks of timers and of the
// transport must not block: a wait there throws. State that belongs to "the current call" goes into a FiberLocal; a thread_local
// of a lower floor (grad mode) is registered with register_thread_state so that it follows its fiber.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <weft/distributed/task.h>
#include <weft/kernels/error.h>

namespace weft::rpc {

using Duration = std::chrono::nanoseconds;
/// A point on the runtime's own clock; virtual in simulation (it begins at the epoch there).
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, std::chrono::nanoseconds>;
/// The deadline of a wait that has none.
inline constexpr TimePoint kNever = TimePoint::max();

/// A wait that was ended because its runtime stopped.
class WEFT_API RuntimeStopped : public RpcError {
 public:
  using RpcError::RpcError;
};
/// Simulation only: nothing can run, no timer is set, and somebody waits without a deadline. The text names the waits.
class WEFT_API Deadlock : public RpcError {
 public:
  using RpcError::RpcError;
};

/// A set timer; 0 is none.
struct TimerId {
  uint64_t value = 0;
};

/// What the handler pool looks like now (debug info).
struct PoolStats {
  int size = 0;          ///< tasks that may compute at once; 0: any number (simulation)
  int threads = 0;       ///< pool threads (fibers in simulation) alive
  int idle = 0;          ///< of these, without a task
  int blocked = 0;       ///< of these, waiting inside a task: others take their place
  int queued = 0;        ///< tasks not begun
  int peak_threads = 0;  ///< most threads at once so far
  int max_threads = 0;   ///< the cap
  uint64_t completed = 0;
};

/// What stands behind an Event; one class per runtime.
class WEFT_API EventImpl {
 public:
  virtual ~EventImpl() = default;
  virtual void set() = 0;
  virtual void reset() = 0;
  virtual bool is_set() const = 0;
  virtual bool wait_until(TimePoint deadline) = 0;
};

/// A thread that a component runs for its whole life. The destructor joins.
class WEFT_API Service {
 public:
  virtual ~Service() = default;
  /// Waits for the body to return.
  virtual void join() = 0;
};

/// A source of events that somebody must poll: a completion queue. poll and kick are the runtime's to call; one poll at a time, on
/// any thread.
class WEFT_API Poller {
 public:
  virtual ~Poller() = default;
  /// Waits for an event until `deadline` and handles it. False: it has come to its end and is not polled again.
  virtual bool poll(TimePoint deadline) = 0;
  /// Makes a poll in progress, or the next one, return soon.
  virtual void kick() = 0;
};

/// Time, tasks, timers and waits. Thread safety: every member may be called from any thread (in simulation: from the one
/// thread that drives it). A Runtime outlives the Events, Services and components made from it.
class WEFT_API Runtime {
 public:
  virtual ~Runtime() = default;

  /// The time on this runtime's clock.
  virtual TimePoint now() = 0;

  /// Queues `task` for the handler pool. The task may block in Event::wait: the pool then starts another thread in its place, so
  /// blocked tasks never keep a runnable one waiting (up to the cap in PoolStats). An exception that leaves a task is dropped
  /// and counted in trace(). After stop() the task is destroyed unrun.
  virtual void post(Task task) = 0;

  /// Runs `task` at `when` (at once if that is past) on the timer thread; it must be short and must not block.
  virtual TimerId call_at(TimePoint when, Task task) = 0;
  /// Forgets a timer. True if it had not begun and now never will; its closure is destroyed before this returns.
  virtual bool cancel(TimerId id) = 0;

  /// Starts a thread (a fiber in simulation) that runs `body` once. It may block.
  virtual std::unique_ptr<Service> start_service(std::string name, Task body) = 0;

  /// Polls `poller` until it ends; the Service's join waits for that. `shared`: threads that wait for an Event may poll it too, and the
  /// handlers that it posts may run on the polling thread (the real runtime, if it has one such poller): fewer wake-ups per message.
  virtual std::unique_ptr<Service> start_poller(std::string name, Poller& poller, bool shared);

  /// Makes the insides of an Event; `what` (a literal, or text that outlives the event) is named in a Deadlock.
  virtual std::unique_ptr<EventImpl> make_event(const char* what) = 0;

  /// A random number: from the seed in simulation, from the system otherwise (incarnations, jitter; not for cryptography).
  virtual uint64_t random() = 0;

  /// The handler pool as it is now.
  virtual PoolStats pool_stats() = 0;

  /// Adds a line to the event log of a simulation; without effect otherwise. Build the line only if tracing().
  virtual void trace(std::string_view line) = 0;
  virtual bool tracing() const = 0;
  /// True for virtual time.
  virtual bool simulated() const = 0;

  /// Ends it: tasks not begun are dropped, timers forgotten, every wait in progress or to come throws RuntimeStopped, threads
  /// end. Waits at most `limit` for tasks that are still computing; returns how many it had to leave behind (they keep what
  /// they need alive). Idempotent. Not from inside a task.
  virtual int stop(Duration limit = std::chrono::seconds(10)) = 0;

  /// Sleeps on this runtime's clock (a wait like any other).
  void sleep_for(Duration d);
};

/// A flag that can be waited for: the only way to block in distributed/. Manual reset. It may be destroyed as soon as a wait has
/// returned true, even while set() is still returning in another thread.
/// Thread safety: all members from any thread or fiber of its runtime; in simulation a wait outside any fiber drives the scheduler.
class WEFT_API Event {
 public:
  explicit Event(Runtime& runtime, const char* what = "an event") : impl_(runtime.make_event(what)) {}

  void set() { impl_->set(); }
  void reset() { impl_->reset(); }
  bool is_set() const { return impl_->is_set(); }

  /// Waits for set(). False: `deadline` came first.
  /// Throws: RuntimeStopped; Deadlock (simulation); Error inside a callback that must not block.
  bool wait_until(TimePoint deadline) { return impl_->wait_until(deadline); }
  void wait() { impl_->wait_until(kNever); }

 private:
  std::unique_ptr<EventImpl> impl_;
};

/// A pointer-sized value that each thread, and in simulation each task, has of its own: the current agent, the current autograd
/// context. A new task begins with null. At most 16 exist; make them at namespace scope.
/// Thread safety: get and set concern the calling thread or fiber only.
class WEFT_API FiberLocal {
 public:
  FiberLocal();
  void* get() const;
  void set(void* value) const;

 private:
  int slot_;
};

/// Sets a FiberLocal for a scope and puts the old value back.
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

/// A thread_local word of a lower floor (grad mode) that must follow a fiber: read when it is switched out, written when it is
/// switched in; `initial` is what a new task begins with.
struct ThreadState {
  uint64_t (*get)();
  void (*set)(uint64_t);
  uint64_t initial;
};
/// Registers one; call before the first simulation starts. At most 16. Thread safety: any thread.
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

/// Options of the real runtime.
struct ThreadedOptions {
  int threads = 16;        ///< tasks that may compute at once; threads are started when needed
  int max_threads = 8192;  ///< cap with blocked tasks counted in
  Duration idle_limit = std::chrono::seconds(5);  ///< a spare thread ends after this
  Duration spin =
      std::chrono::microseconds(-1);  ///< polling before a wait blocks; negative: chosen from the core count
};

/// The runtime of threads and real time. Throws: ValueError for options out of range.
WEFT_API std::shared_ptr<Runtime> make_threaded_runtime(ThreadedOptions options = {});

}  // namespace weft::rpc
