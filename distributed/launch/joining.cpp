// The join of an elastic group: the kind of the store, the id of a name, and the device maps. membership.cpp
// describes the keys.
//  Device maps. A worker enters the list only if its maps fit the members' maps, and it has the devices to
//  which these lead. Then it asks each member to which its own maps lead, and leaves if a member lacks a
//  device. A map may name a worker that has not joined: that worker makes these checks when it joins.
#include <weft/distributed/launch/inner/joining.h>

#include <algorithm>
#include <charconv>

#include <weft/distributed/launch/inner/group_keys.h>
#include <weft/distributed/launch/inner/rendezvous_store.h>
#include <weft/distributed/rpc/inner/device_functions.h>
#include <weft/distributed/rpc/rpc.h>
#include <weft/distributed/wire/inner/plans_so_far.h>
#include <weft/distributed/wire/inner/streams.h>

namespace weft::rpc::inner {
void check_store_kind(Store& store, const JoinOptions& options) {
  const std::string where = options.store.empty() ? "the store" : options.store;
  bool rendezvous = false;
  try {
    rendezvous = store.peek({kRendezvousKey}, options.deadline).front().has_value();
  } catch (const Timeout& e) {
    throw Timeout(str("init: '", options.name, "' cannot join: ", e.what(),
                      "; a static group that once met there takes no further worker"));
  }
  if (rendezvous)
    throw ValueError(
        str("init: ", where,
            " is the rendezvous of a static group, not the store of an elastic group. To join "
            "the static group while it forms, give rank and world_size in place of "
            "InitOptions::store. An elastic group needs its own store (serve_store, weft-store)"));
}

WorkerId claim_id(Store& store, const std::string& name, TimePoint deadline) {
  const std::string key = kIdBegin + name;
  for (;;) {
    if (const auto known = store.peek({key}, deadline).front()) {
      WorkerId id;
      std::from_chars(known->data(), known->data() + known->size(), id.value);
      return id;
    }
    const int64_t id = store.add(kIdsKey, 1, deadline) - 1;
    if (id > kMaxWorkerId)
      throw ValueError(
          str("init: the group has had ", kMaxWorkerId + 1, " names, and no id is left for '", name, "'"));
    store.compare_and_set(key, std::nullopt, std::to_string(id), deadline);
  }
}

void check_devices(const MemberList& list, const Member& me) {
  std::vector<std::pair<std::string, DevicePlan>> plans{{me.name, me.plan}};
  bool any = !me.plan.empty();
  for (const Member& m : list.members) {
    if (m.id == me.id) continue;
    plans.emplace_back(m.name, m.plan);
    any = any || !m.plan.empty();
  }
  if (!any) return;
  check_plans_so_far(plans);
  const std::string missing = missing_devices(me.name, plans);
  register_stream_states();  // the check may have opened devices
  if (!missing.empty()) throw DeviceError("device maps: " + missing);
}

void ask_for_devices(const std::shared_ptr<Agent>& agent, TimePoint deadline) {
  const AgentScope scope(agent);
  const Member me = agent->as_member();
  std::vector<Future<std::string>> answers;
  for (const WorkerInfo& member : agent->worker_infos()) {
    if (member.id == me.id || me.plan.maps.of(member.name).empty()) continue;
    const Duration left = std::max<Duration>(deadline - agent->runtime()->now(), std::chrono::seconds(1));
    answers.push_back(rpc_async<&builtin::missing_devices>(To(member, left), me.name, to_line(me.plan)));
  }
  std::string missing;
  for (const auto& answer : answers) {
    try {
      const std::string text = answer.wait();
      if (!text.empty()) missing += str(missing.empty() ? "" : "; ", text);
    } catch (const PeerLost&) {  // a successor makes the checks of its own join
    } catch (const Fenced&) {
    } catch (const NotAllowed&) {  // then the first call finds out
    }
  }
  if (!missing.empty()) throw DeviceError("device maps: " + missing);
}

}  // namespace weft::rpc::inner
