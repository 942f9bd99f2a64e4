// The contexts of a worker: how they begin, are found and end. dist_record.cpp records messages in them.
// End of a context C that worker A made: A frees it, ends its passes and sends a release to the known
// workers, which do the same. Each answers once its own releases are answered, so a worker that dies between
// the two is noticed, and all others get the release. Ended contexts are remembered, so a call that the
// release overtook does not create C again. Every worker with a context of another watches the life that
// made it, and the loss of that life ends the context. Each life of a worker counts its ids from 0. So all
// tables and messages have an id together with the life that made it, and a successor's ids are others.
// [G: at rest, no worker has a context that was left.]
#include <weft/distributed/autograd/inner/dist_context.h>

#include <weft/distributed/rpc/agent.h>
#include <weft/distributed/runtime/inner/task_state.h>

namespace weft::dist_autograd::detail {

using rpc::Kind;

namespace {

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

void tell_release(Agent& agent, Life to, MadeId context, rpc::Task on_error) {
  Message message;
  {
    rpc::Encoder out(message, &agent, to);
    put_id(out, context);
  }
  send_and_forget(agent, to, Kind::kRelease, std::move(message), std::move(on_error));
}

}  // namespace

void put_id(rpc::Encoder& out, MadeId id) {
  out.number(id.id);
  out.number(id.life.value);
}

MadeId get_id(rpc::Decoder& in) {
  MadeId id;
  id.id = in.number<int64_t>();
  id.life.value = in.number<uint64_t>();
  return id;
}

void send_and_forget(Agent& agent, Life to, Kind kind, Message message, rpc::Task on_error) {
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

Incarnation ContextTable::life() const {
  Incarnation life = life_.load();
  if (life.value != 0) return life;
  if (const auto agent = agent_.lock()) life_ = life = agent->life().incarnation;
  return life;
}

ContextPtr ContextTable::create() {
  const MadeId id{make_id(self_, contexts_made_.fetch_add(1)), life()};
  auto made = std::make_shared<ContextState>(id, *this, clock());
  MutexLock lock(mutex_);
  contexts_.emplace(made->id, made);
  return made;
}

ContextPtr ContextTable::find(MadeId id) {
  MutexLock lock(mutex_);
  const auto found = id.life.value != 0 ? contexts_.find(id) : contexts_.lower_bound(id);
  return found == contexts_.end() || found->first.id != id.id ? nullptr : found->second;
}

ContextPtr ContextTable::get(MadeId id) {
  if (auto found = find(id)) return found;
  throw AutogradError(str("could not find autograd context with id ", id.id, " on worker ", self_.value));
}

MadeId ContextTable::named(int64_t id) const {
  const rpc::CallContext* call = rpc::current_context();
  const WorkerId maker = MadeId{id, {}}.maker().id;
  if (call && call->autograd_context == id) return {id, call->autograd_life};
  if (maker == self_) return {id, life()};
  if (call && call->caller == maker) return {id, call->caller_life};
  const auto agent = agent_.lock();
  return {id, agent ? agent->life_of(maker).incarnation : Incarnation()};
}

void ContextTable::watch(Life peer, int delta) {
  if (peer.id == self_) return;
  if (const auto agent = agent_.lock()) agent->watch(peer, delta);
}

ContextPtr ContextTable::find_or_create(MadeId id) {
  if (ContextPtr found = find(id)) return found;
  watch(id.maker(), +1);  // before another thread can find the context and end it
  ContextPtr context;
  bool made = false;
  {
    MutexLock lock(mutex_);
    if (const auto found = contexts_.find(id); found != contexts_.end()) {
      context = found->second;
    } else if (!ended_.count(id)) {
      context = contexts_.emplace(id, std::make_shared<ContextState>(id, *this, clock())).first->second;
      made = true;
    }
  }
  if (!made) watch(id.maker(), -1);
  return context;
}

void ContextTable::release(MadeId id, std::shared_ptr<void> answer) {
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
  watch(id.maker(), -1);
  std::vector<std::shared_ptr<ContextPass>> passes;
  std::set<Life> known;
  std::map<int64_t, Ref<SendNode>> sends;  // freed after the lock
  std::map<MadeId, Ref<RecvNode>> recvs;
  ContextGradients gradients;
  {
    MutexLock lock(context->mutex);
    context->released = true;
    for (auto& [pass_id, pass] : context->passes) passes.push_back(pass);
    known.swap(context->known);
    sends.swap(context->sends);
    recvs.swap(context->recvs);
    std::swap(gradients, context->gradients);
  }
  for (auto& pass : passes)
    pass->fail(std::make_exception_ptr(
        AutogradError(str("autograd context ", id.id, " was released during a backward pass"))));
  const auto agent = agent_.lock();
  if (!agent) return;
  // The calls of a lost worker are not known here, so all other workers get the release in that case.
  const auto tell_all = [weak = weak_from_this(), id, answer = std::move(answer)] {
    const auto table = weak.lock();
    if (!table) return;
    table->runtime()->post([table, id, answer] {
      const auto agent = table->agent_or_null();
      if (!agent) return;
      for (const rpc::WorkerInfo& w : agent->worker_infos())
        if (w.id != table->self() && !agent->is_lost(w.id)) tell_release(*agent, w.id, id, [answer] {});
    });
  };
  bool lost = false;
  for (const Life peer : known) {
    if (agent->is_lost(peer)) lost = true;
    else tell_release(*agent, peer, id, tell_all);
  }
  if (lost) tell_all();
}

void ContextTable::peer_lost(const rpc::LostPeer& peer) {
  codecs.peer_lost(peer.life());
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
        if (same_life(send->to, peer.life())) gone.emplace(number, send);
      for (auto& [id, pass] : context->passes) passes.push_back(pass);
    }
    std::erase_if(passes, [&](const auto& pass) { return !pass->involves(peer.life(), gone); });
    for (auto& pass : passes)
      pass->fail(std::make_exception_ptr(PeerLost(
          peer.info.name, str("backward pass: worker '", peer.info.name, "' was lost: ", peer.why))));
    {
      // no gradients will come for these sends; their passes fail at the recv nodes
      MutexLock lock(context->mutex);
      for (const auto& [number, send] : gone) context->sends.erase(number);
    }
    if (same_life(context->id.maker(), peer.life())) release(context->id);
  }
}

void ContextTable::stop() {
  std::map<MadeId, ContextPtr> all;
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

Ref<SendNode> ContextState::find_send(int64_t message) {
  MutexLock lock(mutex);
  const auto found = sends.find(message);
  return found == sends.end() ? Ref<SendNode>() : found->second;
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
    const MadeId id = get_id(in);
    const auto answer = [](rpc::Responder* held) {
      held->reply({});
      delete held;
    };
    table.release(id, std::shared_ptr<rpc::Responder>(new rpc::Responder(std::move(responder)), answer));
  });
  agent.add_interceptor(shared_from_this());
  agent.on_stop([weak] {
    if (const auto table = weak.lock()) table->stop();
  });
  agent.on_peer_lost([weak](const rpc::LostPeer& peer) {
    if (const auto table = weak.lock()) table->peer_lost(peer);
  });
  agent.add_debug_info([weak](std::map<std::string, int64_t>& out) {
    const auto table = weak.lock();
    if (!table) return;
    int64_t passes = 0;
    out["dist_autograd.coded_tensors"] = table->codecs.coded;
    out["dist_autograd.coded_bytes_saved"] = table->codecs.saved_bytes;
    out["dist_autograd.feedback_bytes"] = table->codecs.feedback_bytes();
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
