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
#include <weft/distributed/wire/inner/wire_format.h>

namespace weft::rpc {

/// Objects in the order of their registration. Reading takes no lock, since registrations are few: each makes
/// a new list, and all lists stay.
template <class T> class Registered {
 public:
  Registered() { lists_.push_back(std::make_unique<const std::vector<T>>()), newest_ = lists_.back().get(); }
  void add(T object) {
    MutexLock lock(mutex_);
    auto list = std::make_unique<std::vector<T>>(*lists_.back());
    list->push_back(std::move(object));
    lists_.push_back(std::move(list));
    newest_ = lists_.back().get();
  }
  /// A list that later registrations leave as it is. It lives as long as this object.
  const std::vector<T>& all() const { return *newest_.load(); }

 private:
  Mutex mutex_;
  std::vector<std::unique_ptr<const std::vector<T>>> lists_ WEFT_GUARDED_BY(mutex_);
  std::atomic<const std::vector<T>*> newest_;
};

/// Functions that layers registered. Each event calls copies of its own: events on several threads at once
/// share no state of a function.
template <class... Args> class Callbacks {
 public:
  using Function = std::function<void(Args...)>;
  void add(Function f) { list_.add(std::move(f)); }
  std::vector<Function> copies() const { return list_.all(); }

 private:
  Registered<Function> list_;
};

/// The interceptors of an agent.
class Interceptors {
 public:
  bool any() const { return !list_.all().empty(); }
  void add(std::shared_ptr<Interceptor> interceptor) { list_.add(std::move(interceptor)); }
  /// Calls `f` with each interceptor in the order of registration.
  template <class F> void each(const F& f) const {
    for (const auto& i : list_.all()) f(*i);
  }

 private:
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
        fence(*runtime),
        budget(options.budget) {}

  /// The agent; null while it is being destroyed.
  std::shared_ptr<Agent> agent() const { return owner.weak_from_this().lock(); }
  /// Overwrites the envelope of a sealed message, with the epoch of this worker in it.
  void stamp(Message& message, Envelope envelope) const;
  /// This worker's list of members has this epoch now.
  void set_epoch(uint64_t now);
  /// A message was sent in this epoch. An epoch beyond all known epochs calls `epoch_callbacks`.
  void hear_epoch(uint64_t heard) {
    if (heard > heard_epoch_.load(std::memory_order_relaxed)) hear_later_epoch(heard);
  }
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
  Callbacks<> epoch_callbacks;  ///< a message has an epoch that this worker has not seen

 private:
  void hear_later_epoch(uint64_t heard);
  std::atomic<uint64_t> epoch_{0}, heard_epoch_{0};
};

}  // namespace weft::rpc
