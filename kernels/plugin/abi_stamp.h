// The ABI stamp that the core library and a CUDA library compare; included by the two files that compare it.
#pragma once

#include <cstring>
#include <string>

#include <weft/kernels/accelerator.h>
#include <weft/kernels/inner/loss_scale.h>
#include <weft/version.h>

namespace weft {

/// A text of everything on which both sides must agree: version, compiler, standard library, sizes of the
/// structs passed between them, operations and virtual functions.
inline std::string abi_stamp() {
  // a pointer to a virtual member function holds its place in the virtual table
  void (Accelerator::*last)(void*) noexcept = &Accelerator::close_shared;
  size_t place = 0;
  std::memcpy(&place, &last, sizeof place);
#if defined(_GLIBCXX_USE_CXX11_ABI)
  const std::string library = str("libstdc++ strings ", _GLIBCXX_USE_CXX11_ABI);
#elif defined(_LIBCPP_ABI_VERSION)
  const std::string library = str("libc++ ", _LIBCPP_ABI_VERSION);
#else
  const std::string library = "?";
#endif
  std::string text = str("weft " WEFT_VERSION_STRING ", C++ ABI ", __GXX_ABI_VERSION, ", ", library);
#define WEFT_SIZE_OF(type) text += str(", " #type " ", sizeof(type));
#define WEFT_PASSED(size)                                                                           \
  size(Device) size(Shape) size(View) size(Scalar) size(Context) size(PhiloxKey) size(StepTensor)   \
      size(StepKernel) size(StepCuda) size(NextStep) size(LossScale) size(RnnLayer) size(RnnInputs) \
          size(RnnOutputs) size(RnnGrads) size(RnnStack) size(RnnWeights) size(RnnStackInputs)      \
              size(RnnStackOutputs) size(RnnStackGrads) size(RnnPlaces) size(RnnStackLayout)        \
                  size(RnnStackRoom) size(MemoryStats) size(DeviceProperties) size(SharedBlock)
  WEFT_PASSED(WEFT_SIZE_OF)
#undef WEFT_PASSED
#undef WEFT_SIZE_OF
  return text + str(", ops ", static_cast<int>(Unary::kCount), "+", static_cast<int>(Binary::kCount), "+",
                    static_cast<int>(Ternary::kCount), ", table ", place);
}

}  // namespace weft
