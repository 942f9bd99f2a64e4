// The parts of the CPU backend that do not depend on the instruction set, and the choice of the set. "avx2"
// is AVX2 with FMA and F16C; "avx512" is AVX-512 F, BW, DQ and VL.
#include <weft/kernels/cpu/cpu_backend.h>

#if defined(WEFT_ISA_AVX2) || defined(WEFT_ISA_AVX512)
#include <cpuid.h>
#endif

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string_view>
#include <vector>

#include <weft/kernels/cpu/allocator.h>
#include <weft/kernels/cpu_settings.h>
#include <weft/kernels/inner/loss_scale.h>
#include <weft/kernels/inner/norm.h>

namespace weft::kernels {

namespace isa_base {
CpuBackend* make_backend(const char* isa);
}
namespace isa_avx2 {
CpuBackend* make_backend(const char* isa);
}
namespace isa_avx512 {
CpuBackend* make_backend(const char* isa);
}

Device CpuBackend::device() const { return kCpu; }
void* CpuBackend::allocate(size_t bytes) { return kernels::allocate(bytes); }
void CpuBackend::deallocate(void* p, size_t bytes) noexcept { kernels::deallocate(p, bytes); }
void CpuBackend::copy_from_host(Context&, const void* host, void* to, size_t bytes) {
  if (bytes > 0) std::memcpy(to, host, bytes);
}
void CpuBackend::copy_to_host(Context&, const void* from, void* host, size_t bytes) {
  if (bytes > 0) std::memcpy(host, from, bytes);
}

void CpuBackend::clip_norm(Context& context, double max_norm, double p, std::span<const View> xs, View norm,
                           View factor) {
  std::vector<double> each(xs.size());
  powers(context, p, xs, each.data());
  NormSum sum(p);
  for (const double power : each) sum.add(power);
  *norm.as<double>() = sum.norm();
  const double by = clip_factor(sum.norm(), max_norm);
  if (factor.defined()) *factor.as<double>() = by;
  else scale(context, by, xs);
}

void CpuBackend::unscale(Context& context, std::span<const View> xs, View state) {
  auto& found = *state.as<LossScale>();
  scale(context, found.inverse, xs);
  std::vector<double> largest(xs.size());
  powers(context, std::numeric_limits<double>::infinity(), xs, largest.data());
  for (const double x : largest)
    if (!std::isfinite(x)) found.nonfinite = 1;
}

void CpuBackend::update_scale(Context&, double growth, double backoff, int64_t interval, View state) {
  state.as<LossScale>()->update(growth, backoff, interval);
}

void CpuBackend::synchronize() {}

namespace {

#if defined(WEFT_ISA_AVX2) || defined(WEFT_ISA_AVX512)
/// Clang 14 has no name for F16C.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c(); }
#endif

/// The backend of an instruction set, or null if this machine or build lacks it. Never destroyed, since
/// tensors in static storage may outlive main.
CpuBackend* backend_named(std::string_view name) {
  if (name == "baseline") {
    static CpuBackend* const base = isa_base::make_backend("baseline");
    return base;
  }
#ifdef WEFT_ISA_AVX2
  if (name == "avx2" && has_avx2()) {
    static CpuBackend* const avx2 = isa_avx2::make_backend("avx2");
    return avx2;
  }
#endif
#ifdef WEFT_ISA_AVX512
  if (name == "avx512" && has_avx2() && __builtin_cpu_supports("avx512f") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    static CpuBackend* const avx512 = isa_avx512::make_backend("avx512");
    return avx512;
  }
#endif
  return nullptr;
}

CpuBackend& checked(const char* what, std::string_view name) {
  if (CpuBackend* const found = backend_named(name)) return *found;
  const bool known = name == "baseline" || name == "avx2" || name == "avx512";
  if (known) throw ValueError(str(what, ": this machine does not run ", name));
  throw ValueError(str(what, ": takes baseline, avx2 or avx512, got \"", name, "\""));
}

}  // namespace

std::atomic<CpuBackend*> cpu_backend_in_use{nullptr};

CpuBackend& choose_cpu_backend() {
  CpuBackend* chosen = nullptr;
  if (const char* wanted = std::getenv("WEFT_ISA"); wanted && *wanted) {
    chosen = &checked("WEFT_ISA", wanted);
  } else {
    for (const char* name : {"avx512", "avx2", "baseline"})
      if ((chosen = backend_named(name))) break;
  }
  cpu_backend_in_use.store(chosen, std::memory_order_release);
  return *chosen;
}

}  // namespace weft::kernels

namespace weft {

const char* cpu_isa() { return kernels::cpu_backend().isa(); }

void set_cpu_isa(const char* name) {
  kernels::cpu_backend_in_use.store(&kernels::checked("set_cpu_isa", name), std::memory_order_release);
}

}  // namespace weft
