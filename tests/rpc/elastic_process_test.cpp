// An elastic group of real processes. A server is killed in the middle of a training, and another process
// takes its name. The training goes on to the result of an undisturbed one.
#include <gtest/gtest.h>

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>

#include <weft/autograd/ops/ops.h>
#include <weft/distributed/autograd/dist_autograd.h>
#include <weft/distributed/launch/membership.h>
#include <weft/distributed/launch/rendezvous.h>
#include <weft/distributed/launch/store_service.h>
#include <weft/distributed/rpc/rpc.h>
#include <weft/distributed/transport/address.h>
#include <weft/tensor/factories.h>

#include "support/errors.h"
#include "support/process.h"

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace weft::test;
using namespace std::chrono_literals;

constexpr Duration kLease = 1s;
constexpr int kStaysOut = 5;  // exit status of a worker that lost its place

Tensor& elastic_weight() {
  static Tensor w;
  return w;
}
int64_t elastic_pid() { return getpid(); }
WEFT_RPC(elastic_pid);
std::atomic<bool> g_serves = false;  // init_rpc has returned
bool elastic_serves() { return g_serves; }
WEFT_RPC(elastic_serves);
void elastic_load(const Tensor& w) { elastic_weight() = w.clone().requires_grad_(); }
WEFT_RPC(elastic_load);
Tensor elastic_loss(const Tensor& x) {
  const Tensor error = elastic_weight() * x - 1;
  return (error * error).sum();
}
WEFT_RPC(elastic_loss);
/// A step of gradient descent at the owner; the new weight.
Tensor elastic_step(int64_t context) {
  const Tensor g = dist_autograd::get_gradient(context, elastic_weight());
  elastic_weight() = (elastic_weight().detach() - g * 0.05).requires_grad_();
  return elastic_weight().detach();
}
WEFT_RPC(elastic_step);
void elastic_end() { stop_serving(); }
WEFT_RPC(elastic_end);

InitOptions elastic_options(const std::string& store) {
  InitOptions options;
  options.store = store;
  options.lease = kLease;
  return options;
}

/// Joins as "again" and leaves, several times; then "done" joins and serves.
int elastic_rejoiner(const std::string& store) {
  for (int i = 0; i < 10; ++i) {
    init_rpc("again", elastic_options(store));
    rpc::shutdown();
  }
  init_rpc("done", elastic_options(store));
  serve_until_done();
  return 0;
}

/// The job is the name of the worker, "@" and the address of the store, which the worker "home" serves.
int elastic_child(const std::string& job, int) {
  const size_t at = job.find('@');
  if (job.substr(0, at) == "again") return elastic_rejoiner(job.substr(at + 1));
  InitOptions options = elastic_options(job.substr(at + 1));
  options.serve_store = job.substr(0, at) == "home";
  init_rpc(job.substr(0, at), options);
  g_serves = true;
  try {
    serve_until_done();
  } catch (const Fenced& e) {
    return std::string(e.what()).find("stays out of the group") != std::string::npos ? kStaysOut : 7;
  }
  return 0;
}

TEST(ElasticProcess, a_process_started_by_these_tests_does_its_job) { do_job(elastic_child); }

Children start_worker(const std::string& name, const std::string& store) {
  return start_job("ElasticProcess.a_process_started_by_these_tests_does_its_job", name + "@" + store, 1);
}

/// Waits until the worker is a member and serves: the end of its store would end its init_rpc otherwise.
void wait_until_it_serves(const std::string& name) {
  wait_for_members({name}, 60s);
  const TimePoint limit = default_agent()->runtime()->now() + 60s;
  while (!rpc_sync<elastic_serves>(name) && default_agent()->runtime()->now() < limit)
    default_agent()->runtime()->sleep_for(5ms);
}

/// Ends this process's part in the group, also when a check of the test has thrown.
struct InGroup {
  InGroup(const std::string& name, const std::string& store, bool serves_store = true) {
    InitOptions options = elastic_options(store);
    options.serve_store = serves_store;
    init_rpc(name, options);
  }
  ~InGroup() {
    if (default_agent()) rpc::shutdown({.graceful = false});
  }
};

/// Files of the kernel's kind for processes that this process has open.
int64_t open_pidfds() {
  int64_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code closed;
    count += std::filesystem::read_symlink(entry, closed).string().find("pidfd") != std::string::npos;
  }
  return count;
}

TEST(ElasticProcess, a_process_that_joins_and_leaves_over_and_over_leaves_no_watch_behind) {
  const ReservedPort port;
  const std::string store = str("127.0.0.1:", port.port());
  InGroup in("home", store);
  Children child = start_worker("again", store);
  wait_for_members({"done"}, 60s);
  const TimePoint end = default_agent()->runtime()->now() + 60s;
  while (open_pidfds() > 1 && default_agent()->runtime()->now() < end)  // losses are told on the pool
    default_agent()->runtime()->sleep_for(10ms);
  EXPECT_LE(open_pidfds(), 1) << "of the life that is a member";
  rpc_sync<elastic_end>("done");
  expect_ended(std::move(child));
  rpc::shutdown();
}

TEST(ElasticProcess, a_killed_server_is_replaced_and_the_training_goes_on) {
  constexpr int kSteps = 12;
  Tensor local = full({4}, 3, {.dtype = kFloat64});
  for (int i = 0; i < kSteps; ++i) {
    const Tensor w = local.requires_grad_();
    const Tensor error = w * full({4}, 1 + 0.1 * i, {.dtype = kFloat64}) - 1;
    (error * error).sum().backward();
    local = w.detach() - w.grad() * 0.05;
  }

  const ReservedPort port;
  const std::string store = str("127.0.0.1:", port.port());
  InGroup in("trainer", store);
  std::atomic<int> joined{0};
  Event changed(*default_agent()->runtime(), "a member of the test");
  on_member_joined([&](const WorkerInfo&) { ++joined, changed.set(); });
  std::atomic<bool> lost{false};
  on_member_lost([&](const LostPeer& m) {
    lost = !m.left;
    changed.set();
  });
  const auto until = [&](const auto& holds) {
    while (!holds()) {
      changed.reset();
      if (!holds() && !changed.wait_until(default_agent()->runtime()->now() + 60s)) return false;
    }
    return true;
  };
  Children first = start_worker("ps", store);
  wait_for_members({"ps"}, 60s);
  std::optional<Children> second;
  Tensor checkpoint = full({4}, 3, {.dtype = kFloat64});
  rpc_sync<elastic_load>("ps", checkpoint);
  for (int i = 0; i < kSteps;) {
    try {
      if (i == 5 && !second) {
        const auto pid = static_cast<pid_t>(rpc_sync<elastic_pid>("ps"));
        ASSERT_EQ(kill(pid, SIGKILL), 0);
      }
      dist_autograd::Context context;
      const Tensor loss = rpc_sync<elastic_loss>("ps", full({4}, 1 + 0.1 * i, {.dtype = kFloat64}));
      context.backward({loss});
      checkpoint = rpc_sync<elastic_step>("ps", context.id());
      ++i;
    } catch (const PeerLost&) {
      ASSERT_FALSE(second) << "the second server was lost too";
      ASSERT_TRUE(until([&] { return lost.load(); }));
      second.emplace(start_worker("ps", store));
      ASSERT_TRUE(until([&] { return joined == 2; }));
      rpc_sync<elastic_load>("ps", checkpoint);
    }
  }
  ASSERT_TRUE(second);
  EXPECT_EQ(checkpoint.to_vector<double>(), local.to_vector<double>());
  EXPECT_GE(epoch(), 3u);
  rpc_sync<elastic_end>("ps");
  rpc::shutdown({.timeout = 60s});
  expect_ended(std::move(first), {0});
  expect_ended(std::move(*second));
}

TEST(ElasticProcess, a_process_that_was_stopped_stays_out_behind_its_successor) {
  const ReservedPort port;
  const std::string store = str("127.0.0.1:", port.port());
  InGroup in("trainer", store);
  Children first = start_worker("ps", store);
  wait_until_it_serves("ps");
  const auto pid = static_cast<pid_t>(rpc_sync<elastic_pid>("ps"));
  const Life old = default_agent()->life_of(get_worker_info("ps").id);
  ASSERT_EQ(kill(pid, SIGSTOP), 0);
  Children second = start_worker("ps", store);
  Runtime& runtime = *default_agent()->runtime();
  const TimePoint limit = runtime.now() + 60s;
  while (default_agent()->life_of(old.id) == old && runtime.now() < limit) runtime.sleep_for(5ms);
  const int64_t successor = rpc_sync<elastic_pid>({"ps", 60s});
  EXPECT_NE(successor, pid);
  ASSERT_EQ(kill(pid, SIGCONT), 0);
  while (first.poll().at(0).running && runtime.now() < limit) {
    EXPECT_EQ(rpc_sync<elastic_pid>("ps"), successor);
    runtime.sleep_for(5ms);
  }
  EXPECT_EQ(first.poll().at(0).exit_code, kStaysOut) << to_string(first.poll().at(0));
  rpc_sync<elastic_end>("ps");
  rpc::shutdown({.timeout = 60s});
  expect_ended(std::move(second));
}

TEST(ElasticProcess, the_end_of_the_worker_that_serves_the_store_ends_the_group_with_an_error) {
  const ReservedPort port;
  const std::string store = str("127.0.0.1:", port.port());
  Children home = start_worker("home", store), ps = start_worker("ps", store);
  InGroup in("a", store, false);
  Event fenced(*default_agent()->runtime(), "the fence of the test");
  std::string said;
  on_fenced([&](const std::string& why) {
    said = why;
    fenced.set();
  });
  wait_until_it_serves("ps");
  ASSERT_EQ(kill(static_cast<pid_t>(rpc_sync<elastic_pid>("home")), SIGKILL), 0);
  ASSERT_TRUE(fenced.wait_until(default_agent()->runtime()->now() + 60s));
  for (const std::string& text : {said, error_of<Fenced>([] { rpc_sync<elastic_pid>("a"); }),
                                  error_of<Fenced>([] { serve_until_done({.timeout = 60s}); })}) {
    EXPECT_TRUE(has(text, "worker 'a' is fenced and stays out of the group: store at " + store));
    EXPECT_TRUE(has(text, "the process that served it has ended, and it kept no log"));
  }
  expect_ended(std::move(home), {0});
  const TimePoint limit = std::chrono::steady_clock::now() + 60s;
  while (ps.poll().at(0).running && std::chrono::steady_clock::now() < limit)
    std::this_thread::sleep_for(5ms);
  EXPECT_EQ(ps.poll().at(0).exit_code, kStaysOut) << to_string(ps.poll().at(0));
}

TEST(ElasticProcess, a_worker_without_its_store_says_so) {
  const ReservedPort port;
  const std::string store = str("127.0.0.1:", port.port());
  InitOptions options = elastic_options(store);
  options.init_timeout = 300ms;
  const std::string text = error_of<Timeout>([&] { init_rpc("a", options); });
  EXPECT_TRUE(has(text, store));
  options.store.clear();
  options.elastic = true;
  EXPECT_TRUE(has(error_of<ValueError>([&] { init_rpc("a", options); }), "InitOptions::store"));
  EXPECT_FALSE(default_agent());
}

TEST(ElasticProcess, a_store_whose_host_cannot_be_resolved_is_named_at_once) {
  const std::string why = "resolved: " + why_unresolved("no..host");
  InitOptions options;
  options.init_timeout = 1h;
  for (const bool insecure : {false, true}) {
    options.insecure = insecure;
    options.store = "no..host:29600";
    const std::string text = error_of<RpcError>([&] { init_rpc("a", options); });
    EXPECT_TRUE(has(text, "store at no..host:29600: the host 'no..host' cannot be " + why));
  }
  options.store = "etcd://no..host:1,no..host:2/run7";
  EXPECT_TRUE(has(error_of<RpcError>([&] { init_rpc("a", options); }),
                  "etcd at no..host:1,no..host:2: no host can be " + why));
  EXPECT_FALSE(default_agent());
}

TEST(ElasticProcess, one_member_of_etcd_may_have_no_address) {
  InitOptions options;
  options.insecure = true;
  options.init_timeout = 300ms;
  options.store = "etcd://no..host:1,127.0.0.1:2/run7";
  EXPECT_TRUE(has(error_of<Timeout>([&] { init_rpc("a", options); }), "no..host:1,127.0.0.1:2"));
}

TEST(ElasticProcess, serving_ends_at_its_limit_and_says_what_would_have_ended_it) {
  const ReservedPort port;
  const InGroup in("a", str("127.0.0.1:", port.port()));
  EXPECT_EQ(error_of<Timeout>([] { serve_until_done({.timeout = 50ms}); }),
            "serve_until_done: worker 'a' serves an elastic group until stop_serving, and was not told to "
            "stop in time");
  EXPECT_FALSE(default_agent());
}

/// Rank 0 of a static group that forms at `port`, or a worker that comes to it.
LaunchInfo static_rank(int rank, int port) {
  LaunchInfo launch;
  launch.rank = rank, launch.world_size = 2;
  launch.master_addr = "127.0.0.1", launch.master_port = static_cast<uint16_t>(port);
  return launch;
}

TEST(ElasticProcess, an_address_of_etcd_that_cannot_be_used_is_named) {
  InitOptions options;
  options.init_timeout = 300ms;
  const auto says = [&](const char* store, const char* text) {
    options.store = store;
    EXPECT_TRUE(has(error_of<ValueError>([&] { init_rpc("a", options); }), text)) << store;
  };
  says("etcd://", "no member of etcd");
  says("etcd:///run7", "no member of etcd");
  says("etcd://nowhere", "nowhere");
  options.serve_store = true;
  says("etcd://127.0.0.1:1", "serve_store");
  options.serve_store = false;
  options.store = "etcd://127.0.0.1:1,127.0.0.1:2/run7";
  EXPECT_TRUE(has(error_of<Timeout>([&] { init_rpc("a", options); }), "127.0.0.1:1,127.0.0.1:2"));
  EXPECT_FALSE(default_agent());
}

TEST(ElasticProcess, the_rendezvous_of_a_static_group_is_refused_as_a_store) {
  const ReservedPort port;
  const auto runtime = make_threaded_runtime({.threads = 4});
  const auto meeting = make_rendezvous(runtime, static_rank(0, port.port()));  // its worker has not come yet
  const std::string where = str("127.0.0.1:", port.port());
  const std::string text = error_of<ValueError>([&] { init_rpc("second", elastic_options(where)); });
  EXPECT_TRUE(has(text, where + " is the rendezvous of a static group"));
  EXPECT_TRUE(has(text, "give rank and world_size"));
  runtime->stop();
}

/// The error of a static worker that comes to the store at `where`.
std::string static_error(int rank, const std::string& where) {
  InitOptions options;
  options.rank = rank, options.world_size = 2;
  const HostPort at = parse_host_port(where);
  options.master_addr = at.host, options.master_port = at.port;
  return error_of<ValueError>([&] { init_rpc(str("static", rank), options); });
}

void expect_refused(const std::string& where) {
  for (const int rank : {0, 1}) {
    const std::string text = static_error(rank, where);
    EXPECT_TRUE(has(text, where + " is a store, as an elastic group has, and no rendezvous")) << rank;
    EXPECT_TRUE(has(text, "set InitOptions::store to \"" + where + "\" and give no world_size")) << rank;
  }
}

TEST(ElasticProcess, a_static_worker_is_refused_by_a_store_at_once_and_writes_nothing_there) {
  const auto served = serve_store("127.0.0.1:0");  // as weft-store does; nobody has joined a group there
  expect_refused(served.address);
  const TimePoint end = std::chrono::steady_clock::now() + 10s;
  for (const auto& value :
       served.store->peek({"init/name/static1", "init/rank/1", "init/left/1", "init/abort"}, end))
    EXPECT_FALSE(value);
}

TEST(ElasticProcess, a_static_worker_is_refused_by_the_store_of_an_elastic_group_at_once) {
  const ReservedPort port;
  const std::string store = str("127.0.0.1:", port.port());
  Children home = start_worker("home", store);
  {
    InGroup in("a", store, false);
    wait_for_members({"home"}, 60s);
  }
  expect_refused(store);
  InGroup in("b", store, false);  // the group is as it was
  rpc_sync<elastic_end>({"home", 60s});
  rpc::shutdown({.timeout = 60s});
  expect_ended(std::move(home));
}

TEST(ElasticProcess, a_world_size_and_a_store_exclude_each_other) {
  InitOptions options = elastic_options("127.0.0.1:1");
  options.world_size = 2, options.rank = 1;
  EXPECT_TRUE(has(error_of<ValueError>([&] { init_rpc("a", options); }), "give no world_size"));
  EXPECT_FALSE(default_agent());
}

}  // namespace
