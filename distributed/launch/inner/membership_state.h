// The state of a member of an elastic group, which the public part (membership.cpp) and the member's tasks
// (membership_task.cpp) share.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include <weft/distributed/launch/inner/group_keys.h>
#include <weft/distributed/launch/inner/member_list.h>
#include <weft/distributed/launch/membership.h>
#include <weft/distributed/rpc/inner/agent_impl.h>

namespace weft::rpc {
namespace inner {

// Such texts reach every member, so they do not reveal the number of a life: with it, a hello could pose as
// that life.
inline constexpr char kSucceeded[] = "its successor has its name";

}  // namespace inner

struct Membership::State {
  State(std::shared_ptr<Runtime> rt, std::shared_ptr<Store> s, JoinOptions o)
      : runtime(std::move(rt)),
        store(std::move(s)),
        options(std::move(o)),
        life_key(inner::kLifeBegin + options.name),
        changed(*runtime, "a change of the members"),
        turn_free(*runtime, "the turn of another reader of the members"),
        ended(*runtime, "the renewals of a lease") {}

  Fence& fence() const { return agent->impl().core.fence; }
  Duration lease() const { return agent->impl().core.options.lease; }
  bool over() const { return stopping || !agent->is_running(); }
  uint64_t epoch() const {
    MutexLock lock(mutex);
    return list.epoch;
  }
  std::string number() const { return to_string(agent->life().incarnation); }

  // membership.cpp
  void take_name();
  void release_name() const;
  // membership_task.cpp
  void run_task();
  void renew();
  bool follow(TimePoint until);
  void read_list(TimePoint deadline);
  void catch_up();
  void apply(const std::string& text, uint64_t asked_in);
  void place(const inner::MemberList& now);
  void keep_next(const inner::MemberList& now);
  void remove_lost(const LostPeer& lost);
  void stay_out(const std::string& why);
  void tell_fenced();

  const std::shared_ptr<Runtime> runtime;
  const std::shared_ptr<Store> store;
  const JoinOptions options;
  const std::string life_key;
  std::shared_ptr<Agent> agent;  // set before others see this object
  Event changed, turn_free, ended;
  std::atomic<bool> stopping{false};
  std::string why_left = "it was shut down";  // set before the only leave that has another reason
  Callbacks<const WorkerInfo&> joined_callbacks;
  Callbacks<const std::string&> fenced_callbacks;
  std::atomic<bool> told{false};  // that this worker is fenced
  std::atomic<bool> catching_up{false};
  std::atomic<bool> turn{false};     // one reader of the list has it (ListTurn)
  std::optional<std::string> known;  // by the turn
  Life next;                         // by the turn: the member that this worker keeps under lease
  int unanswered = 0;                // by the task: renewals in a row
  mutable Mutex mutex;
  inner::MemberList list WEFT_GUARDED_BY(mutex);
};

/// The turn of one reader of the list, for a scope. It is no mutex: calls that end in it may continue with
/// anything, so a simulated fiber may wait in it.
class Membership::ListTurn {
 public:
  explicit ListTurn(State& s) : s_(s) {
    for (;;) {
      s_.turn_free.reset();
      if (!s_.turn.exchange(true)) return;
      s_.turn_free.wait_until(s_.runtime->now() + s_.lease() / 4);  // another wait may have reset it
    }
  }
  ~ListTurn() {
    s_.turn = false;
    s_.turn_free.set();
  }
  ListTurn(const ListTurn&) = delete;
  ListTurn& operator=(const ListTurn&) = delete;

 private:
  State& s_;
};

}  // namespace weft::rpc
