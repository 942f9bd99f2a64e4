// Tensors of devices between real processes over gRPC, each with emulated devices of its own. This program
// starts itself again, and a variable tells a child its task.
#include <unistd.h>

#include <csignal>

#include "chain.h"
#include "held.h"
#include "support/process.h"
#include "support/simt/streams.h"

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace weft::test;
using namespace std::chrono_literals;
using dist_autograd::Backward;
using dist_autograd::Context;

template <class E, class F> std::string refusal(const F& f) {
  try {
    f();
  } catch (const E& e) {
    return e.what();
  }
  throw Error("no error");
}
bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// x + y on `at`, both of which must be where the caller thinks.
Tensor process_add(const Tensor& x, const Tensor& y, const std::string& x_at, const std::string& y_at,
                   const std::string& at) {
  expect(to_string(x.device()) == x_at && to_string(y.device()) == y_at,
         str("x is on ", x.device(), " and y on ", y.device()));
  return add(x.to(Device(at)), y.to(Device(at)));
}
WEFT_RPC(process_add);
Tensor process_make(int64_t n, double v, const std::string& at) {
  return full({n}, v, {.device = Device(at)});
}
WEFT_RPC(process_make);
/// The value of the reference, twice.
Tensor process_fetch(const RRef<Tensor>& x) { return mul(x.to_here(), 2); }
WEFT_RPC(process_fetch);
int64_t process_hold() {
  hold_devices();
  return getpid();
}
WEFT_RPC(process_hold);
std::atomic<int> arrivals{0};
int64_t process_count(const Tensor& x) {
  ++arrivals;
  return x.numel();
}
WEFT_RPC(process_count);

/// From here on the work of devices waits, and the next that is due on the default stream of `at` ends this
/// process.
void die_at_next_work(const std::string& at) {
  static const auto* const slow = new cuda::simt::Deferred;
  static_cast<void>(slow);
  const Device device(at);
  cuda::simt::issue(device.index, accelerator(device).default_stream(), [] { raise(SIGKILL); });
}
Tensor process_die_returning(const std::string& at) {
  const Tensor y = full({300000}, 1, {.device = Device(at)});
  die_at_next_work(at);
  return y;
}
WEFT_RPC(process_die_returning);
int64_t process_die_calling(const std::string& callee, const std::string& at) {
  const Tensor x = full({300000}, 1, {.device = Device(at)});
  die_at_next_work(at);
  return rpc_sync<process_count>(callee, x);
}
WEFT_RPC(process_die_calling);

InitOptions options_of(int rank) {
  InitOptions o;
  if (rank == 0)
    o.device_maps = {{"worker1", {{kGpu0, kGpu1}, {kGpu1, kGpu0}}},
                     {"worker2", {{kCpu, kGpu0}, {kGpu0, kGpu1}}}};
  if (rank == 1)
    o.device_maps = {{"worker2", {{kGpu1, kGpu1}, {kGpu0, kCpu}}}, {"worker0", {{kGpu1, kGpu0}}}};
  if (rank == 2) o.device_maps = {{"worker0", {{kGpu0, kGpu1}}}, {"worker1", {{kGpu1, kGpu1}}}};
  return o;
}

void call_and_fetch() {
  for (const int64_t n : {5, 300000}) {
    const Tensor z = rpc_sync<process_add>("worker1", range(n, 1, kGpu0), range(n, 20, kGpu1), "cuda:1",
                                           "cuda:0", "cuda:1");
    expect(z.device() == kGpu0, "a result follows the reversed map");
    expect(values(z) == values(add(range(n, 1, kCpu), range(n, 20, kCpu))), "the sum of what was sent");
    const Tensor c =
        rpc_sync<process_add>("worker2", range(n, 1, kCpu), range(n, 2, kGpu0), "cuda:0", "cuda:1", "cuda:0");
    expect(c.device() == kCpu, "the cpu stands for a device of the callee");
  }
  std::vector<Future<Tensor>> many;
  for (int i = 0; i < 10; ++i) many.push_back(rpc_async<process_make>("worker1", 1000, i, "cuda:1"));
  for (int i = 0; i < 10; ++i)
    expect(values(many[static_cast<size_t>(i)].wait()) == std::vector<float>(1000, static_cast<float>(i)),
           "each call its own result");
  const auto there = remote<process_make>("worker1", 1000, 3.0, "cuda:1");
  expect(there.to_here().device() == kGpu0, "to_here follows the map");
  const Tensor twice = rpc_sync<process_fetch>("worker2", there);  // worker2 fetches from worker1
  expect(twice.device() == kGpu0 && values(twice) == std::vector<float>(1000, 6),
         "a reference as argument is fetched to the device that the map names");
  const RRef<Tensor> mine(full({7}, 4, {.device = kGpu0}));
  expect(values(rpc_sync<process_fetch>("worker1", mine)) == std::vector<float>(7, 8),
         "so is the caller's own");

  const std::string unmapped =
      refusal<DeviceError>([] { rpc_sync<process_count>("worker2", full({3}, 1, {.device = kGpu1})); });
  expect(says(unmapped, "cuda:1") && says(unmapped, "'worker2'") && says(unmapped, "set_device_map"),
         unmapped);
  const std::string result = refusal<DeviceError>(
      [] { rpc_sync<process_fetch>("worker2", RRef<Tensor>(full({3}, 1, {.device = kGpu0}))); });
  expect(says(result, "cuda:0 of worker 'worker0'"), result);
  expect(rpc_sync<process_count>("worker2", full({3}, 1, {.device = kGpu0})) == 3,
         "and the next call is well");
}

/// Steps of a chain of three layers over three processes take the course of a local one.
void train(Backward mode) {
  const Tensor x = reshape(range(10, -3, kCpu), {2, 5});
  std::vector<std::unique_ptr<ChainLayer>> local;
  std::vector<Tensor> parameters;
  for (int i = 0; i < 3; ++i) {
    local.push_back(std::make_unique<ChainLayer>(5, 5, i + 1, "cpu"));
    for (const Tensor& p : local.back()->parameters()) parameters.push_back(p);
  }
  optim::Adam adam(parameters, {.lr = 0.01});
  ChainLayer here(5, 5, 1, "cuda:0");
  const auto second = remote<ChainLayer>("worker1", 5, 5, 2, "cuda:1"),
             third = remote<ChainLayer>("worker2", 5, 5, 3, "cuda:0");
  std::vector<RRef<Tensor>> references = here.parameter_rrefs();
  for (const auto& layer : {second, third})
    for (auto& p : layer.rpc_sync<&ChainLayer::parameter_rrefs>()) references.push_back(p);
  auto split = dist_optim::make<optim::AdamRule>(references, {.lr = 0.01});
  for (int step = 0; step < 3; ++step) {
    adam.zero_grad();
    const Tensor loss = local[2]->forward(local[1]->forward(local[0]->forward(x))).mean();
    loss.backward();
    const double norm = optim::clip_grad_norm(parameters, 0.1);
    adam.step();

    const Context context;
    const Tensor middle = second.rpc_sync<&ChainLayer::forward>(here.forward(x.to(kGpu0)));
    const Tensor same = third.rpc_sync<&ChainLayer::forward>(middle.to(kCpu)).mean();
    expect(std::abs(same.item<double>() - loss.item<double>()) < 1e-4,
           str("step ", step, ": a loss of ", same.item<double>(), " for ", loss.item<double>()));
    context.backward({same}, {.mode = mode});
    expect(context.gradient(here.fc.weight).device() == kGpu0, "a gradient lies where its parameter does");
    const double there = split.clip_grad_norm(context.id(), 0.1);
    expect(std::abs(there - norm) < 1e-4 * norm, str("a norm of ", there, " for ", norm));
    split.step(context.id());
  }
  const std::vector<Tensor> states[] = {here.state(), second.rpc_sync<&ChainLayer::state>(),
                                        third.rpc_sync<&ChainLayer::state>()};
  for (size_t i = 0; i < 3; ++i)
    for (size_t k = 0; k < 2; ++k)
      expect(allclose(states[i][k], local[i]->parameters()[k].detach(), 1e-4, 1e-4),
             str("parameter ", k, " of layer ", i));
}

int serve_or_drive(int rank, void (*drive)()) {
  init_rpc(str("worker", rank), options_of(rank));
  if (rank == 0) drive();
  rpc::shutdown();
  return 0;
}

/// Exit status of a child; 0 is success.
int child(const std::string& job, int rank) {
  open_devices();
  if (job == "call") return serve_or_drive(rank, call_and_fetch);
  if (job == "train") {
    return serve_or_drive(rank, [] {
      for (const Backward mode : {Backward::kFast, Backward::kSmart}) train(mode);
    });
  }
  if (job == "agree") {
    InitOptions bad = options_of(rank);
    if (rank == 1) bad.device_maps = {{"worker2", {{kGpu0, "cuda:5"}}}};
    const std::string text = refusal<DeviceError>([&] { init_rpc(str("worker", rank), bad); });
    expect(says(text, "worker 'worker2' has no cuda:5") && says(text, "map of worker 'worker1'"), text);
    return 0;
  }
  init_rpc(str("worker", rank), options_of(rank));
  if (rank > 0) {
    if (job == "die with an argument" && rank == 2) {
      barrier({"worker0", "worker2"}, 90s);
      rpc::shutdown({.graceful = false});
      return 0;
    }
    current_runtime()->sleep_for(10min);
    return 9;
  }
  const auto die = [](const auto& call) {
    expect(says(refusal<PeerLost>(call), "worker"), "the error names the worker");
  };
  // the copies to host memory of a result, and of an argument, are the end of the process that makes them
  if (job == "die on the way back and out") {
    die([] { rpc_sync<process_die_returning>({"worker1", 90s}, "cuda:1"); });
    die([] { rpc_sync<process_die_calling>({"worker2", 90s}, "worker0", "cuda:0"); });
    expect(arrivals == 0, "what was not copied has not been sent");
  }
  if (job == "die with an argument") {  // while it is on its way to the device
    const auto pid = static_cast<pid_t>(rpc_sync<process_hold>("worker1"));
    const Tensor x = full({300000}, 2, {.device = kGpu0});
    const auto storage = x.body().storage;
    const Future<int64_t> f = rpc_async<process_count>({"worker1", 90s}, x);
    kill(pid, SIGKILL);
    die([&] { f.wait(); });
    expect(storage->saves() == 0, "nothing holds the argument any more");
    expect(rpc_sync<process_count>("worker2", x) == 300000, "the other worker serves");
    barrier({"worker0", "worker2"}, 90s);
  }
  rpc::shutdown({.graceful = false});
  return 0;
}

constexpr const char* kChild = "SimtProcess.a_process_started_by_these_tests_does_its_job";
TEST(SimtProcess, a_process_started_by_these_tests_does_its_job) { do_job(child); }

TEST(SimtProcess, arguments_results_and_references_follow_the_maps) {
  expect_ended(start_job(kChild, "call"));
}
TEST(SimtProcess, gradients_and_optimizer_steps_follow_the_maps) { expect_ended(start_job(kChild, "train")); }
TEST(SimtProcess, every_process_is_told_of_a_device_that_one_lacks) {
  expect_ended(start_job(kChild, "agree"));
}
TEST(SimtProcess, a_process_killed_while_it_copies_a_result_or_an_argument_is_a_lost_peer) {
  expect_ended(start_job(kChild, "die on the way back and out"), {1, 2});
}
TEST(SimtProcess, a_process_killed_with_an_argument_on_its_way_to_the_device_is_a_lost_peer) {
  expect_ended(start_job(kChild, "die with an argument"), {1});
}

}  // namespace
