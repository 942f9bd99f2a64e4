// Distinct types for the two numbers of a worker. The id is its rank, unique in a group. The incarnation is a
// random number drawn at each start, so that a restarted worker is not mistaken for the previous one.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <string>

namespace weft::rpc {

/// The rank of a worker in its group, 0 to world size - 1. Negative: no worker.
struct WorkerId {
  int32_t value = -1;
  friend auto operator<=>(const WorkerId&, const WorkerId&) = default;
};

/// The largest worker id: the ids of autograd contexts and messages have 15 bits for it.
inline constexpr int32_t kMaxWorkerId = 32767;

/// One run of a worker's process; 0 means any run where an incarnation is expected.
struct Incarnation {
  uint64_t value = 0;
  friend auto operator<=>(const Incarnation&, const Incarnation&) = default;
};

/// One run of one worker. Contexts, references and messages belong to the life that made them; a successor
/// under the same id is another life. Made from a WorkerId, it means the worker's current life.
struct Life {
  WorkerId id;
  Incarnation incarnation;
  Life() = default;
  Life(WorkerId of, Incarnation run = {}) : id(of), incarnation(run) {}
  friend auto operator<=>(const Life&, const Life&) = default;
};

inline std::string to_string(WorkerId id) { return std::to_string(id.value); }
inline std::string to_string(Incarnation i) { return std::to_string(i.value); }

}  // namespace weft::rpc

template <> struct std::hash<weft::rpc::WorkerId> {
  size_t operator()(weft::rpc::WorkerId id) const noexcept { return std::hash<int32_t>()(id.value); }
};
template <> struct std::hash<weft::rpc::Incarnation> {
  size_t operator()(weft::rpc::Incarnation i) const noexcept { return std::hash<uint64_t>()(i.value); }
};
template <> struct std::hash<weft::rpc::Life> {
  size_t operator()(const weft::rpc::Life& life) const noexcept {
    return std::hash<weft::rpc::Incarnation>()(life.incarnation) * 31 +
           std::hash<weft::rpc::WorkerId>()(life.id);
  }
};
