// The emulated cuBLASLt itself: it refuses the calls that its documentation refuses, and an undefined one is
// a Fault.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include <weft/kernels/cuda/toolkit/cublaslt.h>
#include "support/errors.h"
#include "support/simt/memory.h"
#include "support/simt/operand.h"
#include "support/simt/thread.h"

namespace weft::cuda {
namespace {

using simt::Fault;
using simt::Operand;

const cublaslt::Library& lib() { return cublaslt::library(); }

/// A product of two matrices, [4, 6] and [6, 5] in columns, before it is asked for.
struct Product {
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDescOpaque_t product;
  cublasLtMatrixLayoutOpaque_t a, b, c;
  cublasLtMatmulPreferenceOpaque_t preference;
  cublasLtMatmulHeuristicResult_t found = {};
  int count = 0;
  float alpha = 1, beta = 0;
  uint64_t workspace_limit = 1 << 16;
  Operand x{kFloat32, {400}}, y{kFloat32, {400}}, z{kFloat32, {400}}, workspace{kUInt8, {4096}};

  explicit Product(cublasComputeType_t compute = CUBLAS_COMPUTE_32F, cudaDataType_t scale = CUDA_R_32F,
                   cudaDataType_t type = CUDA_R_32F, int64_t k = 6) {
    lib().cublasLtCreate(&handle);
    lib().cublasLtMatmulDescInit_internal(&product, sizeof product, compute, scale);
    lib().cublasLtMatrixLayoutInit_internal(&a, sizeof a, type, 4, static_cast<uint64_t>(k), 4);
    lib().cublasLtMatrixLayoutInit_internal(&b, sizeof b, type, static_cast<uint64_t>(k), 5, k);
    lib().cublasLtMatrixLayoutInit_internal(&c, sizeof c, type, 4, 5, 4);
    lib().cublasLtMatmulPreferenceInit_internal(&preference, sizeof preference);
    x.random(-1, 1, 1), y.random(-1, 1, 2);
    lib().cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                               &workspace_limit, sizeof workspace_limit);
  }
  template <class T> cublasStatus_t set(cublasLtMatmulDescAttributes_t what, T value) {
    return lib().cublasLtMatmulDescSetAttribute(&product, what, &value, sizeof value);
  }
  template <class T>
  static cublasStatus_t set(cublasLtMatrixLayoutOpaque_t& layout, cublasLtMatrixLayoutAttribute_t what,
                            T value) {
    return lib().cublasLtMatrixLayoutSetAttribute(&layout, what, &value, sizeof value);
  }
  template <class T> cublasStatus_t prefer(cublasLtMatmulPreferenceAttributes_t what, T value) {
    return lib().cublasLtMatmulPreferenceSetAttribute(&preference, what, &value, sizeof value);
  }
  void batches(int32_t n, int64_t sa, int64_t sb, int64_t sc) {
    for (const auto& [layout, stride] : {std::pair{&a, sa}, {&b, sb}, {&c, sc}})
      set(*layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, n),
          set(*layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, stride);
  }
  cublasStatus_t choose() {
    return lib().cublasLtMatmulAlgoGetHeuristic(handle, &product, &a, &b, &c, &c, &preference, 1, &found,
                                                &count);
  }
  cublasStatus_t run(const void* p, const void* q, void* r, size_t room = 4096) {
    return lib().cublasLtMatmul(handle, &product, &alpha, p, &a, q, &b, &beta, r, &c, r, &c, &found.algo,
                                workspace.on_device().data, room, nullptr);
  }
  cublasStatus_t run() { return run(x.on_device().data, y.on_device().data, z.on_device().data); }
};

TEST(EmulatedCublasLt, multiplies_matrices_in_columns) {
  Product p;
  ASSERT_EQ(p.choose(), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(p.run(), CUBLAS_STATUS_SUCCESS);
  const auto x = p.x.device_values(), y = p.y.device_values(), z = p.z.device_values();
  for (size_t i = 0; i < 4; ++i)
    for (size_t j = 0; j < 5; ++j) {
      double sum = 0;
      for (size_t l = 0; l < 6; ++l) sum += x[i + 4 * l] * y[l + 6 * j];
      EXPECT_NEAR(z[i + 4 * j], sum, 1e-6);
    }
}

TEST(EmulatedCublasLt, a_bias_lies_along_the_rows) {
  Product p;
  Operand bias(kFloat32, {4});
  bias.set({100., 200., 300., 400.});
  p.set(CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<uint32_t>(CUBLASLT_EPILOGUE_BIAS));
  p.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias.on_device().data);
  ASSERT_EQ(p.choose(), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(p.run(), CUBLAS_STATUS_SUCCESS);
  const auto z = p.z.device_values();
  for (size_t i = 0; i < 20; ++i) EXPECT_NEAR(z[i], 100. * static_cast<double>(i % 4 + 1), 7);
}

/// The product of 4 rows, with another matrix [4, 5] of leading dimension 8 beside it.
struct WithMatrix : Product {
  Operand beside{kFloat32, {40}};
  explicit WithMatrix(cublasLtEpilogue_t epilogue, cublasComputeType_t compute = CUBLAS_COMPUTE_32F,
                      cudaDataType_t type = CUDA_R_32F)
      : Product(compute, compute == CUBLAS_COMPUTE_64F ? CUDA_R_64F : CUDA_R_32F, type) {
    beside.random(-2, 2, 3);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<uint32_t>(epilogue));
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, beside.on_device().data);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, int64_t{8});
  }
};

double gelu(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }

TEST(EmulatedCublasLt, gelu_gives_its_argument_and_takes_it_back_for_the_slope) {
  Product plain;
  plain.choose(), plain.run();
  const auto sums = plain.z.device_values();
  Operand bias(kFloat32, {4});
  bias.set({0.5, -0.5, 1., -1.});
  WithMatrix p(CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
  p.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias.on_device().data);
  ASSERT_EQ(p.choose(), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(p.run(), CUBLAS_STATUS_SUCCESS);
  const auto y = p.z.device_values(), before = p.beside.device_values(), b = bias.host_values();
  for (size_t i = 0; i < 20; ++i) {
    EXPECT_NEAR(before[i % 4 + 8 * (i / 4)], sums[i] + b[i % 4], 1e-6);
    EXPECT_NEAR(y[i], gelu(sums[i] + b[i % 4]), 1e-6);
  }
  p.set(CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<uint32_t>(CUBLASLT_EPILOGUE_DGELU_BGRAD));
  ASSERT_EQ(p.choose(), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(p.run(), CUBLAS_STATUS_SUCCESS);
  const auto slopes = p.z.device_values(), bias_grad = bias.device_values();
  std::vector<double> rows(4);
  for (size_t i = 0; i < 20; ++i) {
    const double x = before[i % 4 + 8 * (i / 4)], slope = (gelu(x + 1e-4) - gelu(x - 1e-4)) / 2e-4;
    EXPECT_NEAR(slopes[i], sums[i] * slope, 1e-5);
    rows[i % 4] += slopes[i];
  }
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(bias_grad[i], rows[i], 1e-5);
}

TEST(EmulatedCublasLt, sums_over_k_lie_at_the_place_of_the_bias) {
  for (const bool of_a : {true, false}) {
    Product p;
    Operand sums(kFloat32, {5});
    p.set(CUBLASLT_MATMUL_DESC_EPILOGUE,
          static_cast<uint32_t>(of_a ? CUBLASLT_EPILOGUE_BGRADA : CUBLASLT_EPILOGUE_BGRADB));
    ASSERT_EQ(p.choose(), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(p.run(), CUBLAS_STATUS_INVALID_VALUE);  // no place
    p.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, sums.on_device().data);
    ASSERT_EQ(p.choose(), CUBLAS_STATUS_SUCCESS);
    ASSERT_EQ(p.run(), CUBLAS_STATUS_SUCCESS);
    const auto x = p.x.device_values(), y = p.y.device_values(), got = sums.device_values();
    for (size_t i = 0; i < (of_a ? 4u : 5u); ++i) {
      double sum = 0;
      for (size_t l = 0; l < 6; ++l) sum += of_a ? x[i + 4 * l] : y[l + 6 * i];
      EXPECT_NEAR(got[i], sum, 1e-6);
    }
  }
}

TEST(EmulatedCublasLt, refuses_matrices_of_epilogues_that_do_not_fit) {
  const auto status = [](const auto& spoil) {
    WithMatrix p(CUBLASLT_EPILOGUE_GELU_AUX);
    spoil(p);
    return p.choose();
  };
  EXPECT_EQ(status([](Product&) {}), CUBLAS_STATUS_SUCCESS);
  for (const int64_t leading : {0, 4, 12})
    EXPECT_EQ(status([&](Product& p) { p.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, leading); }),
              CUBLAS_STATUS_INVALID_VALUE)
        << leading;
  EXPECT_EQ(
      status([](Product& p) { p.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, int32_t{CUDA_R_16F}); }),
      CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(WithMatrix(CUBLASLT_EPILOGUE_GELU, CUBLAS_COMPUTE_64F, CUDA_R_64F).choose(),
            CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(WithMatrix(CUBLASLT_EPILOGUE_BGRADB, CUBLAS_COMPUTE_64F, CUDA_R_64F).choose(),
            CUBLAS_STATUS_NOT_SUPPORTED);
  WithMatrix p(CUBLASLT_EPILOGUE_DGELU);
  p.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, static_cast<void*>(nullptr));
  ASSERT_EQ(p.choose(), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(p.run(), CUBLAS_STATUS_INVALID_VALUE);
  p.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, static_cast<void*>(p.beside.on_device().as<float>() + 1));
  EXPECT_THROW(p.run(), Fault);  // the algorithm was chosen for whole packs
  EXPECT_EQ(p.choose(), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(p.run(), CUBLAS_STATUS_SUCCESS);
}

TEST(EmulatedCublasLt, refuses_attributes_of_the_wrong_size) {
  Product p;
  EXPECT_EQ(p.set(CUBLASLT_MATMUL_DESC_TRANSA, int64_t{CUBLAS_OP_T}), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(p.set(CUBLASLT_MATMUL_DESC_EPILOGUE, uint8_t{1}), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(Product::set(p.a, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, int64_t{2}), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(Product::set(p.a, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, int32_t{2}),
            CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(p.prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint32_t{2}), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(lib().cublasLtMatmulDescSetAttribute(&p.product, CUBLASLT_MATMUL_DESC_TRANSA, nullptr, 4),
            CUBLAS_STATUS_INVALID_VALUE);
}

TEST(EmulatedCublasLt, refuses_layouts_that_do_not_fit) {
  const auto status = [](const auto& spoil) {
    Product p;
    spoil(p);
    return p.choose();
  };
  EXPECT_EQ(status([](Product&) {}), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(status([](Product& p) { Product::set(p.a, CUBLASLT_MATRIX_LAYOUT_LD, int64_t{3}); }),
            CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(status([](Product& p) {
              lib().cublasLtMatrixLayoutInit_internal(&p.b, sizeof p.b, CUDA_R_32F, 5, 5, 5);
            }),
            CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(status([](Product& p) {
              lib().cublasLtMatrixLayoutInit_internal(&p.c, sizeof p.c, CUDA_R_32F, 5, 4, 5);
            }),
            CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(status([](Product& p) { Product::set(p.a, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, int32_t{2}); }),
            CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(status([](Product& p) { p.product = {}; }), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(status([](Product& p) { p.handle = nullptr; }), CUBLAS_STATUS_NOT_INITIALIZED);
}

TEST(EmulatedCublasLt, refuses_types_that_it_has_no_product_of) {
  EXPECT_EQ(Product(CUBLAS_COMPUTE_32F, CUDA_R_64F, CUDA_R_32F).choose(), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(Product(CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_64F).choose(), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(Product(CUBLAS_COMPUTE_32F_FAST_TF32, CUDA_R_32F, CUDA_R_16F).choose(),
            CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(Product(CUBLAS_COMPUTE_64F, CUDA_R_64F, CUDA_R_64F).choose(), CUBLAS_STATUS_SUCCESS);
  Product mixed;
  lib().cublasLtMatrixLayoutInit_internal(&mixed.b, sizeof mixed.b, CUDA_R_16F, 6, 5, 6);
  EXPECT_EQ(mixed.choose(), CUBLAS_STATUS_NOT_SUPPORTED);
}

TEST(EmulatedCublasLt, an_algorithm_is_for_the_problem_that_it_was_found_for) {
  Product p, other(CUBLAS_COMPUTE_32F_FAST_TF32);
  ASSERT_EQ(p.choose(), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(other.choose(), CUBLAS_STATUS_SUCCESS);
  p.found = other.found;
  EXPECT_EQ(p.run(), CUBLAS_STATUS_NOT_SUPPORTED);
  p.found = {};
  EXPECT_EQ(p.run(), CUBLAS_STATUS_INVALID_VALUE);
}

TEST(EmulatedCublasLt, an_algorithm_gets_its_workspace) {
  Product p(CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_32F, 60);
  p.prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
           static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  ASSERT_EQ(p.choose(), CUBLAS_STATUS_SUCCESS);
  ASSERT_GT(p.found.workspaceSize, 0u);
  EXPECT_EQ(
      p.run(p.x.on_device().data, p.y.on_device().data, p.z.on_device().data, p.found.workspaceSize - 1),
      CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(p.run(), CUBLAS_STATUS_SUCCESS);
}

TEST(EmulatedCublasLt, pointers_keep_what_the_preference_promised) {
  Product p;
  ASSERT_EQ(p.choose(), CUBLAS_STATUS_SUCCESS);
  auto* const x = p.x.on_device().as<float>();
  EXPECT_THROW(p.run(x + 4, p.y.on_device().data, p.z.on_device().data), Fault);  // 256 bytes unless told
  p.prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, uint32_t{16});
  ASSERT_EQ(p.choose(), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(p.run(x + 4, p.y.on_device().data, p.z.on_device().data), CUBLAS_STATUS_SUCCESS);
  EXPECT_THROW(p.run(x + 1, p.y.on_device().data, p.z.on_device().data), Fault);
  Operand bias(kFloat32, {8});
  p.set(CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<uint32_t>(CUBLASLT_EPILOGUE_BIAS));
  EXPECT_EQ(p.choose(), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(p.run(), CUBLAS_STATUS_INVALID_VALUE);  // no bias
  p.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<void*>(bias.on_device().as<float>() + 1));
  EXPECT_THROW(p.run(), Fault);
  EXPECT_EQ(p.choose(), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(p.run(), CUBLAS_STATUS_SUCCESS);
}

TEST(EmulatedCublasLt, matrices_lie_on_the_device_of_the_handle) {
  Product p;
  ASSERT_EQ(p.choose(), CUBLAS_STATUS_SUCCESS);
  EXPECT_THROW(p.run(p.x.host().data, p.y.on_device().data, p.z.on_device().data), Fault);
  runtime::set_device(1);
  EXPECT_THROW(p.run(), Fault);
  runtime::set_device(0);
}

TEST(EmulatedCublasLt, results_of_a_batch_lie_apart) {
  Product p;
  p.batches(3, 24, 0, 20);
  ASSERT_EQ(p.choose(), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(p.run(), CUBLAS_STATUS_SUCCESS);
  p.batches(3, 24, 0, 0);
  EXPECT_THROW(p.choose(), Fault);
  p.batches(3, 24, 0, 16);
  EXPECT_THROW(p.choose(), Fault);
}

TEST(EmulatedCublasLt, a_write_beyond_the_result_is_found) {
  Product p;
  Operand small(kFloat32, {18});
  ASSERT_EQ(p.choose(), CUBLAS_STATUS_SUCCESS);
#if !defined(WEFT_SIMT_ASAN)
  EXPECT_THROW(p.run(p.x.on_device().data, p.y.on_device().data, small.on_device().data), Fault);
  simt::repair_guards();
#endif
}

TEST(EmulatedCublasLt, sums_in_place_have_no_order) {
  Product p(CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_32F, 60);
  ASSERT_EQ(p.choose(), CUBLAS_STATUS_SUCCESS);  // all reductions are allowed unless told
  ASSERT_EQ(p.run(), CUBLAS_STATUS_SUCCESS);
  const auto first = p.z.device_values();
  int same = 0;
  for (int i = 0; i < 4; ++i) {
    p.run();
    same += p.z.device_values() == first;
  }
  EXPECT_LT(same, 4);
}

}  // namespace
}  // namespace weft::cuda
