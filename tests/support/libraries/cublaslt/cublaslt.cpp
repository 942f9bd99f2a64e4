// cuBLASLt's matrix products on the emulated device. Matrices are column-major. Sums are computed in double
// and rounded to the compute type, in three parts if the caller gives a workspace for them. Sums in place are
// joined in another order each time, since a device does not define the order. This file is a separate shared
// library, opened like cuBLASLt.
#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include <weft/kernels/error.h>
#include "support/libraries/cublaslt/epilogue.h"
#include "support/libraries/libraries.h"
#include "support/simt/thread.h"

namespace weft::cuda::libraries {

namespace {

using simt::Fault;

// The contents of the opaque structs. The first number of each marks a struct made by its Init function.
struct Matrix {
  static constexpr uint32_t kMade = 0x4D415458;
  uint32_t made = kMade;
  int32_t type = 0;
  uint64_t rows = 0, columns = 0;
  int64_t leading = 0;
  int32_t batch = 1, order = CUBLASLT_ORDER_COL;
  int64_t stride = 0;
};
struct Product {
  static constexpr uint32_t kMade = 0x50524F44;
  uint32_t made = kMade;
  int32_t compute = 0, scale = 0, pointers = CUBLASLT_POINTER_MODE_HOST;
  int32_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N, transpose_c = CUBLAS_OP_N, bias_type = -1;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  int64_t bias_stride = 0;
  void* aux = nullptr;
  int64_t aux_leading = 0;
  int32_t aux_type = -1;
};
struct Preference {
  static constexpr uint32_t kMade = 0x50524546;
  uint32_t made = kMade, reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
  uint64_t workspace = 0;
  std::array<uint32_t, 4> alignment = {256, 256, 256, 256};  // of a, b, c, d
};
struct Algorithm {
  static constexpr uint32_t kMade = 0x414C474F;
  uint32_t made = kMade, in_place = 0;
  uint64_t workspace = 0, problem = 0;
  std::array<uint32_t, 6> alignment = {};  // the last are of the bias and of the other matrix of an epilogue
};

template <class T, class Opaque> T peek(const Opaque* o) {
  static_assert(sizeof(T) <= sizeof(Opaque));
  T t;
  std::memcpy(static_cast<void*>(&t), o, sizeof t);
  return t;
}
template <class T, class Opaque> void put(Opaque* o, const T& t) { std::memcpy(o, &t, sizeof t); }
template <class T, class Opaque> bool made(const Opaque* o) { return o && peek<T>(o).made == T::kMade; }

template <class T> cublasStatus_t take(T& field, const void* from, size_t bytes) {
  if (!from || bytes != sizeof field) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&field, from, sizeof field);
  return CUBLAS_STATUS_SUCCESS;
}

DType type_of(int32_t t) {
  return t == CUDA_R_16F ? kFloat16 : t == CUDA_R_16BF ? kBFloat16 : t == CUDA_R_32F ? kFloat32 : kFloat64;
}
/// The alignment of a pointer, up to 256.
uint32_t alignment_of(const void* p) {
  const auto bits = reinterpret_cast<uintptr_t>(p) | 256;
  return static_cast<uint32_t>(bits & (~bits + 1));
}

/// True if two elements of a written matrix share memory.
bool overlaps(const Matrix& x) {
  std::array<std::pair<int64_t, int64_t>, 3> dims = {
      {{1, x.rows}, {x.leading, x.columns}, {x.stride, x.batch}}};
  std::sort(dims.begin(), dims.end());
  int64_t reach = 0;
  for (const auto& [stride, size] : dims) {
    if (size > 1 && stride <= reach) return true;
    reach += stride * (size - 1);
  }
  return false;
}

/// The description of one call.
struct Problem {
  Product p;
  Matrix a, b, c, d;
  int64_t m() const { return static_cast<int64_t>(d.rows); }
  int64_t n() const { return static_cast<int64_t>(d.columns); }
  int64_t k() const { return static_cast<int64_t>(p.transpose_a == CUBLAS_OP_N ? a.columns : a.rows); }
  /// A key of the problems for which one algorithm is valid.
  uint64_t key() const {
    uint64_t h = 0;
    for (const int64_t part :
         {int64_t{p.compute}, int64_t{p.transpose_a}, int64_t{p.transpose_b}, int64_t{p.epilogue},
          int64_t{a.type}, int64_t{c.type}, m(), n(), k(), int64_t{d.batch}})
      h = (h ^ static_cast<uint64_t>(part)) * 0x100000001B3u;
    return h;
  }
};

bool known_types(const Problem& q) {
  if (q.b.type != q.a.type || q.c.type != q.d.type) return false;
  const int32_t in = q.a.type, out = q.d.type;
  switch (q.p.compute) {
    case CUBLAS_COMPUTE_64F: return q.p.scale == CUDA_R_64F && in == CUDA_R_64F && out == CUDA_R_64F;
    case CUBLAS_COMPUTE_32F_FAST_TF32:
      return q.p.scale == CUDA_R_32F && in == CUDA_R_32F && out == CUDA_R_32F;
    case CUBLAS_COMPUTE_32F:
      if (q.p.scale != CUDA_R_32F) return false;
      return in == CUDA_R_32F ? out == CUDA_R_32F
                              : (in == CUDA_R_16F || in == CUDA_R_16BF) && (out == in || out == CUDA_R_32F);
    default: return false;
  }
}

/// The rules of the epilogues beyond bias and relu. The documentation lists no products of doubles, and none
/// with a result of another type, that have them.
cublasStatus_t check_epilogue(const Problem& q) {
  const Product& p = q.p;
  if (!has(p.epilogue, kGelu | kGeluGrad) && !has_sums(p.epilogue)) return CUBLAS_STATUS_SUCCESS;
  if (q.a.type == CUDA_R_64F || q.a.type != q.d.type) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (q.d.batch != 1) throw Fault("cuBLASLt: this epilogue is not emulated for a batch");
  if (!has(p.epilogue, kAux)) return CUBLAS_STATUS_SUCCESS;
  if (p.aux_leading % 8 != 0 || p.aux_leading < q.m()) return CUBLAS_STATUS_INVALID_VALUE;
  return p.aux_type == -1 || p.aux_type == q.d.type ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t check(const Problem& q) {
  const Product& p = q.p;
  if (p.pointers != CUBLASLT_POINTER_MODE_HOST)
    throw Fault("cuBLASLt: factors on the device are not emulated");
  for (const Matrix* x : {&q.a, &q.b, &q.c, &q.d}) {
    if (x->order != CUBLASLT_ORDER_COL) throw Fault("cuBLASLt: only matrices in columns are emulated");
    if (x->rows == 0 || x->columns == 0 || x->batch < 1 || x->leading < static_cast<int64_t>(x->rows))
      return CUBLAS_STATUS_INVALID_VALUE;
    if (x->batch != q.d.batch) return CUBLAS_STATUS_INVALID_VALUE;
  }
  const auto transposes = [](int32_t t) { return t == CUBLAS_OP_N || t == CUBLAS_OP_T; };
  if (!transposes(p.transpose_a) || !transposes(p.transpose_b) || p.transpose_c != CUBLAS_OP_N)
    return CUBLAS_STATUS_INVALID_VALUE;
  const bool ta = p.transpose_a == CUBLAS_OP_T, tb = p.transpose_b == CUBLAS_OP_T;
  if ((ta ? q.a.columns : q.a.rows) != q.d.rows || (tb ? q.b.rows : q.b.columns) != q.d.columns ||
      (ta ? q.a.rows : q.a.columns) != (tb ? q.b.columns : q.b.rows))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (q.c.rows != q.d.rows || q.c.columns != q.d.columns) return CUBLAS_STATUS_INVALID_VALUE;
  if (overlaps(q.d)) throw Fault("cuBLASLt: elements of the result share memory");
  if (!known_types(q)) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (!is_emulated(p.epilogue)) throw Fault(str("cuBLASLt: epilogue ", p.epilogue, " is not emulated"));
  if ((has(p.epilogue, kBias) || has_sums(p.epilogue)) && p.bias_type != -1 && p.bias_type != q.d.type)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  return check_epilogue(q);
}

Refusal refusal_of(const Problem& q) {
  if (settings().products != Refusal::kNone) return settings().products;
  if (q.p.epilogue != CUBLASLT_EPILOGUE_DEFAULT && settings().epilogues != Refusal::kNone)
    return settings().epilogues;
  return q.a.type == CUDA_R_16F || q.a.type == CUDA_R_16BF ? settings().halves : Refusal::kNone;
}

constexpr int kParts = 3;
constexpr int64_t kShortSum = 24;  // a sum of up to this many terms has one part

double to_tf32(double v) {
  int exponent = 0;
  const double fraction = std::frexp(v, &exponent);  // 11 bits, the leading one among them
  return std::isfinite(v) ? std::ldexp(std::nearbyint(std::ldexp(fraction, 11)), exponent - 11) : v;
}

struct Call {
  Problem q;
  Algorithm algorithm;
  double alpha = 1, beta = 0;
  const void *a = nullptr, *b = nullptr, *c = nullptr;
  void *d = nullptr, *workspace = nullptr;
};

/// op(x) of batch entry i as rows of `width` numbers. `across`: the entries of a row are one
/// leading dimension apart.
std::vector<double> rows_of(const Matrix& x, const void* p, int64_t i, int64_t height, int64_t width,
                            bool across, bool tf32) {
  const DType type = type_of(x.type);
  std::vector<double> all;
  all.reserve(static_cast<size_t>(height * width));
  for (int64_t r = 0; r < height; ++r) {
    const int64_t first = i * x.stride + (across ? r : r * x.leading);
    const std::vector<double> row =
        load(type, static_cast<const char*>(p) + first * size_of(type), width, across ? x.leading : 1);
    all.insert(all.end(), row.begin(), row.end());
  }
  if (tf32)
    for (double& v : all) v = to_tf32(v);
  return all;
}

/// The sums of `rows` rows of k numbers to the place of the bias.
void store_sums(const Problem& q, DType out, const std::vector<double>& of, int64_t rows, int64_t k) {
  std::vector<double> sums(static_cast<size_t>(rows));
  for (size_t i = 0; i < of.size(); ++i) sums[i / static_cast<size_t>(k)] += of[i];
  store(out, const_cast<void*>(q.p.bias), sums.data(), rows);
}

void run(const Call& call) {
  const Problem& q = call.q;
  const int64_t m = q.m(), n = q.n(), k = q.k();
  const DType out = type_of(q.d.type), compute = q.p.compute == CUBLAS_COMPUTE_64F ? kFloat64 : kFloat32;
  const bool tf32 = q.p.compute == CUBLAS_COMPUTE_32F_FAST_TF32,
             split = call.algorithm.workspace > 0 || call.algorithm.in_place;
  static int turn = 0;
  const int first_part = call.algorithm.in_place ? turn++ % kParts : 0;
  if (call.algorithm.workspace > 0) std::memset(call.workspace, 0x5A, call.algorithm.workspace);
  const uint32_t epilogue = q.p.epilogue;
  std::vector<double> column(static_cast<size_t>(m)), beside = column, sums = column;
  for (int64_t i = 0; i < q.d.batch; ++i) {
    const std::vector<double> a = rows_of(q.a, call.a, i, m, k, q.p.transpose_a == CUBLAS_OP_N, tf32),
                              b = rows_of(q.b, call.b, i, n, k, q.p.transpose_b != CUBLAS_OP_N, tf32);
    const std::vector<double> bias =
        has(epilogue, kBias)
            ? load(out, static_cast<const char*>(q.p.bias) + i * q.p.bias_stride * size_of(out), m)
            : std::vector<double>();
    if (has(epilogue, kSumsOfA)) store_sums(q, out, a, m, k);
    if (has(epilogue, kSumsOfB)) store_sums(q, out, b, n, k);
    for (int64_t s = 0; s < n; ++s) {
      void* const aux = static_cast<char*>(q.p.aux) + s * q.p.aux_leading * size_of(out);
      if (has(epilogue, kGeluGrad)) beside = load(out, aux, m);
      const std::vector<double> before =
          call.beta != 0
              ? load(out,
                     static_cast<const char*>(call.c) + (i * q.c.stride + s * q.c.leading) * size_of(out), m)
              : std::vector<double>();
      for (int64_t r = 0; r < m; ++r) {
        const double *x = &a[static_cast<size_t>(r * k)], *y = &b[static_cast<size_t>(s * k)];
        double sum = 0;
        for (int part = 0; part < (split ? kParts : 1); ++part) {
          const int at = (first_part + part) % kParts;
          const int64_t begin = split ? k * at / kParts : 0, end = split ? k * (at + 1) / kParts : k;
          double piece = 0;
          for (int64_t l = begin; l < end; ++l) piece += x[l] * y[l];
          sum = rounded(compute, sum + rounded(compute, piece));
        }
        double v = call.alpha * sum;
        const auto row = static_cast<size_t>(r);
        if (call.beta != 0) v += call.beta * before[row];
        if (!bias.empty()) v += bias[row];
        if (has(epilogue, kGelu)) {
          beside[row] = v;
          v = gelu(v);
        }
        if (has(epilogue, kGeluGrad)) v *= gelu_slope(beside[row]);
        sums[row] += v;
        column[row] = has(epilogue, kRelu) && v < 0 ? 0 : v;
      }
      if (has(epilogue, kGelu) && has(epilogue, kAux)) store(out, aux, beside.data(), m);
      store(out, static_cast<char*>(call.d) + (i * q.d.stride + s * q.d.leading) * size_of(out),
            column.data(), m);
    }
  }
  if (has(epilogue, kBiasGrad)) store(out, const_cast<void*>(q.p.bias), sums.data(), m);
}

}  // namespace

}  // namespace weft::cuda::libraries

using namespace weft::cuda::libraries;

struct cublasLtContext {
  int device;
  std::mutex mutex = {};
  std::set<uint64_t> loaded = {};  // problems whose algorithm has its kernel on the device
  /// The first call of an algorithm loads its kernel, which a recording allows in relaxed mode only.
  bool loads(uint64_t problem) {
    const std::lock_guard lock(mutex);
    if (loaded.contains(problem)) return true;
    if (!may_allocate("cublasLtMatmul")) return false;
    loaded.insert(problem);
    return true;
  }
};

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  if (!handle) return CUBLAS_STATUS_INVALID_VALUE;
  if (finds_no_memory("cublasLtCreate")) return CUBLAS_STATUS_ALLOC_FAILED;
  if (!may_allocate("cublasLtCreate")) return CUBLAS_STATUS_NOT_INITIALIZED;
  static std::mutex mutex;
  static auto* const handles = new std::vector<std::unique_ptr<cublasLtContext>>;  // never destroyed
  const std::lock_guard lock(mutex);
  *handle = handles->emplace_back(new cublasLtContext{weft::cuda::simt::current_device()}).get();
  return CUBLAS_STATUS_SUCCESS;
}
size_t cublasLtGetVersion() { return CUBLAS_VERSION; }
const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_ARCH_MISMATCH: return "CUBLAS_STATUS_ARCH_MISMATCH";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    default: return "CUBLAS_STATUS_EXECUTION_FAILED";
  }
}
const char* cublasLtGetStatusString(cublasStatus_t status) { return cublasLtGetStatusName(status); }

cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t layout, size_t size,
                                                 cudaDataType type, uint64_t rows, uint64_t columns,
                                                 int64_t leading) {
  if (!layout || size < sizeof(Matrix)) return CUBLAS_STATUS_ALLOC_FAILED;
  put(layout, Matrix{.type = type, .rows = rows, .columns = columns, .leading = leading});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t what, const void* value,
                                                size_t bytes) {
  if (!made<Matrix>(layout)) return CUBLAS_STATUS_INVALID_VALUE;
  auto x = peek<Matrix>(layout);
  cublasStatus_t status = CUBLAS_STATUS_INVALID_VALUE;
  switch (what) {
    case CUBLASLT_MATRIX_LAYOUT_ORDER: status = take(x.order, value, bytes); break;
    case CUBLASLT_MATRIX_LAYOUT_LD: status = take(x.leading, value, bytes); break;
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT: status = take(x.batch, value, bytes); break;
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET: status = take(x.stride, value, bytes); break;
    default:
      throw Fault(weft::str("cuBLASLt: attribute ", static_cast<int>(what), " of a layout is not emulated"));
  }
  put(layout, x);
  return status;
}

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t product, size_t size,
                                               cublasComputeType_t compute, cudaDataType_t scale) {
  if (!product || size < sizeof(Product)) return CUBLAS_STATUS_ALLOC_FAILED;
  put(product, Product{.compute = compute, .scale = scale});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product,
                                              cublasLtMatmulDescAttributes_t what, const void* value,
                                              size_t bytes) {
  if (!made<Product>(product)) return CUBLAS_STATUS_INVALID_VALUE;
  auto p = peek<Product>(product);
  cublasStatus_t status = CUBLAS_STATUS_INVALID_VALUE;
  switch (what) {
    case CUBLASLT_MATMUL_DESC_POINTER_MODE: status = take(p.pointers, value, bytes); break;
    case CUBLASLT_MATMUL_DESC_TRANSA: status = take(p.transpose_a, value, bytes); break;
    case CUBLASLT_MATMUL_DESC_TRANSB: status = take(p.transpose_b, value, bytes); break;
    case CUBLASLT_MATMUL_DESC_TRANSC: status = take(p.transpose_c, value, bytes); break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE: status = take(p.epilogue, value, bytes); break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: status = take(p.bias, value, bytes); break;
    case CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE: status = take(p.bias_stride, value, bytes); break;
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: status = take(p.bias_type, value, bytes); break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: status = take(p.aux, value, bytes); break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: status = take(p.aux_leading, value, bytes); break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE: status = take(p.aux_type, value, bytes); break;
    default:
      throw Fault(weft::str("cuBLASLt: attribute ", static_cast<int>(what), " of a product is not emulated"));
  }
  put(product, p);
  return status;
}

cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t preference, size_t size) {
  if (!preference || size < sizeof(Preference)) return CUBLAS_STATUS_ALLOC_FAILED;
  put(preference, Preference{});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t what,
                                                    const void* value, size_t bytes) {
  if (!made<Preference>(preference)) return CUBLAS_STATUS_INVALID_VALUE;
  auto p = peek<Preference>(preference);
  cublasStatus_t status = CUBLAS_STATUS_INVALID_VALUE;
  switch (what) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: status = take(p.workspace, value, bytes); break;
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: status = take(p.reductions, value, bytes); break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: status = take(p.alignment[0], value, bytes); break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: status = take(p.alignment[1], value, bytes); break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: status = take(p.alignment[2], value, bytes); break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: status = take(p.alignment[3], value, bytes); break;
    default: throw Fault(weft::str("cuBLASLt: preference ", static_cast<int>(what), " is not emulated"));
  }
  put(preference, p);
  return status;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int* count) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!made<Product>(product) || !made<Matrix>(a) || !made<Matrix>(b) || !made<Matrix>(c) ||
      !made<Matrix>(d) || !made<Preference>(preference))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (wanted <= 0 || !results || !count) return CUBLAS_STATUS_INVALID_VALUE;
  *count = 0;
  const Problem q{peek<Product>(product), peek<Matrix>(a), peek<Matrix>(b), peek<Matrix>(c), peek<Matrix>(d)};
  if (const cublasStatus_t status = check(q); status != CUBLAS_STATUS_SUCCESS) return status;
  const Refusal refusal = refusal_of(q);
  switch (refusal) {
    case Refusal::kNotSupported: return CUBLAS_STATUS_NOT_SUPPORTED;
    case Refusal::kInvalidValue: return CUBLAS_STATUS_INVALID_VALUE;
    case Refusal::kArchMismatch: return CUBLAS_STATUS_ARCH_MISMATCH;
    case Refusal::kNoAlgorithm: return CUBLAS_STATUS_SUCCESS;
    case Refusal::kBadState:
      results[0] = {};
      results[0].state = CUBLAS_STATUS_NOT_SUPPORTED;
      *count = 1;
      return CUBLAS_STATUS_SUCCESS;
    case Refusal::kNone: break;
  }
  const auto p = peek<Preference>(preference);
  Algorithm algorithm;
  algorithm.problem = q.key();
  std::copy(p.alignment.begin(), p.alignment.end(), algorithm.alignment.begin());
  if (has(q.p.epilogue, kBias) || has_sums(q.p.epilogue)) algorithm.alignment[4] = alignment_of(q.p.bias);
  if (has(q.p.epilogue, kAux)) algorithm.alignment[5] = alignment_of(q.p.aux);
  if (q.k() > kShortSum) {
    const uint64_t room = static_cast<uint64_t>(kParts * q.m() * q.n() * q.d.batch) *
                          (q.p.compute == CUBLAS_COMPUTE_64F ? 8 : 4);
    if (p.reductions & CUBLASLT_REDUCTION_SCHEME_INPLACE) algorithm.in_place = 1;
    else if ((p.reductions & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) && room <= p.workspace)
      algorithm.workspace = room;
  }
  results[0] = {};
  put(&results[0].algo, algorithm);
  results[0].workspaceSize = algorithm.workspace;
  results[0].state = CUBLAS_STATUS_SUCCESS;
  *count = 1;
  ++counts().heuristics;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t product, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace, size_t workspace_bytes,
                              cudaStream_t stream) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (handle->device != weft::cuda::simt::current_device())
    throw Fault("cublasLtMatmul: the handle is another device's");
  if (!made<Product>(product) || !made<Matrix>(a_layout) || !made<Matrix>(b_layout) ||
      !made<Matrix>(c_layout) || !made<Matrix>(d_layout))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (!alpha || !beta || !a || !b || !d) return CUBLAS_STATUS_INVALID_VALUE;
  if (!algorithm) throw Fault("cublasLtMatmul: a choice of its own is not emulated");
  if (!made<Algorithm>(algorithm)) return CUBLAS_STATUS_INVALID_VALUE;
  Call call{{peek<Product>(product), peek<Matrix>(a_layout), peek<Matrix>(b_layout), peek<Matrix>(c_layout),
             peek<Matrix>(d_layout)},
            peek<Algorithm>(algorithm),
            1,
            0,
            a,
            b,
            c,
            d,
            workspace};
  if (const cublasStatus_t status = check(call.q); status != CUBLAS_STATUS_SUCCESS) return status;
  const Product& p = call.q.p;
  if (call.algorithm.problem != call.q.key()) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (call.algorithm.workspace > workspace_bytes) return CUBLAS_STATUS_INVALID_VALUE;
  if (c == d && std::memcmp(c_layout, d_layout, sizeof(Matrix)) != 0) return CUBLAS_STATUS_INVALID_VALUE;
  const bool bias = has(p.epilogue, kBias) || has_sums(p.epilogue), aux = has(p.epilogue, kAux);
  if ((bias && !p.bias) || (aux && !p.aux)) return CUBLAS_STATUS_INVALID_VALUE;
  call.alpha = load(type_of(p.scale), alpha, 1)[0], call.beta = load(type_of(p.scale), beta, 1)[0];
  if (call.beta != 0 && !c) return CUBLAS_STATUS_INVALID_VALUE;
  if (call.algorithm.workspace > 0) expect_device(workspace, 256, "cublasLtMatmul: the workspace");
  const auto& alignment = call.algorithm.alignment;
  expect_device(a, alignment[0], "cublasLtMatmul: a");
  expect_device(b, alignment[1], "cublasLtMatmul: b");
  if (c) expect_device(c, alignment[2], "cublasLtMatmul: c");
  expect_device(d, alignment[3], "cublasLtMatmul: d");
  if (bias) expect_device(p.bias, std::min<uint32_t>(alignment[4], 16), "cublasLtMatmul: the bias");
  if (aux)
    expect_device(p.aux, std::min<uint32_t>(alignment[5], 16), "cublasLtMatmul: the epilogue's matrix");
  if (!handle->loads(call.algorithm.problem)) return CUBLAS_STATUS_NOT_INITIALIZED;
  ++counts().products;
  counts().epilogues += p.epilogue != CUBLASLT_EPILOGUE_DEFAULT;
  counts().last_epilogue = p.epilogue;
  counts().split += call.algorithm.workspace > 0 || call.algorithm.in_place;
  issue(stream, "cublasLtMatmul", [call] { run(call); });
  return CUBLAS_STATUS_SUCCESS;
}
