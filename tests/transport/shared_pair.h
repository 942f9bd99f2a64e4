// Two workers of one process that share memory, and the files, mappings and limits of this process.
#pragma once

#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <weft/distributed/transport/grpc_transport.h>

#include "mailbox.h"
#include "raw_lane.h"

namespace weft::rpc {

/// Keeps shared payloads in place.
struct SharingBox final : Mailbox {
  using Mailbox::Mailbox;
  Block take(WorkerId, uint8_t, const std::string&, Block lent, int32_t) override { return lent; }
  void on_part(uint8_t, int64_t, int64_t bytes) override { told += bytes; }
  void on_part_end(uint8_t, int64_t held) override { ended += held; }
  /// Message `i`, which has come.
  Inbound& at(size_t i) {
    MutexLock lock(mutex);
    return messages.at(i);
  }
  void forget_all() {
    MutexLock lock(mutex);
    messages.clear();
  }
  std::atomic<int64_t> told{0}, ended{0};
};

struct SharedEnd {
  SharedEnd(const std::shared_ptr<Runtime>& rt, GrpcOptions options) : box(*rt) {
    options.same_host_lane = true;
    options.listen = "";
    t = make_grpc_transport(rt, std::move(options), box);
  }
  ~SharedEnd() { t->close(); }
  SharingBox box;
  std::shared_ptr<Transport> t;
};

/// Workers 0 and 1, connected.
struct SharedPair {
  explicit SharedPair(int64_t of_a = 256 << 20, int64_t of_b = 256 << 20)
      : a(rt, {.id = WorkerId{0}, .shared_memory_bytes = of_a}),
        b(rt, {.id = WorkerId{1}, .shared_memory_bytes = of_b}) {
    a.t->add_peer(WorkerId{1}, b.t->addresses());
    b.t->add_peer(WorkerId{0}, a.t->addresses());
    connect();
  }
  void connect() {
    const size_t before = b.box.count;
    a.t->send(WorkerId{1}, 1, "first");
    if (!b.box.wait_for(before + 1)) throw RpcError("no connection");
    b.box.forget_all();
  }
  std::shared_ptr<Runtime> rt = make_threaded_runtime();
  SharedEnd a, b;
};

inline std::vector<uint8_t> pattern(size_t bytes, uint32_t seed) {
  std::vector<uint8_t> out(bytes);
  for (uint8_t& byte : out) byte = static_cast<uint8_t>((seed = seed * 1664525 + 1013904223) >> 24);
  return out;
}
inline bool holds(const Block& block, const std::vector<uint8_t>& bytes) {
  return block.bytes == static_cast<int64_t>(bytes.size()) &&
         std::memcmp(block.data, bytes.data(), bytes.size()) == 0;
}

/// Another limit of this process.
struct OtherLimit {
  OtherLimit(int limited, rlim_t limit) : resource(limited) {
    getrlimit(resource, &before);
    rlimit now = before;
    now.rlim_cur = std::min(limit, before.rlim_max);
    set = setrlimit(resource, &now) == 0;
  }
  ~OtherLimit() { setrlimit(resource, &before); }
  const int resource;
  rlimit before{};
  bool set = false;
};

inline auto open_files() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                       std::filesystem::directory_iterator());
}
/// Mappings of segments, of both ends.
inline int mapped_segments() {
  std::ifstream maps("/proc/self/maps");
  int found = 0;
  for (std::string line; std::getline(maps, line);)
    found += line.find("memfd:weft-segment") != std::string::npos;
  return found;
}

}  // namespace weft::rpc
