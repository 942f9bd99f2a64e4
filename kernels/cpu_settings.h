// Settings of the CPU backend, the number of threads and the instruction set: `set_num_threads(2);`.
#pragma once

#include <string>

#include <weft/kernels/macros.h>

namespace weft {

/// Number of threads (>= 1) for CPU kernels called from this thread: that of the innermost ThreadScope, else
/// of the process. Results have the same bits for any number.
WEFT_API int num_threads();
/// Sets the number for the process. The default is OMP_NUM_THREADS, else the number of usable cores.
/// Throws: ValueError outside 1 to 1024.
WEFT_API void set_num_threads(int n);
/// For the lifetime of the object, CPU kernels called from this thread use n threads. Scopes nest. Example: a
/// server gives each request thread a ThreadScope of 1, while training on another thread keeps all cores.
class WEFT_API ThreadScope {
 public:
  /// Throws: ValueError outside 1 to 1024.
  explicit ThreadScope(int n);
  ~ThreadScope();
  ThreadScope(const ThreadScope&) = delete;
  ThreadScope& operator=(const ThreadScope&) = delete;

 private:
  int before_;
};
/// Instruction set in use: "baseline", "avx2" or "avx512". The environment variable WEFT_ISA sets it at
/// start.
WEFT_API const char* cpu_isa();
/// Sets the instruction set for later calls.
/// Throws: ValueError for an unknown name, or a set that the machine lacks.
WEFT_API void set_cpu_isa(const char* name);

/// The settings that decide the bits of float32 products: the instruction set, the table of engines, the
/// version of oneDNN. WEFT_GEMM and WEFT_AUTOTUNE are included if set, and the version of MKL if products may
/// use it. In one version of weft, equal texts mean equal bits for equal products, unless the process
/// autotunes or uses MKL.
/// Example: "avx512, table 3817265401, oneDNN 2.6.3".
/// Throws: ValueError for a value of WEFT_GEMM or WEFT_AUTOTUNE that products would refuse.
WEFT_API std::string product_engines();

}  // namespace weft
