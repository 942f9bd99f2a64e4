// Bodies of the messages of references, and the sink of their answers. Internal to rref.h.
#pragma once

#include <functional>

#include <weft/distributed/rref/rref_state.h>

namespace weft::rpc::detail {

/// The flag of a reference in a message and of FORK: the parent of the child is confirmed.
inline constexpr uint8_t kConfirmedParent = 1;
/// The first byte of Kind::kAccept: ACCEPT, the child has arrived; PROBE, the question whether it has.
inline constexpr uint8_t kAcceptByte = 0, kProbeByte = 1;

void put(Encoder& out, const RRefId& id);
void put(Encoder& out, const ForkId& id);
RRefId get_rref(Decoder& in);
ForkId get_fork(Decoder& in);
/// Writes the target reference of a request: [id, confirmed].
void put_target(Encoder& out, const RRefState& state);
/// The answer to a probe.
Message probe_answer(bool there);
/// Name and id of a worker, be it a member or a worker of which this worker has not learned yet.
WorkerInfo info_of(const Agent& agent, WorkerId id);

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
