// The end of a failed pass. Every worker that hears of the failure ends its part. Some parts were done
// before, and their gradients are in the context. So the initiator sends a wave over the workers of the pass:
//   1. I asks the workers with which it exchanged messages of pass P to take P back.
//   2. A worker drops P's gradients. At the first such request it asks its own partners of P, and answers
//      when they have answered; at others it answers at once. Its partners are remembered with a failed pass
//      and with a part that is done.
//   3. When I has all answers, no worker has gradients of P, nor will have. A lost worker counts as one that
//      has answered. [G: an optimizer step after the error takes nothing of P]
#include <weft/distributed/autograd/inner/dist_pass.h>

#include <weft/distributed/rpc/agent.h>

namespace weft::dist_autograd::detail {

using rpc::Decoder;
using rpc::Encoder;
using rpc::Kind;

namespace {

/// Calls a function when the last of several answers has come.
class LastAnswer {
 public:
  explicit LastAnswer(std::function<void(bool all)> f) : f_(std::move(f)) {}
  ~LastAnswer() { f_(all); }
  LastAnswer(const LastAnswer&) = delete;
  std::atomic<bool> all{true};  ///< false: a worker that lives has not answered

 private:
  std::function<void(bool all)> f_;
};

class TakenBack final : public rpc::ReplySink {
 public:
  explicit TakenBack(std::shared_ptr<LastAnswer> last) : last_(std::move(last)) {}
  void on_reply(Agent&, WorkerId, Message) noexcept override {}
  void on_error(std::exception_ptr error) noexcept override {
    try {
      std::rethrow_exception(error);
    } catch (const PeerLost&) {         // and its gradients with it
    } catch (const rpc::NotAllowed&) {  // it got nothing of the pass from here; others ask it
    } catch (...) {
      last_->all = false;
    }
  }

 private:
  std::shared_ptr<LastAnswer> last_;
};

/// Steps 1 and 2. The limit of a request is for a worker that lives and does not answer.
void ask_to_take_back(ContextTable& table, MadeId context, MadeId pass, const std::exception_ptr& why,
                      const std::set<Life>& workers, std::function<void(bool all)> f) {
  const auto last = std::make_shared<LastAnswer>(std::move(f));
  const auto agent = table.agent_or_null();
  if (!agent) return;
  for (const Life peer : workers) {
    if (peer.id == table.self() || agent->is_lost(peer)) continue;
    Message message;
    {
      Encoder out(message, agent.get(), peer);
      put_id(out, context);
      put_id(out, pass);
      out.number(uint8_t{1});
      rpc::put_error(out, why);
    }
    try {
      agent->call(peer, Kind::kPassAbort, std::move(message),
                  {std::chrono::seconds(30), "the end of a failed backward pass"},
                  std::make_unique<TakenBack>(last));
    } catch (const RpcError&) {  // this agent is ending
      last->all = false;
    }
  }
}

/// Records the failure and drops the gradients of the pass. Returns the workers to ask in step 2.
std::set<Life> drop_part(ContextState& context, MadeId pass_id, const std::exception_ptr& why,
                         bool taking_back, std::set<Life> parties) {
  std::vector<Tensor> gone;  // freed after the lock
  MutexLock lock(context.mutex);
  ContextState::Aborted& aborted = context.aborted[pass_id];
  if (!aborted.why) aborted.why = why;
  gone = context.gradients.drop(pass_id);
  parties.merge(aborted.parties);
  if (const auto done = context.done.find(pass_id); done != context.done.end()) {
    parties.merge(done->second);
    context.done.erase(done);
  }
  aborted.parties = parties;
  if (!taking_back || std::exchange(aborted.taken_back, true)) parties.clear();
  lock.unlock();
  return parties;
}

/// True if this worker exchanged messages of the pass with that life, or has heard that it took part.
bool is_party(const ContextPtr& context, MadeId pass_id, Life one) {
  if (const auto pass = find_pass(context, pass_id); pass && pass->parties().count(one) > 0) return true;
  MutexLock lock(context->mutex);
  const auto failed = context->aborted.find(pass_id);
  const auto done = context->done.find(pass_id);
  return (failed != context->aborted.end() && failed->second.parties.count(one) > 0) ||
         (done != context->done.end() && done->second.count(one) > 0);
}

}  // namespace

void take_back(PassState& pass, std::exception_ptr why, Duration limit) {
  ContextTable& table = pass.context->table;
  const std::set<Life> parties = drop_part(*pass.context, pass.id, why, true, pass.parties());
  rpc::Future<void> answered(table.runtime());
  const auto finish = [answered, context = pass.context, id = pass.id.id](bool all) {
    if (all) {
      MutexLock lock(context->mutex);
      context->begun.erase(id);
    }
    answered.state()->try_set();
  };
  ask_to_take_back(table, pass.context->id, pass.id, why, parties, finish);
  try {
    if (limit == Duration::zero()) answered.wait();
    else answered.wait_for(limit);
  } catch (const Timeout&) {  // the caller gets the error of the pass
  }
}

void handle_abort(ContextTable& table, rpc::Request request, rpc::Responder responder) {
  Decoder in(request.message);
  const MadeId context_id = get_id(in), pass_id = get_id(in);
  const bool taking_back = in.number<uint8_t>() != 0;
  const std::exception_ptr why = rpc::get_error(in, table.name_of(request.from));
  const ContextPtr context = table.find(context_id);
  if (!context) return responder.reply({});
  const Life from = request.sender();
  if (from != pass_id.maker() && !context->takes_part(from) && !is_party(context, pass_id, from))
    throw rpc::NotAllowed(
        str("backward: ", table.worker_text(from.id), " takes no part in the pass ", pass_id.id));
  drop_part(*context, pass_id, why, false, {});
  std::set<Life> parties;
  if (const auto pass = find_pass(context, pass_id)) {
    pass->fail(why);
    parties = pass->parties();
  }
  parties = drop_part(*context, pass_id, why, taking_back, std::move(parties));
  if (!taking_back) return responder.reply({});
  const auto held = std::make_shared<rpc::Responder>(std::move(responder));
  ask_to_take_back(table, context_id, pass_id, why, parties, [held](bool all) {
    if (all) held->reply({});
    else held->fail(std::make_exception_ptr(RpcError("a worker did not answer that a pass has failed")));
  });
}

}  // namespace weft::dist_autograd::detail
