// The CPU backend. Memory comes from the caching allocator (allocator.h), threads from the pool (pool.h),
// kernels from the class of the instruction set in use (isa/backend.h). This class has the parts that all
// sets share.
#pragma once

#include <atomic>

#include <weft/kernels/backend.h>

namespace weft::kernels {

class CpuBackend : public Backend {
 public:
  CpuBackend(const char* isa, uint32_t engine_table) : isa_(isa), engine_table_(engine_table) {}
  /// "baseline", "avx2" or "avx512".
  const char* isa() const { return isa_; }
  /// A hash of the set's table of product engines (isa/engines.h).
  uint32_t engine_table() const { return engine_table_; }

  Device device() const override;
  void* allocate(size_t bytes) override;
  void deallocate(void* p, size_t bytes) noexcept override;
  void copy_from_host(Context&, const void* host, void* to, size_t bytes) override;
  void copy_to_host(Context&, const void* from, void* host, size_t bytes) override;
  void clip_norm(Context&, double max_norm, double p, std::span<const View> xs, View norm,
                 View factor) override;
  void unscale(Context&, std::span<const View> xs, View state) override;
  void update_scale(Context&, double growth, double backoff, int64_t interval, View state) override;
  void synchronize() override;

 private:
  const char* isa_;
  const uint32_t engine_table_;
};

/// The backend in use: that of WEFT_ISA if set, else of the widest instruction set of the machine. It is
/// never destroyed. Throws: ValueError if WEFT_ISA names an unknown set or one that the machine lacks.
CpuBackend& choose_cpu_backend();
extern std::atomic<CpuBackend*> cpu_backend_in_use;  ///< null until the first request
inline CpuBackend& cpu_backend() {
  if (CpuBackend* const found = cpu_backend_in_use.load(std::memory_order_acquire)) [[likely]]
    return *found;
  return choose_cpu_backend();
}

}  // namespace weft::kernels
