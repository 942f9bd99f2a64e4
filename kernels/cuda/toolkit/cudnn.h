// cuDNN, opened by the first attention or recurrent layer that needs it. Its functions are members of the
// same name.
#pragma once

#include <cudnn.h>

#include <utility>

#if CUDNN_MAJOR < 9
#error "cuDNN 9 or newer is needed; configure with -DWEFT_CUDNN_INCLUDE_DIR= for a build without cuDNN"
#endif

namespace weft::cuda::cudnn {

#define WEFT_CUDNN_CALLS(ROW)        \
  ROW(cudnnGetVersion)               \
  ROW(cudnnGetErrorString)           \
  ROW(cudnnCreate)                   \
  ROW(cudnnSetStream)                \
  ROW(cudnnCreateDropoutDescriptor)  \
  ROW(cudnnDestroyDropoutDescriptor) \
  ROW(cudnnDropoutGetStatesSize)     \
  ROW(cudnnSetDropoutDescriptor)     \
  ROW(cudnnRestoreDropoutDescriptor) \
  ROW(cudnnCreateTensorDescriptor)   \
  ROW(cudnnDestroyTensorDescriptor)  \
  ROW(cudnnSetTensorNdDescriptor)    \
  ROW(cudnnCreateRNNDescriptor)      \
  ROW(cudnnDestroyRNNDescriptor)     \
  ROW(cudnnSetRNNDescriptor_v8)      \
  ROW(cudnnCreateRNNDataDescriptor)  \
  ROW(cudnnDestroyRNNDataDescriptor) \
  ROW(cudnnSetRNNDataDescriptor)     \
  ROW(cudnnGetRNNWeightSpaceSize)    \
  ROW(cudnnGetRNNTempSpaceSizes)     \
  ROW(cudnnGetRNNWeightParams)       \
  ROW(cudnnRNNForward)               \
  ROW(cudnnRNNBackwardData_v8)       \
  ROW(cudnnRNNBackwardWeights_v8)    \
  ROW(cudnnBackendCreateDescriptor)  \
  ROW(cudnnBackendDestroyDescriptor) \
  ROW(cudnnBackendSetAttribute)      \
  ROW(cudnnBackendGetAttribute)      \
  ROW(cudnnBackendFinalize)          \
  ROW(cudnnBackendExecute)

struct Library {
#define WEFT_CUDNN_MEMBER(name) decltype(&::name) name = nullptr;
  WEFT_CUDNN_CALLS(WEFT_CUDNN_MEMBER)
#undef WEFT_CUDNN_MEMBER
};

/// Null if the major version of this build is not found. The environment variable WEFT_CUDNN_LIBRARY sets the
/// file to open.
const Library* library();

/// Throws: OutOfMemoryError if the call found no memory, else CudaError that names it.
void check(cudnnStatus_t status, const char* call);

/// Owner of a descriptor of cuDNN.
template <class T> class Descriptor {
 public:
  Descriptor() = default;
  Descriptor(cudnnStatus_t (*create)(T*), cudnnStatus_t (*destroy)(T), const char* call) : destroy_(destroy) {
    check(create(&d_), call);
  }
  ~Descriptor() {
    if (d_) destroy_(d_);
  }
  Descriptor(const Descriptor&) = delete;
  operator T() const { return d_; }

 private:
  T d_ = nullptr;
  cudnnStatus_t (*destroy_)(T) = nullptr;
};

}  // namespace weft::cuda::cudnn
