// The messages of references: ids and their texts, targets of requests, answers to probes. The sender and the
// server of each request are with the protocol step that needs them (references.cpp).
#include <weft/distributed/rref/inner/reference_messages.h>

#include <weft/distributed/rref/inner/reference_states.h>

namespace weft::rpc {

template <class Tag> static std::string number_text(const char* name, const ReferenceNumber<Tag>& n) {
  return str(name, "(created_on=", n.created_on.value, ", local_id=", n.local, ")");
}
std::string to_string(const RRefId& id) { return number_text("RRefId", id); }
std::string to_string(const ForkId& id) { return number_text("ForkId", id); }

namespace detail {

void put(Encoder& out, const RRefId& id) {
  out.number(id.created_on.value), out.number(id.life.value), out.number(id.local);
}
void put(Encoder& out, const ForkId& id) {
  out.number(id.created_on.value), out.number(id.life.value), out.number(id.local);
}

template <class Number> static Number get_number(Decoder& in) {
  Number n;
  n.created_on.value = in.number<int32_t>();
  n.life.value = in.number<uint64_t>();
  n.local = in.number<uint64_t>();
  return n;
}
RRefId get_rref(Decoder& in) { return get_number<RRefId>(in); }
ForkId get_fork(Decoder& in) { return get_number<ForkId>(in); }

void put_target(Encoder& out, const RRefState& state) {
  put(out, state.id);
  out.number(static_cast<uint8_t>(is_confirmed(state)));
}

Message probe_answer(bool there) {
  Message answer;
  Encoder(answer).number(static_cast<uint8_t>(there));
  return answer;
}

WorkerInfo info_of(const Agent& agent, WorkerId id) {
  try {
    return agent.worker_info(id);
  } catch (const ValueError&) {
    return {str("#", id.value), id};
  }
}

void DoneSink::on_reply(Agent&, WorkerId, Message message) noexcept {
  try {
    f_(nullptr, &message);
  } catch (...) {
    on_error(std::current_exception());
  }
}

void DoneSink::on_error(std::exception_ptr error) noexcept {
  try {
    f_(std::move(error), nullptr);
  } catch (...) {  // a sink must not throw
  }
}

}  // namespace detail
}  // namespace weft::rpc
