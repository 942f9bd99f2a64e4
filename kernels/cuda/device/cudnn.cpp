// Opening cuDNN (cudnn.h).
#if defined(WEFT_WITH_CUDNN)

#include <weft/kernels/cuda/device/cudnn.h>

#include <dlfcn.h>

#include <cstdlib>
#include <string>

#include <weft/kernels/error.h>

namespace weft::cuda::cudnn {

namespace {
const Library* open() {
  const char* const set = std::getenv("WEFT_CUDNN_LIBRARY");
  void* const file = dlopen(set && *set ? set : str("libcudnn.so.", CUDNN_MAJOR).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!file) return nullptr;
  static Library found;
#define WEFT_CUDNN_FIND(name) \
  if (!(found.name = reinterpret_cast<decltype(found.name)>(dlsym(file, #name)))) return nullptr;
  WEFT_CUDNN_CALLS(WEFT_CUDNN_FIND)
#undef WEFT_CUDNN_FIND
  return found.cudnnGetVersion() / 10000 == CUDNN_MAJOR ? &found : nullptr;
}
}  // namespace

const Library* library() {
  static const Library* const opened = open();
  return opened;
}

void check(cudnnStatus_t status, const char* call) {
  if (status != CUDNN_STATUS_SUCCESS) throw CudaError(str(call, ": ", library()->cudnnGetErrorString(status)));
}

}  // namespace weft::cuda::cudnn

#endif
