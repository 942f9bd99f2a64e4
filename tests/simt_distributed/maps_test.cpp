// The claims of docs/conformance.md on device maps: refusals when a group forms, devices of arguments and
// results, the error without an entry. A comment names PyTorch's tests.
#include "devices.h"

namespace weft::test {

/// x + y on `z_at`; says where they are when that is not where they should be.
Tensor map_add(const Tensor& x, const Tensor& y, const std::string& x_at, const std::string& y_at,
               const std::string& z_at) {
  if (to_string(x.device()) != x_at || to_string(y.device()) != y_at)
    throw ValueError(str("x lies on ", x.device(), ", y on ", y.device()));
  return add(x.to(Device(z_at)), y.to(Device(z_at)));
}
WEFT_RPC(map_add);

std::vector<Tensor> map_sum_and_difference(const Tensor& x, const Tensor& y) {
  return {add(x.to(y.device()), y), sub(x, y.to(x.device()))};
}
WEFT_RPC(map_sum_and_difference);

Tensor map_make(const std::string& at) { return range(3, 5, Device(at)); }
WEFT_RPC(map_make);
Tensor map_echo(const Tensor& x) { return x; }
WEFT_RPC(map_echo);
std::string map_where(const Tensor& x) { return to_string(x.device()); }
WEFT_RPC(map_where);
int64_t map_keep(const rpc::RRef<int64_t>& reference, const Tensor&) { return reference.is_owner() ? 1 : 2; }
WEFT_RPC(map_keep);

}  // namespace weft::test

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace weft::test;

std::string refused_group(DeviceMaps maps, std::vector<Device> devices0 = {},
                          std::vector<Device> devices1 = {}) {
  ClusterOptions o = mapped({});
  o.each = [&](int rank, AgentOptions& a) {
    if (rank == 0) a.device_maps = maps;
    a.devices = rank == 0 ? devices0 : devices1;
  };
  return error_of<Error>([&] { Cluster c(o); });
}

// test_device_maps_wrong_worker_name
TEST(SimtDeviceMaps, a_map_for_an_unknown_worker_is_refused_and_names_it) {
  const std::string text = refused_group({{"nobody", {{kGpu0, kGpu1}}}});
  EXPECT_TRUE(has(text, "'worker0'") && has(text, "'nobody'") && has(text, "'worker1'")) << text;
}

// test_device_maps_invalid_max_local_device, _max_remote_device, _min_device
TEST(SimtDeviceMaps, a_device_that_one_side_lacks_is_refused_and_named) {
  std::string text = refused_group({{"worker1", {{"cuda:7", kGpu1}}}});
  EXPECT_TRUE(has(text, "worker 'worker0' has no cuda:7") && has(text, "'worker1'")) << text;
  text = refused_group({{"worker1", {{kGpu0, "cuda:9"}}}});
  EXPECT_TRUE(has(text, "worker 'worker1' has no cuda:9") && has(text, "map of worker 'worker0'")) << text;
  EXPECT_THROW(DeviceMap({{"cuda:-1", kGpu1}}), DeviceError);
}

TEST(SimtDeviceMaps, every_worker_is_told_of_a_bad_map) {
  Cluster c(mapped({}, 3));
  std::vector<std::shared_ptr<Agent>> agents;
  std::vector<Member> members;
  for (int rank = 0; rank < 3; ++rank) {
    AgentOptions mine{.name = str("w", rank), .id = WorkerId{rank + 10}};
    if (rank == 1) mine.device_maps = {{"w2", {{kCpu, "cuda:5"}}}};
    agents.push_back(Agent::create(std::shared_ptr<Runtime>(std::shared_ptr<void>(), &c.runtime()), mine,
                                   [&](Receiver& r) { return c.net().attach(mine.id, r); }));
    members.push_back(agents.back()->as_member());
  }
  for (const auto& agent : agents) agent->add_members(members);
  std::vector<Future<std::string>> texts;
  for (const auto& agent : agents) {
    const Future<std::string> text(agent->runtime());
    agent->runtime()->post(
        [agent, text] { text.set_result(error_of<DeviceError>([&] { agent->agree_on_devices(); })); });
    texts.push_back(text);
  }
  const std::string first = texts[0].wait();
  EXPECT_TRUE(has(first, "worker 'w2' has no cuda:5") && has(first, "worker 'w1' leads")) << first;
  for (const auto& text : texts) EXPECT_EQ(text.wait(), first);
  for (const auto& agent : agents) agent->shutdown({.graceful = false});
}

// test_device_maps_many_to_one, test_device_maps_one_to_many
TEST(SimtDeviceMaps, a_map_is_one_to_one) {
  EXPECT_TRUE(has(error_of<ValueError>([] {
                    DeviceMap({{kGpu0, kGpu1}, {kGpu1, kGpu1}});
                  }),
                  "cuda:1 cannot go to cuda:1, cuda:0 goes there already"));
  EXPECT_TRUE(has(error_of<ValueError>([] {
                    DeviceMap({{kGpu0, kGpu1}, {kGpu0, kGpu0}});
                  }),
                  "cuda:0 cannot go to cuda:0, it goes to cuda:1 already"));
  InitOptions options;
  options.set_device_map("ps", {{kGpu0, kGpu1}}).set_device_map("ps", {{kGpu1, kGpu0}, {kGpu0, kGpu1}});
  const DeviceMaps before = options.device_maps;
  EXPECT_TRUE(has(error_of<ValueError>([&] {
                    options.set_device_map("ps", {{kCpu, kGpu0}});
                  }),
                  "worker 'ps'"));
  EXPECT_EQ(options.device_maps, before);
}

// test_devices_option_mismatch, test_devices_option_mismatch_reverse
TEST(SimtDeviceMaps, maps_outside_the_lists_of_devices_are_refused) {
  std::string text = refused_group({{"worker1", {{kGpu0, kGpu1}}}}, {kGpu1});
  EXPECT_TRUE(has(text, "cuda:0 is not among the devices of worker 'worker0' (cuda:1)")) << text;
  text = refused_group({{"worker1", {{kGpu0, kGpu1}}}}, {kGpu0}, {kGpu0});
  EXPECT_TRUE(has(text, "cuda:1 is not among the devices of worker 'worker1' (cuda:0)")) << text;
  text = refused_group({}, {kCpu});
  EXPECT_TRUE(has(text, "cpu is no CUDA device")) << text;
  Cluster fits([] {
    ClusterOptions o = mapped({{"worker1", {{kGpu0, kGpu1}}}});
    o.each = [before = o.each](int rank, AgentOptions& a) {
      before(rank, a);
      a.devices = {rank == 0 ? kGpu0 : kGpu1};
    };
    return o;
  }());
}

TEST(SimtDeviceMaps, a_plan_is_a_line_of_text_and_back) {
  const DevicePlan plan{{{"ps:1", {{kCpu, kGpu0}, {kGpu1, kGpu1}}}, {"w", {{kGpu0, kCpu}}}}, {kGpu1, kGpu0}};
  EXPECT_EQ(read_device_plan(to_line(plan)), plan);
  EXPECT_EQ(read_device_plan(""), DevicePlan());
  for (const char* bad : {"ps", "ps=cpu", "ps=cpu>gpu", "|x", "a=cpu>cuda:0,cuda:1>cuda:0"})
    EXPECT_THROW(read_device_plan(bad), RpcError) << bad;
}

/// One row: x and y travel from their devices, z comes back.
void expect_route(DeviceMap map, Device x_from, Device y_from, Device z_to, bool self = false) {
  const std::string callee = self ? "worker0" : "worker1";
  Cluster c(mapped({{callee, map}}));
  const auto to = [&](Device d) { return map.find(d).value_or(d); };
  c.run(0, [&] {
    const Tensor z = rpc_sync<map_add>(callee, range(5, 1, x_from), range(5, 20, y_from),
                                       to_string(to(x_from)), to_string(to(y_from)), to_string(z_to));
    EXPECT_EQ(z.device(), map.reversed().find(z_to).value_or(z_to));
    EXPECT_EQ(values(z), (std::vector<float>{21, 23, 25, 27, 29}));
  });
}

// test_device_maps_gpu, test_device_maps_in_options, test_device_map_gpu_default, _non_default
TEST(SimtDeviceMaps, arguments_follow_the_map_and_results_its_inverse) {
  expect_route({{kGpu0, kGpu1}}, kGpu0, kGpu0, kGpu1);
  expect_route({{kGpu0, kGpu0}}, kGpu0, kGpu0, kGpu0);
  expect_route({{kGpu1, kGpu0}}, kGpu1, kGpu1, kGpu0);
}

// test_device_map_gpu_mixed_1 to _8, test_device_map_gpu_mixed_self_1 to _8
TEST(SimtDeviceMaps, every_placement_of_two_arguments_and_a_result) {
  for (const bool self : {false, true})
    for (const bool crossed : {false, true})
      for (const Device x : {kGpu0, kGpu1})
        for (const Device z : {kGpu0, kGpu1}) {
          const DeviceMap map =
              crossed ? DeviceMap{{kGpu0, kGpu1}, {kGpu1, kGpu0}} : DeviceMap{{kGpu0, kGpu0}, {kGpu1, kGpu1}};
          expect_route(map, x, x == kGpu0 ? kGpu1 : kGpu0, z, self);
        }
}

// test_device_map_cpu, test_device_map_cpu_to_gpu_default, _non_default, test_device_map_gpu_to_cpu_default,
// _non_default
TEST(SimtDeviceMaps, the_cpu_stands_on_either_side) {
  expect_route({{kCpu, kCpu}}, kCpu, kCpu, kCpu);
  expect_route({{kCpu, kGpu0}}, kCpu, kCpu, kGpu0);
  expect_route({{kCpu, kGpu1}}, kCpu, kCpu, kGpu1);
  expect_route({{kGpu0, kCpu}}, kGpu0, kGpu0, kCpu);
  expect_route({{kGpu1, kCpu}}, kGpu1, kGpu1, kCpu);
  expect_route({{kGpu1, kGpu0}}, kCpu, kGpu1, kGpu0);  // without an entry the cpu stands for itself
}

// test_device_maps_multi_gpu, test_device_maps_multi_gpu_self, test_device_maps_return_to_gpu, _self
TEST(SimtDeviceMaps, one_reply_brings_results_on_several_devices) {
  for (const char* callee : {"worker0", "worker1"}) {
    Cluster c(mapped({{callee, {{kGpu0, kGpu1}, {kGpu1, kGpu0}}}}));
    c.run(0, [&] {
      const auto both = rpc_sync<map_sum_and_difference>(callee, range(4, 0, kGpu0), range(4, 10, kGpu1));
      EXPECT_EQ(both[0].device(), kGpu1);  // made on cuda:0 there
      EXPECT_EQ(both[1].device(), kGpu0);
      EXPECT_EQ(values(both[0]), (std::vector<float>{10, 12, 14, 16}));
      EXPECT_EQ(values(both[1]), (std::vector<float>{-10, -10, -10, -10}));
    });
  }
}

TEST(SimtDeviceMaps, a_call_to_oneself_keeps_devices_without_a_map) {
  Cluster c(mapped({}));
  c.run(0, [] {
    const Tensor y = rpc_sync<map_echo>("worker0", range(3, 1, kGpu1));
    EXPECT_EQ(y.device(), kGpu1);
    EXPECT_EQ(values(y), range_values(3, 1));
  });
}

TEST(SimtDeviceMaps, both_sides_have_maps_of_their_own) {
  ClusterOptions o = mapped({});
  o.each = [](int rank, AgentOptions& a) {
    if (rank == 0) a.device_maps = {{"worker1", {{kGpu0, kGpu1}}}};
    else a.device_maps = {{"worker0", {{kCpu, kGpu0}}}};
  };
  Cluster c(o);
  c.run(0, [] {
    EXPECT_EQ(rpc_sync<map_where>("worker1", range(3, 1, kGpu0)), "cuda:1");
    EXPECT_EQ(rpc_sync<map_where>("worker1", range(3, 1, kCpu)), "cpu");
    // a reply follows the caller's map, not the callee's
    EXPECT_EQ(rpc_sync<map_echo>("worker1", range(3, 1, kCpu)).device(), kCpu);
  });
  c.run(1, [] { EXPECT_EQ(rpc_sync<map_where>("worker0", range(3, 1, kCpu)), "cuda:0"); });
}

// test_device_maps_missing_config, _remote, _loop, _not_timeout
TEST(SimtDeviceMaps, an_argument_without_an_entry_is_refused_at_once_and_loses_nothing) {
  ClusterOptions o = mapped({{"worker1", {{kGpu1, kGpu0}}}});
  Cluster c(o);
  c.run(0, [&] {
    const Tensor x = range(3, 1, kGpu0);
    const TimePoint before = c.sim().now();
    for (int i = 0; i < 40; ++i) {  // more than any pool
      const std::string text = error_of<DeviceError>([&] { rpc_sync<map_echo>("worker1", x); });
      EXPECT_TRUE(has(text, "cuda:0") && has(text, "'worker1'") &&
                  has(text, "set_device_map(\"worker1\", {{\"cuda:0\""))
          << text;
      EXPECT_THROW(rpc_async<map_echo>("worker1", x), DeviceError);
      EXPECT_THROW(remote<map_echo>("worker1", x), DeviceError);
    }
    EXPECT_EQ(c.sim().now(), before);
    const RRef<int64_t> mine(int64_t{5});
    // the reference before it was shared already
    EXPECT_THROW(rpc_sync<map_keep>("worker1", mine, x), DeviceError);
    EXPECT_EQ(rpc_sync<map_keep>("worker1", mine, x.to(kCpu)), 2);
    EXPECT_EQ(values(rpc_sync<map_echo>("worker1", range(3, 1, kGpu1))), range_values(3, 1));
  });
  c.sim().run_for(std::chrono::seconds(30));
  for (int rank : {0, 1})
    for (const auto& [name, count] : c.agent(rank)->debug_info())
      for (const char* open : {"active", "num_owner_rrefs", "num_forks", "num_pending"})
        EXPECT_TRUE(!has(name, open) || count == 0) << name << " of worker " << rank << " is " << count;
  c.shutdown();
}

// test_device_maps_missing_config_response, _remote_response, _response_loop
TEST(SimtDeviceMaps, a_result_without_an_entry_is_the_calls_error_and_the_worker_goes_on) {
  Cluster c(mapped({{"worker1", {{kGpu0, kGpu0}}}}));
  c.run(0, [] {
    for (int i = 0; i < 40; ++i) {
      const std::string text = error_of<DeviceError>([] { rpc_sync<map_make>("worker1", "cuda:1"); });
      EXPECT_TRUE(has(text, "cuda:1") && has(text, "'worker0'") && has(text, "set_device_map(\"worker1\"") &&
                  has(text, "On worker 'worker1'"))
          << text;
    }
    const auto there = remote<map_make>("worker1", "cuda:1");
    EXPECT_THROW(there.to_here(), DeviceError);
    EXPECT_EQ(values(rpc_sync<map_make>("worker1", "cuda:0")), range_values(3, 5));
    EXPECT_EQ(rpc_sync<map_make>("worker1", "cpu").device(), kCpu);
  });
  c.shutdown();
}

// test_device_maps_remote
TEST(SimtDeviceMaps, a_remote_value_follows_the_map_to_here) {
  Cluster c(mapped({{"worker1", {{kGpu1, kGpu0}}}}));
  c.run(0, [] {
    const auto there =
        remote<map_add>("worker1", range(5, 1, kGpu1), range(5, 20, kCpu), "cuda:0", "cpu", "cuda:0");
    const Tensor here = there.to_here();
    EXPECT_EQ(here.device(), kGpu1);
    EXPECT_EQ(values(here), (std::vector<float>{21, 23, 25, 27, 29}));
  });
}

Tensor mismatched(const Tensor& x, const Tensor& y) { return add(x, y); }
WEFT_RPC(mismatched);

// test_device_mismatch
TEST(SimtDeviceMaps, an_operation_on_two_devices_is_a_device_error_at_the_caller) {
  Cluster c(mapped({{"worker1", {{kGpu0, kGpu0}}}}));
  c.run(0, [] {
    const std::string text =
        error_of<DeviceError>([] { rpc_sync<mismatched>("worker1", range(3, 1, kGpu0), range(3, 1, kCpu)); });
    EXPECT_TRUE(has(text, "cuda:0") && has(text, "cpu")) << text;
    EXPECT_EQ(rpc_sync<map_where>("worker1", range(3, 1, kGpu0)), "cuda:0");
  });
}

TEST(SimtDeviceMaps, sizes_strides_dtypes_and_views_survive_the_way) {
  Cluster c(mapped({{"worker1", {{kGpu0, kGpu1}}}}));
  c.run(0, [] {
    for (const DType dtype : {kBool, kUInt8, kInt32, kInt64, kFloat16, kBFloat16, kFloat32, kFloat64}) {
      const Tensor x = arange(3000).to(dtype).to(kGpu0);
      const Tensor y = rpc_sync<map_echo>("worker1", x);
      EXPECT_EQ(y.dtype(), dtype);
      EXPECT_EQ(y.to(kCpu).to_vector<double>(), x.to(kCpu).to_vector<double>());
    }
    const Tensor base = arange(24).to(kFloat32).to(kGpu0).view({4, 6});
    for (const Tensor& view : {base.t(), base.slice(1, 1, 4), base.slice(0, 2, 3), base.slice(0, 0, 0),
                               base.slice(1, 3, 4).squeeze(1)}) {
      const Tensor y = rpc_sync<map_echo>("worker1", view);
      EXPECT_EQ(y.device(), kGpu0);
      EXPECT_EQ(y.sizes(), view.sizes());
      EXPECT_EQ(y.to(kCpu).to_vector<float>(), view.to(kCpu).to_vector<float>());
    }
    EXPECT_EQ(rpc_sync<map_echo>("worker1", base.t()).strides(), base.t().strides());
    EXPECT_EQ(rpc_sync<map_echo>("worker1", full({}, 3.5, {.device = kCpu}).to(kGpu0)).item<double>(), 3.5);
  });
}

}  // namespace
