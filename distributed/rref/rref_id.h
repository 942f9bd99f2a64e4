// The ids of remote references. An RRefId names a value, a ForkId one worker's reference to it (a fork, as in
// PyTorch). One counter of the worker that makes them numbers both. They contain the worker's incarnation, so
// a restarted worker never repeats an id.
#pragma once

#include <string>

#include <weft/distributed/transport/ids.h>
#include <weft/kernels/error.h>

namespace weft::rpc {

/// Thread safety: as a plain value.
template <class Tag> struct ReferenceNumber {
  WorkerId created_on;  ///< the worker that made the id
  Incarnation life;     ///< its incarnation
  uint64_t local = 0;   ///< 0: no number
  /// The life that made the id.
  Life maker() const { return {created_on, life}; }
  friend auto operator<=>(const ReferenceNumber&, const ReferenceNumber&) = default;
};
using RRefId = ReferenceNumber<struct RRefTag>;
using ForkId = ReferenceNumber<struct ForkTag>;

/// "RRefId(created_on=1, local_id=7)".
WEFT_API std::string to_string(const RRefId& id);
WEFT_API std::string to_string(const ForkId& id);

}  // namespace weft::rpc

template <class Tag> struct std::hash<weft::rpc::ReferenceNumber<Tag>> {
  size_t operator()(const weft::rpc::ReferenceNumber<Tag>& id) const noexcept {
    return static_cast<size_t>(
        (id.life.value ^ static_cast<uint64_t>(static_cast<uint32_t>(id.created_on.value)) << 48 ^ id.local) *
        0x9E3779B97F4A7C15ull);
  }
};
