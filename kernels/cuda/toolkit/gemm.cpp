// gemm.h over cuBLASLt. cuBLASLt is column-major, so it computes the transposed product c^T = op(b)^T
// op(a)^T, whose columns are the rows of c. The bias then is along its rows, as its epilogue requires.
//
// A plan has the data of a call besides pointers and factors: descriptors, the chosen algorithm and its
// workspace. It is computed once per shape, layout, dtype and alignment, and kept. Split sums are added in
// the compute type in a fixed order, so a call repeats its bits. If there is no algorithm with an epilogue,
// that is kept too.
#include <weft/kernels/cuda/host/gemm.h>

#include <array>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include <weft/kernels/cuda/host/cuda_backend.h>
#include <weft/kernels/cuda/toolkit/cublaslt.h>
#include <weft/kernels/cuda/toolkit/relaxed_capture.h>
#include <weft/kernels/cuda/toolkit/with_room.h>
#include <weft/kernels/cuda_settings.h>

namespace weft::cuda {

namespace {

using cublaslt::check;
using cublaslt::library;

constexpr size_t kMaxPlans = 4096;
// alignment of the widest access of a kernel; plans do not distinguish larger ones
constexpr uint32_t kAlignment = 16;

uint32_t alignment_of(const void* p) {
  const auto bits = reinterpret_cast<uintptr_t>(p) | kAlignment;
  return static_cast<uint32_t>(bits & (~bits + 1));
}

using Key = std::array<int64_t, 16>;
struct KeyHash {
  size_t operator()(const Key& key) const {
    uint64_t h = 0;
    for (const int64_t part : key) h = (h ^ static_cast<uint64_t>(part)) * 0x9E3779B97F4A7C15u, h ^= h >> 29;
    return h;
  }
};

struct Plan {
  cublasLtMatmulDescOpaque_t product;
  cublasLtMatrixLayoutOpaque_t a, b, c;  // cuBLASLt's a is our b
  cublasLtMatmulAlgo_t algorithm;
  size_t workspace = 0;
  bool finishes = true;  // the bias, or the joined step, is part of the product
  // the device has no product of this half type, such as bfloat16 before compute capability 8.0
  bool in_float = false;
};

struct DeviceState {
  std::shared_mutex mutex;
  cublasLtHandle_t handle = nullptr;
  size_t workspace = 0;  // largest workspace of a plan
  std::unordered_map<Key, Plan, KeyHash> plans;
};
DeviceState& state_of(int device) {
  static DeviceState* const all = new DeviceState[128];  // never destroyed
  return all[device];
}

cudaDataType_t data_type(DType t) {
  return t == kFloat16 ? CUDA_R_16F : t == kBFloat16 ? CUDA_R_16BF : t == kFloat32 ? CUDA_R_32F : CUDA_R_64F;
}

template <class T> void set(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t what, T value) {
  check(library().cublasLtMatmulDescSetAttribute(d, what, &value, sizeof value),
        "cublasLtMatmulDescSetAttribute");
}
template <class T>
void set(cublasLtMatmulPreference_t d, cublasLtMatmulPreferenceAttributes_t what, T value) {
  check(library().cublasLtMatmulPreferenceSetAttribute(d, what, &value, sizeof value),
        "cublasLtMatmulPreferenceSetAttribute");
}

void describe(cublasLtMatrixLayoutOpaque_t& layout, DType type, int64_t rows, int64_t columns,
              int64_t leading, int64_t batch, int64_t stride) {
  check(library().cublasLtMatrixLayoutInit_internal(&layout, sizeof layout, data_type(type),
                                                    static_cast<uint64_t>(rows),
                                                    static_cast<uint64_t>(columns), leading),
        "cublasLtMatrixLayoutInit");
  if (batch == 1) return;
  const auto count = static_cast<int32_t>(batch);
  check(library().cublasLtMatrixLayoutSetAttribute(&layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                                   sizeof count),
        "cublasLtMatrixLayoutSetAttribute");
  check(library().cublasLtMatrixLayoutSetAttribute(&layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                                   &stride, sizeof stride),
        "cublasLtMatrixLayoutSetAttribute");
}

void set_bias(Plan& plan, const void* bias) { set(&plan.product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias); }

cublasLtEpilogue_t epilogue_of(const Gemm& g) {
  switch (g.joined) {
    case Joined::kGelu:
      if (!g.beside) return g.bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
      return g.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    case Joined::kGeluGrad: return CUBLASLT_EPILOGUE_DGELU;
    case Joined::kSums: return CUBLASLT_EPILOGUE_BGRADB;  // cuBLASLt's b is our a
    case Joined::kNone: break;
  }
  return CUBLASLT_EPILOGUE_BIAS;
}

/// The pointers of the epilogue.
void point(Plan& plan, const Gemm& g) {
  if (g.joined == Joined::kSums) return set_bias(plan, g.beside);
  if (g.bias) set_bias(plan, g.bias);
  if (g.joined != Joined::kNone && g.beside)
    set(&plan.product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, g.beside);
}

// Finds an algorithm for the plan and stores it there. Returns false if cuBLASLt has none.
bool choose(const DeviceState& state, const Gemm& g, Plan& plan) {
  cublasLtMatmulPreferenceOpaque_t preference;
  check(library().cublasLtMatmulPreferenceInit_internal(&preference, sizeof preference),
        "cublasLtMatmulPreferenceInit");
  set(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(state.workspace));
  set(&preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  set(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(g.b));
  set(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(g.a));
  set(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(g.c));
  set(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(g.c));
  cublasLtMatmulHeuristicResult_t found = {};
  int count = 0;
  const cublasStatus_t status = library().cublasLtMatmulAlgoGetHeuristic(
      state.handle, &plan.product, &plan.a, &plan.b, &plan.c, &plan.c, &preference, 1, &found, &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_ARCH_MISMATCH ||
      (status == CUBLAS_STATUS_INVALID_VALUE && plan.finishes && (g.bias || g.joined != Joined::kNone)))
    return false;
  check(status, "cublasLtMatmulAlgoGetHeuristic");
  if (count == 0 || found.state != CUBLAS_STATUS_SUCCESS) return false;
  plan.algorithm = found.algo;
  plan.workspace = found.workspaceSize;
  return true;
}

Plan make_plan(const CudaBackend& backend, const DeviceState& state, const Gemm& g, bool tf32) {
  Plan plan;
  const bool wide = g.dtype == kFloat64;
  const cublasComputeType_t compute = wide   ? CUBLAS_COMPUTE_64F
                                      : tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                             : CUBLAS_COMPUTE_32F;
  check(library().cublasLtMatmulDescInit_internal(&plan.product, sizeof plan.product, compute,
                                                  wide ? CUDA_R_64F : CUDA_R_32F),
        "cublasLtMatmulDescInit");
  set(&plan.product, CUBLASLT_MATMUL_DESC_TRANSA,
      static_cast<int32_t>(g.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N));
  set(&plan.product, CUBLASLT_MATMUL_DESC_TRANSB,
      static_cast<int32_t>(g.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N));
  describe(plan.a, g.dtype, g.transpose_b ? g.k : g.n, g.transpose_b ? g.n : g.k, g.ldb, g.batch, g.stride_b);
  describe(plan.b, g.dtype, g.transpose_a ? g.m : g.k, g.transpose_a ? g.k : g.m, g.lda, g.batch, g.stride_a);
  describe(plan.c, g.out(), g.n, g.m, g.ldc, g.batch, g.stride_c);
  if (g.bias || g.joined != Joined::kNone) {
    set(&plan.product, CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<uint32_t>(epilogue_of(g)));
    if (g.beside && g.joined != Joined::kSums)
      set(&plan.product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, g.beside_row);
    point(plan, g);
    plan.finishes = choose(state, g, plan);
    if (plan.finishes || g.joined != Joined::kNone) return plan;
    set(&plan.product, CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<uint32_t>(CUBLASLT_EPILOGUE_DEFAULT));
    set_bias(plan, nullptr);
  }
  if (choose(state, g, plan)) return plan;
  if (is_half(g.dtype)) {
    plan.in_float = true;
    return plan;
  }
  const runtime::Properties device = runtime::properties(backend.index());
  throw CudaError(str("cublasLtMatmulAlgoGetHeuristic: no algorithm for ", g.dtype, " [", g.m, ", ", g.k,
                      "] x [", g.k, ", ", g.n, "], batch ", g.batch, ", rows of ", g.lda, ", ", g.ldb,
                      " and ", g.ldc, ", on a device of compute capability ", device.major, ".",
                      device.minor));
}

Plan plan_for(CudaBackend& backend, DeviceState& state, const Gemm& g) {
  const bool tf32 = g.dtype == kFloat32 && allow_tf32();
  const int64_t flags = static_cast<int64_t>(g.dtype) | g.wide << 4 | g.transpose_a << 5 |
                        g.transpose_b << 6 | (g.bias != nullptr) << 7 | tf32 << 8 |
                        static_cast<int64_t>(g.joined) << 9 | (g.beside != nullptr) << 11;
  const auto align = [](const void* p) { return static_cast<int64_t>(alignment_of(p)); };
  const int64_t alignments =
      align(g.a) | align(g.b) << 8 | align(g.c) << 16 | align(g.bias) << 24 | align(g.beside) << 32;
  const Key key{flags, alignments, g.m,        g.n,        g.k,        g.batch,     g.lda,
                g.ldb, g.ldc,      g.stride_a, g.stride_b, g.stride_c, g.beside_row};
  {
    const std::shared_lock lock(state.mutex);
    if (const auto found = state.plans.find(key); found != state.plans.end()) return found->second;
  }
  const std::unique_lock lock(state.mutex);
  // during a recording too: the handle allocates memory, and none of this is recorded
  const RelaxedCapture mode;
  if (!state.handle) {
    with_room(backend, [&] { check(library().cublasLtCreate(&state.handle), "cublasLtCreate"); });
    state.workspace = (runtime::properties(backend.index()).major >= 9 ? size_t{32} : size_t{4}) << 20;
  }
  if (state.plans.size() >= kMaxPlans) state.plans.clear();
  return state.plans.try_emplace(key, make_plan(backend, state, g, tf32)).first->second;
}

void run(CudaBackend& backend, const DeviceState& state, void* stream, const Gemm& g, Plan& plan) {
  if (plan.finishes) point(plan, g);
  const auto alpha32 = static_cast<float>(g.alpha), beta32 = static_cast<float>(g.beta);
  const bool wide = g.dtype == kFloat64;
  const void* const alpha = wide ? static_cast<const void*>(&g.alpha) : &alpha32;
  const void* const beta = wide ? static_cast<const void*>(&g.beta) : &beta32;
  const Scratch workspace(backend, Context{.stream = stream}, plan.workspace);
  // during a recording too: the first call of an algorithm loads its kernel, which is not recorded
  const RelaxedCapture mode;
  const TraceSpan span("cublasLtMatmul", stream);
  check(library().cublasLtMatmul(state.handle, &plan.product, alpha, g.b, &plan.a, g.a, &plan.b, beta, g.c,
                                 &plan.c, g.c, &plan.c, &plan.algorithm, workspace.as<void>(),
                                 workspace.bytes(), static_cast<cudaStream_t>(stream)),
        "cublasLtMatmul");
}

// Separate steps: the bias of products that cuBLASLt has no epilogue for, and relu. The epilogue with relu
// makes 0 of NaN in half types.
void finish(CudaBackend& backend, void* stream, const Gemm& g, bool bias) {
  Context context{.stream = stream};
  const View c{g.c, g.out(), {g.batch, g.m, g.n}, {g.stride_c, g.ldc, 1}};
  if (bias)
    backend.binary(context, Binary::kAdd, 1, 0, c, {const_cast<void*>(g.bias), g.out(), c.sizes, {0, 0, 1}},
                   c);
  if (g.relu) backend.unary(context, Unary::kRelu, 0, 0, c, c);
}

}  // namespace

void gemm(CudaBackend& backend, void* stream, const Gemm& g) {
  DeviceState& state = state_of(backend.index());
  Plan plan = plan_for(backend, state, g);
  if (plan.in_float) return gemm_in_float(backend, stream, g);
  run(backend, state, stream, g, plan);
  finish(backend, stream, g, g.bias && !plan.finishes);
}

bool gemm_joined(CudaBackend& backend, void* stream, const Gemm& g) {
  DeviceState& state = state_of(backend.index());
  Plan plan = plan_for(backend, state, g);
  if (plan.finishes) run(backend, state, stream, g, plan);
  return plan.finishes;
}

}  // namespace weft::cuda
