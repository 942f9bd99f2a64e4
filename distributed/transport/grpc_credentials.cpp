// Certificates of the gRPC transport: reading and reloading, credentials for gRPC, names of the other end.
// TlsFiles reads the files again when their stamps change; its mutex guards the copy.
#include <weft/distributed/transport/inner/grpc_credentials.h>

#include <sys/stat.h>

#include <grpc/grpc_security.h>
#include <grpc/support/alloc.h>

#include <fstream>
#include <sstream>

#include <weft/distributed/transport/address.h>

namespace weft::rpc::inner {
namespace {

/// The certificates with the contents of their files. Throws: IoError, RpcError.
TlsOptions load_tls(TlsOptions tls) {
  for (auto [text, path] : {std::pair(&tls.ca, &tls.ca_file),
                            {&tls.certificate, &tls.certificate_file},
                            {&tls.key, &tls.key_file}}) {
    if (!text->empty() || path->empty()) continue;
    std::ifstream in(*path, std::ios::binary);
    std::ostringstream bytes;
    bytes << in.rdbuf();
    if (!in) throw IoError(str("tls: cannot read ", *path));
    *text = bytes.str();
  }
  if (tls.certificate.empty() || tls.key.empty()) throw RpcError("tls: a certificate and its key are needed");
  if (tls.ca.empty()) throw RpcError("tls: the certificate of the authority (ca) is needed");
  return tls;
}

grpc_ssl_certificate_config_reload_status fetch_certificates(void* files,
                                                             grpc_ssl_server_certificate_config** config) {
  const auto tls = static_cast<TlsFiles*>(files)->current();
  grpc_ssl_pem_key_cert_pair pair{tls->key.c_str(), tls->certificate.c_str()};
  *config = grpc_ssl_server_certificate_config_create(tls->ca.c_str(), &pair, 1);
  return *config == nullptr ? GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_FAIL
                            : GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
}

}  // namespace

TlsFiles::TlsFiles(TlsOptions options)
    : given_(std::move(options)),
      stamp_(stamp()),
      read_(std::make_shared<const TlsOptions>(load_tls(given_))) {}

std::string TlsFiles::stamp() const {
  std::string all;
  for (const std::string& path : {given_.ca_file, given_.certificate_file, given_.key_file}) {
    struct stat info {};
    if (path.empty() || stat(path.c_str(), &info) != 0) continue;
    all += str(info.st_ino, ' ', info.st_size, ' ', info.st_mtim.tv_sec, ' ', info.st_mtim.tv_nsec, ';');
  }
  return all;
}

std::shared_ptr<const TlsOptions> TlsFiles::current() {
  const std::string now = stamp();
  MutexLock lock(mutex_);
  if (now == stamp_) return read_;
  try {
    read_ = std::make_shared<const TlsOptions>(load_tls(given_));
    stamp_ = now;
  } catch (const Error&) {  // the files are being replaced: the next connection reads them again
  }
  return read_;
}

grpc_channel_credentials* client_credentials(const TlsOptions& tls) {
  grpc_ssl_pem_key_cert_pair pair{tls.key.c_str(), tls.certificate.c_str()};
  auto* credentials = grpc_ssl_credentials_create(tls.ca.c_str(), &pair, nullptr, nullptr);
  if (credentials == nullptr) throw RpcError("tls: the certificates were not accepted");
  return credentials;
}

grpc_server_credentials* server_credentials(TlsFiles& files) {
  const auto request = files.current()->require_client_certificate
                           ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                           : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE;
  return grpc_ssl_server_credentials_create_with_options(
      grpc_ssl_server_credentials_create_options_using_config_fetcher(request, fetch_certificates, &files));
}

PeerProof proof_of(grpc_call* call) {
  PeerProof proof;
  if (char* peer = grpc_call_get_peer(call)) {
    proof.local = is_unix_address(peer);
    gpr_free(peer);
  }
  grpc_auth_context* context = grpc_call_auth_context(call);
  if (context == nullptr) return proof;
  proof.secure = grpc_auth_context_peer_is_authenticated(context) != 0;
  auto all = grpc_auth_context_find_properties_by_name(context, GRPC_X509_SAN_PROPERTY_NAME);
  while (const grpc_auth_property* one = grpc_auth_property_iterator_next(&all))
    proof.names.emplace_back(one->value, one->value_length);
  grpc_auth_context_release(context);
  return proof;
}

}  // namespace weft::rpc::inner
