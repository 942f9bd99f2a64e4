// Work that destructors and locked sections must not do themselves, since it calls the agent or destroys a
// value. It is queued here and done by drain(), on the pool. Internal to rref.h.
#pragma once

#include <atomic>
#include <functional>
#include <vector>

#include <weft/distributed/rref/inner/reference_context.h>

namespace weft::rpc::detail {

/// One piece of deferred work.
struct DeferredItem {
  enum class Kind : uint8_t {
    kDelete,   ///< send DELETE of `fork` to `peer`
    kProbe,    ///< probe the share of `fork`
    kAccept,   ///< send ACCEPT of `fork` to `peer`
    kUnwatch,  ///< take back one watch of `peer`
    kDrop,     ///< let go of the value `drop`
  } kind;
  Life peer;
  RRefId rref;
  ForkId fork;
  StatePtr drop{};
  std::string site{};    ///< origin of the reference, for a delete forced by shutdown
  bool refused = false;  ///< for a delete: its creation was answered by an error
};

inline void drop_watch(Life peer, std::vector<DeferredItem>& after) {
  after.push_back({DeferredItem::Kind::kUnwatch, peer, {}, {}});
}

/// The queue of one agent's deferred work. Thread safety: any thread; the mutex must not be held, except with
/// WEFT_REQUIRES.
class DeferredWork {
 public:
  /// `probe` does kProbe (ShareTable::probe).
  DeferredWork(ReferenceContext& context, std::function<void(Agent&, ForkId)> probe)
      : context_(context), probe_(std::move(probe)) {}

  /// Queues work and posts drain(). Drops it after the end of the agent.
  void add(std::vector<DeferredItem> items) noexcept;
  void add(DeferredItem item) noexcept;
  /// Does the queued work. Called on the pool, or where blocking is allowed.
  void drain();

  /// True when no work is queued or being done.
  bool idle() const WEFT_REQUIRES(kTables) { return queue_.empty() && draining_ == 0; }
  /// True when every DELETE has its answer.
  bool deletes_answered() const { return deletes_under_way_.load() == 0; }
  /// Empties the queue, at the end of the agent.
  std::vector<DeferredItem> take_all() WEFT_REQUIRES(kTables) { return std::exchange(queue_, {}); }

 private:
  void send_deletes(Agent& agent, Life to, const std::vector<DeferredItem>& items);
  void send_accept(Agent& agent, Life to, ForkId fork);

  ReferenceContext& context_;
  const std::function<void(Agent&, ForkId)> probe_;
  std::atomic<int> deletes_under_way_{0};
  std::vector<DeferredItem> queue_ WEFT_GUARDED_BY(kTables);
  bool drain_posted_ WEFT_GUARDED_BY(kTables) = false;
  int draining_ WEFT_GUARDED_BY(kTables) = 0;
};

}  // namespace weft::rpc::detail
