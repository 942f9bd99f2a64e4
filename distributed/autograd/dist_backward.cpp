// The distributed backward pass: its entry point, the marking of FAST mode, and the flow of gradients. The
// protocol follows the includes. dist_smart.cpp has the marking of SMART mode, dist_abort.cpp the undoing.
#include <weft/distributed/autograd/inner/dist_pass.h>

#include <weft/autograd/tape/inner/packed_rows.h>
#include <weft/autograd/tape/record.h>
#include <weft/distributed/autograd/inner/gradient_list.h>
#include <weft/distributed/rpc/agent.h>
#include <weft/distributed/rpc/inner/services.h>
#include <weft/distributed/rpc/trace.h>
#include <weft/distributed/wire/inner/streams.h>
#include <weft/tensor/factories.h>

// The distributed backward pass. P is a pass of context C, I its initiator; [G: ...] states a
// guarantee. FAST mode:
//   1. I marks from the roots and from every send node of C on its worker: each such send expects one
//      message of gradients. Then I runs.
//   2. A recv node with complete gradients sends them to the worker that sent the tensors, without the
//      undefined ones. The message is a request without a deadline; the lease of a dead worker ends it.
//   3. A worker that learns of P by gradients marks from all its send nodes of C, feeds the named one and
//      runs. It answers the request that opened P when its own part is done: nothing left to run, and all
//      gradients it sent answered. It answers the other requests of P once they are fed. These answers
//      form Dijkstra and Scholten's termination detection.
//   4. I is done when its own part is. [G1: then every worker's part is done.]
// With create_graph (SMART only) the passes run with grad mode on. The messages of gradients are recorded as
// calls are (dist_record.cpp). A later pass marks and runs through them.
// SMART mode replaces 1 and 3 by exact marking (dist_smart.cpp); gradients then only meet marked sends.
//   5. An error ends the pass on its worker and becomes the answer to the parent's request. An abort goes
//      to I and to every worker with which this one exchanged marks or gradients. The error keeps its
//      type, and its text begins with the worker's name. C remembers an aborted pass, so late messages do
//      not open it again. [G2: after an error no worker has state of P.]
//   6. A worker adds the gradients of P to C when its own part is done. They stay separate there until a
//      later pass of I reports that P has ended. I throws an error only when all workers have taken the
//      gradients of P back (dist_abort.cpp). [G3: a pass adds its gradients on all workers or on none.]

namespace weft::dist_autograd {

using namespace detail;
using rpc::Decoder;
using rpc::Future;

namespace {

ContextPtr context_of(int64_t id) {
  const auto table = ContextTable::of(*rpc::current_agent());
  return table->get(table->named(id));
}

/// A gradient as users see it (Tensor::grad).
Tensor shown(const Tensor& g) {
  return weft::detail::is_row_wise(g) ? weft::detail::read_only(weft::detail::dense(g)) : g;
}

void check_roots(const std::vector<Tensor>& roots) {
  if (roots.empty()) throw AutogradError("dist_autograd::backward: no roots were given");
  for (size_t i = 0; i < roots.size(); ++i) {
    const Tensor& r = roots[i];
    if (!r.defined())
      throw AutogradError(str("dist_autograd::backward: root ", static_cast<int64_t>(i), " is undefined"));
    if (!r.requires_grad())
      throw AutogradError(
          str("dist_autograd::backward: root ", static_cast<int64_t>(i), " does not require grad"));
    if (r.numel() != 1)
      throw AutogradError(str("dist_autograd::backward: root ", static_cast<int64_t>(i),
                              " is not a scalar, its sizes are ", r.sizes()));
    if (r.is_leaf())
      throw AutogradError(str("dist_autograd::backward: root ", static_cast<int64_t>(i),
                              " is a leaf and has no gradient function"));
  }
}

}  // namespace

namespace detail {

namespace {

/// The contents of a message of gradients: the ids, which are checked first, and the rest.
struct GradientMessage {
  explicit GradientMessage(Decoder& in) : context(get_id(in)), pass(get_id(in)), send(get_id(in)) {}
  void read_rest(Decoder& in) {
    terms.mode = static_cast<Backward>(in.number<uint8_t>());
    terms.retain_graph = in.number<uint8_t>() != 0;
    terms.create_graph = in.number<uint8_t>() != 0;
    terms.stall = Duration(in.number<int64_t>());
    terms.settled = in.number<int64_t>();
    marks = get_marks(in);
    terms.direct = !marks.empty();
    gradients = get_slot_gradients(in);
    in.expect_end();
  }
  MadeId context, pass, send;
  PassTerms terms;
  Marks marks;
  GradientsOfSlots gradients;
};

/// Step 3.
void take_gradients(ContextTable& table, Life from, GradientMessage& g, rpc::Responder responder) {
  std::shared_ptr<PassState> pass;
  try {
    check_sends(table, g.send.life);
    const ContextPtr context = table.get(g.context);
    if (g.terms.create_graph) {
      MutexLock lock(context->mutex);
      context->recorded = true;
    }
    bool fresh = false;
    if (g.terms.direct && from != g.pass.maker())
      throw rpc::NotAllowed(
          str("backward: ", table.worker_text(from.id), " brought marks of another's pass"));
    std::vector<int64_t> claimed;
    for (const auto& [number, slots] : g.marks) claimed.push_back(number);
    context->check_claim(from, claimed);
    if (g.terms.mode == Backward::kFast || g.terms.direct) {
      pass = open_pass(context, g.pass, g.terms, &fresh);
      pass->engage(from);
      if (g.terms.direct) pass->mark_brought(g.marks, from);
      else pass->mark_all_sends();  // the first message of the pass marks
    } else {
      pass = find_pass(context, g.pass);
      if (!pass) throw_no_pass(*context, g.pass);
    }
    pass->feed(g.send.id, g.gradients.present, std::move(g.gradients.tensors));
    if (fresh) {
      auto parent = std::make_shared<rpc::Responder>(std::move(responder));
      pass->when_done([parent](std::exception_ptr error) {
        if (error) parent->fail(error);
        else parent->reply({});
      });
    } else {
      responder.reply({});
    }
    pass->advance();
  } catch (...) {
    responder.fail(std::current_exception());
    if (pass) pass->fail(std::current_exception());
  }
}

/// Begins a pass of this worker.
std::shared_ptr<PassState> begin_pass(ContextTable& table, const ContextPtr& context,
                                      const BackwardOptions& options) {
  MadeId id;
  PassTerms terms{.mode = options.mode,
                  .retain_graph = options.retain_graph || options.create_graph,
                  .create_graph = options.create_graph,
                  .stall = options.stall};
  {
    MutexLock lock(context->mutex);
    if (context->recorded && options.mode == Backward::kFast)
      throw AutogradError(
          "dist_autograd::backward: Backward::kFast does not fit a context with a recorded pass "
          "(create_graph), whose sends take part in no other; use Backward::kSmart");
    context->recorded = context->recorded || options.create_graph;
    id = table.next_pass();
    context->begun.insert(id.id);
    terms.settled = *context->begun.begin();
  }
  bool fresh = false;
  return open_pass(context, id, terms, &fresh);
}

}  // namespace

void handle_gradients(ContextTable& table, rpc::Request request, rpc::Responder responder) {
  Decoder in(request.message);
  auto gradients = std::make_shared<GradientMessage>(in);
  check_sends(table, gradients->send.life);
  table.get(gradients->context)->check_claim(request.sender(), {gradients->send.id});
  EdgeCodecs::decode(request.message);
  table.gradients_received(request.sender(), request.message);
  gradients->read_rest(in);
  if (in.awaited().empty()) return take_gradients(table, request.sender(), *gradients, std::move(responder));
  auto held = std::make_shared<rpc::Responder>(std::move(responder));
  Agent::run_when(std::move(in.awaited()), [table = table.shared_from_this(), from = request.sender(),
                                            gradients, held](std::exception_ptr error) {
    if (error) held->fail(error);
    else take_gradients(*table, from, *gradients, std::move(*held));
  });
}

}  // namespace detail

void backward(int64_t context_id, const std::vector<Tensor>& roots, const BackwardOptions& options) {
  const rpc::TraceSpan span("backward");
  const auto table = ContextTable::of(*rpc::current_agent());
  const ContextPtr context = table->get(table->named(context_id));
  check_roots(roots);
  if (options.create_graph && options.mode == Backward::kFast)
    throw AutogradError(
        "dist_autograd::backward: Backward::kFast does not take create_graph: every send of the context "
        "would have to take part, those of recorded gradients too; use Backward::kSmart");
  const rpc::DefaultStreams streams;  // like all other threads that run parts of the pass
  EdgeList edges;
  std::vector<Tensor> seeds;
  for (const Tensor& r : roots) {
    edges.push_back(gradient_edge(r));
    seeds.push_back(ones_like(r.detach()));
  }
  const auto pass = begin_pass(*table, context, options);
  Future<void> finished(table->runtime());
  const auto finish = [finished](std::exception_ptr error) {
    if (error) finished.state()->try_set_error(error);
    else finished.state()->try_set();
  };
  const rpc::TimePoint begun = table->runtime()->now();
  const auto await = [&](const Future<void>& future) {
    if (options.timeout == Duration::zero()) future.wait();
    else future.wait_for(options.timeout - (table->runtime()->now() - begun));
  };
  std::exception_ptr why;
  try {
    pass->mark_roots(edges);
    if (options.mode == Backward::kFast) {
      pass->mark_all_sends();
      pass->take_reached();
      pass->when_done(finish);
      pass->feed_roots(edges, seeds);
      pass->advance();
    } else if (pass->mark_known()) {
      pass->when_done(finish);
      pass->feed_roots(edges, seeds);
      pass->advance();
    } else {
      // When all mark requests are answered, the initiator asks the engaged workers for the end of their
      // parts and runs the roots.
      Future<void> marked(table->runtime());
      {
        MutexLock lock(pass->marking);
        pass->on_marked = [marked](std::exception_ptr error) {
          if (error) marked.state()->try_set_error(error);
          else marked.state()->try_set();
        };
      }
      pass->when_done([marked](std::exception_ptr error) {
        if (error) marked.state()->try_set_error(error);
      });
      spread_marks(pass);
      await(marked);
      std::set<Life> workers;
      {
        MutexLock lock(pass->marking);
        workers = pass->below;
      }
      std::erase_if(workers, [&](Life peer) { return peer.id == table->self(); });
      pass->when_done(finish);
      collect_done(*pass, workers);
      pass->feed_roots(edges, seeds);
      pass->advance();
    }
    await(finished);
  } catch (...) {
    why = std::current_exception();
  }
  if (why) pass->fail(why);  // also after a timeout: the other workers stop
  close_pass(*pass);
  if (why) {
    const Duration left = options.timeout - (table->runtime()->now() - begun);
    take_back(*pass, why,
              options.timeout == Duration::zero() ? options.timeout
                                                  : std::max<Duration>(left, std::chrono::seconds(1)));
    std::rethrow_exception(why);
  }
  MutexLock lock(context->mutex);
  context->begun.erase(pass->id.id);
}

// ---- the public Context

Context::Context() {
  const auto agent = rpc::current_agent();
  rpc::CallContext call = rpc::capture_context();
  if (call.autograd_context >= 0)
    throw AutogradError(str("already have an autograd context in this thread: ", call.autograd_context));
  const MadeId made = ContextTable::of(*agent)->create()->id;
  id_ = made.id;
  call.endpoint = agent;
  call.autograd_context = made.id;
  call.autograd_life = made.life;
  scope_ = std::make_unique<rpc::CallScope>(std::move(call));
}

Context::~Context() {
  const auto agent = agent_of(scope_->context());
  scope_.reset();
  try {
    const auto table = ContextTable::of(*agent);
    table->release({id_, table->life()});
  } catch (const Error&) {  // the agent has ended, and its contexts too
  }
}

void Context::backward(const std::vector<Tensor>& roots, const BackwardOptions& options) const {
  dist_autograd::backward(id_, roots, options);
}
Tensor Context::gradient(const Tensor& leaf) const { return get_gradient(id_, leaf); }
RowGrad Context::row_gradient(const Tensor& leaf) const { return get_row_gradient(id_, leaf); }
Gradients Context::gradients() const { return get_gradients(id_); }

Gradients get_gradients(int64_t context_id) {
  const ContextPtr context = context_of(context_id);
  MutexLock lock(context->mutex);
  Gradients out = context->gradients.all();
  lock.unlock();
  for (auto& [leaf, g] : out) g = shown(g);
  return out;
}

Tensor detail::kept_gradient(int64_t context_id, const Tensor& leaf) {
  const ContextPtr context = context_of(context_id);
  MutexLock lock(context->mutex);
  return context->gradients.of(leaf);
}

Tensor get_gradient(int64_t context_id, const Tensor& leaf) { return shown(kept_gradient(context_id, leaf)); }

RowGrad get_row_gradient(int64_t context_id, const Tensor& leaf) {
  return weft::detail::shown_rows(kept_gradient(context_id, leaf));
}

std::vector<GraphNode> graph(int64_t context_id) {
  const ContextPtr context = context_of(context_id);
  std::vector<GraphNode> out;
  MutexLock lock(context->mutex);
  for (const auto& [number, node] : context->sends) out.push_back({true, number, node->to.id, node});
  for (const auto& [made, node] : context->recvs) out.push_back({false, made.id, node->from.id, node});
  return out;
}

std::vector<rpc::WorkerId> known_workers(int64_t context_id) {
  const ContextPtr context = context_of(context_id);
  MutexLock lock(context->mutex);
  std::set<rpc::WorkerId> workers;
  for (const Life peer : context->known) workers.insert(peer.id);
  return {workers.begin(), workers.end()};
}

bool has_context(int64_t context_id) {
  const auto table = ContextTable::of(*rpc::current_agent());
  return table->find(table->named(context_id)) != nullptr;
}

int64_t current_context_id() {
  const rpc::CallContext* call = rpc::current_context();
  return call && call->autograd_context >= 0 ? call->autograd_context : -1;
}

}  // namespace weft::dist_autograd

namespace weft::rpc {

void install_dist_autograd(Agent& agent) {
  namespace detail = dist_autograd::detail;
  const auto table = detail::ContextTable::of(agent);
  table->install(agent);
  table->handle(agent, Kind::kGradients, detail::handle_gradients);
  table->handle(agent, Kind::kMark, detail::handle_mark);
  table->handle(agent, Kind::kPassDone, detail::handle_done);
  table->handle(agent, Kind::kPassAbort, detail::handle_abort);
}

}  // namespace weft::rpc
