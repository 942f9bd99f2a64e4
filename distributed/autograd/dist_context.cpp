// Recording of send and recv nodes, and the contexts of a worker. Steps of a call in context C from worker
// A to worker B ([G: ...] states a guarantee):
//   1. A sends the request: it draws a message id m and adds B to C's known workers. If grad mode is on
//      and a tensor requires grad, C stores under m a SendNode with one edge for each such tensor. The
//      message carries {C, m, whether there is a send node}.
//   2. B receives the request: it creates C if C is new and has not ended. If A has a send node, the
//      tensors that require grad become the outputs of a RecvNode (m, A). The function runs inside C.
//   3. B sends the reply, and 4. A receives it: the same with a message id of B's.
//   5. A message that will not be decoded removes its SendNode, so that no pass waits for it.
//   6. End of C: A frees it, ends its passes and sends a release to the known workers, which do the same.
//      Ended contexts are remembered, so a call that the release overtook does not create C again. The
//      loss of a worker ends the contexts it made, on all workers.
// [G1: at rest, no worker has a context that was left.] [G2: a recv node's gradients find their send node,
// or the pass ends with an error that names the message.]
#include <weft/distributed/autograd/inner/dist_context.h>

#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/grad_mode.h>
#include <weft/autograd/tape/record.h>
#include <weft/distributed/rpc/agent.h>
#include <weft/distributed/runtime/inner/task_state.h>

namespace weft::dist_autograd::detail {

using rpc::Kind;
using rpc::Tag;

namespace {

struct Header {
  int64_t context = -1, message = 0;
  uint8_t has_send = 0;
};

std::string pack(const Header& h) {
  std::string bytes(17, '\0');
  std::memcpy(bytes.data(), &h.context, 8);
  std::memcpy(bytes.data() + 8, &h.message, 8);
  bytes[16] = static_cast<char>(h.has_send);
  return bytes;
}

/// The header of a recorded message; none without a context. Throws: WireError for a malformed header.
std::optional<Header> unpack(const Message& message) {
  const std::string* bytes = message.find(Tag::kAutograd);
  if (!bytes) return std::nullopt;
  if (bytes->size() != 17)
    throw rpc::WireError(str("autograd header of ", bytes->size(), " bytes, 17 expected"));
  Header h;
  std::memcpy(&h.context, bytes->data(), 8);
  std::memcpy(&h.message, bytes->data() + 8, 8);
  h.has_send = static_cast<uint8_t>((*bytes)[16]);
  return h;
}

/// The name of the called function, for texts.
std::string called(Kind kind, const char* what) {
  return str("'",
             what                   ? std::string(what)
             : kind == Kind::kFetch ? std::string("to_here")
                                    : to_string(kind),
             "'");
}

/// True for user calls and for requests that move values of references. Messages of passes are not recorded.
bool recorded(Kind kind) {
  return kind == Kind::kCall || kind == Kind::kRemote || kind == Kind::kFetch || kind == Kind::kMethod;
}

class Ignore final : public rpc::ReplySink {
 public:
  explicit Ignore(rpc::Task on_error) : on_error_(std::move(on_error)) {}
  void on_reply(Agent&, WorkerId, Message) noexcept override {}
  void on_error(std::exception_ptr) noexcept override {
    if (on_error_) rpc::inner::run_task(on_error_);
  }

 private:
  rpc::Task on_error_;
};

void tell_release(Agent& agent, WorkerId to, int64_t context, rpc::Task on_error) {
  Message message;
  {
    rpc::Encoder out(message, &agent, to);
    out.number(context);
  }
  send_and_forget(agent, to, Kind::kRelease, std::move(message), std::move(on_error));
}

}  // namespace

void send_and_forget(Agent& agent, WorkerId to, Kind kind, Message message, rpc::Task on_error) {
  try {
    agent.call(to, kind, std::move(message), {std::chrono::seconds(30), nullptr},
               std::make_unique<Ignore>(std::move(on_error)));
  } catch (const RpcError&) {  // the peer is lost or this agent is ending
  }
}

// ---- contexts

ContextTable::ContextTable(Agent& agent)
    : self_(agent.self().id), agent_(agent.weak_from_this()), runtime_(agent.runtime()) {}

std::shared_ptr<Agent> ContextTable::agent() const {
  if (auto found = agent_.lock()) return found;
  throw RpcError("distributed autograd: the agent has ended");
}

std::string ContextTable::name_of(WorkerId id) const {
  try {
    if (const auto agent = agent_.lock()) return agent->worker_info(id).name;
  } catch (const Error&) {  // not in the group
  }
  return std::to_string(id.value);
}

ContextPtr ContextTable::create() {
  auto made = std::make_shared<ContextState>(number(contexts_made_.fetch_add(1)), *this);
  MutexLock lock(mutex_);
  contexts_.emplace(made->id, made);
  return made;
}

ContextPtr ContextTable::find(int64_t id) {
  MutexLock lock(mutex_);
  const auto found = contexts_.find(id);
  return found == contexts_.end() ? nullptr : found->second;
}

ContextPtr ContextTable::get(int64_t id) {
  if (auto found = find(id)) return found;
  throw AutogradError(str("could not find autograd context with id ", id, " on worker ", self_.value));
}

ContextPtr ContextTable::find_or_create(int64_t id) {
  MutexLock lock(mutex_);
  if (const auto found = contexts_.find(id); found != contexts_.end()) return found->second;
  if (ended_.count(id)) return nullptr;
  return contexts_.emplace(id, std::make_shared<ContextState>(id, *this)).first->second;
}

void ContextTable::release(int64_t id) {
  ContextPtr context;
  {
    MutexLock lock(mutex_);
    if (ended_.insert(id).second) {
      ended_order_.push_back(id);
      if (ended_order_.size() > kRemembered) {
        ended_.erase(ended_order_.front());
        ended_order_.pop_front();
      }
    }
    const auto found = contexts_.find(id);
    if (found == contexts_.end()) return;
    context = std::move(found->second);
    contexts_.erase(found);
  }
  std::vector<std::shared_ptr<ContextPass>> passes;
  std::set<WorkerId> known;
  std::map<int64_t, Ref<SendNode>> sends;  // freed after the lock
  std::map<int64_t, Ref<RecvNode>> recvs;
  std::unordered_map<TensorBody*, std::pair<Tensor, Tensor>> gradients;
  {
    MutexLock lock(context->mutex);
    context->released = true;
    for (auto& [pass_id, pass] : context->passes) passes.push_back(pass);
    known.swap(context->known);
    sends.swap(context->sends);
    recvs.swap(context->recvs);
    gradients.swap(context->gradients);
  }
  for (auto& pass : passes)
    pass->fail(std::make_exception_ptr(
        AutogradError(str("autograd context ", id, " was released during a backward pass"))));
  const auto agent = agent_.lock();
  if (!agent) return;
  // The calls of a lost worker are not known here, so all other workers get the release in that case.
  for (const WorkerId peer : known)
    tell_release(*agent, peer, id, [weak = weak_from_this(), id] {
      const auto table = weak.lock();
      if (!table) return;
      table->runtime()->post([table, id] {
        const auto agent = table->agent_or_null();
        if (!agent) return;
        for (const rpc::WorkerInfo& w : agent->worker_infos())
          if (w.id != table->self() && !agent->is_lost(w.id)) tell_release(*agent, w.id, id, {});
      });
    });
}

void ContextTable::peer_lost(const rpc::WorkerInfo& peer, const std::string& why) {
  std::vector<ContextPtr> all;
  {
    MutexLock lock(mutex_);
    for (auto& [id, context] : contexts_) all.push_back(context);
  }
  for (const ContextPtr& context : all) {
    std::vector<std::shared_ptr<ContextPass>> passes;
    std::map<int64_t, Ref<SendNode>> gone;  // freed after the lock
    {
      MutexLock lock(context->mutex);
      for (const auto& [number, send] : context->sends)
        if (send->to == peer.id) gone.emplace(number, send);
      for (auto& [id, pass] : context->passes) passes.push_back(pass);
    }
    std::erase_if(passes, [&](const auto& pass) { return !pass->involves(peer.id, gone); });
    for (auto& pass : passes)
      pass->fail(std::make_exception_ptr(
          PeerLost(peer.name, str("backward pass: worker '", peer.name, "' was lost: ", why))));
    {
      // no gradients will come for these sends; their passes fail at the recv nodes
      MutexLock lock(context->mutex);
      for (const auto& [number, send] : gone) context->sends.erase(number);
    }
    if (maker_of(context->id) == peer.id) release(context->id);
  }
}

void ContextTable::stop() {
  std::unordered_map<int64_t, ContextPtr> all;
  {
    MutexLock lock(mutex_);
    all.swap(contexts_);
  }
  for (auto& [id, context] : all) {
    std::vector<std::shared_ptr<ContextPass>> passes;
    {
      MutexLock lock(context->mutex);
      context->released = true;
      for (auto& [pass_id, pass] : context->passes) passes.push_back(pass);
    }
    for (auto& pass : passes)
      pass->fail(std::make_exception_ptr(RpcError("the agent ended during a backward pass")));
  }
}

void ContextState::accumulate(const Tensor& leaf, Tensor grad, bool may_steal) {
  NoGrad guard;
  MutexLock lock(mutex);
  if (released) return;
  auto& [kept, sum] = gradients[leaf.body_ptr()];
  if (!sum.defined()) {
    kept = leaf;
    sum = may_steal ? std::move(grad) : grad.detach().clone();
  } else {
    sum = sum + grad;
  }
}

Ref<SendNode> ContextState::find_send(int64_t message) {
  MutexLock lock(mutex);
  const auto found = sends.find(message);
  return found == sends.end() ? Ref<SendNode>() : found->second;
}

// ---- recording

void ContextTable::attach_send(ContextState& context, WorkerId to, std::string what, Message& message,
                               bool grad_mode) {
  const int64_t number = next_message();
  Ref<SendNode> node;
  if (grad_mode) {
    EdgeList edges;
    for (const Tensor& t : message.tensors)
      if (t.requires_grad()) edges.push_back(gradient_edge(t));
    if (!edges.empty()) {
      node = Ref<SendNode>::adopt(new SendNode(to, number, runtime_->now(), std::move(what)));
      node->edges() = std::move(edges);
      for (const Tensor& t : message.tensors)
        if (t.requires_grad() && t.is_leaf()) node->leaves.push_back(t);
    }
  }
  const bool has_send = static_cast<bool>(node);
  {
    MutexLock lock(context.mutex);
    if (context.released) return;
    if (node) context.sends.emplace(number, std::move(node));
  }
  message.extension(Tag::kAutograd) = pack({context.id, number, has_send});
}

void ContextTable::attach_recv(ContextState& context, WorkerId from, Message& message) {
  const auto header = unpack(message);
  if (!header || !header->has_send) return;
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
  weft::detail::link(node, linked, std::span<const Tensor>());
  {
    MutexLock lock(context.mutex);
    if (context.released) return;
    context.recvs.emplace(header->message, node);
  }
  size_t next = 0;
  for (Tensor& t : message.tensors)
    if (t.requires_grad()) t = linked[next++];
}

void ContextTable::request_sending(Agent&, rpc::Life to, Kind kind, const char* what, Message& message) {
  const rpc::CallContext* call = rpc::current_context();
  if (!recorded(kind) || !call || call->autograd_context < 0) return;
  const ContextPtr context = find(call->autograd_context);
  if (!context) return;
  {
    MutexLock lock(context->mutex);
    if (to.id != self_) context->known.insert(to.id);
  }
  attach_send(*context, to.id, called(kind, what), message, grad_enabled());
}

void ContextTable::request_received(Agent& agent, rpc::Life from, Kind kind, Message& message,
                                    rpc::CallContext& call) {
  if (!recorded(kind)) return;
  const auto header = unpack(message);
  if (!header) return;
  const ContextPtr context = find_or_create(header->context);
  if (!context) return;
  // lost while the request waited for a thread
  if (agent.is_lost(maker_of(header->context))) return release(header->context);
  call.autograd_context = header->context;
  attach_recv(*context, from.id, message);
}

void ContextTable::reply_sending(Agent&, rpc::Life to, Kind kind, const char* what, Message& message,
                                 const rpc::CallContext& call) {
  if (!recorded(kind) || call.autograd_context < 0) return;
  if (const ContextPtr context = find(call.autograd_context))
    attach_send(*context, to.id, "the result of " + called(kind, what), message, true);
}

void ContextTable::reply_received(Agent&, rpc::Life from, Kind kind, Message& message,
                                  const rpc::CallContext& call) {
  if (!recorded(kind) || call.autograd_context < 0) return;
  if (const ContextPtr context = find(call.autograd_context)) attach_recv(*context, from.id, message);
}

void ContextTable::discarded(Agent&, rpc::Life, Kind kind, const Message& message, bool outgoing) {
  if (!recorded(kind) || !outgoing) return;
  const auto header = unpack(message);
  if (!header || !header->has_send) return;
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

// ---- installation on the agent

namespace {
struct Slot {
  explicit Slot(Agent& agent) : table(std::make_shared<ContextTable>(agent)) {}
  std::shared_ptr<ContextTable> table;
};
}  // namespace

std::shared_ptr<ContextTable> ContextTable::of(Agent& agent) { return agent.slot<Slot>().table; }

void ContextTable::handle(Agent& agent, Kind kind,
                          void (*serve)(ContextTable&, rpc::Request, rpc::Responder)) {
  agent.handle(kind, rpc::RunOn::kPool,
               [weak = weak_from_this(), serve](rpc::Request request, rpc::Responder responder) {
                 if (const auto table = weak.lock()) serve(*table, std::move(request), std::move(responder));
               });
}

void ContextTable::install(Agent& agent) {
  const std::weak_ptr<ContextTable> weak = weak_from_this();
  handle(agent, Kind::kRelease, [](ContextTable& table, rpc::Request request, rpc::Responder responder) {
    rpc::Decoder in(request.message);
    table.release(in.number<int64_t>());
    responder.reply({});
  });
  agent.add_interceptor(shared_from_this());
  agent.on_stop([weak] {
    if (const auto table = weak.lock()) table->stop();
  });
  agent.on_peer_lost([weak](const rpc::LostPeer& peer) {
    if (const auto table = weak.lock()) table->peer_lost(peer.info, peer.why);
  });
  agent.add_debug_info([weak](std::map<std::string, int64_t>& out) {
    const auto table = weak.lock();
    if (!table) return;
    int64_t passes = 0;
    MutexLock lock(table->mutex_);
    for (auto& [id, context] : table->contexts_) {
      MutexLock inner(context->mutex);
      passes += static_cast<int64_t>(context->passes.size());
    }
    out["dist_autograd.num_autograd_contexts"] = static_cast<int64_t>(table->contexts_.size());
    out["dist_autograd.num_current_backward_passes"] = passes;
  });
}

}  // namespace weft::dist_autograd::detail
