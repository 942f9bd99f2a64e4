// PassState, one backward pass on one worker: marking, gradients of sends, the run of the local graph, end,
// failure and watchdog. dist_passes.cpp has the table of a context's passes, dist_backward.cpp the protocol
// and dist_smart.cpp the marking of SMART mode.
#include <weft/distributed/autograd/inner/dist_pass.h>

#include <algorithm>

#include <weft/autograd/tape/inner/packed_rows.h>
#include <weft/autograd/tape/record.h>
#include <weft/distributed/autograd/inner/gradient_list.h>
#include <weft/distributed/rpc/agent.h>

namespace weft::dist_autograd::detail {

using rpc::Encoder;
using rpc::Kind;

namespace {

std::string seconds_text(Duration d) {
  return str(static_cast<double>(std::chrono::duration_cast<std::chrono::milliseconds>(d).count()) / 1e3,
             " s");
}

/// The sink of a request of a pass: counts its answer.
class Answered final : public rpc::ReplySink {
 public:
  Answered(std::shared_ptr<PassState> pass, Life to, Kind kind)
      : pass_(std::move(pass)), to_(to), kind_(kind) {}
  void on_reply(Agent&, WorkerId, Message) noexcept override { pass_->answered(to_, kind_); }
  void on_error(std::exception_ptr error) noexcept override { pass_->fail(std::move(error)); }

 private:
  std::shared_ptr<PassState> pass_;
  const Life to_;
  const Kind kind_;
};

}  // namespace

PassState::PassState(ContextPtr c, MadeId pass_id, const PassTerms& t)
    : id(pass_id),
      terms(t),
      context(std::move(c)),
      runtime(context->table.runtime()),
      pass_({.retain_graph = terms.retain_graph, .create_graph = terms.create_graph, .sink = this}),
      progress_(runtime->now()) {}

// ---- marking

void PassState::mark(std::span<const Edge> edges) {
  std::vector<std::pair<RecvNode*, uint32_t>> found;
  pass_.mark(edges,
             [&](Node& node, uint32_t slot) { found.emplace_back(static_cast<RecvNode*>(&node), slot); });
  MutexLock lock(mutex_);
  for (auto& [node, slot] : found) {
    SlotSet& slots = reached_[node->from][node->message];
    if (slots.size() <= slot) slots.resize(slot + 1);
    slots[slot] = true;
  }
}

void PassState::mark_roots(const EdgeList& roots) { mark(std::span(roots.data(), roots.size())); }

void PassState::mark_all_sends() {
  MutexLock whole(marking);
  if (std::exchange(all_marked_, true)) return;
  std::vector<Ref<SendNode>> sends;
  std::set<Life> to;
  {
    MutexLock lock(context->mutex);
    for (auto& [number, node] : context->sends) sends.push_back(node);
  }
  {
    MutexLock lock(mutex_);
    for (const Ref<SendNode>& node : sends) awaited_[node->message] = SlotSet(node->edges().size(), true);
  }
  // A loss from here on ends the pass; a send to a worker lost before does not take part.
  const auto agent = context->table.agent();
  for (const Ref<SendNode>& node : sends) to.insert(node->to);
  std::erase_if(to, [&](Life peer) { return !agent->is_lost(peer); });
  for (const Ref<SendNode>& node : sends) {
    if (to.count(node->to) == 0) {
      mark(std::span(node->edges().data(), node->edges().size()));
      continue;
    }
    MutexLock lock(mutex_);
    awaited_.erase(node->message);
  }
}

void PassState::check_there(Life peer) const {
  if (context->table.agent()->is_lost(peer))
    throw PeerLost(context->table.name_of(peer.id),
                   str("backward pass: ", context->table.worker_text(peer.id), " was lost"));
}

void PassState::mark_send(int64_t message, const SlotSet& slots) {
  const Ref<SendNode> node = context->find_send(message);
  if (!node)
    throw AutogradError(str("backward: worker ", context->table.self().value, " has no send #", message,
                            " in context ", context->id.id));
  if (slots.size() > node->edges().size())
    throw AutogradError(str("backward: send #", message, " has ", static_cast<int64_t>(node->edges().size()),
                            " slots, slot ", static_cast<int64_t>(slots.size()) - 1, " was marked"));
  EdgeList edges;
  {
    MutexLock lock(mutex_);
    SlotSet& have = awaited_[message];
    have.resize(node->edges().size());
    for (size_t s = 0; s < slots.size(); ++s)
      if (slots[s] && !have[s]) {
        have[s] = true;
        edges.push_back(node->edges()[s]);
      }
  }
  mark(std::span(edges.data(), edges.size()));
}

std::map<Life, std::map<int64_t, SlotSet>> PassState::take_reached() {
  MutexLock lock(mutex_);
  if (done_) reached_.clear();  // the pass has ended, and those workers would not get its end
  for (auto& [peer, sends] : reached_) engaged_.insert(peer), parties_.insert(peer);
  return std::exchange(reached_, {});
}

// ---- running

void PassState::feed(int64_t message, const SlotSet& present, std::vector<Tensor> gradients) {
  const Ref<SendNode> node = context->find_send(message);
  if (!node)
    throw AutogradError(str("backward: worker ", context->table.self().value, " could not find send #",
                            message, " in context ", context->id.id));
  rpc::join_streams(node->streams.get());
  size_t count = 0;
  for (const bool p : present) count += p;
  if (present.size() > node->edges().size() || count != gradients.size())
    throw AutogradError(str("backward: send #", message, " has ", static_cast<int64_t>(node->edges().size()),
                            " slots; ", static_cast<int64_t>(present.size()), " came with ",
                            static_cast<int64_t>(gradients.size()), " gradients"));
  SlotSet slots;
  {
    MutexLock lock(mutex_);
    // the error that ended the pass, also for gradients that were under way
    if (error_) std::rethrow_exception(error_);
    const auto found = awaited_.find(message);
    if (found == awaited_.end())
      throw AutogradError(str("backward: send #", message, " awaits no gradients in this pass"));
    slots = std::move(found->second);
    awaited_.erase(found);
    started_ = true;
    ++busy_;
    progress_ = runtime->now();
  }
  std::exception_ptr error;
  try {
    size_t next = 0;
    for (size_t s = 0; s < slots.size(); ++s) {
      Tensor g;
      if (s < present.size() && present[s]) g = std::move(gradients[next++]);
      if (!slots[s]) continue;
      const SlotMeta* meta =
          node->edges()[s].node ? &node->edges()[s].node->slots()[node->edges()[s].slot] : nullptr;
      if (meta && g.defined() && weft::detail::grad_sizes(g) != meta->sizes)
        throw AutogradError(str("backward: send #", message, " slot ", static_cast<int64_t>(s),
                                " takes a gradient of sizes ", meta->sizes, ", got ",
                                weft::detail::grad_sizes(g)));
      pass_.deliver(node->edges()[s], std::move(g));
    }
  } catch (...) {
    error = std::current_exception();
  }
  {
    MutexLock lock(mutex_);
    --busy_;
  }
  if (error) std::rethrow_exception(error);
}

void PassState::feed_roots(const EdgeList& roots, const std::vector<Tensor>& seeds) {
  {
    MutexLock lock(mutex_);
    started_ = true;
    ++busy_;
  }
  for (size_t i = 0; i < roots.size(); ++i) pass_.deliver(roots[i], seeds[i]);
  MutexLock lock(mutex_);
  --busy_;
}

void PassState::advance() noexcept {
  {
    MutexLock lock(mutex_);
    ++busy_;
  }
  std::exception_ptr error;
  try {
    pass_.run();
  } catch (...) {
    error = std::current_exception();
  }
  {
    MutexLock lock(mutex_);
    --busy_;
    progress_ = runtime->now();
  }
  if (error) fail(std::move(error));
  else check_done();
}

void PassState::send_back(const RecvNode& node, GradList gradients) {
  const auto agent = context->table.agent();
  Message message;
  std::vector<int64_t> slots;
  {
    Encoder out(message, agent.get(), node.from);
    put_id(out, context->id);
    put_id(out, id);
    put_id(out, {node.message, node.from.incarnation});
    out.number(static_cast<uint8_t>(terms.mode));
    out.number(static_cast<uint8_t>(terms.retain_graph));
    out.number(static_cast<uint8_t>(terms.create_graph));
    out.number(static_cast<int64_t>(terms.stall.count()));
    out.number(terms.settled);
    const auto marks = brought.find(node.from);
    put_marks(out, marks == brought.end() ? Marks() : marks->second);
    slots = put_gradients(out, node, gradients, terms.create_graph);
  }
  if (terms.create_graph) {  // recorded, so they are activations of the next pass
    context->table.gradients_sending(*context, node.from, message);
  } else {
    context->table.codecs.code_gradients(message, {node.from, context->id.maker(), node.ordinal, 0}, slots);
  }
  request(node.from, Kind::kGradients, std::move(message), "gradients of a backward pass");
}

void PassState::request(Life to, Kind kind, Message message, const char* what) {
  {
    MutexLock lock(mutex_);
    if (done_) std::rethrow_exception(error_);  // that worker would not get the end of the pass
    ++outstanding_;
    engaged_.insert(to);
    parties_.insert(to);
  }
  check_there(to);
  context->table.agent()->call(to, kind, std::move(message), {Duration::zero(), what},
                               std::make_unique<Answered>(shared_from_this(), to, kind));
}

void PassState::answered(Life from, Kind kind) {
  {
    MutexLock lock(mutex_);
    --outstanding_;
    if (kind == Kind::kPassDone) engaged_.erase(from);  // its part is done
    progress_ = runtime->now();
  }
  check_done();
}

void PassState::accumulate(const Tensor& leaf, Tensor grad, bool may_steal) {
  MutexLock lock(mutex_);
  gradients_.add(leaf, std::move(grad), may_steal);
}

void PassState::accumulate_rows(const Tensor& leaf, RowGrad grad, bool may_steal) {
  MutexLock lock(mutex_);
  gradients_.add(leaf, std::move(grad), may_steal);
}

// ---- the end

void PassState::check_done() {
  std::vector<std::function<void(std::exception_ptr)>> callbacks;
  LeafGradients gradients;
  std::set<Life> with;
  {
    MutexLock lock(mutex_);
    if (closing_ || done_ || !started_ || busy_ > 0 || outstanding_ > 0 || !pass_.finished()) return;
    closing_ = true;
    std::swap(gradients, gradients_);
    with = parties_;
  }
  {
    MutexLock lock(context->mutex);
    if (!context->released && context->aborted.count(id) == 0) {
      context->gradients.add(id, std::move(gradients));
      context->done[id] = std::move(with);
    }
  }
  {
    MutexLock lock(mutex_);
    if (done_) return;  // it has failed meanwhile
    done_ = true;
    callbacks.swap(on_done_);
  }
  if (terms.mode == Backward::kFast || terms.direct) close_pass(*this);
  for (auto& f : callbacks) f(nullptr);
}

void PassState::when_done(std::function<void(std::exception_ptr)> f) {
  std::exception_ptr error;
  {
    MutexLock lock(mutex_);
    if (!done_) {
      on_done_.push_back(std::move(f));
      return;
    }
    error = error_;
  }
  f(error);
}

void PassState::fail(std::exception_ptr why) {
  std::vector<std::function<void(std::exception_ptr)>> callbacks;
  std::set<Life> tell, with;
  bool own_part_done = false;
  LeafGradients gradients;  // freed after the locks, as are the parts in the context
  std::vector<Tensor> gone;
  {
    MutexLock lock(mutex_);
    if (done_ && error_) return;
    // SMART: the initiator has not asked for the end yet; it gets this error when it does
    own_part_done = done_;
    done_ = true;
    error_ = why;
    callbacks.swap(on_done_);
    tell = engaged_;
    with = parties_;
    std::swap(gradients, gradients_);
    reached_.clear();
    awaited_.clear();
  }
  pass_.fail(why);
  {
    MutexLock lock(context->mutex);
    ContextState::Aborted& aborted = context->aborted[id];
    if (!aborted.why) aborted.why = why;
    aborted.parties.insert(with.begin(), with.end());
    gone = context->gradients.drop(id);
  }
  close_pass(*this);
  if (own_part_done) return;
  if (const auto agent = context->table.agent_or_null()) {
    tell.insert(id.maker());
    for (const Life peer : tell) {
      if (peer.id == context->table.self() || agent->is_lost(peer)) continue;
      Message message;
      {
        Encoder out(message, agent.get(), peer);
        put_id(out, context->id);
        put_id(out, id);
        out.number(uint8_t{0});  // not the initiator's request to take back
        rpc::put_error(out, why);
      }
      send_and_forget(*agent, peer, Kind::kPassAbort, std::move(message));
    }
  }
  for (auto& f : callbacks) f(why);
}

std::string PassState::awaited() const {
  std::map<int64_t, SlotSet> waiting;
  {
    MutexLock lock(mutex_);
    waiting = awaited_;
  }
  std::string out;
  for (const auto& [number, slots] : waiting)
    if (const Ref<SendNode> node = context->find_send(number))
      out += str(out.empty() ? "" : ", ", "send #", number & ((int64_t{1} << 48) - 1), " of ",
                 context->table.worker_text(context->table.self()), " to ",
                 context->table.worker_text(node->to.id), " (", node->what, ", ",
                 seconds_text(runtime->now() - node->made), " old)");
  return out;
}

bool PassState::involves(Life peer, const std::map<int64_t, Ref<SendNode>>& sends) const {
  MutexLock lock(mutex_);
  return same_life(id.maker(), peer) ||
         std::any_of(engaged_.begin(), engaged_.end(), [&](Life one) { return same_life(one, peer); }) ||
         std::any_of(sends.begin(), sends.end(),
                     [&](const auto& send) WEFT_REQUIRES(mutex_) { return awaited_.count(send.first) > 0; });
}

void PassState::engage(Life peer) {
  {
    MutexLock lock(mutex_);
    engaged_.insert(peer);
    parties_.insert(peer);
  }
  check_there(peer);
  check_there(id.maker());
}

std::set<Life> PassState::parties() const {
  MutexLock lock(mutex_);
  return parties_;
}

void PassState::watch() {
  if (terms.stall == Duration::zero()) return;
  runtime->call_at(runtime->now() + terms.stall / 4, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self) return;
    bool stalled = false;
    {
      MutexLock lock(self->mutex_);
      if (self->done_) return;
      stalled = self->outstanding_ == 0 && self->busy_ == 0 && !self->awaited_.empty() &&
                self->runtime->now() - self->progress_ >= self->terms.stall;
    }
    if (!stalled) return self->watch();
    self->runtime->post([self] {
      self->fail(std::make_exception_ptr(AutogradError(str(
          "backward: ", self->context->table.worker_text(self->context->table.self()),
          " has had no gradient for ", seconds_text(self->terms.stall), "; still awaited: ", self->awaited(),
          ". FAST needs every send to take part; Backward::kSmart does not"))));
    });
  });
}

}  // namespace weft::dist_autograd::detail
