// Encrypted connections with certificates on both sides. The certificates are made by the openssl program;
// where it is missing, only the refusals are checked.
#include <gtest/gtest.h>

#include <weft/distributed/transport/grpc_transport.h>

#include "mailbox.h"
#include "support/certificates.h"

namespace weft::rpc {
namespace {

using namespace std::chrono_literals;

using test::Certificates;

TlsOptions options(const Certificates& files) {
  return {.ca_file = files.ca(), .certificate_file = files.certificate(), .key_file = files.key()};
}

/// Sends one message from a to b; true if it arrives before `words` are a's view of b.
bool reaches(std::optional<TlsOptions> from, std::optional<TlsOptions> to, Duration patience) {
  auto rt = make_threaded_runtime();
  Mailbox box_a(*rt), box_b(*rt);
  auto a = make_grpc_transport(
      rt, {.id = WorkerId{0}, .unix_socket = false, .tls = std::move(from), .connect_timeout = patience},
      box_a);
  auto b = make_grpc_transport(rt, {.id = WorkerId{1}, .unix_socket = false, .tls = std::move(to)}, box_b);
  a->add_peer(WorkerId{1}, b->addresses());
  b->add_peer(WorkerId{0}, {.addresses = a->addresses().addresses});
  a->send(WorkerId{1}, 1, "secret");
  const bool arrived = box_b.wait_for(1, patience * 2);
  a->close();
  b->close();
  return arrived;
}

TEST(Tls, workers_with_certificates_of_one_authority_reach_each_other_and_others_do_not) {
  const Certificates ours("ours"), theirs("theirs");
  if (!ours.made() || !theirs.made()) GTEST_SKIP() << "no openssl program";
  EXPECT_TRUE(reaches(options(ours), options(ours), 30s));
  EXPECT_FALSE(reaches(std::nullopt, options(ours), 300ms)) << "a plain connection to an encrypted port";
  EXPECT_FALSE(reaches(options(theirs), options(ours), 300ms)) << "a certificate of another authority";
}

TEST(Tls, an_encrypted_listener_needs_no_consent_beyond_loopback) {
  const Certificates ours("wildcard");
  if (!ours.made()) GTEST_SKIP() << "no openssl program";
  auto rt = make_threaded_runtime();
  Mailbox box(*rt);
  auto t = make_grpc_transport(rt, {.id = WorkerId{0}, .listen = "0.0.0.0:0", .tls = options(ours)}, box);
  EXPECT_EQ(t->addresses().addresses.size(), 2u);
  EXPECT_NO_THROW(t->add_peer(WorkerId{1}, {.addresses = {"192.0.2.7:4711"}}));
  t->close();
}

TEST(Tls, missing_parts_are_named) {
  auto rt = make_threaded_runtime();
  Mailbox box(*rt);
  const auto text = [&](TlsOptions tls) {
    try {
      make_grpc_transport(rt, {.id = WorkerId{0}, .tls = std::move(tls)}, box);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(text({}), "tls: a certificate and its key are needed");
  EXPECT_EQ(text({.certificate = "x", .key = "y"}), "tls: the certificate of the authority (ca) is needed");
  EXPECT_EQ(text({.ca_file = "does-not-exist.pem"}), "tls: cannot read does-not-exist.pem");
}

}  // namespace
}  // namespace weft::rpc
