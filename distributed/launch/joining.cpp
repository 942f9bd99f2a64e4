// The join of an elastic group as far as it concerns the store alone: the kind of the store, and the id of a
// name. membership.cpp describes the keys.
#include <weft/distributed/launch/inner/joining.h>

#include <charconv>

#include <weft/distributed/launch/inner/rendezvous_store.h>

namespace weft::rpc::inner {
namespace {
constexpr char kIdsKey[] = "group/ids";
}  // namespace

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
    throw ValueError(str("init: ", where,
                         " is the rendezvous of a static group, and no store of an elastic "
                         "one; to join that group while it forms, give rank and world_size in place of "
                         "InitOptions::store; an elastic group has a store of its own, by serve_store or "
                         "weft-store"));
}

WorkerId claim_id(Store& store, const std::string& name, TimePoint deadline) {
  const std::string key = "group/id/" + name;
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

}  // namespace weft::rpc::inner
