// The lives of the names of an elastic group, as the store and the served calls show them. At most one life
// of a name may serve at a time. The time is simulated, so the lease of a name has no margin.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <weft/distributed/launch/inner/member_list.h>
#include <weft/distributed/launch/store.h>
#include <weft/distributed/rpc/agent.h>

namespace weft::explore {

class Lives {
 public:
  Lives(rpc::Runtime& runtime, rpc::Duration lease) : runtime_(runtime), lease_(lease) {}
  /// A client of the store that tells this of leases of names, and of changes of the list of members.
  std::shared_ptr<rpc::Store> around(std::shared_ptr<rpc::Store> client);
  /// The current agent runs a function.
  void served();
  /// The first life that served against the guarantee, as text; empty: none.
  const std::string& wrong() const { return wrong_; }

 private:
  class Client;
  struct Holder {
    std::string life;
    rpc::TimePoint since;
  };
  /// That life has the lease of that name. An earlier holder may have it again after a later one gave it up.
  void admitted(const std::string& name, const std::string& life);
  /// The store has that list.
  void listed(const rpc::inner::MemberList& list);
  void check_fences(const std::string& name);
  void fail(const std::string& text);
  std::string text_of(const std::string& name, const std::string& life) const;

  rpc::Runtime& runtime_;
  const rpc::Duration lease_;
  std::map<std::string, Holder> holders_;                             // by name
  std::map<std::string, rpc::TimePoint> removed_;                     // lives that the list has lost
  std::map<std::pair<std::string, uint64_t>, std::string> of_epoch_;  // the life of a name that served
  std::map<std::string, std::vector<std::weak_ptr<rpc::Agent>>> agents_;
  std::string wrong_;
};

}  // namespace weft::explore
