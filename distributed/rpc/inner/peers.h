// The workers of the group as one agent sees them. A Peer keeps all state about one life of one worker under
// one mutex. It has its identity, calls to it (Caller), its requests (Server) and its lease (Liveness). A
// successor under the same id is another Peer.
#pragma once

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <new>
#include <set>
#include <unordered_map>

#include <weft/distributed/rpc/agent.h>
#include <weft/distributed/rpc/inner/ids_by_name.h>
#include <weft/distributed/runtime/sync.h>
#include <weft/distributed/transport/inner/table_by_id.h>
#include <weft/distributed/wire/inner/staging.h>
#include <weft/distributed/wire/inner/streams.h>
#include <weft/distributed/wire/inner/wire_format.h>

namespace weft::rpc {

struct Charge;  // budget.h
struct Peer;

/// The set of finished requests of one caller: all below `horizon` except those in `open`. It only grows.
class FinishedSet {
 public:
  bool contains(uint64_t sequence) const {
    return sequence < horizon_ && !std::binary_search(open_.begin(), open_.end(), sequence);
  }
  /// The lowest number not known to be finished.
  uint64_t floor() const { return open_.empty() ? horizon_ : open_.front(); }
  /// Adds the contents of a status: all below `upto` are finished except `open` (sorted).
  void add(uint64_t upto, const std::vector<uint64_t>& open);
  /// Adds all below `floor`. True when the set grew.
  bool add_floor(uint64_t floor);

 private:
  uint64_t horizon_ = 1;
  std::vector<uint64_t> open_;
};

/// Most open requests in one status; the sender lists further ones in the next.
inline constexpr size_t kMaxListed = 4096;

/// An open call at its caller.
struct PendingCall {
  Kind kind{};
  Message message;  ///< sealed, kept for resending
  CallContext context;
  Streams streams;  ///< current streams of the calling thread; the reply's tensors arrive in their order
  std::unique_ptr<ReplySink> sink;
  const char* what = nullptr;
  Duration timeout{};
  TimePoint deadline = kNever, started, sent;  ///< sent: time of the last transmission
  uint64_t sequence = 0;
  bool ends_with_served = false;   ///< it ends when the caller of the function that made it has given up
  bool waits = false;              ///< for credit: it was never sent
  std::shared_ptr<Charge> charge;  ///< null for kinds without one

  /// The caller of the function that made this call has given up.
  bool unneeded() const { return ends_with_served && context.given_up && *context.given_up; }
};

/// A request at its callee, from its arrival until its caller has finished it.
struct Responder::Served {
  std::weak_ptr<Agent> agent;
  Peer* peer = nullptr;  ///< the caller
  uint64_t sequence = 0;
  Kind kind{};
  CallContext context;
  TimePoint started;
  std::atomic<int64_t> begun{0};  ///< time at which the handler began, for the trace
  std::atomic<bool> answered{false};
  std::atomic<const char*> what{nullptr};  ///< name of the function, for dumps
  std::atomic<bool> in_handler{false};     ///< false while unanswered: an asynchronous function has returned
  std::atomic<bool> posting{false};        ///< its task is being handed to the pool
  std::atomic<bool> abandoned{false};      ///< its responder was destroyed without an answer
  std::atomic<bool> given_up{false};       ///< the caller needs no answer, or the agent has stopped
  std::atomic<bool> refused{false};        ///< there was no room to serve it
  int64_t bytes = -1;                      ///< of the request, as charged; negative: not charged
  Message request;                         ///< while it waits for a thread of the pool
  std::shared_ptr<void> request_room;      ///< of a request that is not charged, until then
  // guarded by the peer's mutex
  bool replied = false;        ///< `reply` is set
  bool finished = false;       ///< the caller needs no answer
  bool dropped = false;        ///< `reply` was dropped for want of room
  int64_t kept = 0;            ///< bytes of `reply`, as counted
  std::shared_ptr<void> room;  ///< of `reply`, if it is a large result
  Message reply;
  TimePoint sent;

  /// The caller needs no answer any more. True: it gave up before the answer.
  bool finish() {
    finished = true;
    return !replied && !given_up.exchange(true);
  }
};
using Served = Responder::Served;
using PendingCalls = std::map<uint64_t, PendingCall>;
using ServedRequests = std::unordered_map<uint64_t, std::shared_ptr<Served>>;
using DueTimes = std::multimap<TimePoint, Peer*>;  ///< equal times in the order of their entry

/// The place of a peer in the order of an Alarm. Its memory is there from the beginning.
class DuePlace {
 public:
  explicit DuePlace(Peer& of) {
    DueTimes one{{kNever, &of}};
    node_ = one.extract(one.begin());
  }

 private:
  friend class Alarm;
  std::atomic<TimePoint> due_{kNever};  ///< when the peer is tended next
  // under the mutex of the Alarm; neither is valid while Alarm::due() is going to tend the peer
  DueTimes::node_type node_;  ///< while `due_` is kNever
  DueTimes::iterator at_;     ///< while it is a time
};

/// One life of a worker of the group as this agent sees it.
struct Peer {
  explicit Peer(WorkerId peer_id) : id(peer_id) {}
  const WorkerId id;
  std::atomic<Incarnation> incarnation{};  ///< 0 until it is known; then it stays
  Mutex mutex;
  std::string name WEFT_GUARDED_BY(mutex);
  std::atomic<bool> known{false};  ///< a member, added by add_members
  bool lost WEFT_GUARDED_BY(mutex) = false;
  bool ended WEFT_GUARDED_BY(mutex) = false;  ///< its process has ended; lost once something is held for it
  bool left WEFT_GUARDED_BY(mutex) = false;
  /// This worker has learned of this life. If not, calls to it wait here, at most for a lease.
  bool told WEFT_GUARDED_BY(mutex) = true;
  TimePoint last_heard WEFT_GUARDED_BY(mutex);  ///< time of its last message; of the loss, if there was none
  std::string why WEFT_GUARDED_BY(mutex);
  DevicePlan plan WEFT_GUARDED_BY(mutex);
  std::string host_key WEFT_GUARDED_BY(mutex);
  /// device of this worker -> device of the peer
  DeviceMap for_arguments WEFT_GUARDED_BY(mutex), for_results WEFT_GUARDED_BY(mutex);
  // as caller
  std::atomic<bool> keeps_no_account{false};  ///< lost: the budget drops its account once that is empty
  std::atomic<uint16_t> window{0};            ///< Envelope::window of its last message that had one
  uint64_t next_sequence WEFT_GUARDED_BY(mutex) = 1;
  PendingCalls pending WEFT_GUARDED_BY(mutex);
  PendingCalls::node_type spare WEFT_GUARDED_BY(mutex);  ///< memory of a call that has ended
  /// calls ended by their deadline; interceptors get their late replies
  std::set<uint64_t> given_up WEFT_GUARDED_BY(mutex);
  /// the floor that the peer has acknowledged by its answer to a status
  uint64_t told_floor WEFT_GUARDED_BY(mutex) = 1;
  int tells WEFT_GUARDED_BY(mutex) = 0;  ///< unanswered statuses while no call was open
  // as callee
  std::atomic<int64_t> charged{0};  ///< requests that the budget counts
  ServedRequests served WEFT_GUARDED_BY(mutex);
  ServedRequests::node_type spare_served WEFT_GUARDED_BY(mutex);  ///< memory of a request that has ended
  std::deque<uint64_t> droppable WEFT_GUARDED_BY(mutex);  ///< replies that were sent, the oldest first
  FinishedSet finished WEFT_GUARDED_BY(mutex);
  // liveness
  int holds WEFT_GUARDED_BY(mutex) = 0;  ///< PeerTable::Hold
  int watchers WEFT_GUARDED_BY(mutex) = 0;
  TimePoint heard WEFT_GUARDED_BY(mutex), asked WEFT_GUARDED_BY(mutex);
  bool ask_now WEFT_GUARDED_BY(mutex) = false;
  TimePoint ask_at WEFT_GUARDED_BY(mutex) = kNever;  ///< a question to come, whatever it says before
  /// the transport's last report since it was connected: "not connected: ..." or as PeerState
  std::string trouble WEFT_GUARDED_BY(mutex);
  Duration pause WEFT_GUARDED_BY(mutex){};
  DuePlace place{*this};

  Life life() const { return {id, incarnation.load()}; }
  /// Notes a call that ended before its reply. Without memory its late reply is not reported.
  void note_given_up(uint64_t sequence) noexcept WEFT_REQUIRES(mutex) {
    constexpr size_t kMost = 65536;
    try {
      if (given_up.size() < kMost) given_up.insert(sequence);
    } catch (const std::bad_alloc&) {
    }
  }
  /// There is a question for this time. It is taken.
  bool take_question(TimePoint now) WEFT_REQUIRES(mutex) {
    const bool later = now < ask_at;
    if (!later) ask_at = kNever;
    return std::exchange(ask_now, false) || !later;
  }
  /// It is not lost, and the incarnation in a report of the transport is not another life's. 0: any.
  bool may_be(Incarnation told) const WEFT_REQUIRES(mutex) {
    const Incarnation known_now = incarnation.load();
    return !lost && (told.value == 0 || known_now.value == 0 || told == known_now);
  }
  /// Something is held for this life: it is under lease.
  bool wanted() const WEFT_REQUIRES(mutex) { return !pending.empty() || watchers > 0 || !served.empty(); }
  uint64_t floor() const WEFT_REQUIRES(mutex) {
    return pending.empty() ? next_sequence : pending.begin()->first;
  }
};

/// All peers of an agent, itself included. A worker's current life is in the table; its past lives are lost
/// and kept, since calls and requests refer to them. So current lives are found without the lock. A life that
/// others name before this worker learns of it is kept apart until then.
class PeerTable {
 public:
  /// An expected life stays expected while a call or a watch of it begins. At the end of the Hold it is given
  /// up, unless something is held for it. Costs nothing for the current life.
  class Hold {
   public:
    explicit Hold(PeerTable& table) : table_(table) {}
    Hold(const Hold&) = delete;
    ~Hold();

   private:
    friend class PeerTable;
    PeerTable& table_;
    Peer* peer_ = nullptr;
  };
  /// The current life of a worker; created when it is missing. Throws: ValueError for an id out of range.
  Peer& at(WorkerId id);
  Peer* find(WorkerId id);  ///< null when missing
  Peer* find(Life life);    ///< null when missing, or when that is a past life
  /// The same, with the past lives. A life of which this worker has not learned yet is created: another
  /// worker knows it already. `hold` then keeps it. Throws: ValueError for an id out of range; PeerLost for
  /// too many such lives.
  Peer& of(Life life, Hold* hold = nullptr);
  /// Whether this worker has learned of that life, be it the current life or a past life.
  bool told(Life life);
  /// The life with that incarnation, in the place of `before`, unless that has a successor already. If it
  /// counted as lost because this worker had not learned of it, it lives again: nothing was sent to it.
  Peer& succeed(Peer& before, Incarnation next, TimePoint now);
  /// That expected life was not announced for a lease: it joins the past lives until a call or its
  /// announcement comes. A life under lease stays until it is lost, and one with a Hold until that ends.
  void give_up(Life life) noexcept;
  bool lost(Life life);        ///< it is known to be lost or to have left
  std::vector<Peer*> all();    ///< the current lives and those expected, by id
  std::vector<Peer*> shown();  ///< the same, which counts no visits
  /// Peers that walks over all of them and the alarm have looked at.
  std::atomic<int64_t> visits{0};
  std::string name(WorkerId id);  ///< creates the peer when it is missing
  static std::string name(Peer& p);
  /// "; worker 'x' is not connected: ...", the end of an error; empty: nothing is known against it.
  static std::string trouble(Peer& p);
  /// The id of a member. Throws: ValueError "could not find destination".
  WorkerId id_of(const To& who);
  /// Throws: ValueError for a bad name or id, and for a name or id that two members share.
  void check(const std::vector<Member>& members) const;
  /// Adds the name of a member, for id_of.
  void add_name(const std::string& name, WorkerId id);

 private:
  static std::unique_ptr<Peer> make(Life life, const std::string& name, bool told);
  Peer* past(Life life);
  static bool is_waiting(Peer& p);  ///< calls to it wait until this worker learns of it
  mutable Mutex mutex_;
  inner::TableById<Peer> current_;  ///< of peers_
  std::unordered_map<int32_t, std::unique_ptr<Peer>> peers_ WEFT_GUARDED_BY(mutex_);
  using Lives = std::map<Life, std::unique_ptr<Peer>>;  ///< a life moves to another one without an allocation
  Lives past_ WEFT_GUARDED_BY(mutex_);
  static constexpr size_t kMostExpected = 4096;
  Lives expected_ WEFT_GUARDED_BY(mutex_);  // not announced yet
  IdsByName ids_by_name_;
};

}  // namespace weft::rpc
