// The contexts of a worker: how they begin, are found and end. dist_record.cpp records messages in them.
// End of a context C that worker A made. A frees it, ends its passes and sends a release to the known
// workers, which do the same. A worker accepts a release from A and from workers that have called it in C.
// Each answers once its own releases are answered. So the death of a worker in between is noticed, and A then
// sends releases to all others. Ended contexts are remembered, so a call that the release overtook does not
// create C again. Every worker with another worker's context watches the life that made it, and the loss of
// that life ends the context. Each life of a worker counts its ids from 0. So tables and messages have an id
// together with the life that made it. [G: at rest, no worker has a context that was left.]
#include <weft/distributed/autograd/inner/dist_context.h>

#include <algorithm>

#include <weft/distributed/rpc/agent.h>
#include <weft/distributed/runtime/inner/task_state.h>

namespace weft::dist_autograd::detail {

using rpc::Kind;

namespace {

class Ignore final : public rpc::ReplySink {
 public:
  explicit Ignore(rpc::Task on_error) : on_error_(std::move(on_error)) {}
  void on_reply(Agent&, WorkerId, Message) noexcept override {}
  void on_error(std::exception_ptr error) noexcept override {
    if (!on_error_) return;
    try {
      std::rethrow_exception(error);
    } catch (const rpc::NotAllowed&) {  // it came, and before the calls of this worker
    } catch (...) {
      rpc::inner::run_task(on_error_);
    }
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

ContextPtr ContextTable::find_or_create(MadeId id, Life caller) {
  const auto joined = [caller](ContextPtr context) {
    MutexLock lock(context->mutex);
    context->callers.insert(caller);
    lock.unlock();
    return context;
  };
  if (ContextPtr found = find(id)) return joined(std::move(found));
  watch(id.maker(), +1);  // before another thread can find the context and end it
  ContextPtr context;
  bool made = false;
  {
    MutexLock lock(mutex_);
    if (const auto found = contexts_.find(id); found != contexts_.end()) {
      context = found->second;
    } else if (!ended_.has(id) && !early_.has({id, caller})) {
      context = contexts_.emplace(id, std::make_shared<ContextState>(id, *this, clock())).first->second;
      made = true;
    }
  }
  if (!made) watch(id.maker(), -1);
  return context ? joined(std::move(context)) : nullptr;
}

std::vector<ContextPtr> ContextTable::open() {
  std::vector<ContextPtr> all;
  {
    MutexLock lock(mutex_);
    for (const auto& [id, context] : contexts_) all.push_back(context);
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const ContextPtr& a, const ContextPtr& b) { return a->since < b->since; });
  return all;
}

void ContextTable::release(MadeId id, std::shared_ptr<void> answer, const rpc::LostPeer* lost_maker) {
  ContextPtr context;
  {
    MutexLock lock(mutex_);
    ended_.add(id);
    const auto found = contexts_.find(id);
    if (found == contexts_.end()) return;
    context = std::move(found->second);
    contexts_.erase(found);
  }
  watch(id.maker(), -1);
  for (const auto& f : on_ended_.copies()) f(id, lost_maker);
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
  bool lost = false;
  for (const Life peer : known) {
    if (agent->is_lost(peer)) lost = true;
    else
      tell_release(*agent, peer, id, [weak = weak_from_this(), id, answer] {
        if (const auto table = weak.lock()) table->tell_all(id, answer);
      });
  }
  if (lost) tell_all(id, answer);
}

void ContextTable::tell_all(MadeId id, std::shared_ptr<void> answer) {
  runtime()->post([self = shared_from_this(), id, answer = std::move(answer)] {
    const auto agent = self->agent_or_null();
    if (!agent) return;
    const Life maker = id.maker();
    if (maker.id != self->self()) {  // the others obey the maker; its loss ends the context too
      if (!agent->is_lost(maker)) tell_release(*agent, maker, id, [answer] {});
      return;
    }
    {
      MutexLock lock(self->mutex_);
      if (!self->ended_.has(id) || !self->told_.add(id)) return;
    }
    for (const rpc::WorkerInfo& w : agent->worker_infos())
      if (w.id != self->self() && !agent->is_lost(w.id)) tell_release(*agent, w.id, id, [answer] {});
  });
}

void ContextTable::release_for(Life from, MadeId id, std::shared_ptr<void> answer) {
  if (from == id.maker()) return release(id, std::move(answer));
  const ContextPtr context = find(id);
  if (id.maker().id == self_) {
    if (!context) return tell_all(id, std::move(answer));
  } else if (context) {
    MutexLock lock(context->mutex);
    const bool called = context->callers.count(from) > 0;
    lock.unlock();
    if (called) return release(id, std::move(answer));
  }
  {
    MutexLock lock(mutex_);
    if (ended_.has(id)) return;
    if (id.maker().id != self_) early_.add({id, from});
  }
  throw rpc::NotAllowed(str(worker_text(from.id), " cannot release the autograd context ", id.id, " of ",
                            worker_text(id.maker().id)));
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
    if (same_life(context->id.maker(), peer.life())) release(context->id, {}, &peer);
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

bool ContextState::takes_part(Life one) {
  if (one == id.maker() || one.id == table.self()) return true;
  MutexLock lock(mutex);
  return callers.count(one) > 0 ||
         std::any_of(known.begin(), known.end(), [&](Life peer) { return same_life(peer, one); });
}

void ContextState::check_claim(Life from, const std::vector<int64_t>& messages) {
  if (!takes_part(from))
    throw rpc::NotAllowed(str(table.worker_text(from.id), " takes no part in the autograd context ", id.id));
  MutexLock lock(mutex);
  for (const int64_t message : messages)
    if (const auto found = sends.find(message); found != sends.end() && !same_life(found->second->to, from))
      throw rpc::NotAllowed(str("backward: ", table.worker_text(from.id), " claims send #", message,
                                ", which went to another worker"));
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
    const std::shared_ptr<rpc::Responder> answer(new rpc::Responder(std::move(responder)),
                                                 [](rpc::Responder* held) {
                                                   held->reply({});
                                                   delete held;
                                                 });
    try {
      table.release_for(request.sender(), id, answer);
    } catch (...) {
      answer->fail(std::current_exception());
    }
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
