// The segments that the other end of a link has passed: the receiving side of shared memory. shared_memory.h
// has the steps. Nothing of a segment but its payload is read, so a lie of the other end is found before the
// memory is used. Internal to the gRPC transport.
#pragma once

#include <memory>
#include <optional>
#include <unordered_map>

#include <weft/distributed/transport/inner/same_host.h>

namespace weft::rpc::inner {

/// Thread safety: as PassedSegments.
class KnownSegments final : public PassedSegments {
 public:
  void add(uint32_t number, std::optional<File> file) override;
  void forget(uint32_t number) override;
  Block borrow(uint32_t number, int64_t bytes) override;

 private:
  struct Held;
  std::unordered_map<uint32_t, std::shared_ptr<Held>> known_;
  int64_t bytes_ = 0;
};

}  // namespace weft::rpc::inner
