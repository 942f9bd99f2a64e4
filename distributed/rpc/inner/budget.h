// The room for the bytes of open calls (budget_limits.h).
//  1. A caller charges a request until its reply has come or the call has ended. One from outside a handler
//     waits while the callee's window or half of the limit in all is full. Waiting calls of a callee keep
//     their order. One made by a handler never waits: it fails beyond the limit in all.
//     [G: nested calls drain or fail]
//  2. A callee announces its window to each caller, in replies and statuses. It is the limit per peer, and at
//     most the caller's part of half of the limit in all. Until then a caller keeps to a small window, and
//     asks.
//  3. A callee charges a request until its answer. It refuses those beyond its limit in all. The bytes of
//     requests that have arrived in part count with them, against further such bytes.
//  4. A callee keeps large replies up to the same limits. Of those that it has sent, it drops the oldest
//     without references and gradients. A caller acknowledges large replies early.
//  5. All requests here, results that stand or still leave, and arriving replies, gradients and control have
//     the limit in all with its reserve. A result beyond it becomes ResultDropped; a fetch counts as never
//     received. An arriving message beyond it counts as lost on the way, and its sender sends it again.
//     Gradients count until a thread takes them: the pass has them then, and may wait for others.
// One request goes alone, of any size. So do one result, one arriving reply and one other message: none waits
// for a message of another sort.
#pragma once

#include <array>
#include <atomic>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include <weft/distributed/rpc/budget_limits.h>
#include <weft/distributed/rpc/inner/fence.h>
#include <weft/distributed/runtime/sync.h>

namespace weft::rpc {

struct Peer;
struct Charge;  ///< the room of one request at its caller, taken or waited for

/// Requests that are charged: those that run functions.
inline bool is_charged(Kind kind) { return is_refused_by_fence(kind); }

/// Messages that have the reserve: replies, and requests that are not charged.
enum class Reserved : uint8_t { kReply, kOther };
/// Room that is given back when its last owner ends.
using Room = std::shared_ptr<void>;

/// Thread safety: any thread. No other lock is taken inside.
class Budget {
 public:
  explicit Budget(const BudgetLimits& limits) : limits_(limits) {}

  // ---- at the caller
  /// Takes room for a request. `waits` becomes true if there is none: call wait(). Throws: Overloaded for one
  /// made by a handler.
  std::shared_ptr<Charge> open(Peer& to, int64_t bytes, bool in_handler, bool& waits);
  /// Puts a request without room into the queue. True: ask the callee for its window.
  bool wait(const std::shared_ptr<Charge>& charge, uint64_t sequence);
  struct Ended {
    bool start = false;        ///< as begin_starting
    bool acknowledge = false;  ///< the replies of this callee are to be acknowledged now
  };
  /// Ends a request, with a reply of `bytes`, and gives its room back.
  Ended end(const std::shared_ptr<Charge>& charge, int64_t bytes = 0);
  /// The state of a waiting request's queue, as text.
  std::string explain(const Charge& charge) const;
  /// A callee announces its window. True: start the waiting requests.
  bool announced(Peer& by, int64_t window);

  struct Ready {
    Peer* to;
    uint64_t sequence;
  };
  /// False: another thread starts waiting requests now, or there are none. True: call next() until it is
  /// empty.
  bool begin_starting();
  /// The next waiting request with room, which it takes.
  std::optional<Ready> next();

  // ---- at the callee
  /// Counts `bytes` more of an incomplete request, after the `held` ones. False: no room, and not counted.
  bool arrive(int64_t held, int64_t bytes);
  /// The bytes of an incomplete request end: it is whole, or dropped.
  void arrived(int64_t held);
  /// Counts a request. False: it exceeds the limit in all. Takes no lock.
  bool serve(Peer& from, int64_t bytes);
  /// The end of a request. Returns the window to announce. Takes no lock.
  int64_t served(Peer& from, int64_t bytes);
  /// The error of a request beyond the limit in all.
  std::exception_ptr no_room(int64_t bytes) const;
  bool has_room(int64_t bytes) const;
  /// The window to announce.
  int64_t window_for(const Peer& caller) const;
  /// Counts a large kept reply; negative: the end of one.
  void keep(Peer& caller, int64_t bytes);
  /// The kept replies exceed a limit.
  bool keeps_too_much(Peer& caller);
  void count_dropped();

  // ---- with the reserve, at both
  /// Room for a result that stands here; null: none.
  Room stand(int64_t bytes);
  /// As arrive and arrived.
  bool arrive(Reserved sort, int64_t held, int64_t bytes);
  void arrived(Reserved sort, int64_t held);
  /// Room for a whole message that waits for a thread; null: none.
  Room take(int64_t bytes);
  void count_put_off();
  /// The use of the limit with the reserve, as text.
  std::string in_use() const;

  /// A peer is lost: its account ends with the last that it holds.
  void lost(Peer& peer);
  size_t accounts() const;

  void add_counters(std::map<std::string, int64_t>& out) const;

 private:
  struct Account {
    // as caller
    int64_t open = 0;    ///< bytes of requests to this peer from outside handlers
    int64_t window = 0;  ///< announced by the peer; 0: not yet
    bool asked = false, listed = false;
    std::map<uint64_t, std::shared_ptr<Charge>> waiting{};
    int64_t unacknowledged = 0;  ///< bytes of replies
    int64_t kept = 0;            ///< as callee: bytes of replies
    bool empty() const {
      return open == 0 && window == 0 && !asked && !listed && waiting.empty() && unacknowledged == 0 &&
             kept == 0;
    }
  };
  /// Of a lost peer only: a living one keeps its account, which each call would allocate anew.
  void drop_empty(const Peer& of, const Account& a) WEFT_REQUIRES(mutex_);
  int64_t window(const Account& a) const WEFT_REQUIRES(mutex_);
  bool fits(const Account& a, int64_t bytes) const WEFT_REQUIRES(mutex_);
  bool fits_in_all(int64_t bytes) const WEFT_REQUIRES(mutex_);
  bool has_room_now(int64_t bytes) const WEFT_REQUIRES(mutex_);
  int64_t limit_with_reserve() const;
  bool fits_reserve(int64_t bytes) const WEFT_REQUIRES(mutex_);
  using Total = std::shared_ptr<std::atomic<int64_t>>;  ///< grows under the mutex; rooms outlive the budget
  static Room room(const Total& total, int64_t bytes);

  const BudgetLimits limits_;
  mutable Mutex mutex_;
  std::unordered_map<const Peer*, Account> accounts_ WEFT_GUARDED_BY(mutex_);
  std::list<Account*> queues_ WEFT_GUARDED_BY(mutex_);  ///< with waiting requests, the next one first
  bool full_ WEFT_GUARDED_BY(mutex_) = false;           ///< the first of queues_ waits for the limit in all
  bool starting_ WEFT_GUARDED_BY(mutex_) = false;
  int64_t open_ WEFT_GUARDED_BY(mutex_) = 0;     ///< bytes of requests to all peers
  int64_t outside_ WEFT_GUARDED_BY(mutex_) = 0;  ///< those from outside handlers
  int64_t waiting_ WEFT_GUARDED_BY(mutex_) = 0, waiting_bytes_ WEFT_GUARDED_BY(mutex_) = 0;
  int64_t waits_ WEFT_GUARDED_BY(mutex_) = 0;
  std::atomic<int64_t> callers_{0};               ///< with open requests
  std::atomic<int64_t> served_{0}, kept_{0};      ///< kept_ changes under the mutex
  int64_t arriving_ WEFT_GUARDED_BY(mutex_) = 0;  ///< bytes of incomplete requests
  int64_t dropped_ WEFT_GUARDED_BY(mutex_) = 0, put_off_ WEFT_GUARDED_BY(mutex_) = 0;
  const Total standing_ = std::make_shared<std::atomic<int64_t>>(0);  ///< results, kept or still leaving
  /// arriving replies; other messages, arriving or without a thread
  const std::array<Total, 2> reserved_{std::make_shared<std::atomic<int64_t>>(0),
                                       std::make_shared<std::atomic<int64_t>>(0)};
};

}  // namespace weft::rpc
