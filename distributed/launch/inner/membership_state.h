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

// Such texts reach every member, so they do not tell the number of a life: with it, a hello could pose as it.
inline constexpr char kSucceeded[] = "its successor has its name";

}  // namespace inner

struct Membership::State {
  State(std::shared_ptr<Runtime> rt, std::shared_ptr<Store> s, JoinOptions o)
      : runtime(std::move(rt)),
        store(std::move(s)),
        options(std::move(o)),
        life_key(inner::kLifeBegin + options.name),
        changed(*runtime, "a change of the members"),
        ended(*runtime, "the renewals of a lease") {}

  Fence& fence() const { return agent->impl().core.fence; }
  Duration lease() const { return agent->impl().core.options.lease; }
  bool over() const { return stopping || !agent->is_running(); }
  std::string number() const { return to_string(agent->life().incarnation); }

  // membership.cpp
  void take_name();
  void release_name() const;
  // membership_task.cpp
  void run_task();
  void renew();
  bool follow(TimePoint until);
  void apply(const std::string& text);
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
  Event changed, ended;
  std::atomic<bool> stopping{false};
  std::string why_left = "it was shut down";  // set before the only leave that has another reason
  Callbacks<const WorkerInfo&> joined_callbacks;
  Callbacks<const std::string&> fenced_callbacks;
  // of the task that renews and follows
  std::optional<std::string> known;
  Life next;  // the member that this worker keeps under lease
  bool told = false;
  mutable Mutex mutex;
  inner::MemberList list WEFT_GUARDED_BY(mutex);
};

}  // namespace weft::rpc
