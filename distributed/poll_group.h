// Who polls a transport's completion queue. Each hand-over between threads costs a wake-up (5 to 20 us), more than the work itself, so
// polling is a role that moves to where the result is wanted. One thread at a time holds it:
//   - a thread that waits for an Event takes the role if it is free and polls itself until its event is set;
//   - otherwise one of two service threads holds it. It runs the handler that a delivery posted itself, after laying down the role, as
//     long as the other one is there to take it up.
// Who lays it down wakes a waiting thread, if there is one, to take it up. If nobody does, a service thread takes it after a tick
// (kTick) in which nothing has moved; service threads tick only while the role moves, and sleep when it rests.
// Inner part of the threaded runtime.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <thread>

#include <weft/distributed/latch.h>
#include <weft/distributed/sync.h>

namespace weft::rpc::inner {

/// What a group asks its runtime.
class PollHost {
 public:
  virtual ~PollHost() = default;
  virtual bool has_waiters() = 0;
  virtual void wake_a_waiter() = 0;
  /// Runs a task that was put into the place below, as a thread of the pool would.
  virtual void run_inline(Task& task) = 0;
};

/// Where a task goes that a delivery posts on a service thread: `*task`, if it is empty and the runtime is `host`.
struct InlinePlace {
  Task* task = nullptr;
  const PollHost* host = nullptr;
};
InlinePlace& inline_place();

/// Thread safety: every member from any thread.
class PollGroup : public std::enable_shared_from_this<PollGroup> {
 public:
  PollGroup(Poller& poller, PollHost& host) : poller_(&poller), host_(host) {}

  /// `keep` lives as long as the service threads.
  void start(const std::shared_ptr<void>& keep);
  /// Waits for the end of the service threads (the poller says when); one that calls it itself is let go.
  void join();

  /// Takes the role if it is free.
  bool try_take() {
    bool expected = false;
    return !finished_.load() && !taken_.load(std::memory_order_relaxed) &&
           taken_.compare_exchange_strong(expected, true, std::memory_order_acquire);
  }
  /// Polls once; the role is held. False: the poller has come to its end.
  bool poll(TimePoint deadline);
  /// Lays the role down. `wake`: and has a waiter take it up.
  void release(bool wake);
  /// Makes a poll in progress return.
  void kick();

 private:
  static constexpr Duration kTick = std::chrono::microseconds(200);
  static constexpr int kRestAfter = 10;  // ticks

  void serve(size_t index);
  void rest(size_t index);

  Mutex mutex_;
  Poller* poller_ WEFT_GUARDED_BY(mutex_);  // null at the end; polled only by who holds the role
  PollHost& host_;
  std::atomic<bool> taken_{false}, finished_{false};
  std::atomic<uint64_t> moves_{0};
  std::atomic<int> ticking_{0}, inline_running_{0};
  std::array<Latch, 2> wake_;
  std::array<std::atomic<bool>, 2> asleep_{};
  std::array<std::thread, 2> threads_;
};

}  // namespace weft::rpc::inner
