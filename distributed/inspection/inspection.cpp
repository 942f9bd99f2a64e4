// The server of inspection.h: listening, credentials, limits. inspection_service.cpp answers the calls.
// A static mutex serializes the building of servers, since health checks and reflection are settings of the
// process in gRPC.
#include <weft/distributed/inspection/inspection.h>

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/support/server_interceptor.h>

#include <algorithm>

#include <weft/distributed/inspection/inner/inspection_service.h>
#include <weft/distributed/transport/address.h>
#include <weft/distributed/transport/inner/grpc_ends.h>
#include <weft/distributed/transport/inner/tcp_listener.h>
#include <weft/distributed/transport/inner/unprotected.h>
#include <weft/distributed/transport/inner/user_folder.h>

namespace weft::rpc {
namespace {

constexpr int kMostMessageBytes = 64 << 10;  ///< of a request
constexpr size_t kMemory = size_t{64} << 20;
constexpr int kOtherThreads = 8;  ///< for reflection, and to refuse calls

/// Admits the calls whose certificate has one of the names, those of health and reflection included.
class NameCheck final : public grpc::AuthMetadataProcessor {
 public:
  explicit NameCheck(std::vector<std::string> allow) : allow_(std::move(allow)) {}
  bool IsBlocking() const override { return false; }
  grpc::Status Process(const InputMetadata&, grpc::AuthContext* context, OutputMetadata*,
                       OutputMetadata*) override {
    std::string shown;
    for (const grpc::string_ref& name : context->FindPropertyValues(GRPC_X509_SAN_PROPERTY_NAME)) {
      if (std::find(allow_.begin(), allow_.end(), std::string(name.data(), name.size())) != allow_.end())
        return grpc::Status::OK;
      shown += str(shown.empty() ? "" : ", ", std::string(name.data(), name.size()));
    }
    return {grpc::StatusCode::PERMISSION_DENIED,
            str("the certificate is for ", shown.empty() ? "no name" : shown,
                ", and the access list of this inspection has none of these")};
  }

 private:
  const std::vector<std::string> allow_;
};

/// A connection with a call is proven: it has shown a certificate, where the server asks for one.
class CallsProve final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit CallsProve(inner::TcpListener& listener) : listener_(listener) {}
  grpc::experimental::Interceptor* CreateServerInterceptor(grpc::experimental::ServerRpcInfo* call) override {
    return new Prove(listener_, *call);
  }

 private:
  /// A call has the address of its other end from its initial metadata on.
  struct Prove final : grpc::experimental::Interceptor {
    Prove(inner::TcpListener& to, grpc::experimental::ServerRpcInfo& of) : listener(to), call(of) {}
    void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
      if (methods->QueryInterceptionHookPoint(
              grpc::experimental::InterceptionHookPoints::POST_RECV_INITIAL_METADATA))
        listener.prove(call.server_context()->peer());
      methods->Proceed();
    }
    inner::TcpListener& listener;
    grpc::experimental::ServerRpcInfo& call;
  };
  inner::TcpListener& listener_;
};

void check_limits(const InspectionOptions& options) {
  if (options.max_calls < 1 || options.max_calls > 1000)
    throw ValueError(str("inspection: max_calls is ", options.max_calls, ", it must be 1 to 1000"));
  for (const Duration limit : {options.max_call_time, options.max_connection_age})
    if (limit < std::chrono::milliseconds(1) || limit > std::chrono::hours(24))
      throw ValueError("inspection: a time limit must be 1 ms to 24 hours");
}

/// Throws: ValueError, RpcError.
void check_access(const InspectionOptions& options) {
  const bool proven = options.tls && options.tls->require_client_certificate && !options.address.empty();
  if (!options.allow.empty() && !proven)
    throw ValueError("inspection: an access list needs tls with certificates of the clients, and a port");
  if (options.address.empty() || options.insecure || proven) return;
  if (options.tls)
    throw RpcError("inspection: without certificates of the clients anybody can read: set insecure = true");
  throw RpcError(str("inspection: anybody who reaches ", options.address,
                     " could read: set tls, or insecure = true, or leave the address empty for a unix socket "
                     "of this user"));
}

std::shared_ptr<grpc::ServerCredentials> credentials_of(const InspectionOptions& options) {
  if (!options.tls || options.address.empty()) return grpc::InsecureServerCredentials();
  const TlsOptions& given = *options.tls;
  const auto read = inner::TlsFiles(given).current();  // throws for a missing part
  std::shared_ptr<grpc::experimental::CertificateProviderInterface> provider;
  if (given.ca.empty() && given.certificate.empty() && given.key.empty())
    provider = std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
        given.key_file, given.certificate_file, given.ca_file, 1);
  else
    provider = std::make_shared<grpc::experimental::StaticDataCertificateProvider>(
        read->ca, std::vector<grpc::experimental::IdentityKeyCertPair>{{read->key, read->certificate}});
  grpc::experimental::TlsServerCredentialsOptions tls(provider);
  tls.watch_root_certs();
  tls.watch_identity_key_cert_pairs();
  tls.set_cert_request_type(given.require_client_certificate
                                ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                                : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE);
  auto credentials = grpc::experimental::TlsServerCredentials(tls);
  if (!options.allow.empty())
    credentials->SetAuthMetadataProcessor(std::make_shared<NameCheck>(options.allow));
  return credentials;
}

int milliseconds(Duration d) {
  return static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(d).count());
}

/// Health and reflection come from settings of gRPC for all servers that a process makes from then on.
/// Health is set back.
std::unique_ptr<grpc::Server> build(grpc::ServerBuilder& builder) {
  static Mutex mutex;
  MutexLock lock(mutex);
  static const bool once = (grpc::reflection::InitProtoReflectionServerBuilderPlugin(), true);
  (void)once;
  const bool before = grpc::DefaultHealthCheckServiceEnabled();
  grpc::EnableDefaultHealthCheckService(true);
  auto server = builder.BuildAndStart();
  if (server != nullptr && server->GetHealthCheckService() != nullptr)
    server->GetHealthCheckService()->SetServingStatus(inner::InspectionService::kName, true);
  grpc::EnableDefaultHealthCheckService(before);
  return server;
}

}  // namespace

struct InspectionServer::Impl {
  explicit Impl(const InspectionOptions& options) : service({options.max_calls, options.max_call_time}) {
    grpc::ServerBuilder builder;
    if (options.address.empty()) {
      socket.emplace();
      address = "unix:" + socket->path();
      builder.AddListeningPort(address, credentials_of(options));
    } else {
      HostPort at = parse_host_port(options.address);
      if (at.host.empty()) at.host = "0.0.0.0";
      listener.emplace(at, inner::ListenerOptions{.tls = options.tls.has_value()});
      runtime = make_threaded_runtime({.threads = 1});
      at.port = listener->port();
      address = to_string(at);
      acceptor = builder.experimental().AddExternalConnectionAcceptor(
          grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, credentials_of(options));
      std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> proofs;
      proofs.push_back(std::make_unique<CallsProve>(*listener));
      builder.experimental().SetInterceptorCreators(std::move(proofs));
    }
    builder.RegisterService(&service.service());
    builder.SetMaxReceiveMessageSize(kMostMessageBytes);
    builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
    builder.SetSyncServerOption(grpc::ServerBuilder::MIN_POLLERS, 1);
    builder.SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 2);
    builder.SetResourceQuota(grpc::ResourceQuota("weft inspection")
                                 .Resize(kMemory)
                                 .SetMaxThreads(options.max_calls + kOtherThreads));
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 2 * options.max_calls);
    builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 10'000);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, 60'000);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, milliseconds(options.max_connection_age));
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, milliseconds(options.max_call_time));
    server = build(builder);
    if (server == nullptr)
      throw RpcError(
          str("inspection: cannot listen on ", address, options.tls ? " with these certificates" : ""));
    if (listener)
      inner::tell_unprotected("the inspection at " + address, options.tls, options.insecure,
                              "read the state of the group");
    if (listener) listener->start(*runtime, [this](int from, int connection) { take(from, connection); });
  }
  ~Impl() {
    if (listener) listener->close();
    if (server != nullptr) server->Shutdown(std::chrono::system_clock::now());
  }
  void take(int from, int connection) {
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters one;
    one.listener_fd = from;
    one.fd = connection;
    acceptor->HandleNewConnection(&one);
  }

  std::optional<inner::SocketFile> socket;  // outlives the server, as the next two do
  std::shared_ptr<Runtime> runtime;         // of the listener
  std::optional<inner::TcpListener> listener;
  inner::InspectionService service;
  std::string address;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor;
  std::unique_ptr<grpc::Server> server;
};

InspectionServer::InspectionServer(InspectionOptions options) {
  check_limits(options);
  check_access(options);
  impl_ = std::make_unique<Impl>(options);
}

InspectionServer::~InspectionServer() = default;

int InspectionServer::port() const { return impl_->listener ? impl_->listener->port() : 0; }
const std::string& InspectionServer::address() const { return impl_->address; }

}  // namespace weft::rpc
