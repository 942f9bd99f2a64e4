// One backward pass on one worker. It owns the local Pass, counts the gradients sent to other workers, and
// reports its end. Both modes share it; they differ in the marking of the graph and in the reports of the
// end (dist_backward.cpp). Internal to distributed autograd.
#pragma once

#include <weft/distributed/autograd/inner/dist_context.h>

namespace weft::dist_autograd::detail {

/// Slots by message.
using Marks = std::map<int64_t, SlotSet>;

/// The same on all workers of a pass; its messages carry it.
struct PassTerms {
  Backward mode{};
  bool retain_graph = false;
  bool create_graph = false;
  bool direct = false;  ///< SMART: the gradients bring the marks (dist_smart.cpp)
  Duration stall{};
  /// The initiator's passes of the context with lower ids have ended on all workers.
  int64_t settled = 0;
};

/// The state of one pass on one worker; see the head.
class PassState final : public RemoteSink,
                        public ContextPass,
                        public std::enable_shared_from_this<PassState> {
 public:
  PassState(ContextPtr context, MadeId id, const PassTerms& terms);

  const MadeId id;  ///< made by the initiator
  const PassTerms terms;
  /// at the initiator, before anything runs: the marks to bring to each worker; empty: they were asked
  std::map<Life, Marks> brought;
  const ContextPtr context;
  const std::shared_ptr<rpc::Runtime> runtime;

  // ---- marking
  /// FAST: marks all slots of every send of the context. Only the first call marks; others wait for it.
  void mark_all_sends();
  /// SMART: marks some slots of a send. Throws: AutogradError for an unknown send or slot.
  void mark_send(int64_t message, const SlotSet& slots);
  void mark_roots(const EdgeList& roots);
  /// SMART, at the initiator: goes on marking by the replies. True: all that the roots reach is marked,
  /// and the gradients bring their marks. False: the workers have to be asked.
  bool mark_known();
  /// SMART: marks with the marks that a message of gradients brought. Only the first call marks.
  void mark_brought(const Marks& marks, Life from);
  /// Returns the recv slots reached since the last call, by peer and message.
  std::map<Life, std::map<int64_t, SlotSet>> take_reached();

  // ---- running
  /// Delivers the gradients of a send; `present` marks the slots that have one, in order. Throws:
  /// AutogradError when they do not fit the send; the error that ended the pass.
  void feed(int64_t message, const SlotSet& present, std::vector<Tensor> gradients);
  void feed_roots(const EdgeList& roots, const std::vector<Tensor>& seeds);
  /// Runs the ready nodes, then checks for the end of the pass. An error ends the pass.
  void advance() noexcept;
  void send_back(const RecvNode& node, GradList gradients) override;
  /// Sends a request of this pass, which is not done before the answer. The request has no deadline: a
  /// healthy worker may compute for long, and the lease of a dead one ends the call. Throws: the error that
  /// ended the pass.
  void request(Life to, rpc::Kind kind, Message message, const char* what);
  void answered(Life from, rpc::Kind kind);
  void accumulate(const Tensor& leaf, Tensor grad, bool may_steal) override;
  void accumulate_rows(const Tensor& leaf, RowGrad grad, bool may_steal) override;

  // ---- the end
  /// Registers a callback, called once with null or the error. Null means: the local graph has run, and all
  /// requests of the pass are answered.
  void when_done(std::function<void(std::exception_ptr)> f);
  void fail(std::exception_ptr why) override;
  /// The sends still without gradients: "send #5 of worker 'a' to worker 'b' ('f', 1.2 s old)".
  std::string awaited() const;
  bool involves(Life peer, const std::map<int64_t, Ref<SendNode>>& sends) const override;
  /// Records that gradients or marks were exchanged with `peer`. Throws: PeerLost when that peer or the
  /// initiator is lost.
  void engage(Life peer);
  /// Throws: PeerLost for a lost peer. The loss may have come before this pass was in the table.
  void check_there(Life peer) const;
  /// FAST: begins the watchdog. A SMART pass awaits nothing that does not come, however long it takes.
  void watch();
  /// All workers with which the pass exchanged messages.
  std::set<Life> parties() const;

  Mutex marking;

  // ---- SMART marking: Dijkstra and Scholten's deficit and parent (dist_smart.cpp)
  int64_t deficit WEFT_GUARDED_BY(marking) = 0;
  std::vector<rpc::Responder> parent WEFT_GUARDED_BY(marking);
  std::set<Life> below WEFT_GUARDED_BY(marking);
  std::exception_ptr mark_error WEFT_GUARDED_BY(marking);
  std::function<void(std::exception_ptr)> on_marked WEFT_GUARDED_BY(marking);

 private:
  void mark(std::span<const Edge> edges);
  bool mark_here(int64_t message, const SlotSet& slots);
  bool mark_behind(MadeId message, const SlotSet& slots);
  void check_done();

  Pass pass_;
  bool all_marked_ WEFT_GUARDED_BY(marking) = false;
  mutable Mutex mutex_;
  std::map<Life, std::map<int64_t, SlotSet>> reached_ WEFT_GUARDED_BY(mutex_);
  std::map<int64_t, SlotSet> awaited_ WEFT_GUARDED_BY(mutex_);  // sends marked and not yet fed
  std::set<Life> engaged_ WEFT_GUARDED_BY(mutex_);              // parties whose loss ends the pass
  std::set<Life> parties_ WEFT_GUARDED_BY(mutex_);
  LeafGradients gradients_ WEFT_GUARDED_BY(mutex_);
  int64_t outstanding_ WEFT_GUARDED_BY(mutex_) = 0;  // requests not answered
  int64_t busy_ WEFT_GUARDED_BY(mutex_) = 0;         // threads inside feed or advance
  bool started_ WEFT_GUARDED_BY(mutex_) = false;
  bool closing_ WEFT_GUARDED_BY(mutex_) = false;  // its gradients go to the context
  bool done_ WEFT_GUARDED_BY(mutex_) = false;
  std::exception_ptr error_ WEFT_GUARDED_BY(mutex_);
  std::vector<std::function<void(std::exception_ptr)>> on_done_ WEFT_GUARDED_BY(mutex_);
  TimePoint progress_ WEFT_GUARDED_BY(mutex_);
};

/// Finds or makes the state of a pass on this worker. Throws: AutogradError when the context has ended; the
/// error of an aborted pass.
std::shared_ptr<PassState> open_pass(const ContextPtr& context, MadeId id, const PassTerms& terms,
                                     bool* fresh);
std::shared_ptr<PassState> find_pass(const ContextPtr& context, MadeId id);
/// Throws the error that aborted the pass, else AutogradError "not under way".
[[noreturn]] void throw_no_pass(ContextState& context, MadeId id);
void close_pass(PassState& pass);
/// Throws: PeerLost when another life of this worker made the sends that a message names. The sender may not
/// know the successor yet.
void check_sends(ContextTable& table, Incarnation maker);

/// After the failure of a pass at its initiator: returns when all its workers have dropped its gradients, or
/// after `limit`; zero: no limit.
void take_back(PassState& pass, std::exception_ptr why, Duration limit);

// Handlers of the messages of passes (dist_backward.cpp, dist_smart.cpp, dist_abort.cpp).
void handle_gradients(ContextTable& table, rpc::Request request, rpc::Responder responder);
void handle_abort(ContextTable& table, rpc::Request request, rpc::Responder responder);
void handle_mark(ContextTable& table, rpc::Request request, rpc::Responder responder);
void handle_done(ContextTable& table, rpc::Request request, rpc::Responder responder);

void put_marks(rpc::Encoder& out, const Marks& marks);
Marks get_marks(rpc::Decoder& in);
/// SMART: sends mark requests to the workers that the last marking reached. When all are answered, it calls
/// pass.on_marked at the initiator and answers the parent on other workers.
void spread_marks(const std::shared_ptr<PassState>& pass);
/// SMART: asks every engaged worker to answer when its part is done; the pass is not done before.
void collect_done(PassState& pass, const std::set<Life>& workers);

}  // namespace weft::dist_autograd::detail
