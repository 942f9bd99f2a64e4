// WEFT_GEMM, WEFT_AUTOTUNE and MKL, up to the products. MKL is a stand-in for its library
// (tests/support/libraries/mkl). Most cases run in a process of their own, since a library that was loaded
// and a setting that was read stay.
#include "arrays.h"

#include <dlfcn.h>

#include <cstdlib>
#include <utility>

#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/engine.h>
#include <weft/kernels/cpu/gemm.h>
#include <weft/tensor/factories.h>

namespace weft::test {
namespace {

using Variables = std::vector<std::pair<const char*, const char*>>;

/// Runs f in a process whose environment has these settings of engines and no others.
void in_a_process(const Variables& settings, void (*f)()) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        for (const char* name : {"WEFT_GEMM", "WEFT_AUTOTUNE", "WEFT_MKL_LIBRARY"}) unsetenv(name);
        for (const auto& [name, value] : settings) setenv(name, value, 1);
        f();
        std::_Exit(testing::Test::HasFailure() ? 1 : 0);
      },
      testing::ExitedWithCode(0), "");
}

/// The stand-in, if this process has loaded it.
struct StandIn {
  void* file = dlopen(WEFT_TEST_MKL, RTLD_NOW | RTLD_NOLOAD);
  int64_t products() const {
    return reinterpret_cast<int64_t (*)()>(dlsym(file, "weft_test_mkl_products"))();
  }
};

/// Products of shapes that the table gives to several engines.
void all_kinds_of_products() {
  Generator draws(1);
  for (const int64_t m : {1, 4, 60, 530})
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{64, 96}, {300, 200}, {700, 800}}) {
      const Tensor a = randn({m, k}, {}, &draws), b = randn({k, n}, {}, &draws),
                   c = randn({n, k}, {}, &draws);
      matmul(a, b);
      linear(a, c, Tensor());
    }
  const Tensor x = randn({40, 64}, {}, &draws).requires_grad_(), w = randn({50, 64}, {}, &draws);
  linear_cross_entropy(x, w, Tensor(), zeros({40}, {.dtype = kInt64}));
}

/// Two numbers of a product that exceeds the limit below which no library is called.
Tensor large_product() {
  const Tensor a = ones({400, 400}), b = full({400, 400}, 0.5);
  return matmul(a, b).slice(0, 0, 1).slice(1, 0, 2);
}

bool says(const std::string& part) { return product_engines().find(part) != std::string::npos; }

TEST(EngineChoice, mkl_is_never_loaded_without_being_asked_for) {
  in_a_process({{"WEFT_MKL_LIBRARY", WEFT_TEST_MKL}}, [] {
    all_kinds_of_products();
    EXPECT_FALSE(says("MKL")) << product_engines();
    EXPECT_EQ(StandIn().file, nullptr);
  });
  for (const char* engine : {"auto", "tile", "eigen"})
    in_a_process({{"WEFT_MKL_LIBRARY", WEFT_TEST_MKL}, {"WEFT_GEMM", engine}, {"WEFT_AUTOTUNE", "0"}}, [] {
      all_kinds_of_products();
      EXPECT_FALSE(says("MKL")) << product_engines();
      EXPECT_EQ(StandIn().file, nullptr);
    });
  in_a_process({{"WEFT_AUTOTUNE", "1"}}, [] {  // by its usual names
    large_product();
    EXPECT_FALSE(says("MKL")) << product_engines();
    for (const char* name : {"libmkl_rt.so.3", "libmkl_rt.so.2"})
      EXPECT_EQ(dlopen(name, RTLD_NOW | RTLD_NOLOAD), nullptr);
  });
}

TEST(EngineChoice, products_go_to_mkl_where_WEFT_GEMM_names_it) {
  in_a_process({{"WEFT_MKL_LIBRARY", WEFT_TEST_MKL}, {"WEFT_GEMM", "mkl"}, {"WEFT_TEST_MKL_VALUE", "7"}}, [] {
    EXPECT_EQ(large_product().to_vector<float>(), (std::vector<float>{7, 7}));
    const int64_t one = StandIn().products();
    EXPECT_GT(one, 0);
    EXPECT_EQ(linear(ones({33, 40}), ones({50, 40}), Tensor()).min().item<float>(), 7);
    EXPECT_GT(StandIn().products(), one);
    const int64_t two = StandIn().products();
    linear_cross_entropy(ones({40, 64}).requires_grad_(), ones({50, 64}), Tensor(),
                         zeros({40}, {.dtype = kInt64}));
    EXPECT_GT(StandIn().products(), two);
    EXPECT_TRUE(says(", MKL 2026.2.1, WEFT_GEMM=mkl")) << product_engines();
    // double has the tiles alone
    EXPECT_EQ(
        matmul(ones({64, 64}, {.dtype = kFloat64}), ones({64, 64}, {.dtype = kFloat64})).max().item<double>(),
        64);
  });
}

TEST(EngineChoice, WEFT_AUTOTUNE_reaches_the_products_and_may_choose_mkl) {
  const Variables tuned{
      {"WEFT_MKL_LIBRARY", WEFT_TEST_MKL}, {"WEFT_AUTOTUNE", "1"}, {"WEFT_TEST_MKL_VALUE", "7"}};
  in_a_process(tuned, [] {
    const std::vector<float> first = large_product().to_vector<float>();
    EXPECT_TRUE(says(", MKL 2026.2.1, WEFT_AUTOTUNE=1")) << product_engines();
    const int64_t measured = StandIn().products();
    EXPECT_GT(measured, 0);
    // The quickest engine is that of the measurement, which a busy machine disturbs. It stays.
    const bool mkl = first[0] == 7;
    EXPECT_EQ(first, mkl ? (std::vector<float>{7, 7}) : (std::vector<float>{200, 200}));
    EXPECT_EQ(large_product().to_vector<float>(), first);
    EXPECT_EQ(StandIn().products() > measured, mkl);
  });
  in_a_process({{"WEFT_AUTOTUNE", "1"}}, [] {
    EXPECT_EQ(large_product().to_vector<float>(), (std::vector<float>{200, 200}));
    EXPECT_TRUE(says(", WEFT_AUTOTUNE=1")) << product_engines();
  });
  in_a_process({{"WEFT_AUTOTUNE", "yes"}}, [] {
    EXPECT_THROW(large_product(), ValueError);
    EXPECT_THROW(product_engines(), ValueError);
  });
}

TEST(EngineChoice, a_library_without_the_functions_of_mkl_is_refused_with_the_missing_one) {
  in_a_process({{"WEFT_MKL_LIBRARY", "libm.so.6"}, {"WEFT_GEMM", "mkl"}}, [] {
    try {
      large_product();
      ADD_FAILURE() << "it was taken";
    } catch (const ValueError& e) {
      EXPECT_NE(std::string(e.what()).find("MKL_Set_Threading_Layer"), std::string::npos) << e.what();
    }
    EXPECT_FALSE(kernels::mkl_missing().empty());
  });
}

TEST(EngineChoice, fused_losses_and_attention_use_the_engine_of_WEFT_GEMM) {
  const auto results = [] {
    Generator draws(3);
    const Tensor x = randn({100, 300}, {}, &draws).requires_grad_(), w = randn({90, 300}, {}, &draws);
    const Tensor q = randn({1, 1, 70, 64}, {}, &draws);
    const Tensor loss = linear_cross_entropy(x, w, Tensor(), zeros({100}, {.dtype = kInt64}));
    return std::pair(grad({loss}, {x})[0].to_vector<float>(),
                     scaled_dot_product_attention(q, q, q).to_vector<float>());
  };
  const kernels::GemmEngine before = kernels::gemm_engine();
  kernels::set_gemm_engine(kernels::GemmEngine::kTile);
  const auto tile = results();
  kernels::set_gemm_engine(kernels::GemmEngine::kEigen);
  const auto eigen = results();
  kernels::set_gemm_engine(before);
  const auto near = [](const std::vector<float>& a, const std::vector<float>& b) {
    for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-3 * (1 + std::abs(a[i]))) << i;
  };
  near(tile.first, eigen.first);
  near(tile.second, eigen.second);
  EXPECT_NE(tile.first, eigen.first) << "the same bits, so one engine computed both";
  EXPECT_NE(tile.second, eigen.second);
}

}  // namespace
}  // namespace weft::test
