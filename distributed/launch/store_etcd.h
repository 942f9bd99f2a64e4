// A store in etcd, for groups that must survive the loss of any machine. The calls are those of every Store
// (store.h); etcd's members agree on each change and keep it on their disks.
//
// How it is used:
//   auto store = rpc::make_etcd_store("10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379", {.prefix = "run7/"});
//
// Differences from a store of weft's own: etcd counts leases in whole seconds. So a lease is rounded up, to
// two seconds at least with etcd's usual settings. Values have etcd's limit (1.5 MB as it is delivered).
// set_at_end() has no effect. A wait or peek of more than 100 keys may return values of different moments.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include <weft/distributed/launch/store.h>
#include <weft/distributed/transport/grpc_transport.h>

namespace weft::rpc {

/// Options of make_etcd_store.
struct EtcdOptions {
  std::string prefix = "weft/";        ///< of all keys in etcd; another prefix is another store
  std::shared_ptr<Runtime> runtime{};  ///< its clock decides deadlines; null: a separate threaded runtime
  std::optional<TlsOptions> tls{};
  bool insecure = false;  ///< allow plain TCP beyond loopback
};

/// Makes a client of etcd. `address`: "host:port" of a member, or of several with commas between them; if a
/// member does not answer, the request goes to another. Connects at the first request. Throws: ValueError for
/// an address that cannot be read; RpcError for an address beyond loopback without credentials; IoError for
/// an unreadable certificate. Thread safety: any thread.
WEFT_API std::shared_ptr<Store> make_etcd_store(const std::string& address, EtcdOptions options = {});

}  // namespace weft::rpc
