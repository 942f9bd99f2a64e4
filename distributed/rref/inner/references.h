// The references of one agent: its own values, its references to others' values, and those under way.
// Internal to rref.h; references.cpp describes the protocol. One mutex guards the maps. It is a leaf
// lock: no agent, runtime or user code runs under it. A reference's destructor takes it and may itself
// run under any lock.
#pragma once

#include <atomic>
#include <deque>
#include <unordered_map>
#include <unordered_set>

#include <weft/distributed/rref/rref.h>
#include <weft/distributed/runtime/sync.h>

namespace weft::rpc::detail {

/// Runs tasks on the pool, one after another. It is closed until the value is made.
class Gate {
 public:
  explicit Gate(bool open) : busy_(!open) {}
  void enter(Runtime& runtime, Task task);
  /// Starts the next task. Called when a task has ended, and when the value was made.
  void leave(Runtime& runtime);

 private:
  Mutex mutex_;
  bool busy_ WEFT_GUARDED_BY(mutex_);
  std::deque<Task> waiting_ WEFT_GUARDED_BY(mutex_);
};

/// The owner's reference state. `value` and `type` are written before `created` is done and read after.
class OwnedState final : public RRefState {
 public:
  OwnedState(std::shared_ptr<References> refs, RRefId rref, WorkerInfo self, Site from, bool made);
  ~OwnedState() override;
  void set(std::shared_ptr<void> made, const ValueType* of);
  void fail(std::exception_ptr error);

  std::shared_ptr<void> value;
  const ValueType* type = nullptr;
  Gate gate;
  std::atomic<bool> timed_out{false};  ///< a remote() to oneself exceeded its timeout
  std::string late;                    ///< text of that Timeout, written before timed_out
};

/// A user's reference state. The fields below `standing` are written before it changes and read after.
class UserState final : public RRefState {
 public:
  enum class Standing : uint8_t { kPending, kConfirmed, kTimedOut, kFailed, kDeleted };
  UserState(std::shared_ptr<References> refs, RRefId rref, ForkId f, WorkerInfo of, WorkerInfo from_worker,
            Site from, Future<void> made, Future<void> confirm)
      : RRefState(std::move(refs), rref, std::move(of), false, from, std::move(made)),
        fork(f),
        parent(std::move(from_worker)),
        confirmed(std::move(confirm)) {}
  ~UserState() override;

  const ForkId fork;
  const WorkerInfo parent;  ///< worker that sent the reference; for remote(), this worker
  const Future<void> confirmed;
  std::atomic<Standing> standing{Standing::kPending};
  std::atomic<bool> known{false};  ///< the owner counts this fork and needs its DELETE
  std::exception_ptr error;        ///< error of every use: kTimedOut, kFailed, kDeleted
};

/// All references of one agent, with the handlers of their messages.
class References final : public std::enable_shared_from_this<References> {
 public:
  explicit References(Agent& agent);
  static std::shared_ptr<References> of(Agent& agent);
  void install(Agent& agent);

  /// Throws: RpcError when the agent has ended.
  std::shared_ptr<Agent> agent(const RRefState& used) const;
  const std::shared_ptr<Runtime>& runtime() const { return runtime_; }
  const WorkerInfo& self() const { return self_; }
  /// Throws: the error that makes the reference unusable.
  void check_usable(const RRefState& state) const;

  // references.cpp, references_settle.cpp: creation, sharing, release
  template <class Number> Number next(Agent& agent) {
    return {self_.id, agent.transport().incarnation(), counter_.fetch_add(1, std::memory_order_relaxed)};
  }
  std::shared_ptr<OwnedState> make_owned(RRefId id, Site site, bool made);
  std::shared_ptr<UserState> begin_creation(RRefId id, ForkId fork, const WorkerInfo& owner, Site site);
  std::shared_ptr<OwnedState> begin_own_creation(RRefId id, Site site);
  void creation_answered(const std::shared_ptr<UserState>& state, std::exception_ptr error, bool known);
  void creation_timed_out(RRefState& state, const char* what, Duration limit);
  void creation_ended(RRefId id);
  void abandon_creation(RRefState& state, std::exception_ptr error);
  void encode(Encoder& out, const StatePtr& state);
  StatePtr decode(Decoder& in, const ValueType* type);
  std::shared_ptr<OwnedState> find(RRefId id, bool confirmed, WorkerId creator);
  void confirm(const std::shared_ptr<UserState>& state, std::exception_ptr error);
  void settle(ForkId fork, bool received);
  void never_sent(ForkId fork);
  void owned_gone(RRefId id) noexcept;
  void user_gone(UserState& state) noexcept;

  // references_serve.cpp: requests of other workers
  void serve(Agent& agent);
  void add_fork(Agent& agent, RRefId id, ForkId fork, WorkerId holder, bool confirmed);
  std::shared_ptr<OwnedState> announce(RRefId id, ForkId fork, WorkerId from);
  void watch_holder(Agent& agent, WorkerId holder);

  // references_end.cpp: losses, shutdown, debugging
  void peer_lost(const WorkerInfo& peer, bool left, const std::string& why);
  void shutdown_shares(TimePoint deadline);
  void shutdown_users(TimePoint deadline);
  void shutdown_owners(TimePoint deadline);
  void stop();
  void debug_info(std::map<std::string, int64_t>& into);
  void set_policy(LeakPolicy policy);
  std::vector<LeakedRRef> leaks();

  /// Does the deferred work. Called on the pool, or where blocking is allowed.
  void drain();
  void trace(const std::string& line) const { runtime_->trace(line); }
  bool tracing() const { return runtime_->tracing(); }

 private:
  friend class ReferencesTest;
  /// A value of this worker, possibly used before its CREATE arrived.
  struct Entry {
    std::weak_ptr<OwnedState> state;
    std::shared_ptr<OwnedState> kept;            ///< set while there are forks or it is not announced
    bool announced = true;                       ///< false: CREATE has not arrived
    WorkerId creator;                            ///< watched while not announced
    std::unordered_map<ForkId, WorkerId> forks;  ///< forks with their holders
  };
  /// A child under way: its message is not settled.
  struct Share {
    RRefId rref;
    WorkerId to;
    /// the user's reference, kept for the child; null on the owner, where the fork keeps the value
    StatePtr parent;
    bool in_reply = false;
    bool probing = false;
  };
  struct Pending {
    std::shared_ptr<UserState> state;
    bool accept = false;  ///< send ACCEPT to the parent when the reference is confirmed
    std::vector<Responder> probes;
  };
  /// Work deferred because destructors and locked sections must not call the agent.
  struct Later {
    enum class What : uint8_t { kDelete, kProbe, kAccept, kUnwatch, kDrop } what;
    WorkerId peer;
    RRefId rref;
    ForkId fork;
    StatePtr drop{};
    std::string site{};  ///< origin of the reference, for a delete forced by shutdown
  };

  void later(std::vector<Later> items) noexcept;
  void later(Later item) noexcept;
  /// Removes a fork; adds the deferred work to `after`.
  bool remove_fork(RRefId id, ForkId fork, std::vector<Later>& after) WEFT_REQUIRES(mutex_);
  /// Ends a share: releases the parent; on the owner, `undo` removes the fork.
  void resolve(ForkId fork, bool undo);
  void probe(Agent& agent, ForkId fork, WorkerId to);
  void probe_soon(ForkId fork);
  void send_deletes(Agent& agent, WorkerId to, const std::vector<Later>& items);
  void send_accept(Agent& agent, WorkerId to, ForkId fork);
  void refuse(ForkId fork) WEFT_REQUIRES(mutex_);
  void lose_user(const std::shared_ptr<UserState>& state, UserState::Standing standing,
                 std::exception_ptr error);
  void drop_watch(WorkerId peer, std::vector<Later>& after) WEFT_REQUIRES(mutex_);
  [[noreturn]] void gone(RRefId id, ForkId fork);
  void changed();
  /// Blocks until `quiet()`, called under the mutex, is true. False: `deadline` came first.
  template <class Quiet> bool wait_quiet(TimePoint deadline, Quiet quiet);

  void serve_create(Request request, Responder responder);
  void serve_method(Request request, Responder responder);
  void serve_fetch(Request request, Responder responder);
  void serve_fork(Request request, Responder responder);
  void serve_accept(Request request, Responder responder);
  void serve_delete(Request request, Responder responder);

  const std::weak_ptr<Agent> agent_;
  const std::shared_ptr<Runtime> runtime_;
  const WorkerInfo self_;
  std::atomic<uint64_t> counter_{1};
  /// uses of destroyed values: 0 unless a worker was lost (G2)
  std::atomic<int64_t> gone_{0};
  std::atomic<int> deletes_under_way_{0};
  Event change_;

  Mutex mutex_;
  std::unordered_map<RRefId, Entry> entries_ WEFT_GUARDED_BY(mutex_);
  std::unordered_map<ForkId, std::weak_ptr<UserState>> users_ WEFT_GUARDED_BY(mutex_);
  /// recorded by a shutdown, which will delete them
  std::vector<std::shared_ptr<UserState>> held_ WEFT_GUARDED_BY(mutex_);
  std::unordered_map<ForkId, Pending> pending_ WEFT_GUARDED_BY(mutex_);
  std::unordered_map<ForkId, Share> shares_ WEFT_GUARDED_BY(mutex_);
  std::unordered_set<ForkId> refused_ WEFT_GUARDED_BY(mutex_);  ///< children that must not arrive
  std::deque<ForkId> refused_order_ WEFT_GUARDED_BY(mutex_);
  std::vector<Later> later_ WEFT_GUARDED_BY(mutex_);
  bool drain_posted_ WEFT_GUARDED_BY(mutex_) = false;
  int draining_ WEFT_GUARDED_BY(mutex_) = 0;
  bool stopped_ WEFT_GUARDED_BY(mutex_) = false;
  LeakPolicy policy_ WEFT_GUARDED_BY(mutex_) = LeakPolicy::kReport;
  std::vector<LeakedRRef> leaks_ WEFT_GUARDED_BY(mutex_);
};

// Bodies of messages.
void put(Encoder& out, const RRefId& id);
void put(Encoder& out, const ForkId& id);
RRefId get_rref(Decoder& in);
ForkId get_fork(Decoder& in);
/// Writes the target reference of a request: [id, confirmed].
void put_target(Encoder& out, const RRefState& state);
/// The answer to a probe.
Message probe_answer(bool there);

/// Passes the reply or error of a call to a function, which may ignore it.
class DoneSink final : public ReplySink {
 public:
  explicit DoneSink(std::function<void(std::exception_ptr, const Message*)> f) : f_(std::move(f)) {}
  void on_reply(Agent&, WorkerId, Message message) noexcept override;
  void on_error(std::exception_ptr error) noexcept override;

 private:
  std::function<void(std::exception_ptr, const Message*)> f_;
};

}  // namespace weft::rpc::detail
