// A store at an address of its own, for programs that are no group of workers or for several groups. It may
// keep a log.
//
// How it is used:
//   auto served = rpc::serve_store("127.0.0.1:4711", {.log = "store.log"});     // or the program weft-store
//   auto store = rpc::connect_store("127.0.0.1:4711");                          // any process, any time
//   store->set("epoch", "7", std::chrono::steady_clock::now() + 5s);
//
// An address is "host:port" or "unix:/path". The folder of a path must belong to this user, and no other user
// may write in it. The kernel then lets only processes of this user in. Addresses beyond loopback need `tls`
// or an explicit insecure = true, as in grpc_transport.h.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include <weft/distributed/launch/store.h>
#include <weft/distributed/transport/grpc_transport.h>

namespace weft::rpc {

/// How a store is reached.
struct StoreNetwork {
  std::shared_ptr<Runtime> runtime{};  ///< its clock decides deadlines; null: a separate threaded runtime
  std::optional<TlsOptions> tls{};
  bool insecure = false;  ///< allow plain TCP beyond loopback
};

/// A store that this process serves.
struct ServedStore {
  std::shared_ptr<Store> store;  ///< serves until its last owner releases it
  std::string address;           ///< for clients, with the real port
};

/// Serves a store; port 0 is chosen by the system. Throws: the errors of make_store_server. ValueError for an
/// address that cannot be read. RpcError for an address in use, for one that needs credentials, and for a
/// folder in which another user can write. Thread safety: any thread.
WEFT_API ServedStore serve_store(const std::string& address, const StoreOptions& options = {},
                                 const StoreNetwork& network = {});

/// Makes a client of the store that is served at `address`, now or before a request's deadline. Throws:
/// ValueError and RpcError as serve_store; RpcError for a host that cannot be resolved. Thread safety: any
/// thread.
WEFT_API std::shared_ptr<Store> connect_store(const std::string& address, const StoreNetwork& network = {});

}  // namespace weft::rpc
