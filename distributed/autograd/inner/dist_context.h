// The autograd contexts of one worker: their send and recv nodes, gradients and current passes. An agent has
// one ContextTable; it is also the interceptor that records messages. Internal to distributed autograd.
#pragma once

#include <deque>
#include <map>
#include <set>

#include <weft/distributed/autograd/dist_autograd.h>
#include <weft/distributed/autograd/inner/dist_gradients.h>
#include <weft/distributed/autograd/inner/dist_nodes.h>
#include <weft/distributed/autograd/inner/edge_codecs.h>
#include <weft/distributed/rpc/inner/core.h>
#include <weft/distributed/runtime/sync.h>

namespace weft::dist_autograd::detail {

using rpc::Agent;
using rpc::Message;
using rpc::Mutex;
using rpc::MutexLock;

class ContextTable;

/// A backward pass as its context sees it; PassState (dist_pass.h) implements it.
class ContextPass {
 public:
  virtual ~ContextPass() = default;
  /// Ends the pass with an error; later errors are ignored.
  virtual void fail(std::exception_ptr why) = 0;
  /// True if the pass needs that life of a peer, or gradients for one of these sends.
  virtual bool involves(Life peer, const std::map<int64_t, Ref<SendNode>>& sends) const = 0;
};

inline constexpr int64_t kMaxCount = (int64_t{1} << 48) - 1;
inline int64_t make_id(WorkerId maker, int64_t count) {
  if (count > kMaxCount)
    throw AutogradError(
        str("distributed autograd: worker ", maker, " has used up its ", kMaxCount, " numbers"));
  return static_cast<int64_t>(maker.value) << 48 | count;
}
void put_id(rpc::Encoder& out, MadeId id);
MadeId get_id(rpc::Decoder& in);

/// The state of one context on one worker.
struct ContextState {
  ContextState(MadeId context_id, ContextTable& t, int64_t clock) : id(context_id), table(t), since(clock) {}
  const MadeId id;
  ContextTable& table;
  const int64_t since;  // the table's clock when the context first reached this worker
  Mutex mutex;
  std::map<int64_t, Ref<SendNode>> sends WEFT_GUARDED_BY(mutex);  // all made by this life
  std::map<MadeId, Ref<RecvNode>> recvs WEFT_GUARDED_BY(mutex);
  std::map<Life, int64_t> received WEFT_GUARDED_BY(mutex);  // recv nodes made, by their sender
  std::set<Life> known WEFT_GUARDED_BY(mutex);              // called from here
  std::set<Life> callers WEFT_GUARDED_BY(mutex);            // whose calls came here
  ContextGradients gradients WEFT_GUARDED_BY(mutex);
  std::map<MadeId, std::shared_ptr<ContextPass>> passes WEFT_GUARDED_BY(mutex);
  /// A failed pass, remembered so that late messages do not open it again.
  struct Aborted {
    std::exception_ptr why;
    std::set<Life> parties;   // workers with which it exchanged messages
    bool taken_back = false;  // they have been asked to drop its gradients
  };
  std::map<MadeId, Aborted> aborted WEFT_GUARDED_BY(mutex);
  /// parties of passes whose part here is done while others may still fail
  std::map<MadeId, std::set<Life>> done WEFT_GUARDED_BY(mutex);
  /// ids of the passes that began here and have not ended on all workers
  std::set<int64_t> begun WEFT_GUARDED_BY(mutex);
  bool recorded WEFT_GUARDED_BY(mutex) = false;  ///< a pass with create_graph has been here
  bool released WEFT_GUARDED_BY(mutex) = false;

  Ref<SendNode> find_send(int64_t message);
  /// True for its maker, this worker, and lives with which this worker exchanged calls in it.
  bool takes_part(Life one);
  /// Throws: NotAllowed if `from` takes no part, or if one of these sends went to another life.
  void check_claim(Life from, const std::vector<int64_t>& messages);
};
using ContextPtr = std::shared_ptr<ContextState>;

/// The values that were added last.
template <class T> class Latest {
 public:
  /// True if it was not there.
  bool add(const T& value) {
    if (!all_.insert(value).second) return false;
    order_.push_back(value);
    if (order_.size() > kRemembered) {
      all_.erase(order_.front());
      order_.pop_front();
    }
    return true;
  }
  bool has(const T& value) const { return all_.count(value) > 0; }

 private:
  static constexpr size_t kRemembered = 1 << 16;
  std::set<T> all_;
  std::deque<T> order_;
};

/// All contexts of one agent.
class ContextTable final : public rpc::Interceptor, public std::enable_shared_from_this<ContextTable> {
 public:
  explicit ContextTable(Agent& agent);
  static std::shared_ptr<ContextTable> of(Agent& agent);
  /// Registers the interceptor, the counters, the handler of releases, and callbacks for losses and the end.
  void install(Agent& agent);
  /// Registers a handler of requests, which runs on the pool.
  void handle(Agent& agent, rpc::Kind kind, void (*serve)(ContextTable&, rpc::Request, rpc::Responder));

  WorkerId self() const { return self_; }
  /// The life of this worker.
  Incarnation life() const;
  const std::shared_ptr<rpc::Runtime>& runtime() const { return runtime_; }
  /// Throws: RpcError when the agent is gone.
  std::shared_ptr<Agent> agent() const;
  std::shared_ptr<Agent> agent_or_null() const { return agent_.lock(); }
  /// For texts: the name of a worker, or its id if it is not in the group; and "worker 'ps'".
  std::string name_of(WorkerId id) const;
  std::string worker_text(WorkerId id) const { return str("worker '", name_of(id), "'"); }

  ContextPtr create();
  /// The context of this id; null for an unknown or released one. Life 0 stands for any.
  ContextPtr find(MadeId id);
  /// Throws: AutogradError "could not find autograd context with id".
  ContextPtr get(MadeId id);
  /// The life for an id from a user's hands. It is that of the current context or of the caller if it has
  /// this id, else the maker's current life.
  MadeId named(int64_t id) const;
  /// Changes the watch count of another worker's life: one for each of its contexts and open passes here.
  void watch(Life peer, int delta);
  /// Frees a context on this worker and sends a release to the workers it reached. Lets go of `answer` when
  /// these have answered. `lost`: its maker's loss is the cause.
  void release(MadeId id, std::shared_ptr<void> answer = {}, const rpc::LostPeer* lost = nullptr);
  /// The same for a request of `from`. Throws: NotAllowed, with no context changed, unless `from` is the
  /// maker or has made calls in the context here.
  void release_for(Life from, MadeId id, std::shared_ptr<void> answer);
  /// The contexts that are open on this worker, the one that reached it first before the others.
  std::vector<ContextPtr> open();
  /// Registers a callback for the end of a context on this worker, with the loss of its maker if that is the
  /// cause. It must be short and must not block. The end of the agent calls none.
  void on_ended(std::function<void(MadeId id, const rpc::LostPeer* lost)> f) { on_ended_.add(std::move(f)); }
  /// The clock that orders contexts and the steps of this worker's parameters.
  int64_t clock() const { return clock_.load(); }
  /// Counts a step whose values are visible, and returns its time.
  int64_t tick() { return clock_.fetch_add(1) + 1; }
  int64_t next_message() { return make_id(self_, messages_.fetch_add(1)); }
  MadeId next_pass() { return {make_id(self_, passes_.fetch_add(1)), life()}; }

  void request_sending(Agent&, rpc::Life to, rpc::Kind, const char* what, Message&) override;
  void request_received(Agent&, rpc::Life from, rpc::Kind, Message&, rpc::CallContext&) override;
  void reply_sending(Agent&, rpc::Life to, rpc::Kind, const char* what, Message&,
                     const rpc::CallContext&) override;
  void reply_received(Agent&, rpc::Life from, rpc::Kind, Message&, const rpc::CallContext&) override;
  /// A pass with create_graph records its gradients, as calls are recorded.
  void gradients_sending(ContextState& context, Life to, Message& message);
  void gradients_received(Life from, Message& message);
  void discarded(Agent&, rpc::Life peer, rpc::Kind, const Message&, bool outgoing) override;

  EdgeCodecs codecs;

 private:
  ContextPtr find_or_create(MadeId id, Life caller);
  /// Lets the maker of an ended context notify all workers, since the calls of a lost worker are not known.
  void tell_all(MadeId id, std::shared_ptr<void> answer);
  /// A request may wait for a thread, and its context's maker be lost meanwhile. Throws: as check_told.
  bool maker_is_lost(Agent& agent, MadeId id);
  void attach_send(ContextState& context, Life to, std::string what, Message& message, bool grad_mode,
                   bool reply = false);
  void attach_recv(ContextState& context, Life from, Message& message);
  void peer_lost(const rpc::LostPeer& peer);
  /// Ends all passes and contexts after the end of the agent, without messages.
  void stop();

  WorkerId self_;
  std::weak_ptr<Agent> agent_;
  std::shared_ptr<rpc::Runtime> runtime_;
  mutable std::atomic<Incarnation> life_{};  ///< 0 until it is asked for: the agent's transport comes later
  std::atomic<int64_t> contexts_made_{0}, messages_{0}, passes_{0}, clock_{0};
  rpc::Callbacks<MadeId, const rpc::LostPeer*> on_ended_;
  Mutex mutex_;
  std::map<MadeId, ContextPtr> contexts_ WEFT_GUARDED_BY(mutex_);
  // The latest ended contexts, so that a late call does not create one again.
  Latest<MadeId> ended_ WEFT_GUARDED_BY(mutex_);
  Latest<MadeId> told_ WEFT_GUARDED_BY(mutex_);  // of which all workers were notified
  // Releases that came before the calls of their senders: these calls alone count as late.
  Latest<std::pair<MadeId, Life>> early_ WEFT_GUARDED_BY(mutex_);
};

/// The gradient of a leaf in a context of this worker, packed if it is row-wise; get_gradient is for users.
/// Throws: AutogradError for an unknown context.
Tensor kept_gradient(int64_t context_id, const Tensor& leaf);

/// Sends a message without waiting for the answer. `on_error` runs when it does not arrive; it must be short.
void send_and_forget(Agent& agent, Life to, rpc::Kind kind, Message message, rpc::Task on_error = {});

}  // namespace weft::dist_autograd::detail
