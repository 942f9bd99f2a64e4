// cuDNN as a library that is opened when a recurrent layer first asks for it; its functions are members of the same name.
#pragma once

#include <cudnn.h>

#include <utility>

#if CUDNN_MAJOR < 9
#error "cuDNN 9 or newer is needed; configure with -DWEFT_CUDNN_INCLUDE_DIR= for a build without cuDNN"
#endif

namespace weft::cuda::cudnn {

#define WEFT_CUDNN_CALLS(call)                                                                               \
  call(cudnnGetVersion) call(cudnnGetErrorString) call(cudnnCreate) call(cudnnSetStream)                     \
      call(cudnnCreateDropoutDescriptor) call(cudnnDestroyDropoutDescriptor) call(cudnnDropoutGetStatesSize) \
          call(cudnnSetDropoutDescriptor) call(cudnnRestoreDropoutDescriptor)                                \
              call(cudnnCreateTensorDescriptor) call(cudnnDestroyTensorDescriptor)                           \
                  call(cudnnSetTensorNdDescriptor) call(cudnnCreateRNNDescriptor)                            \
                      call(cudnnDestroyRNNDescriptor) call(cudnnSetRNNDescriptor_v8)                         \
                          call(cudnnCreateRNNDataDescriptor) call(cudnnDestroyRNNDataDescriptor)             \
                              call(cudnnSetRNNDataDescriptor) call(cudnnGetRNNWeightSpaceSize)               \
                                  call(cudnnGetRNNTempSpaceSizes) call(cudnnGetRNNWeightParams)              \
                                      call(cudnnRNNForward) call(cudnnRNNBackwardData_v8)                    \
                                          call(cudnnRNNBackwardWeights_v8)

struct Library {
#define WEFT_CUDNN_MEMBER(name) decltype(&::name) name = nullptr;
  WEFT_CUDNN_CALLS(WEFT_CUDNN_MEMBER)
#undef WEFT_CUDNN_MEMBER
};

/// Null when there is none of the major version that this was built for. WEFT_CUDNN_LIBRARY in the environment names the file to open.
const Library* library();

/// Throws: CudaError naming the call, OutOfMemoryError where it found no memory.
void check(cudnnStatus_t status, const char* call);

/// One of cuDNN's descriptors.
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
