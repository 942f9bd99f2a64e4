// A shared library of a vendor that may be missing at run time, so it is opened on first use. The files of
// kernels/cuda/toolkit/ open cuBLASLt and cuDNN so, cpu/mkl.cpp MKL, and the distributed layer NCCL.
#pragma once

#include <string>

#include <weft/kernels/macros.h>

namespace weft {

class WEFT_API LibraryFile {
 public:
  /// Opens the file named by the environment variable `variable`. If that is not set, opens `name` in the
  /// system's search path, then `built`. This is the library's path on the build machine, and may be null.
  /// The file is never closed.
  LibraryFile(const char* variable, const std::string& name, const char* built);

  /// Sets `function` to the library's function of this name, or to null.
  template <class F> void find(F*& function, const char* name) {
    function = reinterpret_cast<F*>(address_of(name));
  }

  /// The system's message about the file that cannot be opened, or the first missing function; empty without
  /// error.
  const std::string& missing() const { return missing_; }

 private:
  void* address_of(const char* name);

  void* file_ = nullptr;
  std::string missing_;
};

}  // namespace weft
