// Recording of send and recv nodes: the interceptor that the agent calls for each outgoing and incoming
// message of a context. The steps follow the includes.
#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/grad_mode.h>
#include <weft/autograd/tape/record.h>
#include <weft/distributed/autograd/inner/dist_context.h>
#include <weft/distributed/autograd/inner/dist_reach.h>
#include <weft/distributed/rpc/agent.h>
#include <weft/distributed/rpc/inner/put_off.h>
#include <weft/distributed/rpc/inner/unrecorded.h>

// Steps of a call in context C from worker A to worker B ([G: ...] states a guarantee):
//   1. A sends the request: it draws a message id m and adds B to C's known workers. If grad mode is on
//      and a tensor requires grad, C stores under m a SendNode with one edge for each such tensor. The
//      message carries {C, the life of its maker, m, whether there is a send node}.
//   2. B receives the request: it creates C if C is new and has not ended. If A has a send node, the
//      tensors that require grad become the outputs of a RecvNode (m, A). The function runs inside C.
//   3. B sends the reply, and 4. A receives it: the same with a message id of B's. The reply also lists the
//      sends of A that lead to its tensors, if B knows them (dist_reach.h).
//   5. A message that will not be decoded removes its SendNode, so that no pass waits for it.
// A call of a context that has ended is not recorded, nor is a call outside a context. There a tensor with a
// graph is refused (rpc/outside_context.h), unless the call was made under NoGrad, which the message states.
// The gradients of a pass with create_graph are recorded in the same way. So a later pass goes through their
// graphs.
// [G: a recv node's gradients find their send node, or the pass ends with an error that names the message.]

namespace weft::dist_autograd::detail {

using rpc::Kind;
using rpc::Tag;

namespace {

struct Header {
  MadeId context;
  int64_t message = 0;  // made by the message's sender
  /// kEnded: the context has ended; kNoGrad: there is no context, and the caller wants no gradients
  enum Send : uint8_t { kNoSend, kHasSend, kEnded, kNoGrad } has_send = kNoSend;
};

constexpr size_t kHeaderBytes = 25;
/// CallContext::autograd_context of a function that was called under NoGrad outside a context.
constexpr int64_t kWithoutGradients = -2;

std::string pack(const Header& h) {
  std::string bytes(kHeaderBytes, '\0');
  std::memcpy(bytes.data(), &h.context.id, 8);
  std::memcpy(bytes.data() + 8, &h.context.life.value, 8);
  std::memcpy(bytes.data() + 16, &h.message, 8);
  bytes[24] = static_cast<char>(h.has_send);
  return bytes;
}

/// The header of a recorded message; none without a context. Throws: WireError for a malformed header.
std::optional<Header> unpack(const Message& message) {
  const std::string* bytes = message.find(Tag::kAutograd);
  if (!bytes) return std::nullopt;
  if (bytes->size() < kHeaderBytes)
    throw rpc::WireError(
        str("autograd header of ", bytes->size(), " bytes, at least ", kHeaderBytes, " expected"));
  Header h;
  std::memcpy(&h.context.id, bytes->data(), 8);
  std::memcpy(&h.context.life.value, bytes->data() + 8, 8);
  std::memcpy(&h.message, bytes->data() + 16, 8);
  h.has_send = static_cast<Header::Send>((*bytes)[24]);
  return h;
}

/// The name of the called function, for texts.
std::string name_of_call(Kind kind, const char* what) {
  return what ? what : kind == Kind::kFetch ? "to_here" : to_string(kind);
}
std::string called(Kind kind, const char* what) { return str("'", name_of_call(kind, what), "'"); }

/// True for user calls and for requests that move values of references. Messages of passes are not recorded.
bool recorded(Kind kind) {
  return kind == Kind::kCall || kind == Kind::kRemote || kind == Kind::kFetch || kind == Kind::kMethod;
}

}  // namespace

void ContextTable::attach_send(ContextState& context, Life to, std::string what, Message& message,
                               bool grad_mode, bool reply) {
  const int64_t number = next_message();
  Ref<SendNode> node;
  std::optional<Reach> reach;
  if (grad_mode) {
    EdgeList edges;
    for (const Tensor& t : message.tensors)
      if (t.requires_grad()) edges.push_back(gradient_edge(t));
    if (!edges.empty()) {
      node = Ref<SendNode>::adopt(new SendNode(to, number, runtime_->now(), std::move(what)));
      if (reply) reach = reach_of(edges, to);
      node->edges() = std::move(edges);
      for (const Tensor& t : message.tensors)
        if (t.requires_grad() && t.is_leaf()) node->leaves.push_back(t);
    }
  }
  Header header{context.id, number, node ? Header::kHasSend : Header::kNoSend};
  {
    MutexLock lock(context.mutex);
    if (context.released) header.has_send = Header::kEnded;
    else if (node) context.sends.emplace(number, std::move(node));
  }
  std::string& bytes = message.extension(Tag::kAutograd);
  bytes = pack(header);
  if (reach) bytes += pack_reach(*reach);
  if (header.has_send == Header::kHasSend) codecs.code_activations(to.id, message);
}

void ContextTable::attach_recv(ContextState& context, Life from, Message& message) {
  const auto header = unpack(message);
  if (!header || header->has_send != Header::kHasSend) return;
  std::vector<Tensor> linked;
  std::vector<Device> origins;
  for (size_t i = 0; i < message.tensors.size(); ++i)
    if (const Tensor& t = message.tensors[i]; t.requires_grad()) {
      linked.push_back(t.detach());
      origins.push_back(i < message.places.size() ? message.places[i].source : kCpu);
    }
  if (linked.empty()) return;
  auto node = Ref<RecvNode>::adopt(new RecvNode(from, header->message));
  node->origins = std::move(origins);
  if (const std::string& bytes = *message.find(Tag::kAutograd); bytes.size() > kHeaderBytes)
    node->reach = unpack_reach(std::string_view(bytes).substr(kHeaderBytes));
  weft::detail::link(node, linked, std::span<const Tensor>());
  {
    MutexLock lock(context.mutex);
    if (context.released) return;
    node->ordinal = context.received[from]++;
    context.recvs.emplace(MadeId{header->message, from.incarnation}, node);
  }
  size_t next = 0;
  for (Tensor& t : message.tensors)
    if (t.requires_grad()) t = linked[next++];
}

void ContextTable::request_sending(Agent& agent, rpc::Life to, Kind kind, const char* what,
                                   Message& message) {
  const rpc::CallContext* call = rpc::current_context();
  if (!recorded(kind)) {
    if (kind >= Kind::kUser && grad_enabled() && rpc::has_graph(message))
      check_unrecorded(agent, message, name_of_call(kind, what), to.id, rpc::Carries::kNeverRecorded);
    return;
  }
  if (!call || call->autograd_context < 0) {
    if (!grad_enabled() || (call && call->autograd_context == kWithoutGradients))
      message.extension(Tag::kAutograd) = pack({{}, 0, Header::kNoGrad});
    else if (rpc::has_graph(message))
      check_unrecorded(agent, message, name_of_call(kind, what), to.id, rpc::Carries::kArguments);
    return;
  }
  const MadeId id{call->autograd_context, call->autograd_life};
  const ContextPtr context = find(id);
  if (!context) {  // a pass would not come here any more
    message.extension(Tag::kAutograd) = pack({id, 0, Header::kEnded});
    return;
  }
  {
    MutexLock lock(context->mutex);
    if (to.id != self_) context->known.insert(to);
  }
  attach_send(*context, to, called(kind, what), message, grad_enabled());
}

bool ContextTable::maker_is_lost(Agent& agent, MadeId id) {
  const Life maker = id.maker();
  if (maker.id == self_) return maker.incarnation != life();
  rpc::check_told(agent, maker);
  return agent.is_lost(maker);
}

void ContextTable::request_received(Agent& agent, rpc::Life from, Kind kind, Message& message,
                                    rpc::CallContext& call) {
  if (!recorded(kind)) return;
  const auto header = unpack(message);
  if (header && header->has_send == Header::kNoGrad) call.autograd_context = kWithoutGradients;
  if (!header || header->has_send == Header::kNoGrad) return rpc::detach_unrecorded(message);
  EdgeCodecs::decode(message);
  // the call belongs to its context also where that has ended
  call.autograd_context = header->context.id;
  call.autograd_life = header->context.life;
  const bool ended = header->has_send == Header::kEnded || maker_is_lost(agent, header->context);
  const ContextPtr context = ended ? nullptr : find_or_create(header->context, from);
  if (!context) return rpc::detach_unrecorded(message);
  if (maker_is_lost(agent, header->context)) return release(header->context);  // the callback has passed
  attach_recv(*context, from, message);
}

void ContextTable::reply_sending(Agent& agent, rpc::Life to, Kind kind, const char* what, Message& message,
                                 const rpc::CallContext& call) {
  if (!recorded(kind)) {
    if (kind >= Kind::kUser && rpc::has_graph(message))
      check_unrecorded(agent, message, name_of_call(kind, what), to.id, rpc::Carries::kNeverRecorded);
    return;
  }
  if (call.autograd_context == kWithoutGradients) return;
  if (call.autograd_context < 0) {
    if (rpc::has_graph(message))
      check_unrecorded(agent, message, name_of_call(kind, what), to.id, rpc::Carries::kResult);
    return;
  }
  if (const ContextPtr context = find({call.autograd_context, call.autograd_life}))
    attach_send(*context, to, "the result of " + called(kind, what), message, true, true);
}

void ContextTable::reply_received(Agent&, rpc::Life from, Kind kind, Message& message,
                                  const rpc::CallContext& call) {
  if (!recorded(kind)) return;
  EdgeCodecs::decode(message);
  const ContextPtr context =
      call.autograd_context < 0 ? nullptr : find({call.autograd_context, call.autograd_life});
  if (context) attach_recv(*context, from, message);
  else rpc::detach_unrecorded(message);
}

void ContextTable::gradients_sending(ContextState& context, Life to, Message& message) {
  attach_send(context, to, "the gradients of a backward pass", message, true);
}

void ContextTable::gradients_received(Life from, Message& message) {
  const auto header = unpack(message);
  if (!header) return;
  if (const ContextPtr context = find(header->context)) attach_recv(*context, from, message);
}

void ContextTable::discarded(Agent&, rpc::Life, Kind kind, const Message& message, bool outgoing) {
  if (!recorded(kind) || !outgoing) return;
  const auto header = unpack(message);
  if (!header || header->has_send != Header::kHasSend) return;
  if (const ContextPtr context = find(header->context)) {
    Ref<SendNode> gone;
    MutexLock lock(context->mutex);
    if (const auto found = context->sends.find(header->message); found != context->sends.end()) {
      gone = std::move(found->second);
      context->sends.erase(found);
    }
    lock.unlock();
  }
}

}  // namespace weft::dist_autograd::detail
