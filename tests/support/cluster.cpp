// Clusters over the simulated network and over gRPC (cluster.h).
#include "support/cluster.h"

#include <cstdlib>

#include <weft/distributed/rpc/current_agent.h>
#include <weft/distributed/transport/grpc_transport.h>
#include <weft/distributed/wire/call_context.h>

namespace weft::test {

using namespace rpc;

Cluster::Cluster(ClusterOptions given) : options_(std::move(given)) {
  ClusterOptions& options = options_;
  if (options.over == Over::kSim) {
    if (const char* shift = std::getenv("WEFT_TEST_SEED")) options.seed += std::strtoull(shift, nullptr, 10);
    sim_ = std::make_shared<SimRuntime>(SimOptions{.seed = options.seed, .keep_log = options.keep_log});
    net_ = std::make_unique<SimNetwork>(*sim_, options.net);
    runtimes_.push_back(sim_);
  }
  std::vector<Member> members;
  bool plans = false;
  for (int rank = 0; rank < options.size; ++rank) {
    if (!sim_)
      runtimes_.push_back(
          make_threaded_runtime({.threads = options.threads, .max_threads = options.max_threads}));
    agents_.push_back(start(rank));
    members.push_back(agents_.back()->as_member());
    plans = plans || !members.back().plan.empty();
  }
  dead_.resize(agents_.size());
  if (!sim_)
    report_.emplace([all = agents_] {
      std::string text;
      for (const auto& one : all)
        text += str("worker '", one->self().name, "': ", one->is_running() ? "" : "has stopped; ",
                    one->dump(), "\n");
      return text;
    });
  for (const auto& agent : agents_) agent->add_members(members);
  if (!plans) return;
  try {
    run_all([this](int rank) { agent(rank)->agree_on_devices(std::chrono::seconds(60)); });
  } catch (...) {
    stop();
    throw;
  }
}

std::shared_ptr<Agent> Cluster::start(int rank, const std::string& address) {
  AgentOptions mine = options_.agent;
  mine.id = WorkerId{rank};
  mine.name = str("worker", rank);
  if (options_.each) options_.each(rank, mine);
  const std::shared_ptr<Runtime> runtime = sim_ ? runtimes_.front() : runtimes_.at(static_cast<size_t>(rank));
  return Agent::create(runtime, mine, [&](Receiver& receiver) -> std::shared_ptr<Transport> {
    if (sim_)
      return net_->attach(mine.id, options_.before ? options_.before(rank, receiver) : receiver, address);
    GrpcOptions wire;
    wire.id = mine.id;
    wire.unix_socket = options_.unix_socket;
    wire.spin = options_.spin;
    wire.reconnect_timeout = options_.net.connect_timeout;
    return make_grpc_transport(runtime, wire, receiver);
  });
}

void Cluster::restart(int rank, bool keep_old, Duration within) {
  const auto at = static_cast<size_t>(rank);
  if (!keep_old && !dead_[at]) kill(rank);
  past_.push_back(agents_[at]);
  agents_[at] = start(rank, sim_ ? str("sim:", rank, "-", past_.size()) : "");
  dead_[at] = false;
  introduce(rank, within);
}

void Cluster::introduce(int rank, Duration within) {
  std::vector<Member> living;
  for (int other = 0; other < size(); ++other)
    if (!dead(other)) living.push_back(agent(other)->as_member());
  agent(rank)->add_members(living);
  const Member joined = agent(rank)->as_member();
  for (int other = 0; other < size(); ++other) {
    if (other == rank || dead(other)) continue;
    if (within == Duration::zero()) {
      agent(other)->add_members({joined});
      continue;
    }
    const auto wait = Duration(static_cast<int64_t>(sim_->random() % static_cast<uint64_t>(within.count())));
    sim_->call_at(sim_->now() + wait, [this, rank, joined, told = agent(other)] {
      const bool newest = agent(rank)->life().incarnation == joined.address.incarnation;
      if (newest && told->is_running()) told->add_members({joined});
    });
  }
}

Cluster::~Cluster() { stop(); }

void Cluster::stop() {
  report_.reset();
  for (const auto& all : {agents_, past_})
    for (const auto& agent : all) {
      try {
        agent->shutdown({.graceful = false});
      } catch (...) {
      }
    }
  for (const auto& runtime : runtimes_) runtime->stop();
  agents_.clear();
  past_.clear();
}

void Gate::pass() {
  ++reached;
  for (int i = 0; i < 60000 && !open; ++i) current_runtime()->sleep_for(std::chrono::milliseconds(1));
}

void Cluster::run(int rank, const std::function<void()>& f) {
  const AgentScope scope(agent(rank));
  f();
}

void Cluster::run_all(const std::function<void(int)>& f) {
  struct One {
    explicit One(Runtime& rt) : done(rt, "a worker of the test") {}
    Event done;
    std::exception_ptr error;
  };
  std::vector<std::unique_ptr<One>> all;
  for (int rank = 0; rank < size(); ++rank) {
    all.push_back(std::make_unique<One>(runtime(rank)));
    if (dead_[static_cast<size_t>(rank)]) {
      all.back()->done.set();
      continue;
    }
    runtime(rank).post([&f, rank, one = all.back().get(), agent = agent(rank)] {
      try {
        const AgentScope scope(agent);
        f(rank);
      } catch (...) {
        one->error = std::current_exception();
      }
      one->done.set();
    });
  }
  for (const auto& one : all) one->done.wait();
  for (const auto& one : all)
    if (one->error) std::rethrow_exception(one->error);
}

void Cluster::kill(int rank) {
  dead_[static_cast<size_t>(rank)] = true;
  if (sim_) net_->kill(WorkerId{rank});
  else agent(rank)->transport().close(Duration(0));
}

void Cluster::shutdown(Duration timeout) {
  run_all([&](int rank) { agent(rank)->shutdown({.graceful = true, .timeout = timeout}); });
}

}  // namespace weft::test
