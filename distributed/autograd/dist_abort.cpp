// The end of a failed pass. Every worker that learns of the failure ends its part. Gradients of parts done
// before are in the context. So the initiator I sends a wave over the workers of pass P:
//   1. I asks the workers with which it exchanged messages of P to undo P.
//   2. A worker drops P's gradients. At the first request it asks its own partners of P, also of a part that
//      is done, and answers when they have answered. It answers further requests at once.
//   3. No worker knows the partners of a lost worker. Answers report a loss, and I then asks all workers.
//   4. When I has all answers, no worker has gradients of P, nor will have.
// [G: an optimizer step after the error uses no gradient of P]
#include <weft/distributed/autograd/inner/dist_pass.h>

#include <weft/distributed/rpc/agent.h>

namespace weft::dist_autograd::detail {

using rpc::Decoder;
using rpc::Encoder;
using rpc::Kind;

namespace {

/// The outcome of a wave.
struct Answers {
  bool all = true;    ///< false: a worker that lives has not answered
  bool lost = false;  ///< a worker that the wave would have reached is lost
};

/// Calls a function when the last of several answers has come.
class LastAnswer {
 public:
  explicit LastAnswer(std::function<void(Answers)> f) : f_(std::move(f)) {}
  ~LastAnswer() { f_({.all = all, .lost = lost}); }
  LastAnswer(const LastAnswer&) = delete;
  std::atomic<bool> all{true}, lost{false};

 private:
  std::function<void(Answers)> f_;
};

class TakenBack final : public rpc::ReplySink {
 public:
  explicit TakenBack(std::shared_ptr<LastAnswer> last) : last_(std::move(last)) {}
  void on_reply(Agent&, WorkerId, Message message) noexcept override {
    try {
      if (Decoder(message).number<uint8_t>() != 0) last_->lost = true;
    } catch (const Error&) {
      last_->all = false;
    }
  }
  void on_error(std::exception_ptr error) noexcept override {
    try {
      std::rethrow_exception(error);
    } catch (const PeerLost&) {  // and its gradients with it
      last_->lost = true;
    } catch (const rpc::NotAllowed&) {  // it got nothing of the pass from here; others ask it
    } catch (...) {
      last_->all = false;
    }
  }

 private:
  std::shared_ptr<LastAnswer> last_;
};

Message reply_of(bool lost) {
  Message message;
  Encoder(message).number(static_cast<uint8_t>(lost));
  return message;
}

std::set<Life> all_workers(const ContextTable& table) {
  std::set<Life> all;
  if (const auto agent = table.agent_or_null())
    for (const rpc::WorkerInfo& w : agent->worker_infos()) all.insert(w.id);
  return all;
}

/// Steps 1 and 2. The limit of a request is for a worker that lives and does not answer.
void ask_to_take_back(ContextTable& table, MadeId context, MadeId pass, const std::exception_ptr& why,
                      const std::set<Life>& workers, std::function<void(Answers)> f) {
  const auto last = std::make_shared<LastAnswer>(std::move(f));
  const auto agent = table.agent_or_null();
  if (!agent) return;
  for (const Life peer : workers) {
    if (peer.id == table.self()) continue;
    if (agent->is_lost(peer)) {
      last->lost = true;
      continue;
    }
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

/// True if this worker exchanged messages of the pass with that life, or has been informed that it took part.
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
  const auto finish = [answered, context = pass.context, id = pass.id.id](Answers answers) {
    if (answers.all) {
      MutexLock lock(context->mutex);
      context->begun.erase(id);
    }
    answered.state()->try_set();
  };
  ask_to_take_back(table, pass.context->id, pass.id, why, parties,
                   [finish, why, context = pass.context, id = pass.id](Answers answers) {
                     if (!answers.lost) return finish(answers);
                     const auto table = context->table.shared_from_this();
                     table->runtime()->post([finish, why, context, table, id, all = answers.all] {  // step 3
                       ask_to_take_back(*table, context->id, id, why, all_workers(*table),
                                        [finish, all](Answers more) { finish({.all = all && more.all}); });
                     });
                   });
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
  if (!context) return responder.reply(reply_of(false));
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
  if (!taking_back) return responder.reply(reply_of(false));
  const auto held = std::make_shared<rpc::Responder>(std::move(responder));
  ask_to_take_back(table, context_id, pass_id, why, parties, [held](Answers answers) {
    if (answers.all) held->reply(reply_of(answers.lost));
    else held->fail(std::make_exception_ptr(RpcError("a worker did not answer that a pass has failed")));
  });
}

}  // namespace weft::dist_autograd::detail
