// A library of NVIDIA's that may be missing when the program runs, so it is opened when something first asks for it. Only the build needs its headers.
#pragma once

#include <string>

namespace weft::cuda {

class LibraryFile {
 public:
  /// Opens the file that `variable` of the environment names, and no other; where it names none, `name` where the system looks, then `built`, the
  /// path of the library on the machine of the build, null when it had none. The file stays open until the process ends.
  LibraryFile(const char* variable, const std::string& name, const char* built);

  /// Points `function` to the library's function of this name, or to nothing.
  template <class F> void find(F*& function, const char* name) {
    function = reinterpret_cast<F*>(address_of(name));
  }

  /// In the system's words, the file that cannot be opened or the first function that it has not; empty when nothing is missing.
  const std::string& missing() const { return missing_; }

 private:
  void* address_of(const char* name);

  void* file_ = nullptr;
  std::string missing_;
};

}  // namespace weft::cuda
