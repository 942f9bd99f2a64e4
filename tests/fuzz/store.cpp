// The target of the store: requests of a client, well-formed or not, to a serving store. A request that is
// refused changes nothing, and the store goes on.
#include <weft/distributed/launch/inner/store_calls.h>
#include <weft/distributed/sim/sim_runtime.h>

#include "fuzz/targets.h"

namespace weft::fuzz {

namespace {

using namespace rpc;
using inner::StoreWriter;

/// Drops the answers of the store.
class Mute final : public Transport {
 public:
  WorkerId id() const override { return WorkerId{0}; }
  Incarnation incarnation() const override { return Incarnation{1}; }
  PeerAddress addresses() const override { return {}; }
  void add_peer(WorkerId, PeerAddress) override {}
  void remove_peer(WorkerId) override {}
  void send(WorkerId, uint8_t, std::string, std::vector<Payload>) override {}
  bool wait_writable(WorkerId, TimePoint) override { return true; }
  PeerCounters counters(WorkerId) const override { return {}; }
  void close(Duration) override {}
};

/// Keys that a request may name, and one that none does.
const std::vector<std::string> kKeys = {"a", "b", "k"};

}  // namespace

void store(const uint8_t* data, size_t size) {
  SimRuntime runtime;
  Receiver* receiver = nullptr;
  const auto server = make_store_server(runtime, [&](Receiver& r) -> std::shared_ptr<Transport> {
    receiver = &r;
    return std::make_shared<Mute>();
  });
  const auto soon = [&] { return runtime.now() + std::chrono::seconds(1); };
  uint64_t number = 1;
  for (const std::string& request : pieces_of(data, size)) {
    const auto before = server->peek(kKeys, soon());
    const std::string bytes = StoreWriter().number(number++).bytes + request;
    try {
      receiver->on_message({WorkerId{1}, Incarnation{7}, inner::kRequest, bytes, {}, {}});
    } catch (const WireError&) {
      if (server->peek(kKeys, soon()) != before) throw Defect("a refused request has changed the store");
    }
  }
  if (server->add("counter of the server's own", 1, soon()) < 1) throw Defect("the store does not count");
}

std::vector<std::string> store_seeds() {
  const auto set = StoreWriter().number(inner::kSet).text("a").text("1").bytes;
  const auto add = StoreWriter().number(inner::kAdd).text("b").number(int64_t{5}).bytes;
  const auto add_to_text = StoreWriter().number(inner::kAdd).text("a").number(int64_t{-1}).bytes;
  const auto peek = StoreWriter().number(inner::kPeek).number(uint32_t{2}).text("a").text("k").bytes;
  return {join({set, add, add_to_text, peek}), join({inner::wait_request({"a", "k"}, "b"), set, add}),
          join({add, add, peek})};
}

}  // namespace weft::fuzz
