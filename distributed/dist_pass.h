// One backward pass on one worker (library internal). It owns the local Pass, counts gradients under way to other workers, and knows who
// waits for it. Both modes share it; what differs is how the graph is marked and who is told at the end (dist_backward.cpp).
#pragma once

#include <weft/distributed/dist_context.h>

namespace weft::dist_autograd::detail {

/// Bit s of a mask: slot s of a send node takes part.
using SlotSet = std::vector<bool>;

class PassState final : public GradSink, public std::enable_shared_from_this<PassState> {
 public:
  PassState(ContextPtr context, int64_t id, Backward mode, bool retain_graph, Duration stall);

  const int64_t id;
  const Backward mode;
  const ContextPtr context;
  const std::shared_ptr<rpc::Runtime> runtime;

  // ---- marking
  /// FAST: every send of the context, all slots. Only the first call marks; others return when it has.
  void mark_all_sends();
  /// SMART: some slots of a send. Throws: AutogradError for an unknown send or slot.
  void mark_send(int64_t message, const SlotSet& slots);
  void mark_roots(const EdgeList& roots);
  /// Recv slots reached since the last call, by peer and message.
  std::map<WorkerId, std::map<int64_t, SlotSet>> take_reached();

  // ---- running
  /// Gradients for a send: `present` says which slots have one, in order. Throws: AutogradError when they do not fit.
  void feed(int64_t message, const SlotSet& present, std::vector<Tensor> gradients);
  void feed_roots(const EdgeList& roots, const std::vector<Tensor>& seeds);
  /// Runs what is ready, then looks whether all is done. Never throws: an error ends the pass.
  void advance() noexcept;
  void send_back(const RecvNode& node, GradList gradients);
  /// A request of this pass; the pass is not done before it is answered. It has no time limit: a healthy worker may compute for long, and a
  /// dead one ends the call by its lease. Throws: the error that ended the pass.
  void request(WorkerId to, rpc::Kind kind, Message message, const char* what);
  void answered(WorkerId from, rpc::Kind kind);
  void accumulate(const Tensor& leaf, Tensor grad, bool may_steal) override;

  // ---- the end
  /// Called once with null or the error, when the local graph has run and everything sent has been acknowledged.
  void when_done(std::function<void(std::exception_ptr)> f);
  /// Ends the pass with an error; the first one counts.
  void fail(std::exception_ptr why);
  /// Sends still awaited: "send #5 of worker 'a' to worker 'b' ('f', 1.2 s old)".
  std::string awaited() const;
  bool involves(WorkerId peer, const std::map<int64_t, Ref<SendNode>>& sends) const;
  /// Gradients or marks were exchanged with it. Throws: PeerLost when it, or the pass's initiator, is lost.
  void engage(WorkerId peer);
  void watch();
  bool retains_graph() const { return pass_.options().retain_graph; }
  Duration stall() const { return stall_; }

  Mutex marking;

  // ---- SMART marking: Dijkstra and Scholten's count of marks under way (dist_smart.cpp)
  int64_t deficit WEFT_GUARDED_BY(marking) = 0;
  std::vector<rpc::Responder> parent WEFT_GUARDED_BY(marking);
  std::set<WorkerId> below WEFT_GUARDED_BY(marking);
  std::exception_ptr mark_error WEFT_GUARDED_BY(marking);
  std::function<void(std::exception_ptr)> on_marked WEFT_GUARDED_BY(marking);

 private:
  void mark(std::span<const Edge> edges);
  /// A worker may be lost before this pass can be seen by whoever hears of it. Throws: PeerLost.
  void check_there(WorkerId peer) const;
  void check_done();

  Pass pass_;
  Duration stall_;
  bool all_marked_ WEFT_GUARDED_BY(marking) = false;
  mutable Mutex mutex_;
  std::map<WorkerId, std::map<int64_t, SlotSet>> reached_ WEFT_GUARDED_BY(mutex_);
  std::map<int64_t, SlotSet> awaited_ WEFT_GUARDED_BY(mutex_);  // sends marked and not yet fed
  std::set<WorkerId> engaged_ WEFT_GUARDED_BY(mutex_);
  int64_t outstanding_ WEFT_GUARDED_BY(mutex_) = 0;  // requests not answered
  int64_t busy_ WEFT_GUARDED_BY(mutex_) = 0;         // threads inside feed or advance
  bool started_ WEFT_GUARDED_BY(mutex_) = false;
  bool done_ WEFT_GUARDED_BY(mutex_) = false;
  std::exception_ptr error_ WEFT_GUARDED_BY(mutex_);
  std::vector<std::function<void(std::exception_ptr)>> on_done_ WEFT_GUARDED_BY(mutex_);
  TimePoint progress_ WEFT_GUARDED_BY(mutex_);
};

/// The state of a pass here, made when it is new. Throws: AutogradError when the context ended.
std::shared_ptr<PassState> open_pass(const ContextPtr& context, int64_t id, Backward mode, bool retain_graph,
                                     Duration stall, bool* fresh);
std::shared_ptr<PassState> find_pass(const ContextPtr& context, int64_t id);
/// Throws the error that ended the pass elsewhere, else AutogradError "not under way".
[[noreturn]] void throw_no_pass(ContextState& context, int64_t id);
void close_pass(PassState& pass);

/// SMART: marks from `pass` onwards through the workers reached; calls pass.on_marked at the initiator, answers the parent elsewhere.
void spread_marks(const std::shared_ptr<PassState>& pass);
/// SMART: asks every engaged worker to answer when it is done; the pass is not done before.
void collect_done(PassState& pass, const std::set<WorkerId>& workers);

}  // namespace weft::dist_autograd::detail
