// The base errors of the distributed layer. Errors about remote functions are in rpc/rpc_error.h.
#pragma once

#include <string>
#include <utility>

#include <weft/kernels/error.h>

namespace weft {

/// Base of the errors of the distributed layer.
class WEFT_API RpcError : public Error {
 public:
  using Error::Error;
};

/// A call, wait, barrier or shutdown ran past its deadline.
class WEFT_API Timeout : public RpcError {
 public:
  using RpcError::RpcError;
};

/// A call was given up before its answer: by Future::cancel, or because the caller of the function that made
/// the call has given up.
class WEFT_API Cancelled : public RpcError {
 public:
  using RpcError::RpcError;
};

/// The peer is gone: its lease expired, it cannot be reached any more, or it left the group.
class WEFT_API PeerLost : public RpcError {
 public:
  PeerLost(std::string peer_name, const std::string& what) : RpcError(what), peer(std::move(peer_name)) {}
  std::string peer;  ///< name of the lost worker
};

/// The owner of a remote value is gone, and the value with it.
class WEFT_API OwnerLost : public PeerLost {
 public:
  using PeerLost::PeerLost;
};

/// A remote function threw an exception of a type that replies cannot carry. `kind` is the type's name on
/// that worker ("ShapeError", "std::out_of_range").
class WEFT_API RemoteError : public RpcError {
 public:
  RemoteError(std::string worker_name, std::string kind_name, const std::string& what)
      : RpcError(what), worker(std::move(worker_name)), kind(std::move(kind_name)) {}
  std::string worker;  ///< name of the worker where it was thrown
  std::string kind;    ///< type name of the original exception
};

}  // namespace weft
