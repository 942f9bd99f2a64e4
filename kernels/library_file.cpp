// Opening a shared library of a vendor with dlopen and finding its functions with dlsym. Failures are kept as
// text; the caller decides whether the library is needed.
#include <weft/kernels/inner/library_file.h>

#include <dlfcn.h>

#include <cstdlib>

namespace weft {

LibraryFile::LibraryFile(const char* variable, const std::string& name, const char* built) {
  const auto open = [&](const char* path) {
    file_ = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!file_) missing_ += (missing_.empty() ? "" : "; ") + std::string(dlerror());
  };
  if (const char* const set = std::getenv(variable); set && *set) {
    open(set);
  } else {
    open(name.c_str());
    if (!file_ && built) open(built);
  }
  if (file_) missing_.clear();
}

void* LibraryFile::address_of(const char* name) {
  void* const address = file_ ? dlsym(file_, name) : nullptr;
  if (file_ && !address && missing_.empty()) missing_ = dlerror();
  return address;
}

}  // namespace weft
