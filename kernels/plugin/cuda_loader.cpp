// Opens the CUDA library at the first request for a CUDA device, so that one program runs with and without a
// GPU. Only a shared core library has this file. If WEFT_CUDA_LIBRARY is set, only that file is tried;
// otherwise the folder of libweft_core, then the system's search path. The library is never closed.
#include <dlfcn.h>

#include <cstdlib>
#include <string>
#include <vector>

#include <weft/kernels/plugin/plugin.h>

namespace weft {

namespace {

constexpr const char* kName = "libweft_cuda.so." WEFT_SOVERSION;

std::vector<std::string> candidates() {
  if (const char* const named = std::getenv("WEFT_CUDA_LIBRARY"); named && *named) return {named};
  std::vector<std::string> paths;
  Dl_info core;
  if (dladdr(reinterpret_cast<void*>(&register_cuda_opener), &core) && core.dli_fname) {
    const std::string path = core.dli_fname;
    if (const size_t slash = path.rfind('/'); slash != std::string::npos)
      paths.push_back(path.substr(0, slash + 1) + kName);
  }
  paths.push_back(kName);
  return paths;
}

int load_and_open(const char* stamp, int device, char* error, size_t size) {
  std::string reasons;
  for (const std::string& path : candidates()) {
    void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      const char* const why = dlerror();
      reasons += str(reasons.empty() ? "" : "; ", why ? why : path);
      continue;
    }
    void* const entry = dlsym(library, "weft_cuda_open");
    if (!entry)
      throw DeviceError(str("cuda: ", path, " is not weft's CUDA library: it has no weft_cuda_open"));
    auto* const open = reinterpret_cast<CudaOpener*>(entry);
    register_cuda_opener(open);
    return open(stamp, device, error, size);
  }
  throw DeviceError(str("cuda: the CUDA library is missing or lacks one that it needs (", reasons,
                        "). Install weft's CUDA component beside libweft_core and the CUDA runtime ",
                        "that it names, or set WEFT_CUDA_LIBRARY to its path; the device cpu needs neither"));
}

const bool registered = (register_cuda_opener(load_and_open), true);

}  // namespace

}  // namespace weft
