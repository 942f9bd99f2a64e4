// Credentials of the gRPC transport, and the proofs that the other end of a call has shown. Internal to the
// gRPC transport; it needs no gRPC header.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <weft/distributed/runtime/sync.h>
#include <weft/distributed/transport/grpc_transport.h>

struct grpc_call;
struct grpc_channel_credentials;
struct grpc_server_credentials;

namespace weft::rpc::inner {

/// The certificates of a transport as text. Files are read again once they have changed.
/// Thread safety: every member may be called from any thread.
class WEFT_API TlsFiles {
 public:
  /// Throws: IoError for an unreadable file; RpcError for a missing part.
  explicit TlsFiles(TlsOptions options);
  /// The certificates now. Files that cannot be read leave those before.
  std::shared_ptr<const TlsOptions> current();

 private:
  /// Sizes and times of the files.
  std::string stamp() const;

  const TlsOptions given_;
  Mutex mutex_;
  std::string stamp_ WEFT_GUARDED_BY(mutex_);
  std::shared_ptr<const TlsOptions> read_ WEFT_GUARDED_BY(mutex_);
};

/// Credentials of one outgoing connection; the caller releases them. Throws: RpcError.
grpc_channel_credentials* client_credentials(const TlsOptions& tls);
/// Credentials of a listener, which asks `files` at each handshake; the caller releases them. `files` must
/// outlive the listener.
grpc_server_credentials* server_credentials(TlsFiles& files);

/// Proofs of the other end.
struct PeerProof {
  bool local = false;   ///< it came through a unix socket
  bool secure = false;  ///< it has shown a certificate
  /// the certificate's subject alternative names
  std::vector<std::string> names{};
};
/// The proofs of a call's other end: of an accepted call at once, of an outgoing one after its first message.
PeerProof proof_of(grpc_call* call);

}  // namespace weft::rpc::inner
