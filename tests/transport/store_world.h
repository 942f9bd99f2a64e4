// A served store with clients on a simulated network, for tests of the store.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <weft/distributed/launch/store.h>
#include <weft/distributed/sim/sim_transport.h>

namespace weft::rpc {

using namespace std::chrono_literals;
using Value = std::optional<std::string>;

/// The time after `d`, by the clock of real stores.
inline TimePoint in(Duration d) { return std::chrono::steady_clock::now() + d; }

/// A served store and its clients on a simulated network.
struct SimStore {
  explicit SimStore(uint64_t seed = 1, SimNetOptions options = {}) : rt({.seed = seed}), net(rt, options) {}
  void serve(const StoreOptions& options = {}) {
    server = make_store_server(
        rt, [&](Receiver& r) { return net.attach(WorkerId{0}, r, "sim:store"); }, options);
  }
  /// The server's process ends: nothing that it sends from here on arrives.
  void kill() {
    net.kill(WorkerId{0});
    server.reset();
  }
  std::unique_ptr<Store> client() {
    const WorkerId id{++last};
    return make_store_client(
        rt, [&](Receiver& r) { return net.attach(id, r, str("sim:client:", id.value)); },
        PeerAddress{.addresses = {"sim:store"}}, "sim:store");
  }
  /// Runs the functions at once, each in a task, and waits for all.
  void together(std::vector<std::function<void()>> all) {
    Event done(rt, "all tasks");
    size_t ended = 0;
    for (auto& each : all) {
      rt.post([&, each] {
        try {
          each();
        } catch (const std::exception& e) {
          ADD_FAILURE() << e.what();
        }
        if (++ended == all.size()) done.set();
      });
    }
    done.wait();
  }
  TimePoint in(Duration d) { return rt.now() + d; }

  SimRuntime rt;
  SimNetwork net;
  int last = 1000;
  std::unique_ptr<Store> server;
};

inline SimNetOptions lossy() { return {.jitter = 20ms, .drop = 0.3, .duplicate = 0.3}; }

inline Value peek(Store& store, const std::string& key, TimePoint deadline) {
  return store.peek({key}, deadline).at(0);
}

}  // namespace weft::rpc
