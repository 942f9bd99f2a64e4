// A shared core opens the CUDA library when a device is first asked for. Each case runs in a process of its
// own, since a library once opened stays.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include <weft/distributed/runtime/error.h>
#include <weft/kernels/accelerator.h>
#include <weft/tensor/factories.h>

namespace weft {
namespace {

void use_library(const std::string& name) {
  const char* const moved =
      std::getenv("WEFT_TEST_PLUGIN_DIR");  // where a build folder that was moved lies now
  setenv("WEFT_CUDA_LIBRARY", ((moved ? std::string(moved) : WEFT_PLUGIN_DIR) + "/" + name).c_str(), 1);
}

/// The E that f throws; ends the process with 2 when it throws nothing or something else.
template <class E, class F> E caught(F&& f) {
  try {
    f();
  } catch (const E& e) {
    return e;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "another type: %s\n", e.what());
  }
  std::exit(2);
}

void check(bool claim, const std::string& text) {
  if (claim) return;
  std::fprintf(stderr, "not so: %s\n", text.c_str());
  std::exit(3);
}
bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

#define IN_A_PROCESS(...) \
  EXPECT_EXIT(            \
      {                   \
        __VA_ARGS__;      \
        std::_Exit(0);    \
      },                  \
      testing::ExitedWithCode(0), "")

TEST(Plugin, a_missing_library_is_a_device_error_that_names_it) {
  IN_A_PROCESS({
    use_library("nowhere.so");
    const std::string text = caught<DeviceError>([] { backend("cuda"); }).what();
    check(holds(text, "nowhere.so") && holds(text, "library is missing") && holds(text, "WEFT_CUDA_LIBRARY"),
          text);
    check(!cuda::is_available() && cuda::device_count() == 0, "no device");
  });
}

TEST(Plugin, a_failure_does_not_stick) {
  IN_A_PROCESS({
    use_library("nowhere.so");
    caught<DeviceError>([] { backend("cuda"); });
    use_library("good.so");
    check(cuda::device_count() == 2, "two devices");
    check(ones({3}, {.device = "cuda"}).to_vector<float>()[2] == 1, "computes on cuda:0");
  });
}

TEST(Plugin, errors_thrown_in_the_library_keep_their_type_and_fields) {
  IN_A_PROCESS({
    use_library("good.so");
    check(std::string(caught<OutOfMemoryError>([] { backend("cuda:5"); }).what()) == "no memory for cuda:5",
          "text");
    const auto remote = caught<RemoteError>([] { backend("cuda:6"); });
    check(remote.worker == "worker6" && remote.kind == "ShapeError", "fields");
  });
}

TEST(Plugin, a_device_beyond_the_last_is_refused) {
  IN_A_PROCESS({
    use_library("good.so");
    const std::string text = caught<DeviceError>([] { backend("cuda:1"); }).what();
    check(holds(text, "cuda:1: no such device") && holds(text, "2 devices"), text);
  });
}

TEST(Plugin, a_library_of_another_build_is_refused_with_both_stamps) {
  IN_A_PROCESS({
    use_library("other_build.so");
    const std::string text = caught<DeviceError>([] { backend("cuda"); }).what();
    check(holds(text, "does not fit") && holds(text, "weft 0.0.0"), text);
    for (const char* const passed :
         {"View", "NextStep", "RnnLayer", "RnnInputs", "RnnOutputs", "RnnGrads", "RnnStack", "RnnWeights",
          "RnnStackInputs", "RnnStackOutputs", "RnnStackGrads", "RnnPlaces", "RnnStackLayout", "RnnStackRoom",
          "LossScale"})
      check(holds(text, str(", ", passed, " ")), str(passed, " in ", text));
  });
}

TEST(Plugin, a_library_that_is_not_ours_is_refused) {
  IN_A_PROCESS({
    use_library("stranger.so");
    const std::string text = caught<DeviceError>([] { backend("cuda"); }).what();
    check(holds(text, "stranger.so is not weft's CUDA library"), text);
  });
}

TEST(Plugin, the_cpu_and_a_plain_backend_have_no_streams) {
  IN_A_PROCESS({
    use_library("good.so");
    caught<DeviceError>([] { accelerator(kCpu); });
    caught<DeviceError>([] { accelerator("cuda"); });
  });
}

#if defined(WEFT_PLUGIN_CUDA)
TEST(Plugin, the_real_library_is_found_beside_core) {
  unsetenv("WEFT_CUDA_LIBRARY");
  IN_A_PROCESS({
    if (cuda::is_available()) {
      accelerator("cuda").synchronize();
      check(ones({3}, {.device = "cuda"}).to_vector<float>()[2] == 1, "computes on cuda:0");
    } else {
      const std::string text = caught<DeviceError>([] { backend("cuda"); }).what();
      check(holds(text, "NVIDIA driver"), text);
    }
  });
}
#endif

}  // namespace
}  // namespace weft
