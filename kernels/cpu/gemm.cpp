// The engine setting (gemm.h), its description for other workers, and the only calls of oneDNN and of its
// OpenMP library. WEFT_GEMM is read at the first product.
#include <weft/kernels/cpu/gemm.h>

#include <atomic>
#include <cstdlib>
#include <string_view>

#include <weft/kernels/cpu/autotune.h>
#include <weft/kernels/cpu/cpu_backend.h>
#include <weft/kernels/cpu_settings.h>

#ifdef WEFT_WITH_ONEDNN
#include <dlfcn.h>
#include <oneapi/dnnl/dnnl.h>
#endif

namespace weft::kernels {

namespace {

#ifdef WEFT_WITH_ONEDNN
inline constexpr bool kBuiltWithOnednn = true;
#else
inline constexpr bool kBuiltWithOnednn = false;
#endif

GemmEngine checked(const char* what, GemmEngine engine) {
  if (engine == GemmEngine::kOnednn && !kBuiltWithOnednn)
    throw ValueError(str(what, ": this build has no oneDNN"));
  if (engine == GemmEngine::kMkl && !mkl_missing().empty())
    throw ValueError(str(what, ": MKL cannot be loaded: ", mkl_missing()));
  return engine;
}

GemmEngine from_environment() {
  const char* text = std::getenv("WEFT_GEMM");
  const std::string_view name = text ? text : "";
  if (name.empty() || name == "auto") return GemmEngine::kAuto;
  if (name == "tile") return GemmEngine::kTile;
  if (name == "eigen") return GemmEngine::kEigen;
  if (name == "onednn") return checked("WEFT_GEMM", GemmEngine::kOnednn);
  if (name == "mkl") return checked("WEFT_GEMM", GemmEngine::kMkl);
  throw ValueError(str("WEFT_GEMM: takes auto, tile, eigen, onednn or mkl, got \"", name, "\""));
}

std::atomic<int> chosen{-1};

}  // namespace

GemmEngine gemm_engine() {
  int value = chosen.load(std::memory_order_relaxed);
  if (value < 0) {
    value = static_cast<int>(from_environment());
    chosen.store(value, std::memory_order_relaxed);
  }
  return static_cast<GemmEngine>(value);
}

void set_gemm_engine(GemmEngine engine) {
  chosen.store(static_cast<int>(checked("set_gemm_engine", engine)), std::memory_order_relaxed);
}

bool has_onednn() { return kBuiltWithOnednn; }

#ifdef WEFT_WITH_ONEDNN

namespace {

/// Two functions of the OpenMP library that oneDNN uses; null if oneDNN was built without OpenMP.
struct OpenMp {
  int (*max_threads)() = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
  void (*set_threads)(int) = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
};
const OpenMp& openmp() {
  static const OpenMp functions;
  return functions;
}

/// Limits OpenMP to one thread for its lifetime; the setting is per thread.
class OneOmpThread {
 public:
  OneOmpThread() {
    const OpenMp& omp = openmp();
    if (!omp.max_threads || !omp.set_threads) return;
    before_ = omp.max_threads();
    if (before_ != 1) omp.set_threads(1);
  }
  ~OneOmpThread() {
    if (before_ != 1) openmp().set_threads(before_);
  }
  OneOmpThread(const OneOmpThread&) = delete;
  OneOmpThread& operator=(const OneOmpThread&) = delete;

 private:
  int before_ = 1;
};

}  // namespace

void onednn_sgemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, float alpha,
                  const float* a, int64_t lda, const float* b, int64_t ldb, float beta, float* c,
                  int64_t ldc) {
  const OneOmpThread guard;
  const dnnl_status_t status = dnnl_sgemm(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', m, n, k, alpha, a,
                                          lda, b, ldb, beta, c, ldc);
  if (status != dnnl_success)
    throw Error(str("matmul: oneDNN refused [", m, ", ", k, "] x [", k, ", ", n, "] with status ",
                    static_cast<int>(status)));
}

#else

void onednn_sgemm(bool, bool, int64_t, int64_t, int64_t, float, const float*, int64_t, const float*, int64_t,
                  float, float*, int64_t) {
  throw Error("matmul: this build has no oneDNN");
}

#endif

}  // namespace weft::kernels

namespace weft {

std::string product_engines() {
  using kernels::GemmEngine;
  const auto& cpu = kernels::cpu_backend();
  std::string text = str(cpu.isa(), ", table ", cpu.engine_table());
#ifdef WEFT_WITH_ONEDNN
  const dnnl_version_t* const v = dnnl_version();
  text += str(", oneDNN ", v->major, ".", v->minor, ".", v->patch);
#endif
  const GemmEngine engine = kernels::gemm_engine();
  const bool tunes = engine == GemmEngine::kAuto && kernels::autotunes();
  if (engine == GemmEngine::kMkl || (tunes && kernels::autotunes_mkl()))
    text += ", MKL " + kernels::mkl_version();
  if (engine != GemmEngine::kAuto) {
    constexpr const char* kNames[] = {"auto", "tile", "eigen", "onednn", "mkl"};
    text += str(", WEFT_GEMM=", kNames[static_cast<int>(engine)]);
  } else if (tunes) {
    text += ", WEFT_AUTOTUNE=1";
  }
  return text;
}

}  // namespace weft
