// The target of the store: requests of a client, well-formed or not, to a serving store. A request that is
// refused changes nothing, and the store goes on.
#include <map>

#include <weft/distributed/launch/inner/store_calls.h>
#include <weft/distributed/sim/sim_runtime.h>

#include "fuzz/targets.h"

namespace weft::fuzz {

namespace {

using namespace rpc;
using inner::StoreReader;
using inner::StoreWriter;

/// Keeps the answers of the store, by the numbers of their requests.
class Answers final : public Transport {
 public:
  WorkerId id() const override { return WorkerId{0}; }
  Incarnation incarnation() const override { return Incarnation{1}; }
  PeerAddress addresses() const override { return {}; }
  void add_peer(WorkerId, PeerAddress) override {}
  void remove_peer(WorkerId) override {}
  void send(WorkerId, uint8_t, std::string bytes, std::vector<Payload>) override {
    StoreReader in(bytes);
    const auto number = in.number<uint64_t>();
    answers[number] = bytes.substr(sizeof number);
  }
  bool wait_writable(WorkerId, TimePoint) override { return true; }
  PeerCounters counters(WorkerId) const override { return {}; }
  void close(Duration) override {}

  std::map<uint64_t, std::string> answers;  ///< status and fields
};

/// Keys that a request may name, and one that none does.
const std::vector<std::string> kKeys = {"a", "b", "k"};

}  // namespace

void store(const uint8_t* data, size_t size) {
  SimRuntime runtime;
  Receiver* receiver = nullptr;
  const auto transport = std::make_shared<Answers>();
  const auto server = make_store_server(runtime, [&](Receiver& r) -> std::shared_ptr<Transport> {
    receiver = &r;
    return transport;
  });
  const auto soon = [&] { return runtime.now() + std::chrono::seconds(1); };
  uint64_t number = 1, identity = 0;
  const auto tell = [&](const std::string& request) {
    const std::string bytes = StoreWriter().number(number).number(identity).number(number).bytes + request;
    receiver->on_message({WorkerId{1}, Incarnation{7}, inner::kRequest, bytes, {}, {}});
    const std::string answer = transport->answers[number++];
    return answer.empty() ? uint8_t{inner::kOk} : static_cast<uint8_t>(answer[0]);  // empty: it waits
  };
  if (tell("") != inner::kOtherStore) throw Defect("a request without a store's identity was executed");
  identity = StoreReader(std::string_view(transport->answers.at(1)).substr(1)).number<uint64_t>();
  for (const std::string& request : pieces_of(data, size)) {
    const auto before = server->peek(kKeys, soon());
    if (tell(request) != inner::kOk && server->peek(kKeys, soon()) != before)
      throw Defect("a refused request has changed the store");
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
