// The check that no two lives of a name serve at one time (lives.h).
#include "explore/lives.h"

#include <algorithm>

#include <weft/distributed/launch/inner/group_keys.h>
#include <weft/distributed/launch/membership.h>
#include <weft/distributed/rpc/current_agent.h>
#include <weft/distributed/rpc/inner/agent_impl.h>

#include "support/around_store.h"

namespace weft::explore {

class Lives::Client final : public test::AroundStore {
 public:
  Client(std::shared_ptr<rpc::Store> client, Lives& lives) : AroundStore(std::move(client)), lives_(lives) {}
  void hold(const std::string& key, const std::string& value, rpc::Duration lease, Deadline until) override {
    AroundStore::hold(key, value, lease, until);
    const std::string begin = rpc::inner::kLifeBegin;
    if (key.rfind(begin, 0) == 0) lives_.admitted(key.substr(begin.size()), value);
  }
  bool compare_and_set(const std::string& key, const Text& expected, const std::string& value,
                       Deadline until) override {
    const bool changed = AroundStore::compare_and_set(key, expected, value, until);
    if (changed && key == rpc::inner::kMembersKey) lives_.listed(rpc::inner::decode_members(value));
    return changed;
  }

 private:
  Lives& lives_;
};

std::shared_ptr<rpc::Store> Lives::around(std::shared_ptr<rpc::Store> client) {
  return std::make_shared<Client>(std::move(client), *this);
}

void Lives::fail(const std::string& text) {
  if (wrong_.empty()) wrong_ = text;
}

void Lives::admitted(const std::string& name, const std::string& life) {
  const auto holder = holders_.find(name);
  if (holder != holders_.end() && holder->second.life == life) return;
  holders_[name] = {life, runtime_.now()};
  check_fences(name);
}

void Lives::listed(const rpc::inner::MemberList& list) {
  for (const rpc::inner::Departure& gone : list.departures)
    if (!gone.left) removed_.emplace(to_string(gone.life.incarnation), runtime_.now());
}

/// No other life of the name may serve, even if nobody calls it.
void Lives::check_fences(const std::string& name) {
  for (const auto& weak : agents_[name]) {
    const auto agent = weak.lock();
    if (!agent || !agent->is_running() || agent->impl().core.fence.closed()) continue;
    const std::string life = to_string(agent->life().incarnation);
    if (life != holders_[name].life) fail(text_of(name, life) + ", and its fence is open");
  }
}

std::string Lives::text_of(const std::string& name, const std::string& life) const {
  const Holder& holder = holders_.at(name);
  const auto ms = [](rpc::TimePoint t) {
    return std::chrono::duration<double, std::milli>(t.time_since_epoch()).count();
  };
  return str("two lives of ", name, " serve at one time: at ", ms(runtime_.now()), " ms it is ", life, "; ",
             holder.life, " has had the lease since ", ms(holder.since), " ms");
}

void Lives::served() {
  const std::shared_ptr<rpc::Agent> agent = rpc::current_agent();
  const std::string name = agent->self().name, life = to_string(agent->life().incarnation);
  auto& agents = agents_[name];
  if (std::none_of(agents.begin(), agents.end(), [&](const auto& weak) { return weak.lock() == agent; }))
    agents.push_back(agent);
  if (holders_.count(name) == 0) return fail(str(name, " serves, and no life of it has had the lease"));
  if (holders_[name].life != life) fail(text_of(name, life));
  for (const auto& [each, all] : agents_) check_fences(each);
  // a worker that was just listed may be called before it has the list
  if (const uint64_t epoch = rpc::epoch(); epoch > 0) {
    const auto& first = of_epoch_.emplace(std::pair(name, epoch), life).first->second;
    if (first != life) fail(str("two lives of ", name, " served in epoch ", epoch));
  }
  // a late renewal may cross the removal, and its life serves until it has read the list
  const auto gone = removed_.find(life);
  if (gone != removed_.end() && runtime_.now() > gone->second + 2 * lease_)
    fail(str("a life of ", name, " that was lost and removed serves"));
}

}  // namespace weft::explore
