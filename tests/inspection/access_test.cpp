// The right to read the inspection, over TCP. The cases are TLS with certificates of the clients, names on
// the access list, certificates that are replaced, and options that the server refuses.
#include <gtest/gtest.h>

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include <weft/distributed/inspection/inspection.h>
#include <weft/distributed/transport/address.h>

#include "client.h"
#include "support/certificates.h"
#include "support/cluster.h"
#include "support/errors.h"

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace std::chrono_literals;
using test::Certificates;
using test::Client;
using test::Cluster;
using test::Shown;

TlsOptions tls_of(const Certificates& files, const std::string& name = "cert") {
  return {
      .ca_file = files.ca(), .certificate_file = files.certificate(name), .key_file = files.key_file(name)};
}

Shown shown_by(const Certificates& files, const std::string& name) {
  files.issue(name);
  return {files.ca(), files.certificate(name), files.key_file(name)};
}

/// A worker alone, which is inspected.
struct Alone {
  explicit Alone(const InspectionOptions& options) {
    group.run(0, [&] { server.emplace(options); });
  }
  Cluster group{{.over = test::Over::kGrpc, .size = 1}};
  std::optional<InspectionServer> server;
};

TEST(InspectionAccess, over_tls_a_client_needs_a_certificate_of_the_authority) {
  const Certificates ours("inspection_ours"), theirs("inspection_theirs");
  if (!ours.made()) GTEST_SKIP() << "no headers of OpenSSL";
  Alone w({.address = "127.0.0.1:0", .tls = tls_of(ours)});
  EXPECT_GT(w.server->port(), 0);
  EXPECT_EQ(w.server->address(), str("127.0.0.1:", w.server->port()));
  const std::string address = w.server->address();
  test::v1::MembersReply members;
  const grpc::Status status = Client(address, shown_by(ours, "operator")).members(&members);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(members.self(), "worker0");
  EXPECT_EQ(Client(address, Shown{ours.ca(), "", ""}).members().error_code(), grpc::StatusCode::UNAVAILABLE)
      << "no certificate";
  Shown stranger = shown_by(theirs, "operator");
  stranger.ca = ours.ca();
  EXPECT_EQ(Client(address, stranger).members().error_code(), grpc::StatusCode::UNAVAILABLE)
      << "a certificate of another authority";
  EXPECT_EQ(Client(address).members().error_code(), grpc::StatusCode::UNAVAILABLE) << "a plain connection";
}

TEST(InspectionAccess, a_name_that_is_not_on_the_list_is_refused_by_all_services) {
  const Certificates files("inspection_list");
  if (!files.made()) GTEST_SKIP() << "no headers of OpenSSL";
  Alone w({.address = "127.0.0.1:0", .tls = tls_of(files), .allow = {"operator", "monitor"}});
  EXPECT_TRUE(Client(w.server->address(), shown_by(files, "monitor")).members().ok());
  Client other(w.server->address(), shown_by(files, "trainer"));
  const grpc::Status refused = other.members();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_NE(refused.error_message().find("the certificate is for trainer"), std::string::npos)
      << refused.error_message();
  grpc::Status status;
  EXPECT_EQ(other.trace({}, &status), "");
  EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  for (const char* method :
       {"/grpc.health.v1.Health/Check", "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"}) {
    EXPECT_EQ(other.exchange(method, "", &status), "");
    EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED) << method;
  }
}

TEST(InspectionAccess, certificates_that_are_replaced_are_shown_to_new_connections) {
  const Certificates files("inspection_renewed");
  if (!files.made()) GTEST_SKIP() << "no headers of OpenSSL";
  files.issue("server", {"before"});
  Alone w({.address = "127.0.0.1:0", .tls = tls_of(files, "server")});
  const Shown me = shown_by(files, "operator");
  const auto shows = [&](const std::string& name) {
    Client client(w.server->address(), me);
    test::Call call;
    test::v1::MembersReply reply;
    if (!client.stub->Members(&call, {}, &reply).ok()) return false;
    for (const auto& one : call.auth_context()->FindPropertyValues(GRPC_X509_SAN_PROPERTY_NAME))
      if (std::string(one.data(), one.size()) == name) return true;
    return false;
  };
  EXPECT_TRUE(shows("before"));
  EXPECT_FALSE(shows("after"));
  files.issue("server", {"after"});
  EXPECT_TRUE(test::eventually(w.group, [&] { return shows("after"); }));
}

TEST(InspectionAccess, a_port_that_proves_nobody_is_refused_with_the_way_out) {
  for (const char* address : {"127.0.0.1:0", "localhost:0", "0.0.0.0:0", ":0"}) {
    const std::string said =
        test::error_of<RpcError>([&] { const InspectionServer server({.address = address}); });
    EXPECT_TRUE(test::has(said, "set tls, or insecure = true, or leave the address empty")) << address;
  }
  Alone w({.address = "127.0.0.1:0", .insecure = true});
  EXPECT_TRUE(Client(w.server->address()).members().ok());
  EXPECT_THROW(InspectionServer({.address = w.server->address(), .insecure = true}), RpcError) << "in use";
}

TEST(InspectionAccess, strangers_hold_a_bounded_number_of_connections_at_its_port) {
  Alone w({.address = "127.0.0.1:0", .insecure = true});
  Client first(w.server->address());
  EXPECT_TRUE(first.members().ok());
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  at.sin_port = htons(static_cast<uint16_t>(w.server->port()));
  std::vector<int> strangers;
  const auto drop_closed = [&] {
    std::erase_if(strangers, [](int fd) {
      char byte;
      return recv(fd, &byte, 1, MSG_DONTWAIT) == 0 && close(fd) == 0;
    });
  };
  for (int wave = 0; wave < 6; ++wave) {
    for (int i = 0; i < 200; ++i) {
      strangers.push_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      ASSERT_EQ(connect(strangers.back(), reinterpret_cast<sockaddr*>(&at), sizeof at), 0);
    }
    EXPECT_TRUE(test::eventually(w.group, [&] { return drop_closed(), strangers.size() <= 256; }));
  }
  const auto soon = std::chrono::system_clock::now() + 500ms;
  EXPECT_FALSE(first.channel->WaitForStateChange(GRPC_CHANNEL_READY, soon)) << "its connection was closed";
  EXPECT_TRUE(first.members().ok());
  EXPECT_TRUE(Client(w.server->address()).members().ok());
  for (const int fd : strangers) close(fd);
}

TEST(InspectionAccess, options_that_contradict_each_other_are_refused) {
  EXPECT_THROW(InspectionServer({.allow = {"operator"}}), ValueError) << "a unix socket proves no name";
  EXPECT_THROW(InspectionServer({.address = "127.0.0.1:0", .insecure = true, .allow = {"operator"}}),
               ValueError);
  EXPECT_THROW(InspectionServer({.address = "nowhere", .insecure = true}), ValueError);
  EXPECT_THROW(InspectionServer({.max_calls = 0}), ValueError);
  EXPECT_THROW(InspectionServer({.max_call_time = 0s}), ValueError);
  TlsOptions anybody{.ca = "a", .certificate = "b", .key = "c", .require_client_certificate = false};
  EXPECT_THROW(InspectionServer({.address = "127.0.0.1:0", .tls = anybody}), RpcError);
  EXPECT_THROW(InspectionServer({.address = "127.0.0.1:0", .tls = TlsOptions{.ca_file = "no/such/file"}}),
               IoError);
}

}  // namespace
