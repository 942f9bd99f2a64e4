// The ends of gRPC's connections: certificates and their reloading, channels, the server and its queue, names
// of the other end. TlsFiles reads the files again when their stamps change; its mutex guards the copy. The
// server takes TCP connections from weft's listener through gRPC's handler of external connections.
#include <weft/distributed/transport/inner/grpc_ends.h>

#include <sys/stat.h>

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/support/alloc.h>

#include <algorithm>
#include <ctime>

#include <weft/distributed/transport/address.h>
#include <weft/distributed/transport/inner/certificate_dates.h>
#include <weft/tensor/io/inner/file_io.h>

/// gRPC's own class, from a header that it does not install. Its C++ builder of servers gives such a handler
/// too. But each server of that builder also serves the plugins of the process, such as reflection.
class grpc_core::TcpServerFdHandler {
 public:
  virtual ~TcpServerFdHandler() = default;
  virtual void Handle(int listener_fd, int fd, grpc_byte_buffer* pending_read) = 0;
};

namespace weft::rpc::inner {
namespace {

/// The address by which gRPC knows connections of another listener, and the argument with their handler.
constexpr char kExternal[] = "external:weft";
constexpr char kCertificate[] = "-----BEGIN CERTIFICATE-----";
/// for all metadata of a stream; a hello has at most 16 KiB
constexpr int64_t kMaxMetadataBytes = 24 << 10;

grpc_arg int_arg(const char* key, int64_t value) {
  grpc_arg arg;
  arg.type = GRPC_ARG_INTEGER;
  arg.key = const_cast<char*>(key);
  arg.value.integer = static_cast<int>(std::min<int64_t>(value, INT32_MAX));
  return arg;
}
grpc_arg text_arg(const char* key, const char* value) {  // `value` must outlive the use
  grpc_arg arg;
  arg.type = GRPC_ARG_STRING;
  arg.key = const_cast<char*>(key);
  arg.value.string = const_cast<char*>(value);
  return arg;
}
/// A pointer that gRPC copies and does not own.
grpc_arg pointer_arg(const char* key, void* value) {
  static const grpc_arg_pointer_vtable plain = {[](void* p) { return p; }, [](void*) {},
                                                [](void* a, void* b) { return a < b   ? -1
                                                                              : a > b ? 1
                                                                                      : 0; }};
  grpc_arg arg;
  arg.type = GRPC_ARG_POINTER;
  arg.key = const_cast<char*>(key);
  arg.value.pointer = {value, &plain};
  return arg;
}

int64_t to_ms(Duration d) { return std::chrono::duration_cast<std::chrono::milliseconds>(d).count(); }

/// Settings of both ends.
std::vector<grpc_arg> settings_of(const GrpcOptions& options) {
  return {
      int_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, kMaxFrameBytes),
      int_arg(GRPC_ARG_KEEPALIVE_TIME_MS, to_ms(options.keepalive_time)),
      int_arg(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, to_ms(options.keepalive_timeout)),
      int_arg(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1),
      int_arg(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0),
      text_arg(GRPC_ARG_OPTIMIZATION_TARGET, "latency"),
  };
}

/// The certificates with the contents of their files. Throws: IoError, RpcError.
TlsOptions load_tls(TlsOptions tls) {
  for (auto [text, path] : {std::pair(&tls.ca, &tls.ca_file),
                            {&tls.certificate, &tls.certificate_file},
                            {&tls.key, &tls.key_file}}) {
    if (!text->empty() || path->empty()) continue;
    *text = weft::detail::read_file("tls", *path);
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
      read_(std::make_shared<const TlsOptions>(load_tls(given_))) {
  if (const std::string why = trouble(); !why.empty()) throw RpcError("tls: " + why);
}

std::string TlsFiles::trouble() {
  const auto tls = current();
  const int64_t now = std::time(nullptr);
  const auto say = [&](const char* what, const std::string& file, const std::string& text) {
    const std::string why = why_out_of_date(text, now);
    return why.empty() ? why : str(what, file.empty() ? "" : " ", file, " ", why);
  };
  std::string why = say("the certificate", tls->certificate_file, tls->certificate);
  if (why.empty() && tls->ca.find(kCertificate) == tls->ca.rfind(kCertificate))  // else some others may do
    why = say("the authority's certificate", tls->ca_file, tls->ca);
  return why;
}

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

grpc_channel* make_channel(const std::string& address, const std::string& name, const TlsOptions* tls,
                           const GrpcOptions& options) {
  grpc_channel_credentials* credentials = nullptr;
  if (tls == nullptr) {
    credentials = grpc_insecure_credentials_create();
  } else {
    grpc_ssl_pem_key_cert_pair pair{tls->key.c_str(), tls->certificate.c_str()};
    credentials = grpc_ssl_credentials_create(tls->ca.c_str(), &pair, nullptr, nullptr);
  }
  if (credentials == nullptr) throw RpcError("tls: the certificates were not accepted");
  std::vector<grpc_arg> settings = settings_of(options);
  for (const auto& [key, value] : {std::pair(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 20),
                                   {GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 2000},
                                   {GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 250},
                                   {GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1},
                                   {GRPC_ARG_ENABLE_RETRIES, 0},
                                   {GRPC_ARG_ENABLE_HTTP_PROXY, 0},
                                   {GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1}})
    settings.push_back(int_arg(key, value));
  if (!name.empty()) settings.push_back(text_arg(GRPC_SSL_TARGET_NAME_OVERRIDE_ARG, name.c_str()));
  const grpc_channel_args args{settings.size(), settings.data()};
  grpc_channel* const channel = grpc_channel_create(address.c_str(), credentials, &args);
  grpc_channel_credentials_release(credentials);
  return channel;
}

void next_event(grpc_completion_queue* queue, Duration left, grpc_event& event) {
  left = std::clamp<Duration>(left, Duration::zero(), kLongestWait);
  const gpr_timespec time = gpr_time_from_nanos(left.count(), GPR_TIMESPAN);
  event = grpc_completion_queue_next(queue, gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), time), nullptr);
}

void next_event(grpc_completion_queue* queue, Spinner& spinner, Runtime& runtime, TimePoint deadline,
                grpc_event& event) {
  const auto look = [&] {
    event = grpc_completion_queue_next(queue, gpr_time_0(GPR_CLOCK_MONOTONIC), nullptr);
    return event.type == GRPC_QUEUE_TIMEOUT ? 0 : 1;
  };
  const auto sleep = [&] {
    next_event(queue, deadline - runtime.now(), event);
    return event.type == GRPC_QUEUE_TIMEOUT ? 0 : 1;
  };
  spinner.poll(look, sleep, [&] { return runtime.now(); });
}

GrpcServer::GrpcServer(const GrpcOptions& options, grpc_completion_queue* queue) {
  std::vector<grpc_arg> settings = settings_of(options);
  for (const auto& [key, value] : {std::pair(GRPC_ARG_ALLOW_REUSEPORT, int64_t{0}),
                                   {GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1000},
                                   {GRPC_ARG_MAX_CONCURRENT_STREAMS, 1},
                                   {GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes},
                                   {GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, to_ms(options.handshake_timeout)},
                                   {GRPC_ARG_MAX_CONNECTION_IDLE_MS, to_ms(options.handshake_timeout)}})
    settings.push_back(int_arg(key, value));
  settings.push_back(pointer_arg(kExternal, &handler_));
  const grpc_channel_args args{settings.size(), settings.data()};
  server_ = grpc_server_create(&args, nullptr);
  grpc_server_register_completion_queue(server_, queue, nullptr);
}

GrpcServer::~GrpcServer() { grpc_server_destroy(server_); }

void GrpcServer::listen(const std::string& unix_address) {
  grpc_server_credentials* const credentials = grpc_insecure_server_credentials_create();
  const int good = grpc_server_add_http2_port(server_, unix_address.c_str(), credentials);
  grpc_server_credentials_release(credentials);
  if (good == 0) throw RpcError(str("cannot listen on ", unix_address));
}

void GrpcServer::expect_connections(TlsFiles* tls) {
  grpc_server_credentials* credentials = nullptr;
  if (tls == nullptr) {
    credentials = grpc_insecure_server_credentials_create();
  } else {
    const auto request = tls->current()->require_client_certificate
                             ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                             : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE;
    credentials = grpc_ssl_server_credentials_create_with_options(
        grpc_ssl_server_credentials_create_options_using_config_fetcher(request, fetch_certificates, tls));
  }
  grpc_server_add_http2_port(server_, kExternal, credentials);  // its result is the port, which is 0
  grpc_server_credentials_release(credentials);
  if (handler_ == nullptr)
    throw RpcError(tls == nullptr ? "this gRPC takes no connections of another listener"
                                  : "tls: the certificates were not accepted");
}

void GrpcServer::take(int listener, int connection) { handler_->Handle(listener, connection, nullptr); }

PeerProof proof_of(grpc_call* call) {
  PeerProof proof;
  if (char* peer = grpc_call_get_peer(call)) {
    proof.peer = peer;
    proof.local = is_unix_address(proof.peer);
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
