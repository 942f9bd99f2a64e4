// Deadlines, the times of statuses, and failure detection (agent.cpp, steps 4 to 7). Caller and Server send
// the messages again.
#pragma once

#include <weft/distributed/rpc/inner/caller.h>
#include <weft/distributed/rpc/inner/server.h>

namespace weft::rpc {

class Liveness {
 public:
  /// `on_loss` reports a loss to the agent's other parts, before the layers' callbacks run on the pool.
  using OnLoss = std::function<void(const LostPeer& peer)>;
  Liveness(AgentCore& core, PeerTable& peers, Caller& caller, Alarm& alarm, OnLoss on_loss)
      : core_(core), peers_(peers), caller_(caller), alarm_(alarm), on_loss_(std::move(on_loss)) {}

  /// The alarm rings, later than it was set to.
  void on_ring(Duration late);
  /// Does the due work of a peer and returns the time of its next work.
  TimePoint tend(Peer& p);
  void on_peer(WorkerId id, Incarnation incarnation, PeerState state, const std::string& reason);
  void on_failed_attempt(WorkerId id, Incarnation incarnation, const std::string& reason);
  void on_fenced(Peer& p, const std::string& header, const Envelope& e);
  /// Tells a lost incarnation that still sends messages that it counts as lost here.
  void fence(Peer& p);
  /// Marks a peer as lost or, with `left`, as gone; fails its calls and reports the loss to the parts and the
  /// layers.
  void lose(Peer& p, bool left, const std::string& reason);
  /// The peer with the incarnation `told`, which is `p` or its successor; then `p` is lost. `told` 0: any.
  Peer& live(Peer& p, Incarnation told);
  void watch(Life life, int delta);
  void process_ended(Life life);
  bool is_lost(Life life) const;
  void check_told(Life life);  ///< put_off.h

  /// Of the layers; they run on the pool.
  Callbacks<const LostPeer&> lost_callbacks;

 private:
  TimePoint do_due(Peer& p, TimePoint now);
  /// It is another life of this worker.
  bool foreign(Life life) const;
  AgentCore& core_;
  PeerTable& peers_;
  Caller& caller_;
  Alarm& alarm_;
  const OnLoss on_loss_;
};

}  // namespace weft::rpc
