// The shutdown rounds of a group; rounds.cpp describes their protocol.
#pragma once

#include <map>
#include <set>

#include <weft/distributed/rpc/inner/alarm.h>
#include <weft/distributed/rpc/inner/peers.h>

namespace weft::rpc {

/// The leader's answer to a round, the same for every worker.
struct RoundAnswer {
  bool failed = false;            ///< first round: the last active member was lost
  std::string peer{}, text{};     ///< then: the name of that member, and the text with all lost members
  int64_t begun = 0, active = 0;  ///< sums over all workers in the round: calls begun, calls open
};
WEFT_FIELDS(RoundAnswer, failed, peer, text, begun, active)

/// Thrown when stop_serving ends a wait for the other workers; never leaves Agent::shutdown.
struct ToldToStop {};

/// The workers that wait here for a shutdown round, which this worker may lead. It also has the order to stop
/// waiting.
class RoundTable {
 public:
  RoundTable(AgentCore& core, PeerTable& peers, Alarm& alarm);

  /// Takes the request of a passive worker.
  void serve(Agent& agent, Request request, Responder responder);
  /// Answers the current round if every living member has requested it. Called after each loss too.
  void decide();
  /// Answers the workers that wait here for a round whose answer this worker has.
  void pass_on(uint64_t number, const RoundAnswer& answer);
  /// Keeps every member below that id under lease from now on.
  void watch_below(Agent& agent, int32_t limit);
  /// Keeps a member that has joined under lease, if a worker waits here for a round.
  void joined(Agent& agent);
  /// Names of the living members that have not requested the round.
  std::string missing();
  WorkerId leader();
  /// Number of workers known to be passive.
  size_t count_passive();
  /// Drops the waiting workers; they get no answer.
  void stop();

  /// Ends the waits of this worker, now and later.
  void tell_to_stop();
  bool told_to_stop() const { return told_to_stop_; }
  Event woken;  ///< set by tell_to_stop and by the answer of a round

 private:
  struct Arrived {
    Responder responder;
    uint64_t number = 0;
    TimePoint passive;   ///< when it became passive, by this worker's clock
    RoundAnswer counts;  ///< the counts of its own calls
    RoundAnswer last;    ///< its answer of the previous round
  };
  struct MemberState;
  std::vector<MemberState> members();
  void judge(const std::vector<MemberState>& members, RoundAnswer& answer) const WEFT_REQUIRES(mutex_);
  std::vector<Responder> take(uint64_t number) WEFT_REQUIRES(mutex_);
  void ask_active();

  AgentCore& core_;
  PeerTable& peers_;
  Alarm& alarm_;
  std::atomic<bool> told_to_stop_{false};
  Mutex mutex_;
  std::map<int32_t, Arrived> arrived_ WEFT_GUARDED_BY(mutex_);
  std::set<Life> passive_ WEFT_GUARDED_BY(mutex_);  ///< all lives that ever requested a round
  /// At least that many members are still missing: fewer arrivals need no look at all members.
  size_t missing_ WEFT_GUARDED_BY(mutex_) = 0;
  uint64_t looks_ WEFT_GUARDED_BY(mutex_) = 0;  ///< of decide() at all members; several may be under way
  TimePoint asked_ WEFT_GUARDED_BY(mutex_);     ///< of the last question to the active ones, perhaps to come
  size_t active_ WEFT_GUARDED_BY(mutex_) =
      0;  ///< at least that many were active, and lived, at that question
  std::set<Life> watched_ WEFT_GUARDED_BY(mutex_);
};

/// The rounds of one passive worker.
class Rounds {
 public:
  /// `caller` begins the text of a Timeout.
  Rounds(Agent& agent, AgentCore& core, RoundTable& table, TimePoint deadline, std::string caller);
  /// Blocks until every living member is in this round. Throws: Timeout that names the missing workers;
  /// ToldToStop.
  const RoundAnswer& next();

 private:
  Message request(bool asks) const;
  std::string waits_for(WorkerId leader);
  Agent& agent_;
  AgentCore& core_;
  RoundTable& table_;
  const TimePoint deadline_, passive_;
  const std::string caller_;
  uint64_t number_ = 0;
  RoundAnswer last_;
};

}  // namespace weft::rpc
