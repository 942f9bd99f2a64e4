// The autograd contexts of one worker: their send and recv nodes, gradients and current passes. An agent has
// one ContextTable; it is also the interceptor that records messages. Internal to distributed autograd.
#pragma once

#include <deque>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include <weft/distributed/autograd/dist_autograd.h>
#include <weft/distributed/autograd/inner/dist_nodes.h>
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
  /// True if the pass needs that peer, or gradients for one of these sends.
  virtual bool involves(WorkerId peer, const std::map<int64_t, Ref<SendNode>>& sends) const = 0;
};

/// Ids of contexts, messages and passes: id of the worker that made them << 48 | that worker's count.
inline constexpr int64_t kMaxCount = (int64_t{1} << 48) - 1;
inline int64_t make_id(WorkerId maker, int64_t count) {
  if (count > kMaxCount)
    throw AutogradError(
        str("distributed autograd: worker ", maker, " has used up its ", kMaxCount, " numbers"));
  return static_cast<int64_t>(maker.value) << 48 | count;
}
/// The worker that made a context or pass.
inline WorkerId maker_of(int64_t id) { return WorkerId{static_cast<int32_t>(id >> 48)}; }

/// The state of one context on one worker.
struct ContextState {
  ContextState(int64_t context_id, ContextTable& t) : id(context_id), table(t) {}
  const int64_t id;
  ContextTable& table;
  Mutex mutex;
  std::map<int64_t, Ref<SendNode>> sends WEFT_GUARDED_BY(mutex);
  std::map<int64_t, Ref<RecvNode>> recvs WEFT_GUARDED_BY(mutex);
  std::set<WorkerId> known WEFT_GUARDED_BY(mutex);
  std::unordered_map<TensorBody*, std::pair<Tensor, Tensor>> gradients WEFT_GUARDED_BY(mutex);
  std::map<int64_t, std::shared_ptr<ContextPass>> passes WEFT_GUARDED_BY(mutex);
  /// failed passes with their errors, so that late messages do not open them again
  std::map<int64_t, std::exception_ptr> aborted WEFT_GUARDED_BY(mutex);
  bool released WEFT_GUARDED_BY(mutex) = false;

  void accumulate(const Tensor& leaf, Tensor grad, bool may_steal);
  Ref<SendNode> find_send(int64_t message);
};
using ContextPtr = std::shared_ptr<ContextState>;

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
  const std::shared_ptr<rpc::Runtime>& runtime() const { return runtime_; }
  /// Throws: RpcError when the agent is gone.
  std::shared_ptr<Agent> agent() const;
  std::shared_ptr<Agent> agent_or_null() const { return agent_.lock(); }
  /// For texts: the name of a worker, or its id if it is not in the group; and "worker 'ps'".
  std::string name_of(WorkerId id) const;
  std::string worker_text(WorkerId id) const { return str("worker '", name_of(id), "'"); }

  ContextPtr create();
  /// The context of this id; null for an unknown or released one.
  ContextPtr find(int64_t id);
  /// Throws: AutogradError "could not find autograd context with id".
  ContextPtr get(int64_t id);
  /// Frees a context on this worker and sends a release to the workers it reached.
  void release(int64_t id);
  int64_t next_message() { return number(messages_.fetch_add(1)); }
  int64_t next_pass() { return number(passes_.fetch_add(1)); }

  void request_sending(Agent&, rpc::Life to, rpc::Kind, const char* what, Message&) override;
  void request_received(Agent&, rpc::Life from, rpc::Kind, Message&, rpc::CallContext&) override;
  void reply_sending(Agent&, rpc::Life to, rpc::Kind, const char* what, Message&,
                     const rpc::CallContext&) override;
  void reply_received(Agent&, rpc::Life from, rpc::Kind, Message&, const rpc::CallContext&) override;
  void discarded(Agent&, rpc::Life peer, rpc::Kind, const Message&, bool outgoing) override;

 private:
  int64_t number(int64_t count) const { return make_id(self_, count); }
  ContextPtr find_or_create(int64_t id);
  void attach_send(ContextState& context, WorkerId to, std::string what, Message& message, bool grad_mode);
  void attach_recv(ContextState& context, WorkerId from, Message& message);
  void peer_lost(const rpc::WorkerInfo& peer, const std::string& why);
  /// Ends all passes and contexts after the end of the agent, without messages.
  void stop();

  WorkerId self_;
  std::weak_ptr<Agent> agent_;
  std::shared_ptr<rpc::Runtime> runtime_;
  std::atomic<int64_t> contexts_made_{0}, messages_{0}, passes_{0};
  Mutex mutex_;
  std::unordered_map<int64_t, ContextPtr> contexts_ WEFT_GUARDED_BY(mutex_);
  // Ended contexts, so that a late call does not create one again. The table forgets the
  // oldest beyond kRemembered.
  static constexpr size_t kRemembered = 1 << 16;
  std::unordered_set<int64_t> ended_ WEFT_GUARDED_BY(mutex_);
  std::deque<int64_t> ended_order_ WEFT_GUARDED_BY(mutex_);
};

/// Sends a message without waiting for the answer. `on_error` runs when it does not arrive; it must be short.
void send_and_forget(Agent& agent, WorkerId to, rpc::Kind kind, Message message, rpc::Task on_error = {});

}  // namespace weft::dist_autograd::detail
