// The certificates of a group that this process starts (SpawnOptions::tls): an authority made for this group
// alone, and a certificate for each worker's name. The program weft-certs makes them, so that this library
// needs no header of OpenSSL. The authority's key is removed at once: no further certificate can be issued.
// Workers find their files by the variables WEFT_TLS_CA, WEFT_TLS_CERT and WEFT_TLS_KEY.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include <weft/distributed/transport/grpc_transport.h>

namespace weft::rpc::inner {

/// Thread safety: as a plain value; one owner.
class GroupCertificates {
 public:
  /// Runs weft-certs, which is beside this program, in PATH or named by the variable WEFT_CERTS. Blocks at
  /// most 60 s. Throws: RpcError when it is not found or fails; IoError without a folder.
  explicit GroupCertificates(const std::vector<std::string>& workers);
  /// Removes the folder.
  ~GroupCertificates();
  GroupCertificates(const GroupCertificates&) = delete;

  TlsOptions of(const std::string& worker) const;
  /// The variables for the environment of a worker.
  std::map<std::string, std::string> variables(const std::string& worker) const;

 private:
  std::string folder_;  ///< mode 0700; its files have mode 0600
};

/// The files that the variables name; none without them. Throws: ValueError when one of the three is missing.
std::optional<TlsOptions> tls_of_environment();

}  // namespace weft::rpc::inner
