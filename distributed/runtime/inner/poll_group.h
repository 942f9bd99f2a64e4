// The polling of a transport's completion queue, by the leader/followers pattern. Handing a message to
// another thread costs a wake-up (5 to 20 us), more than the work itself. So the polling role moves to the
// thread that needs the result. One thread at a time, the leader, has the role:
//   - a thread that waits for an Event takes a free role and polls until its event is set, or the wait is a
//     long one (threaded_event.cpp);
//   - otherwise one of two service threads has it. It gives up the role to run the handler of a delivery
//     itself, if the other service thread is free to take the role and no other handler waits.
// A thread that gives up the role wakes a waiting thread, if there is one, to take it. If none does, a
// service thread takes the role after one tick (kTick) without a change. Service threads tick only while the
// role moves; otherwise they sleep. Internal to the threaded runtime.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <thread>

#include <weft/distributed/runtime/inner/latch.h>
#include <weft/distributed/runtime/sync.h>

namespace weft::rpc::inner {

/// The interface of the runtime to its poll group.
class PollHost {
 public:
  virtual ~PollHost() = default;
  virtual bool has_waiters() = 0;
  virtual void wake_a_waiter() = 0;
  /// Runs the task of an InlinePlace as a thread of the pool would.
  virtual void run_inline(Task& task) = 0;
  /// Whether more tasks wait for the pool.
  virtual bool has_queued() = 0;
  /// Gives the task of an InlinePlace to the pool, before all that wait. The task stays if perhaps no thread
  /// of the pool would run it.
  virtual void give_to_pool(Task& task, bool may_refuse) = 0;
  /// ThreadedOptions::may_start.
  virtual bool may_start(int threads) = 0;
};

/// The place for a task that a delivery posts on a service thread. It is `*task`, if that is empty and the
/// task is for the runtime `host`.
struct InlinePlace {
  Task* task = nullptr;
  const PollHost* host = nullptr;
  bool may_refuse = false;  ///< of the task
};
InlinePlace& inline_place();

/// Thread safety: every member from any thread.
class PollGroup : public std::enable_shared_from_this<PollGroup> {
 public:
  PollGroup(Poller& poller, PollHost& host) : poller_(&poller), host_(host) {}

  /// `slice`: of the service threads. `keep` lives as long as they do. Throws: Overloaded when the system
  /// gives no thread; then no thread polls.
  void start(Duration slice, const std::shared_ptr<void>& keep);
  /// Waits for the end of the poller, then joins the service threads. One that calls it, or runs a handler,
  /// is detached: it holds the group and ends with the handler.
  void join();

  /// Takes the role if it is free.
  bool try_take() {
    bool expected = false;
    return !finished_.load() && !taken_.load(std::memory_order_relaxed) &&
           taken_.compare_exchange_strong(expected, true, std::memory_order_acquire);
  }
  /// Polls once; the caller has the role. False: the poller has ended.
  bool poll(TimePoint deadline);
  /// Gives up the role. `wake`: wakes a waiting thread to take it.
  void release(bool wake);
  /// Gives up the role to a service thread, which takes it at once.
  void pass_to_service();
  /// Makes the current poll return.
  void kick();
  /// The group that this thread polls now; null: none.
  static const PollGroup* polled_here();

  std::shared_ptr<PollGroup> earlier;  ///< of a list of groups that have ended

 private:
  static constexpr Duration kTick = std::chrono::microseconds(200);
  static constexpr int kRestAfter = 10;  // ticks

  void finish();
  void serve(size_t index);
  void rest(size_t index);

  Mutex mutex_;                  // held while the poller is kicked, and at its end
  std::atomic<Poller*> poller_;  // null at the end; only the thread with the role polls and ends it
  PollHost& host_;
  std::atomic<bool> taken_{false}, finished_{false};
  std::atomic<bool> passed_{false};  // to a service thread, which has not seen it
  std::atomic<uint64_t> moves_{0};
  std::atomic<int> ticking_{0};
  std::array<std::atomic<bool>, 2> in_handler_{};  // set before the role is laid down
  std::array<Latch, 2> wake_;
  std::array<std::atomic<bool>, 2> asleep_{};
  std::array<std::thread, 2> threads_;
};

}  // namespace weft::rpc::inner
