// AgentCore, which all parts of an agent use: its identity, interceptors, counters, fence and budget, and the
// sending of messages that may be lost. Registered and Callbacks are lists that layers fill.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include <weft/distributed/rpc/agent.h>
#include <weft/distributed/rpc/current_agent.h>
#include <weft/distributed/rpc/inner/budget.h>
#include <weft/distributed/rpc/inner/fence.h>
#include <weft/distributed/rpc/inner/tracer.h>
#include <weft/distributed/runtime/sync.h>

namespace weft::rpc {

/// Objects in the order of their registration.
template <class T> class Registered {
 public:
  void add(T object) {
    MutexLock lock(mutex_);
    auto list = std::make_shared<std::vector<T>>(*list_);
    list->push_back(std::move(object));
    list_ = std::move(list);
  }
  /// A list that later registrations leave as it is, so that its objects are used without the lock.
  std::shared_ptr<const std::vector<T>> all() const {
    MutexLock lock(mutex_);
    return list_;
  }

 private:
  mutable Mutex mutex_;
  std::shared_ptr<const std::vector<T>> list_ WEFT_GUARDED_BY(mutex_) = std::make_shared<std::vector<T>>();
};

/// Functions that layers registered. Each event calls copies of its own: events on several threads at once
/// share no state of a function.
template <class... Args> class Callbacks {
 public:
  using Function = std::function<void(Args...)>;
  void add(Function f) { list_.add(std::move(f)); }
  std::vector<Function> copies() const { return *list_.all(); }

 private:
  Registered<Function> list_;
};

/// The interceptors of an agent.
class Interceptors {
 public:
  bool any() const { return any_; }
  void add(std::shared_ptr<Interceptor> interceptor) {
    list_.add(std::move(interceptor));
    any_ = true;
  }
  /// Calls `f` with each interceptor in the order of registration.
  template <class F> void each(const F& f) const {
    if (!any_) return;
    const auto list = list_.all();
    for (const auto& i : *list) f(*i);
  }

 private:
  std::atomic<bool> any_{false};
  Registered<std::shared_ptr<Interceptor>> list_;
};

/// Calls by which workers wait for each other. They do not count as open calls.
inline bool is_round(Kind kind) { return kind == Kind::kGather || kind == Kind::kRound; }

/// Totals and numbers of open calls, for debug_info and the shutdown rounds.
struct Counters {
  std::atomic<int64_t> calls{0}, served{0}, resent_requests{0}, resent_replies{0}, duplicates{0},
      late_replies{0}, asks{0}, lost_peers{0}, malformed{0}, timeouts{0}, active_client{0}, active_server{0},
      served_errors{0}, dropped_requests{0};
};

/// The shared state of the parts of one agent.
struct AgentCore {
  AgentCore(Agent& of, std::shared_ptr<Runtime> rt, AgentOptions o)
      : owner(of),
        runtime(std::move(rt)),
        options(std::move(o)),
        self{options.name, options.id},
        budget(options.budget) {}

  /// The agent; null while it is being destroyed.
  std::shared_ptr<Agent> agent() const { return owner.weak_from_this().lock(); }
  /// Sends a message, or drops it when the transport refuses it: the next status repairs that.
  void send(WorkerId to, uint8_t kind, std::string bytes, std::vector<Payload> payloads = {});

  Agent& owner;
  const std::shared_ptr<Runtime> runtime;
  const AgentOptions options;
  const WorkerInfo self;
  std::shared_ptr<Transport> transport;  ///< set once, before `running`
  std::atomic<bool> running{false};
  Counters counters;
  Interceptors interceptors;
  Tracer tracer;
  Fence fence;
  Budget budget;
};

}  // namespace weft::rpc
