// Device maps in an elastic group: they hold for workers that join later and for successors. A worker whose
// maps do not fit the members is refused, with the names of both.
#include "support/elastic.h"
#include "devices.h"

namespace weft::test {

std::string elastic_where(const Tensor& x) { return to_string(x.device()); }
WEFT_RPC(elastic_where);
Tensor elastic_back(const Tensor& x) { return x; }
WEFT_RPC(elastic_back);

}  // namespace weft::test

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace weft::test;
using namespace std::chrono_literals;

auto with_maps(DeviceMaps maps, std::vector<Device> devices = {}) {
  return [maps = std::move(maps), devices = std::move(devices)](AgentOptions& a) {
    a.device_maps = maps;
    a.devices = devices;
  };
}

/// A tensor of `from` goes to `there` on `callee` and comes back.
void expect_elastic_route(const std::string& callee, Device from, Device there) {
  const Tensor x = range(5, 1, from);
  EXPECT_EQ(rpc_sync<elastic_where>(callee, x), to_string(there));
  const Tensor back = rpc_sync<elastic_back>(callee, x);
  EXPECT_EQ(back.device(), from);
  EXPECT_EQ(values(back), range_values(5, 1));
}

TEST(ElasticDeviceMaps, maps_hold_for_workers_that_join_later_in_both_directions) {
  open_devices();
  ElasticGroup g;
  const auto& a = g.join("a", with_maps({{"b", {{kGpu0, kGpu1}}}}));  // b has not come yet
  const auto& b = g.join("b", with_maps({{"a", {{kGpu0, kCpu}}}}));
  const auto& c = g.join("c");
  for (const auto* w : {&a, &b, &c}) w->membership->wait_for({"a", "b", "c"}, g.sim().now() + 60s);
  g.run(a, [] { expect_elastic_route("b", kGpu0, kGpu1); });
  g.run(b, [] { expect_elastic_route("a", kGpu0, kCpu); });
  g.run(c, [] {
    const std::string text = error_of<DeviceError>([] { rpc_sync<elastic_where>("b", range(5, 1, kGpu0)); });
    EXPECT_TRUE(has(text, "the device map for 'b' has no entry from cuda:0"));
  });
}

TEST(ElasticDeviceMaps, maps_hold_for_a_successor_and_its_own_maps_replace_those_of_the_old_life) {
  open_devices();
  ElasticGroup g;
  const auto& a = g.join("a", with_maps({{"b", {{kGpu0, kGpu1}}}}));
  const auto& old = g.join("b", with_maps({{"a", {{kGpu0, kGpu0}}}}));
  a.membership->wait_for({"b"}, g.sim().now() + 60s);
  g.run(a, [] { expect_elastic_route("b", kGpu0, kGpu1); });
  g.kill(old);
  const auto& successor = g.join("b", with_maps({{"a", {{kGpu0, kGpu1}}}}));
  g.run(successor, [] { expect_elastic_route("a", kGpu0, kGpu1); });
  g.run(a, [] { expect_elastic_route("b", kGpu0, kGpu1); });
}

/// The error of a worker "b" that joins a group with the worker "a".
template <class E>
void expect_refusal(const std::function<void(AgentOptions&)>& of_a,
                    const std::function<void(AgentOptions&)>& of_b, const std::string& text) {
  open_devices();
  ElasticGroup g;
  const auto& a = g.join("a", of_a);
  const TimePoint start = g.sim().now();
  EXPECT_TRUE(has(error_of<E>([&] { g.join("b", of_b); }), text));
  const auto& b = g.join("b");  // the name is free at once, without the wait for a lease
  EXPECT_LT(g.sim().now() - start, 5s);
  a.membership->wait_for({"b"}, g.sim().now() + 60s);
  EXPECT_EQ(a.membership->members().size(), 2u);
  g.run(b, [] { EXPECT_EQ(rpc_sync<elastic_where>("a", range(2, 1, kCpu)), "cpu"); });
}

TEST(ElasticDeviceMaps, a_map_to_a_device_that_a_member_lacks_is_refused) {
  expect_refusal<DeviceError>({}, with_maps({{"a", {{kGpu0, "cuda:9"}}}}),
                              "the device map of worker 'b' leads to cuda:9: worker 'a' has no cuda:9");
}

TEST(ElasticDeviceMaps, a_map_from_a_device_that_the_new_worker_lacks_is_refused) {
  expect_refusal<DeviceError>({}, with_maps({{"a", {{"cuda:7", kGpu0}}}}), "worker 'b' has no cuda:7");
}

TEST(ElasticDeviceMaps, maps_outside_the_lists_of_devices_are_refused) {
  expect_refusal<ValueError>(with_maps({}, {kGpu0}), with_maps({{"a", {{kGpu0, kGpu1}}}}),
                             "cuda:1 is not among the devices of worker 'a' (cuda:0)");
  expect_refusal<ValueError>({}, with_maps({}, {kCpu}), "devices of worker 'b': cpu is no CUDA device");
}

TEST(ElasticDeviceMaps, a_worker_to_which_a_map_of_a_member_leads_must_have_that_device) {
  open_devices();
  ElasticGroup g;
  const auto& a = g.join("a", with_maps({{"b", {{kGpu0, "cuda:9"}}}, {"c", {{kGpu0, kGpu1}}}}));
  EXPECT_TRUE(has(error_of<DeviceError>([&] { g.join("b"); }),
                  "the device map of worker 'a' leads to cuda:9: worker 'b' has no cuda:9"));
  EXPECT_TRUE(has(error_of<ValueError>([&] { g.join("c", with_maps({}, {kGpu0})); }),
                  "cuda:1 is not among the devices of worker 'c' (cuda:0)"));
  EXPECT_EQ(a.membership->members().size(), 1u);
  g.join("c");
  a.membership->wait_for({"c"}, g.sim().now() + 60s);
  g.run(a, [] { expect_elastic_route("c", kGpu0, kGpu1); });
}

}  // namespace
