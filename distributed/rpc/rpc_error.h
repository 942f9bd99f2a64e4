// Errors of remote calls beyond those of runtime/error.h, and the encoding of exceptions in replies.
//
// The exception of a served function keeps its type at the caller if it is one of weft's errors. So do the
// standard library's argument and range errors. An exception of any other type arrives as a RemoteError with
// the name of the type. The text begins "On worker 'ps': ", and each further hop adds its own prefix.
// Thread safety: all functions may be called from any thread.
#pragma once

#include <exception>
#include <string>

#include <weft/distributed/runtime/error.h>

namespace weft::rpc {

class Encoder;
class Decoder;

/// The called function is not registered on the callee.
class WEFT_API UnknownFunction : public RpcError {
 public:
  using RpcError::RpcError;
};
/// Caller and callee registered the function with different signatures. The text names both.
class WEFT_API SignatureMismatch : public RpcError {
 public:
  explicit SignatureMismatch(const std::string& what, std::string callee_signature = {})
      : RpcError(what), signature(std::move(callee_signature)) {}
  std::string signature;  ///< the signature at the callee
};
/// The callee refuses a function or request that its access lists deny to the caller, or a message that
/// claims another worker's property.
class WEFT_API NotAllowed : public RpcError {
 public:
  using RpcError::RpcError;
};

/// Inside a refused task of the pool: the error of the request that it serves on `worker`.
WEFT_API std::exception_ptr no_thread_error(const std::string& worker);

/// Writes an exception as the body of an error reply.
WEFT_API void put_error(Encoder& out, const std::exception_ptr& error);
/// Reads an error reply and makes the caller's exception. `worker`: the worker that threw; `function`: the
/// called function, or null; `signature`: its signature here.
WEFT_API std::exception_ptr get_error(Decoder& in, const std::string& worker, const char* function = nullptr,
                                      const std::string& signature = {});
/// The same exception with another text. A type without a row in rpc_error.cpp becomes a RemoteError
/// that names it.
WEFT_API std::exception_ptr with_text(const std::exception_ptr& error, const std::string& text);
/// The text of any exception.
WEFT_API std::string error_text(const std::exception_ptr& error);

}  // namespace weft::rpc
