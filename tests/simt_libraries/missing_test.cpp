// Libraries of NVIDIA's that are opened at run time: which file is taken, and the abilities of a program
// without cuBLASLt.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include <weft/kernels/inner/library_file.h>
#include <weft/tensor/cuda.h>
#include <weft/weft.h>
#include "support/errors.h"

namespace weft::cuda {
namespace {

using Function = void();

constexpr const char* kNowhere = "libweft_nowhere.so";

TEST(LibraryFile, is_looked_for_where_it_was_at_the_build_too) {
  Function* function = nullptr;
  LibraryFile here("WEFT_TEST_LIBRARY", kNowhere, WEFT_TEST_CUBLASLT);
  here.find(function, "cublasLtMatmul");
  EXPECT_NE(function, nullptr);
  EXPECT_EQ(here.missing(), "");
}

TEST(LibraryFile, that_the_environment_names_is_taken_alone) {
  setenv("WEFT_TEST_LIBRARY", WEFT_TEST_CUDNN, 1);
  Function* function = nullptr;
  LibraryFile named("WEFT_TEST_LIBRARY", kNowhere, WEFT_TEST_CUBLASLT);
  named.find(function, "cudnnCreate");
  EXPECT_NE(function, nullptr);
  setenv("WEFT_TEST_LIBRARY", kNowhere, 1);
  const LibraryFile none("WEFT_TEST_LIBRARY", WEFT_TEST_CUDNN, WEFT_TEST_CUBLASLT);
  EXPECT_TRUE(test::has(none.missing(), kNowhere));
  setenv("WEFT_TEST_LIBRARY", "", 1);
  EXPECT_EQ(LibraryFile("WEFT_TEST_LIBRARY", WEFT_TEST_CUDNN, nullptr).missing(), "");
  unsetenv("WEFT_TEST_LIBRARY");
}

TEST(LibraryFile, says_which_file_or_function_is_missing) {
  Function* function = nullptr;
  LibraryFile none("WEFT_TEST_LIBRARY", kNowhere, "/nowhere/libweft_built.so");
  none.find(function, "cublasLtMatmul");
  EXPECT_EQ(function, nullptr);
  EXPECT_TRUE(test::has(none.missing(), kNowhere));
  EXPECT_TRUE(test::has(none.missing(), "/nowhere/libweft_built.so"));
  LibraryFile other("WEFT_TEST_LIBRARY", WEFT_TEST_CUDNN, nullptr);
  other.find(function, "cublasLtMatmul");
  other.find(function, "cublasLtCreate");
  EXPECT_EQ(function, nullptr);
  EXPECT_TRUE(test::has(other.missing(), "cublasLtMatmul"));
  EXPECT_EQ(other.missing().find("cublasLtCreate"), std::string::npos);
}

/// Run by themselves, once with no file to be found and once with one that is another library.
struct CublasLtMissing : testing::Test {
  const Device gpu{"cuda:0"};
  Tensor a = randn({6, 7}).to(gpu), b = randn({7, 5}).to(gpu);
  template <class F> void expect_missing(const F& f) const {
    const std::string text = test::error_of<DeviceError>(f);
    EXPECT_TRUE(test::has(text, "products need cuBLASLt"));
    EXPECT_TRUE(test::has(text, "set WEFT_CUBLASLT_LIBRARY"));
    EXPECT_TRUE(test::has(text, std::getenv("WEFT_CUBLASLT_LIBRARY")));
  }
};

TEST_F(CublasLtMissing, each_floating_product_is_an_error_that_names_it) {
  const int64_t before = memory_stats(gpu).in_use;
  for (int again = 0; again < 2; ++again) {
    expect_missing([&] { matmul(a, b); });
    expect_missing([&] {
      linear(a.to(kBFloat16), ones({4, 7}, {.dtype = kBFloat16, .device = gpu}),
             ones({4}, {.dtype = kBFloat16, .device = gpu}));
    });
    expect_missing([&] { matmul(a.to(kFloat64), b.to(kFloat64)); });
  }
  EXPECT_EQ(memory_stats(gpu).in_use, before);
}

TEST_F(CublasLtMissing, everything_else_goes_on) {
  expect_missing([&] { matmul(a, b); });
  const Tensor m = arange(12).view({3, 4}), n = arange(8).view({4, 2});
  EXPECT_TRUE(equal(matmul(m.to(gpu), n.to(gpu)).to(kCpu), matmul(m, n)));
  Tensor x = a.detach().requires_grad_();
  (relu(x) * x).sum().backward();
  EXPECT_LT((x.grad().to(kCpu) - relu(a.to(kCpu)) * 2).abs().max().item<double>(), 1e-6);
}

TEST_F(CublasLtMissing, a_recording_ends_with_the_error_and_can_be_made_again) {
  Tensor y;
  Graph graph(gpu);
  expect_missing([&] { graph.capture([&] { y = matmul(a, b); }); });
  graph.capture([&] { y = a + a; });
  graph.replay();
  EXPECT_TRUE(equal(y.to(kCpu), a.to(kCpu) * 2));
}

}  // namespace
}  // namespace weft::cuda
