// Errors of calls beyond those of kernels/error.h, and how any exception crosses to another worker.
//
// An exception of a served function arrives at the caller as its own type where that type is one of weft's or of the standard
// library's argument and range errors, else as a RemoteError; in both cases the text begins "On worker 'ps': ". Each hop adds its own.
#pragma once

#include <exception>
#include <string>

#include <weft/kernels/error.h>

namespace weft::rpc {

class Encoder;
class Decoder;

/// A call of a function that is not registered on the callee.
class WEFT_API UnknownFunction : public RpcError {
 public:
  using RpcError::RpcError;
};
/// Both sides know the function by different signatures; the text names both.
class WEFT_API SignatureMismatch : public RpcError {
 public:
  explicit SignatureMismatch(const std::string& what, std::string callee_signature = {})
      : RpcError(what), signature(std::move(callee_signature)) {}
  std::string signature;  ///< at the callee
};
/// The callee's allow list does not let this worker call the function.
class WEFT_API NotAllowed : public RpcError {
 public:
  using RpcError::RpcError;
};

/// Writes an exception as the body of an error reply.
WEFT_API void put_error(Encoder& out, const std::exception_ptr& error);
/// Reads one and makes the exception that the caller sees; `worker`: where it was thrown, `function`: what was called, or null.
WEFT_API std::exception_ptr get_error(Decoder& in, const std::string& worker, const char* function = nullptr);
/// The same exception with another text; of a type without a row in rpc_error.cpp: a RemoteError that names it.
WEFT_API std::exception_ptr with_text(const std::exception_ptr& error, const std::string& text);
/// The text of any exception.
WEFT_API std::string error_text(const std::exception_ptr& error);

}  // namespace weft::rpc
