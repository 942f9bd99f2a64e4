// barrier and gather. Each call of a worker goes to a leader, which answers all calls of one round together.
//  a. With names: the leader is the named worker with the smallest id. The lives of the named workers and a
//     number that each of them counts identify a round. The loss of one of them fails it. A worker sends the
//     lives until it has been through a round of them, and a hash of them later. Then the leader knows them.
//     If it does not, it asks for them.
//  b. Without names: the leader is the living member with the smallest id. Each worker counts its calls, and
//     the number of a call is that of its round, also after losses. So rounds never mix.
//  c. Such a round waits for the members that live when it opens, and for those that join. The loss of one
//     before its call fails the round, unless all workers in it knew of the loss. The leader keeps a failure
//     for the workers that come later: a round has one outcome.
//  d. A worker whose leader is lost reports that to the next leader, which fails the round likewise.
//  e. A worker that joins later takes part from the round on that the others are in.
//  f. Each call says whether it wants the messages of all. The answer of a barrier has none, so the leader's
//     work for a barrier without names grows as the number of its workers. That of a gather is, by its
//     nature, the messages of all for each of them.
// So several threads may be in rounds of the same workers at once. The leader fails a round at the earliest
// deadline of its workers and names the missing workers. They wait a little longer for that answer.
#pragma once

#include <map>
#include <optional>
#include <set>

#include <weft/distributed/rpc/inner/core.h>
#include <weft/distributed/rpc/inner/peers.h>

namespace weft::rpc {

class Gathers {
 public:
  Gathers(AgentCore& core, PeerTable& peers) : core_(core), peers_(peers) {}

  /// As Agent::gather. Without `entries` the result is empty, as in a barrier.
  std::map<std::string, Message> gather(Agent& agent, Message mine, const std::vector<std::string>& names,
                                        Duration timeout, bool entries);
  /// Leader: takes one worker's message.
  void serve(Agent& agent, Request request, Responder responder);
  /// Fails the rounds that wait for a lost peer, or leaves it out of them.
  void peer_lost(Agent& agent, const LostPeer& peer);
  /// Open rounds of all members wait for a new one too.
  void joined(Agent& agent, Life life);
  void stop();
  /// The number of sets of lives whose rounds are counted here.
  size_t sets() {
    MutexLock lock(mutex_);
    return sets_.size();
  }

 private:
  /// The hash of the lives of a round with names (0 without names), and the number of the round.
  using Key = std::pair<uint64_t, uint64_t>;
  /// Of the calls of this worker.
  struct NamedSet {
    std::vector<Life> lives;
    uint64_t next = 0;   ///< number of the next round
    bool known = false;  ///< to the leader: this worker was in a round that was completed
  };
  struct Arrival {
    Life from;
    Message message;
    Responder responder;
    Duration timeout{};
    bool entries = true;         ///< the answer has the messages of all; false: a barrier
    bool fresh = false;          ///< the worker has not been through any round without names
    std::vector<Life> lost;      ///< members that it knows to be lost
    std::string dead{}, text{};  ///< the leader that was lost meanwhile, and the text of its loss
  };
  struct Round {
    std::vector<Life> lives;    ///< under lease while the round is open
    std::set<int32_t> missing;  ///< workers that have not come yet
    std::map<int32_t, Arrival> arrived;
    size_t through = 0;            ///< how many of the arrived are not fresh
    std::map<Life, size_t> aware;  ///< how many of the arrived know of the loss of a member
    TimerId timer;
    TimePoint give_up = kNever;
  };
  struct Failure {
    std::exception_ptr error;
    std::set<int32_t> late;  ///< workers that were not notified of it
  };
  /// Work to be done without the mutex.
  struct Over {
    uint64_t number = 0;
    Round round;
    std::exception_ptr error;  ///< null: it is complete
    bool moved = false;        ///< or another worker leads it now, or its lives are needed
  };
  struct Call;

  void check_named(const std::vector<Life>& lives, Life from) const;
  [[noreturn]] void refuse(Life from) const;
  bool leads(const std::vector<Life>& lives, Life from) const;
  void enter(Agent& agent, Key key, std::vector<Life> lives, Arrival arrival);
  uint64_t place(const Arrival& arrival, uint64_t number) WEFT_REQUIRES(mutex_);
  void insert(Agent& agent, const Key& key, Arrival arrival, std::vector<Arrival>& old) WEFT_REQUIRES(mutex_);
  void leave_out(Agent& agent, const Key& key, Life life);
  /// Takes a round out of the table. `keep`: for those that come later.
  Over end(const Key& key, std::exception_ptr error, bool keep) WEFT_REQUIRES(mutex_);
  static Over moved(const Key& key, Arrival arrival);
  void finish(Agent& agent, Over over);
  void time_out(Agent& agent, const Key& key);
  /// Lowest number of a round without names that this worker has not been through.
  uint64_t floor() const WEFT_REQUIRES(mutex_) { return open_.empty() ? next_whole_ : *open_.begin(); }
  /// This worker may be a leader that has joined a group with rounds behind it.
  bool has_joined() const WEFT_REQUIRES(mutex_) { return fresh_ && decided_ == 0; }
  std::vector<Life> members(bool lost);

  AgentCore& core_;
  PeerTable& peers_;
  Mutex mutex_;
  std::map<uint64_t, NamedSet> sets_ WEFT_GUARDED_BY(mutex_);     ///< by their hash, with names
  uint64_t next_whole_ WEFT_GUARDED_BY(mutex_) = 0;               ///< the same without names
  std::set<uint64_t> open_ WEFT_GUARDED_BY(mutex_);               ///< rounds without names it is in
  bool fresh_ WEFT_GUARDED_BY(mutex_) = true;                     ///< as in Arrival
  std::map<Key, Round> rounds_ WEFT_GUARDED_BY(mutex_);           ///< rounds that this worker leads
  std::map<uint64_t, Failure> failures_ WEFT_GUARDED_BY(mutex_);  ///< of rounds without names
  uint64_t decided_ WEFT_GUARDED_BY(mutex_) = 0;  ///< rounds without names below it are over here
  bool stopped_ WEFT_GUARDED_BY(mutex_) = false;
};

}  // namespace weft::rpc
