// The typed errors of weft. Every check of user input throws one of these before anything is allocated or changed; the text
// names the operation and the values (`matmul: inner sizes differ: a is [3, 4], b is [5, 2]`), the fields are for programs.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#define WEFT_API __attribute__((visibility("default")))
/// On functions that run on the host and in kernels.
#if defined(__CUDACC__)
#define WEFT_HD __host__ __device__
#else
#define WEFT_HD
#endif

namespace weft {

/// Base of every exception that weft throws on purpose.
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
/// An allocation that cannot be met.
class WEFT_API OutOfMemoryError : public Error {
 public:
  using Error::Error;
};

/// Base of the errors of the distributed layer.
class WEFT_API RpcError : public Error {
 public:
  using Error::Error;
};

/// A call, barrier or shutdown that ran past its deadline.
class WEFT_API Timeout : public RpcError {
 public:
  using RpcError::RpcError;
};

/// The worker at the other end is gone: its lease ended or its connection broke for good.
class WEFT_API PeerLost : public RpcError {
 public:
  PeerLost(std::string peer_name, const std::string& what) : RpcError(what), peer(std::move(peer_name)) {}
  std::string peer;  ///< name of the lost worker
};

/// The worker that owned a remote value is gone, and the value with it.
class WEFT_API OwnerLost : public PeerLost {
 public:
  using PeerLost::PeerLost;
};

/// An exception that a remote function threw; `kind` is its type name there ("ShapeError", "std::out_of_range").
class WEFT_API RemoteError : public RpcError {
 public:
  RemoteError(std::string worker_name, std::string kind_name, const std::string& what)
      : RpcError(what), worker(std::move(worker_name)), kind(std::move(kind_name)) {}
  std::string worker;  ///< name of the worker where it was thrown
  std::string kind;    ///< type name of the original exception
};

namespace detail {
WEFT_API void append_number(std::string& out, double value);

template <class T> void append(std::string& out, const T& part) {
  if constexpr (std::is_convertible_v<const T&, std::string_view>) out += std::string_view(part);
  else if constexpr (std::is_same_v<T, char>) out += part;
  else if constexpr (std::is_same_v<T, bool>) out += part ? "true" : "false";
  else if constexpr (std::is_integral_v<T>) out += std::to_string(part);
  else if constexpr (std::is_floating_point_v<T>) append_number(out, static_cast<double>(part));
  else out += to_string(part);  // found beside the type
}
}  // namespace detail

/// Builds a message from its parts: `throw ShapeError(str("view: ", n, " elements"))`. A type of one's own needs a `to_string`.
template <class... Parts> std::string str(const Parts&... parts) {
  std::string out;
  (detail::append(out, parts), ...);
  return out;
}

}  // namespace weft
