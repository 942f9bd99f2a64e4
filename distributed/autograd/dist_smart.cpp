// SMART mode: exact marking of the graph before the run, as in PyTorch's distributed autograd design. The
// marking is a diffusing computation over the workers; Dijkstra and Scholten's algorithm detects its
// termination (1980). The steps follow the includes.
#include <weft/distributed/autograd/inner/dist_pass.h>

#include <weft/distributed/rpc/agent.h>

// The steps of SMART mode. I is the initiator; [G: ...] states a guarantee.
//   1. I marks from the roots. Each recv slot that is reached for the first time goes into a batch for the
//      worker that sent the tensors; each worker gets one mark request per batch.
//   2. A worker with a mark request adds the named slots of its sends to the slots that the pass awaits.
//      It walks on from them and sends batches of its own. If it was idle, the sender becomes its parent
//      and gets the answer when all its own marks are answered; else it answers at once. The answer has
//      the workers reached below.
//   3. When I's own marks are answered, exactly the part of the graph that the roots reach is marked. [G1:
//      the set of marked edges is the least fixpoint of reachability over the union of the graphs, so
//      in-degrees are those of a single local engine.]
//   4. I runs. Gradients flow as in FAST mode, but only into marked slots, so each awaited send gets
//      gradients exactly once. I asks each engaged worker for its end. A worker answers when its part is
//      done, and I waits for all. [G2: unmarked sends stay unchanged, for other losses.]
//   5. An unknown send, a lost worker or another error ends the pass everywhere (dist_backward.cpp, step 5).
// Replies list the sends of their receiver that lead to their tensors (dist_reach.h). Where these answer all
// of I's marks, I sends no marks. Each of its gradients brings the marks of its receiver. The first one opens
// the pass there, and the part ends as in FAST mode. So a pass between I and workers that called no other
// worker costs the messages of FAST. [G3: the marks are those of steps 1 to 3, since the graph behind a reply
// never changes.]

namespace weft::dist_autograd::detail {

using rpc::Decoder;
using rpc::Encoder;
using rpc::Kind;

namespace {

/// Most marked sends of one worker that each message of gradients to it repeats.
constexpr size_t kMostBrought = 64;

/// The sink of a mark request: its reply has the workers reached below.
class Marked final : public rpc::ReplySink {
 public:
  Marked(std::shared_ptr<PassState> pass, Life to) : pass_(std::move(pass)), to_(to) {}
  void on_reply(Agent&, WorkerId, Message message) noexcept override {
    std::set<Life> workers{to_};
    std::exception_ptr error;
    try {
      Decoder in(message);
      for (size_t n = in.size(); n > 0; --n) {
        const WorkerId worker{in.number<int32_t>()};
        workers.insert({worker, Incarnation{in.number<uint64_t>()}});
      }
    } catch (...) {
      error = std::current_exception();
    }
    settle(workers, error);
  }
  void on_error(std::exception_ptr error) noexcept override { settle({}, std::move(error)); }

 private:
  void settle(const std::set<Life>& workers, std::exception_ptr error) noexcept;
  std::shared_ptr<PassState> pass_;
  const Life to_;
};

/// If all mark requests of this worker are answered, answers the parent or calls on_marked.
void finish_marking(PassState& pass) {
  std::vector<rpc::Responder> parents;
  std::set<Life> below;
  std::exception_ptr error;
  std::function<void(std::exception_ptr)> initiator;
  {
    MutexLock lock(pass.marking);
    if (pass.deficit > 0) return;
    parents.swap(pass.parent);
    below = pass.below;
    error = pass.mark_error;
    initiator = std::move(pass.on_marked);
    pass.on_marked = nullptr;
  }
  for (rpc::Responder& parent : parents) {
    if (error) {
      parent.fail(error);
      continue;
    }
    Message message;
    {
      Encoder out(message);
      out.size(below.size());
      for (const Life w : below) {
        out.number(w.id.value);
        out.number(w.incarnation.value);
      }
    }
    parent.reply(std::move(message));
  }
  if (initiator) initiator(error);
}

void Marked::settle(const std::set<Life>& workers, std::exception_ptr error) noexcept {
  for (const Life w : workers) {  // first, so that the end of the marking or the pass reaches them
    try {
      pass_->engage(w);
    } catch (...) {
      if (!error) error = std::current_exception();
    }
  }
  {
    MutexLock lock(pass_->marking);
    pass_->below.insert(workers.begin(), workers.end());
    if (error && !pass_->mark_error) pass_->mark_error = error;
    --pass_->deficit;
  }
  finish_marking(*pass_);
}

}  // namespace

void put_marks(Encoder& out, const Marks& marks) {
  out.size(marks.size());
  for (const auto& [number, slots] : marks) {
    out.number(number);
    out.put(slots);
  }
}

Marks get_marks(Decoder& in) {
  Marks marks;
  for (size_t n = in.size(); n > 0; --n) {
    const auto number = in.number<int64_t>();
    marks[number] = in.get<SlotSet>();
  }
  return marks;
}

bool PassState::mark_known() {
  const Life self{context->table.self(), context->table.life()};
  std::map<Life, Marks> all;
  const auto add = [&all](Life peer, int64_t message, const SlotSet& slots) {
    SlotSet& have = all[peer][message];
    if (have.size() < slots.size()) have.resize(slots.size());
    for (size_t s = 0; s < slots.size(); ++s)
      if (slots[s]) have[s] = true;
  };
  bool known = true;
  for (;;) {
    std::map<Life, Marks> reached;
    {
      MutexLock lock(mutex_);
      reached.swap(reached_);
    }
    if (reached.empty()) break;
    for (const auto& [peer, sends] : reached)
      for (const auto& [message, slots] : sends) {
        add(peer, message, slots);
        if (!known) continue;
        known = peer == self ? mark_here(message, slots) : mark_behind({message, peer.incarnation}, slots);
        known = known && all[peer].size() <= kMostBrought;
      }
  }
  if (known) {
    all.erase(self);
    brought = std::move(all);
    return true;
  }
  MutexLock lock(mutex_);
  reached_ = std::move(all);  // asking repeats known marks, which changes nothing
  return false;
}

/// Marks slots of a send of this worker. False: there is no such send.
bool PassState::mark_here(int64_t message, const SlotSet& slots) {
  if (!context->find_send(message)) return false;
  mark_send(message, slots);
  return true;
}

/// Marks the sends from which tensors of a recv node were made. False: they are not known.
bool PassState::mark_behind(MadeId message, const SlotSet& slots) {
  Ref<RecvNode> node;
  {
    MutexLock lock(context->mutex);
    if (const auto found = context->recvs.find(message); found != context->recvs.end()) node = found->second;
  }
  if (!node || !node->reach || node->reach->size() < slots.size()) return false;
  for (size_t s = 0; s < slots.size(); ++s) {
    if (!slots[s]) continue;
    for (const auto& [number, leads] : (*node->reach)[s])
      if (!mark_here(number, leads)) return false;
  }
  return true;
}

void PassState::mark_brought(const Marks& marks, Life from) {
  MutexLock whole(marking);
  if (std::exchange(all_marked_, true)) return;
  for (const auto& [number, slots] : marks) mark_send(number, slots);
  MutexLock lock(mutex_);
  for (const auto& [peer, sends] : reached_)
    if (peer != from)
      throw AutogradError(str("backward: the marks of worker ", from.id.value, " lead further"));
  reached_.clear();
}

void spread_marks(const std::shared_ptr<PassState>& pass) {
  const auto agent = pass->context->table.agent();
  auto reached = pass->take_reached();
  {
    MutexLock lock(pass->marking);
    // one more, so that an early answer does not end the marking
    pass->deficit += static_cast<int64_t>(reached.size()) + 1;
  }
  for (auto& [peer, sends] : reached) {
    Message message;
    {
      Encoder out(message, agent.get(), peer);
      put_id(out, pass->context->id);
      put_id(out, pass->id);
      out.number(peer.incarnation.value);  // which made the sends
      out.number(static_cast<uint8_t>(pass->terms.retain_graph));
      out.number(static_cast<uint8_t>(pass->terms.create_graph));
      out.number(pass->terms.settled);
      put_marks(out, sends);
    }
    try {
      pass->check_there(peer);
      agent->call(peer, Kind::kMark, std::move(message), {Duration::zero(), "marks of a backward pass"},
                  std::make_unique<Marked>(pass, peer));
    } catch (...) {
      MutexLock lock(pass->marking);
      if (!pass->mark_error) pass->mark_error = std::current_exception();
      --pass->deficit;
    }
  }
  {
    MutexLock lock(pass->marking);
    --pass->deficit;
  }
  finish_marking(*pass);
}

void handle_mark(ContextTable& table, rpc::Request request, rpc::Responder responder) {
  std::shared_ptr<PassState> pass;
  try {
    Decoder in(request.message);
    const MadeId context_id = get_id(in), pass_id = get_id(in);
    check_sends(table, Incarnation{in.number<uint64_t>()});
    PassTerms terms{.mode = Backward::kSmart};
    terms.retain_graph = in.number<uint8_t>() != 0;
    terms.create_graph = in.number<uint8_t>() != 0;
    terms.settled = in.number<int64_t>();
    const Marks marks = get_marks(in);
    in.expect_end();
    const ContextPtr context = table.get(context_id);
    std::vector<int64_t> claimed;
    for (const auto& [number, slots] : marks) claimed.push_back(number);
    context->check_claim(request.sender(), claimed);
    bool fresh = false;
    pass = open_pass(context, pass_id, terms, &fresh);
    pass->engage(request.sender());
    for (const auto& [number, slots] : marks) pass->mark_send(number, slots);
    bool engaged = false;
    {
      MutexLock lock(pass->marking);
      engaged = pass->deficit > 0 || !pass->parent.empty();
      ++pass->deficit;  // until the requests of this message are counted
      if (!engaged) pass->parent.push_back(std::move(responder));
    }
    spread_marks(pass);
    if (engaged) {
      Message message;
      {
        Encoder out(message);
        out.size(0);
      }
      responder.reply(std::move(message));  // NOLINT(bugprone-use-after-move): not moved here
    }
    {
      MutexLock lock(pass->marking);
      --pass->deficit;
    }
    finish_marking(*pass);
  } catch (...) {
    responder.fail(std::current_exception());
    if (pass) pass->fail(std::current_exception());
  }
}

void collect_done(PassState& pass, const std::set<Life>& workers) {
  const auto agent = pass.context->table.agent();
  for (const Life peer : workers) {
    Message message;
    {
      Encoder out(message, agent.get(), peer);
      put_id(out, pass.context->id);
      put_id(out, pass.id);
    }
    pass.request(peer, Kind::kPassDone, std::move(message), "the end of a backward pass");
  }
}

void handle_done(ContextTable& table, rpc::Request request, rpc::Responder responder) {
  try {
    Decoder in(request.message);
    const MadeId context_id = get_id(in), pass_id = get_id(in);
    if (request.sender() != pass_id.maker())
      throw rpc::NotAllowed(
          str("backward: the pass ", pass_id.id, " is not one of ", table.worker_text(request.from)));
    const auto pass = find_pass(table.get(context_id), pass_id);
    if (!pass) throw_no_pass(*table.get(context_id), pass_id);
    auto parent = std::make_shared<rpc::Responder>(std::move(responder));
    pass->when_done([parent, weak = std::weak_ptr<PassState>(pass)](std::exception_ptr error) {
      if (const auto done = weak.lock()) close_pass(*done);
      if (error) parent->fail(error);
      else parent->reply({});
    });
  } catch (...) {
    responder.fail(std::current_exception());
  }
}

}  // namespace weft::dist_autograd::detail
