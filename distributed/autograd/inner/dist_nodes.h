// The nodes of tensors that travel in a call: a send node at their sender, a recv node at their receiver.
// Internal to distributed autograd.
#pragma once

#include <weft/autograd/tape/engine.h>
#include <weft/distributed/runtime/runtime.h>
#include <weft/distributed/transport/ids.h>
#include <weft/distributed/wire/inner/streams.h>

namespace weft::dist_autograd::detail {

using rpc::TimePoint;
using rpc::WorkerId;

/// The node of tensors sent to another worker. Its edges lead into the local graph; the gradients come back
/// with the message id.
class SendNode final : public Node {
 public:
  SendNode(WorkerId to, int64_t message, TimePoint made, std::string what)
      : Node("DistSend"),
        to(to),
        message(message),
        made(made),
        what(std::move(what)),
        streams(rpc::StreamMark::now()) {}
  GradList apply(GradList grads, Pass& pass) override;
  const WorkerId to;
  const int64_t message;
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
  RecvNode(WorkerId from, int64_t message) : Node("DistRecv"), from(from), message(message) {}
  bool is_boundary() const override { return true; }
  GradList apply(GradList grads, Pass& pass) override;
  const WorkerId from;
  const int64_t message;
  /// devices of its outputs at their sender, and so the target devices of their gradients
  std::vector<Device> origins;
};

}  // namespace weft::dist_autograd::detail
