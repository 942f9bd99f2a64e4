// The line on standard error about an end that insecure = true leaves open.
#pragma once

#include <iostream>
#include <optional>
#include <string>

#include <weft/distributed/transport/grpc_transport.h>
#include <weft/kernels/str.h>

namespace weft::rpc::inner {

/// While one lives, the ends that this thread makes are silent: a line about all of them has been written.
class UnprotectedTold {
 public:
  UnprotectedTold() { ++depth(); }
  UnprotectedTold(const UnprotectedTold&) = delete;
  ~UnprotectedTold() { --depth(); }
  static int& depth() {
    thread_local int count = 0;
    return count;
  }
};

/// Says which protection is missing, unless certificates of both sides are checked. `who`: the end, such as
/// "worker 'ps'"; `can`: the acts that are open to any client that reaches its port.
inline void tell_unprotected(const std::string& who, const std::optional<TlsOptions>& tls, bool insecure,
                             const std::string& can) {
  if (!insecure || UnprotectedTold::depth() > 0 || (tls && tls->require_client_certificate)) return;
  std::cerr << str("weft: ", who, ": insecure = true: its messages are ",
                   tls ? "encrypted, but its clients not checked" : "neither encrypted nor checked",
                   "; anybody who reaches its port", tls ? "" : " or the network between", " can ", can,
                   "\n");
}

}  // namespace weft::rpc::inner
