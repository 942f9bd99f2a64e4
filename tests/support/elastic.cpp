// Elastic groups in one simulation (elastic.h). The store has the network id of the worker that came first.
// So that worker is not cut off by a rule, and both are killed by their addresses.
#include "support/elastic.h"

#include <cstdlib>

#include <weft/distributed/rpc/current_agent.h>
#include <weft/distributed/sim/sim_runtime.h>
#include <weft/distributed/sim/sim_transport.h>

namespace weft::test {

using namespace rpc;

namespace {
constexpr char kStoreAddress[] = "sim:store";
}

ElasticGroup::ElasticGroup(ElasticOptions options) : options_(std::move(options)) {
  if (const char* shift = std::getenv("WEFT_TEST_SEED")) options_.seed += std::strtoull(shift, nullptr, 10);
  sim_ = std::make_shared<SimRuntime>(SimOptions{.seed = options_.seed, .keep_log = options_.keep_log});
  net_ = std::make_unique<SimNetwork>(*sim_, options_.net);
  start_store();
}

void ElasticGroup::start_store() {
  server_ = make_store_server(
      *sim_, [&](Receiver& receiver) { return net_->attach(WorkerId{0}, receiver, kStoreAddress); },
      {.log = options_.store_log});
}

void ElasticGroup::kill_store() {
  net_->kill_at(kStoreAddress);
  server_.reset();
}

ElasticGroup::~ElasticGroup() {
  for (const auto& w : workers_) w->agent()->shutdown({.graceful = false});
  sim_->stop();
  workers_.clear();
}

ElasticGroup::Worker& ElasticGroup::join(const std::string& name,
                                         const std::function<void(AgentOptions&)>& change) {
  auto worker = std::make_unique<Worker>();
  worker->name = name;
  worker->client = WorkerId{static_cast<int32_t>(sim_->random() & 0x3fffffff) | 0x40000000};
  const std::string address = str("sim:client:", worker->client);
  std::shared_ptr<Store> store = make_store_client(
      *sim_, [&](Receiver& receiver) { return net_->attach(worker->client, receiver, address); },
      PeerAddress{.addresses = {kStoreAddress}}, kStoreAddress);
  if (options_.around) store = options_.around(name, std::move(store));
  JoinOptions joining;
  joining.name = name;
  joining.found = options_.found;
  joining.deadline = sim_->now() + options_.init_timeout;
  joining.make_agent = [&](WorkerId id) {
    AgentOptions mine;
    mine.name = name, mine.id = id, mine.lease = options_.lease;
    if (change) change(mine);
    worker->address = str("sim:", name, "-", worker->client);
    return Agent::create(sim_, mine,
                         [&](Receiver& receiver) { return net_->attach(id, receiver, worker->address); });
  };
  worker->membership = Membership::join(sim_, store, joining);
  workers_.push_back(std::move(worker));
  return *workers_.back();
}

void ElasticGroup::run(const Worker& worker, const std::function<void()>& f) const {
  const AgentScope scope(worker.agent());
  f();
}

void ElasticGroup::kill(const Worker& worker) {
  net_->kill_at(worker.address);
  net_->kill(worker.client);
}

void ElasticGroup::cut_store(const Worker& worker) { net_->partition({worker.client}, {WorkerId{0}}); }

void ElasticGroup::cut_all(const Worker& worker) {
  cut_store(worker);
  cut_members(worker);
}

void ElasticGroup::cut_members(const Worker& worker) {
  std::vector<WorkerId> others;
  for (const auto& w : workers_)
    if (w->id() != worker.id()) others.push_back(w->id());
  net_->partition({worker.id()}, others);
}

}  // namespace weft::test
