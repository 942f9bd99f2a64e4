// The nodes of tensors that travel in a call: a send node at their sender, a recv node at their receiver.
// Internal to distributed autograd.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include <weft/autograd/tape/engine.h>
#include <weft/distributed/runtime/runtime.h>
#include <weft/distributed/transport/ids.h>
#include <weft/distributed/wire/inner/streams.h>

namespace weft::dist_autograd::detail {

using rpc::Incarnation;
using rpc::Life;
using rpc::TimePoint;
using rpc::WorkerId;

/// The id of a context, message or pass: maker's worker id << 48 | the count of that life of the worker. Each
/// life counts from 0, so the life belongs to the id wherever ids of several lives meet.
struct MadeId {
  int64_t id = -1;
  Incarnation life{};
  /// The worker and its life that made it.
  Life maker() const { return {WorkerId{static_cast<int32_t>(id >> 48)}, life}; }
  friend auto operator<=>(const MadeId&, const MadeId&) = default;
};
/// True unless these are two workers or two known lives.
inline bool same_life(Life a, Life b) {
  return a.id == b.id &&
         (a.incarnation == b.incarnation || a.incarnation.value == 0 || b.incarnation.value == 0);
}

/// A mask of a send node's slots: element s is true if slot s takes part.
using SlotSet = std::vector<bool>;
/// For each slot of a recv node: sends of its own worker, with the slots from which the tensor was made.
using Reach = std::vector<std::vector<std::pair<int64_t, SlotSet>>>;

/// The node of tensors sent to another worker. Its edges lead into the local graph; the gradients come back
/// with the message id.
class SendNode final : public Node {
 public:
  SendNode(Life to, int64_t message, TimePoint made, std::string what)
      : Node("DistSend"),
        to(to),
        message(message),
        made(made),
        what(std::move(what)),
        streams(rpc::StreamMark::now()) {}
  GradList apply(GradList grads, Pass& pass) override;
  const Life to;
  const int64_t message;  ///< made by this life
  const TimePoint made;
  const std::string what;      ///< "'f'", "the result of 'f'"
  std::vector<Tensor> leaves;  ///< sent leaves, kept as long as the context
  const std::unique_ptr<const rpc::StreamMark>
      streams;  ///< the backward pass waits for the forward's streams
};

class RecvNode;

/// The sink of a pass that goes on at other workers.
class RemoteSink : public GradSink {
 public:
  /// Sends the gradients of received tensors to their sender.
  virtual void send_back(const RecvNode& node, GradList gradients) = 0;
};

/// The node of received tensors: the end of the local graph. It sends the gradients back to their sender.
class RecvNode final : public Node {
 public:
  RecvNode(Life from, int64_t message) : Node("DistRecv"), from(from), message(message) {}
  bool is_boundary() const override { return true; }
  GradList apply(GradList grads, Pass& pass) override;
  const Life from;
  const int64_t message;  ///< made by that life
  int64_t ordinal = 0;    ///< among the recv nodes of its context from that life
  /// devices of its outputs at their sender, and so the target devices of their gradients
  std::vector<Device> origins;
  std::optional<Reach> reach;  ///< none: its sender has to be asked
};

}  // namespace weft::dist_autograd::detail
