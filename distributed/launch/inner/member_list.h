// The list of members of an elastic group, as the store keeps it under one key, and the change of it by
// compare-and-set. Each change counts the epoch up by one.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <weft/distributed/launch/store.h>
#include <weft/distributed/wire/member.h>

namespace weft::rpc::inner {

inline constexpr size_t kMaxDepartures = 32;  ///< that a list keeps

/// A life that is no member any more.
struct Departure {
  Life life;
  bool left = false;  ///< it was shut down
  std::string why;
};

struct MemberList {
  uint64_t epoch = 0;
  std::vector<Member> members;        ///< by id
  std::vector<Departure> departures;  ///< the newest ones, oldest first

  const Member* find(WorkerId id) const;
  const Member* find(const std::string& name) const;
  const Departure* departure(Life life) const;
  /// Adds a member, in the place of an older life of it.
  void add(const Member& member);
  /// Removes a life. False: it is no member.
  bool remove(const Departure& departure);
};

inline Life life_of(const Member& m) { return {m.id, m.address.incarnation}; }

std::string encode_members(const MemberList& list);
/// Throws: WireError.
MemberList decode_members(const std::string& text);

/// Changes the list under `key`, and repeats the change while others change it meanwhile. `change` returns
/// false to leave the list as it is. Throws: the store's errors.
void change_members(Store& store, const std::string& key, TimePoint deadline,
                    const std::function<bool(MemberList& list)>& change);

}  // namespace weft::rpc::inner
