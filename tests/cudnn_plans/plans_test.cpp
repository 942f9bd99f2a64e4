// NVIDIA's own cuDNN, where it is installed, makes the plans of kernels/cuda/toolkit/attention_graph.cpp for
// devices that are described to it. So these tests need its library, but no GPU: cuDNN checks the graphs,
// names the engines and compiles their kernels. Nothing runs. A stand-in takes the place of the driver.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include <weft/kernels/cuda/toolkit/attention_graph.h>
#include <weft/kernels/error.h>
#include <weft/kernels/inner/library_file.h>
#include "support/errors.h"

#if !defined(WEFT_TEST_CUDNN_FILE)  // that the build found
#define WEFT_TEST_CUDNN_FILE nullptr
#endif

namespace weft::cuda::cudnn {

namespace {
Library loaded;
}

void check(cudnnStatus_t status, const char* call) {
  if (status != CUDNN_STATUS_SUCCESS) throw CudaError(str(call, ": ", loaded.cudnnGetErrorString(status)));
}

namespace {

/// Empty, or the reason to skip.
std::string missing() {
  static const std::string reason = [] {
    if (!dlopen(WEFT_TEST_DRIVER, RTLD_NOW | RTLD_GLOBAL)) return std::string(dlerror());
    LibraryFile file("WEFT_CUDNN_LIBRARY", str("libcudnn.so.", CUDNN_MAJOR), WEFT_TEST_CUDNN_FILE);
#define WEFT_CUDNN_FIND(name) file.find(loaded.name, #name);
    WEFT_CUDNN_CALLS(WEFT_CUDNN_FIND)
#undef WEFT_CUDNN_FIND
    if (!file.missing().empty()) return file.missing();
    if (loaded.cudnnGetVersion() < 91600) return str("cuDNN ", loaded.cudnnGetVersion(), " is too old");
    return std::string();
  }();
  return reason;
}

/// A device of this compute capability times 100; its other numbers are an H200's.
std::unique_ptr<GraphNode> device_of(int capability) {
  const std::string text =
      str(R"({"deviceVer": )", capability,
          R"(, "deviceName": "a described one", "cudaDeviceId": 0, "pciDeviceId": 0, "driverVer": 13000,
      "isTccDriver": 0, "supportCoopLaunch": 1, "multiProcessorCount": 132, "warpSize": 32,
      "maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64],
      "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048, "maxCtasPerSM": 32, "regsPerBlock": 65536,
      "maxRegistersPerSM": 65536, "maxSharedMemoryPerBlock": 49152, "reservedSharedMemoryPerBlock": 1024,
      "maxSharedMemoryPerBlockOptin": )",
          capability == 800 ? 166912 : 232448,
          R"(, "l2CacheSize": 52428800, "smClockRateKHz": 1980000, "memClockRateKHz": 3201000,
      "totalGlobalMem": 150000000000})");
  auto node = std::make_unique<GraphNode>(loaded, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, "a device");
  node->set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, static_cast<int64_t>(text.size()),
            text.data());
  node->finish();
  return node;
}

/// q, k and v are parts of one projection [batch, time, 3, heads, width].
AttentionSpec spec_of(int64_t queries, int64_t keys, int64_t width) {
  AttentionSpec spec{.type = CUDNN_DATA_BFLOAT16,
                     .batch = 2,
                     .heads = 4,
                     .queries = queries,
                     .keys = keys,
                     .width = width,
                     .values = width};
  const int64_t row = 3 * spec.heads * width;
  spec.q = {queries * row, width, row, 1};
  spec.k = spec.v = {keys * row, width, row, 1};
  spec.dy = {queries * spec.heads * width, width, spec.heads * width, 1};
  return spec;
}

struct CudnnPlans : testing::Test {
  void SetUp() override {
    if (!missing().empty()) GTEST_SKIP() << missing();
    try {
      device = device_of(900);
    } catch (const CudaError& e) {
      GTEST_SKIP() << "cuDNN takes no described device: " << e.what();
    }
  }
  Graph::Plan plan(const AttentionSpec& spec, int64_t most = int64_t{1} << 30) {
    return attention_graph(loaded, spec).plan({.device = device->get()}, most, spec.ordered);
  }
  std::unique_ptr<GraphNode> device;
};

TEST_F(CudnnPlans, of_attention_are_made_for_each_kind_of_call) {
  for (const int capability : {900, 800}) {
    device = device_of(capability);
    for (const bool backward : {false, true})
      for (const bool causal : {false, true}) {
        AttentionSpec spec = spec_of(128, 128, 64);
        spec.causal = causal, spec.backward = backward, spec.training = true;
        EXPECT_NO_THROW(plan(spec)) << capability << ' ' << backward << ' ' << causal;
      }
  }
  AttentionSpec inference = spec_of(128, 128, 64);
  EXPECT_NO_THROW(plan(inference));
}

TEST_F(CudnnPlans, of_attention_are_made_for_odd_lengths_and_widths) {
  for (const bool backward : {false, true}) {
    AttentionSpec spec = spec_of(77, 130, 40);
    spec.type = CUDNN_DATA_HALF;
    spec.causal = true, spec.training = true, spec.backward = backward;
    EXPECT_NO_THROW(plan(spec)) << backward;
    spec = spec_of(100, 33, 128);
    spec.causal = true, spec.training = true, spec.backward = backward;
    EXPECT_NO_THROW(plan(spec)) << backward;
    spec = spec_of(2, 8, 8);
    spec.training = true, spec.backward = backward;
    EXPECT_NO_THROW(plan(spec)) << backward;
  }
}

TEST_F(CudnnPlans, of_ordered_gradients_have_a_workspace_of_all_products) {
  AttentionSpec spec = spec_of(256, 256, 64);
  spec.backward = spec.training = true;
  const int64_t products = spec.batch * spec.heads * spec.queries * spec.keys;
  EXPECT_GE(plan(spec).workspace, 2 * products);
  EXPECT_LT(plan(spec).workspace, 4 * products);
  EXPECT_TRUE(test::has(test::error_of<CudaError>([&] { plan(spec, products); }), "its workspace has"));
  spec.ordered = false;
  EXPECT_LT(plan(spec).workspace, products);
}

TEST_F(CudnnPlans, are_refused_for_rows_that_are_no_whole_packs) {
  EXPECT_TRUE(test::has(test::error_of<CudaError>([&] { plan(spec_of(128, 128, 12)); }), "cudnn"));
}

}  // namespace
}  // namespace weft::cuda::cudnn
