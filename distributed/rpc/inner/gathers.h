// barrier and gather. The worker with the smallest id of the named ones is the leader. Every worker, the
// leader too, calls it with its message. When the last message has come, the leader answers all with all
// messages. Its workers and a number that each worker counts locally identify a round. So several threads may
// be in rounds of the same workers at once. The leader fails the round at the earliest deadline of its
// members and names the missing ones. The members wait a little longer for that answer.
#pragma once

#include <map>

#include <weft/distributed/rpc/inner/core.h>
#include <weft/distributed/rpc/inner/peers.h>

namespace weft::rpc {

class Gathers {
 public:
  Gathers(AgentCore& core, PeerTable& peers) : core_(core), peers_(peers) {}

  /// As Agent::gather.
  std::map<std::string, Message> gather(Agent& agent, Message mine, const std::vector<std::string>& names,
                                        Duration timeout);
  /// Leader: takes one worker's message.
  void serve(Agent& agent, Request request, Responder responder);
  /// Fails the rounds that wait for a lost peer.
  void peer_lost(Agent& agent, const WorkerInfo& peer, bool left, const std::string& why);
  void stop();

 private:
  struct Round {
    std::vector<int32_t> members;
    std::map<int32_t, Message> arrived;
    std::vector<Responder> waiting;
    TimerId timer;
    TimePoint give_up = kNever;
  };
  void fail(Agent& agent, const std::string& key, const std::function<std::exception_ptr(const Round&)>& why);
  void time_out(Agent& agent, const std::string& key);

  AgentCore& core_;
  PeerTable& peers_;
  Mutex mutex_;
  std::map<std::string, uint64_t> next_ WEFT_GUARDED_BY(mutex_);  ///< round numbers of this worker
  std::map<std::string, Round> rounds_ WEFT_GUARDED_BY(mutex_);   ///< rounds that this worker leads
  bool stopped_ WEFT_GUARDED_BY(mutex_) = false;
};

}  // namespace weft::rpc
