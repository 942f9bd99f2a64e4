// Training over live gRPC between real processes, through proxies that cut, hold and delay their connections.
// One cut and one hold last half a lease, the others less. So nobody is lost, and every number is that of one
// process.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <sstream>

#include <weft/autograd/ops/ops.h>
#include <weft/distributed/autograd/dist_autograd.h>
#include <weft/distributed/launch/store_service.h>
#include <weft/distributed/optim/dist_optimizer.h>
#include <weft/distributed/rpc/rpc.h>
#include <weft/distributed/transport/grpc_transport.h>
#include <weft/distributed/wire/call_context.h>
#include <weft/tensor/factories.h>

#include "support/cutting_proxy.h"
#include "support/process.h"

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace weft::test;
using namespace std::chrono_literals;

constexpr int kCutWorkers = 3;
constexpr int kCutSteps = 40;
constexpr double kRate = 0.05;
constexpr Duration kCutLease = 6s;

Tensor start_values(int64_t seed) {
  return tensor({1.0 + static_cast<double>(seed), -0.5, 0.25}, {.dtype = kFloat64});
}
Tensor input_of(int step) { return full({3}, 0.5 + 0.01 * step, {.dtype = kFloat64}); }

/// y = tanh(x w), here or on the way to another.
class CutScale {
 public:
  explicit CutScale(int64_t seed) : w_(start_values(seed).requires_grad_()) {}
  Tensor forward(const Tensor& x) const { return tanh(x * w_); }
  Tensor forward_through(const Tensor& x, const RRef<CutScale>& next) const {
    return next.rpc_sync<&CutScale::forward>(forward(x));
  }
  RRef<Tensor> parameter() const { return RRef<Tensor>(w_); }
  Tensor value() const { return w_.detach(); }

 private:
  Tensor w_;
};
WEFT_RPC_CONSTRUCTOR(CutScale, int64_t);
WEFT_RPC_CLASS(CutScale, forward, forward_through, parameter, value);

/// Number of references and contexts that this worker still keeps, and of peers that it has lost.
int64_t kept_here() {
  int64_t sum = 0;
  for (const auto& [name, count] : debug_info())
    if (name == "num_owner_rrefs" || name == "num_user_rrefs" || name == "num_pending_users" ||
        name == "dist_autograd.num_autograd_contexts" || name == "agent.lost_peers")
      sum += count;
  return sum;
}
WEFT_RPC(kept_here);
int64_t echo_number(int64_t n) { return n; }
WEFT_RPC(echo_number);

TimePoint in_a_minute() { return std::chrono::steady_clock::now() + 60s; }

struct Trained {
  std::vector<double> first, second;
  bool operator==(const Trained&) const = default;
};

Trained train_alone() {
  const Tensor a = start_values(1).requires_grad_(), b = start_values(2).requires_grad_();
  optim::Fused<optim::SGDRule> optimizer({a, b}, {.lr = kRate});
  for (int step = 0; step < kCutSteps; ++step) {
    optimizer.zero_grad();
    tanh(tanh(input_of(step) * a) * b).sum().backward();
    optimizer.step();
  }
  return {a.detach().to_vector<double>(), b.detach().to_vector<double>()};
}

/// Steps that begin under a fault of half a lease; the store says when it is there.
const std::map<int, const char*> kLongFaults = {{5, "cut"}, {10, "hold"}};

Trained train_through_cuts(Store& store) {
  const auto first = remote<CutScale>("worker1", 1), second = remote<CutScale>("worker2", 2);
  auto optimizer = dist_optim::make<optim::SGDRule>(
      {first.rpc_sync<&CutScale::parameter>(), second.rpc_sync<&CutScale::parameter>()}, {.lr = kRate});
  for (int step = 0; step < kCutSteps; ++step) {
    if (const auto fault = kLongFaults.find(step); fault != kLongFaults.end()) {
      store.set(str("before the ", fault->second), "", in_a_minute());
      store.get(fault->second, in_a_minute());
    }
    std::vector<Future<int64_t>> echoes;  // beside the pass
    for (int64_t i = 0; i < 8; ++i)
      echoes.push_back(rpc_async<echo_number>(str("worker", 1 + i % 2), 100 * step + i));
    const dist_autograd::Context context;
    const Tensor loss = first.rpc_sync<&CutScale::forward_through>(input_of(step), second).sum();
    context.backward({loss});
    optimizer.step(context.id());
    for (int64_t i = 0; i < 8; ++i)
      if (echoes[static_cast<size_t>(i)].wait() != 100 * step + i) throw RpcError("an echo is another one");
  }
  return {first.rpc_sync<&CutScale::value>().to_vector<double>(),
          second.rpc_sync<&CutScale::value>().to_vector<double>()};
}

/// Address of a worker as the store has it: its port and its life.
Member member_at(int rank, const std::string& text) {
  std::istringstream in(text);
  uint16_t port = 0;
  uint64_t life = 0;
  in >> port >> life;
  Member m;
  m.name = str("worker", rank), m.id = WorkerId{rank};
  m.address.addresses = {str("127.0.0.1:", port)};
  m.address.incarnation = Incarnation{life};
  return m;
}

/// The job is the address of the parent's store. Exit status 0 is success.
int cut_child(const std::string& job, int rank) {
  const auto store = connect_store(job);
  const auto runtime = make_threaded_runtime();
  AgentOptions mine;
  mine.name = str("worker", rank), mine.id = WorkerId{rank}, mine.lease = kCutLease;
  const auto agent = Agent::create(runtime, mine, [&](Receiver& receiver) {
    GrpcOptions wire;
    wire.id = mine.id;
    wire.unix_socket = false;
    wire.insecure = true;  // a proxy has no cookie
    return make_grpc_transport(runtime, wire, receiver);
  });
  const Member self = agent->as_member();
  store->set(str("at/", rank),
             str(parse_host_port(self.address.addresses.front()).port, " ", self.address.incarnation.value),
             in_a_minute());
  std::vector<Member> members{self};
  for (int other = 0; other < kCutWorkers; ++other)
    if (other != rank)
      members.push_back(
          member_at(other, store->wait({str("via/", rank, "/", other)}, "", in_a_minute()).front()));
  agent->add_members(members);
  const AgentScope scope(agent);
  agent->barrier({}, 60s);
  int status = 0;
  if (rank == 0) {
    status = train_through_cuts(*store) == train_alone() ? 0 : 2;
    for (int other = 0; other < kCutWorkers && status == 0; ++other)
      for (int tries = 0; rpc_sync<kept_here>(str("worker", other)) != 0; runtime->sleep_for(50ms))
        if (++tries == 600) status = 3;
  }
  agent->barrier({}, 60s);
  agent->shutdown({.timeout = 60s});
  return status;
}

TEST(CutNetwork, a_process_started_by_these_tests_does_its_job) { do_job(cut_child); }

TEST(CutNetwork, training_through_cuts_holds_and_delays_has_the_numbers_of_one_process) {
  const ServedStore store = serve_store("127.0.0.1:0");
  Children workers =
      start_job("CutNetwork.a_process_started_by_these_tests_does_its_job", store.address, kCutWorkers);
  std::map<std::pair<int, int>, std::unique_ptr<CuttingProxy>> proxies;
  std::vector<std::string> keys;
  for (int rank = 0; rank < kCutWorkers; ++rank) keys.push_back(str("at/", rank));
  const auto places = store.store->wait(keys, "", in_a_minute());
  for (int from = 0; from < kCutWorkers; ++from)
    for (int to = 0; to < kCutWorkers; ++to) {
      if (from == to) continue;
      std::istringstream in(places[static_cast<size_t>(to)]);
      uint16_t port = 0;
      uint64_t life = 0;
      in >> port >> life;
      auto& proxy = proxies[{from, to}] = std::make_unique<CuttingProxy>(port);
      store.store->set(str("via/", from, "/", to), str(proxy->port(), " ", life), in_a_minute());
    }
  std::mt19937_64 draws(7);
  const auto below = [&](uint64_t n) { return static_cast<int>(draws() % n); };
  const auto runtime = make_threaded_runtime();
  const auto running = [&] {
    for (const auto& child : workers.poll())
      if (child.running) return true;
    return false;
  };
  for (const auto& [step, fault] : kLongFaults) {
    store.store->get(str("before the ", fault), in_a_minute());
    const int whose = step < 10 ? 1 : 2;
    const auto set = [&](bool on) {
      for (auto& [way, proxy] : proxies) {
        if (way.first != whose && way.second != whose) continue;
        if (std::string(fault) == "cut") proxy->cut(on);
        else proxy->hold(on);
      }
    };
    set(true);
    store.store->set(fault, "", in_a_minute());
    runtime->sleep_for(kCutLease / 2);
    set(false);
  }
  int faults = 0;
  for (const TimePoint limit = runtime->now() + 90s; running() && runtime->now() < limit; ++faults) {
    const int a = below(kCutWorkers), b = (a + 1 + below(kCutWorkers - 1)) % kCutWorkers, fault = below(3);
    const auto each = [&](auto set) { set(*proxies.at({a, b})), set(*proxies.at({b, a})); };
    const auto set = [&](bool on) {
      each([&](CuttingProxy& p) {
        if (fault == 0) p.cut(on);
        else if (fault == 1) p.hold(on);
        else p.delay_ms(on ? 20 : 0);
      });
    };
    set(true);
    runtime->sleep_for(std::chrono::milliseconds(10 + below(300)));
    set(false);
    runtime->sleep_for(std::chrono::milliseconds(below(60)));
  }
  for (auto& [way, proxy] : proxies) proxy->cut(false), proxy->hold(false);
  expect_ended(std::move(workers));
  EXPECT_GE(faults, 5);
  int64_t connections = 0;
  for (const auto& [way, proxy] : proxies) connections += proxy->connections();
  EXPECT_GT(connections, kCutWorkers);
  runtime->stop();
}

}  // namespace
