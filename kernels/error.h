// The typed exceptions of weft. A check of user input throws one of these before anything is allocated or
// changed. The text names the operation and the values: `matmul: inner sizes differ: a is [3, 4], b is
// [5, 2]`. distributed/runtime/error.h has the exceptions of the distributed layer.
#pragma once

#include <stdexcept>

#include <weft/kernels/str.h>

namespace weft {

/// Base of all exceptions of weft.
class WEFT_API Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Sizes that do not fit together.
class WEFT_API ShapeError : public Error {
 public:
  using Error::Error;
};
/// A dtype that an operation does not take.
class WEFT_API DTypeError : public Error {
 public:
  using Error::Error;
};
/// A device that is missing, or tensors on different devices.
class WEFT_API DeviceError : public Error {
 public:
  using Error::Error;
};
/// An index, dimension or id out of range.
class WEFT_API IndexError : public Error {
 public:
  using Error::Error;
};
/// A wrong option or argument value (negative learning rate, unknown mode).
class WEFT_API ValueError : public Error {
 public:
  using Error::Error;
};
/// Misuse of the tape: backward twice, a saved tensor overwritten, no graph.
class WEFT_API AutogradError : public Error {
 public:
  using Error::Error;
};
/// A file or stream that is missing, malformed or cannot be written.
class WEFT_API IoError : public Error {
 public:
  using Error::Error;
};
/// A failed CUDA, cuBLAS or cuDNN call.
class WEFT_API CudaError : public Error {
 public:
  using Error::Error;
};
/// An allocation that failed.
class WEFT_API OutOfMemoryError : public Error {
 public:
  using Error::Error;
};

}  // namespace weft
