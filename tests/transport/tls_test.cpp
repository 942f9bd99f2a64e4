// Encrypted connections with certificates on both sides: whose are accepted, the names in them, the reasons
// of refusals, and certificates that are replaced.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <weft/distributed/launch/store_service.h>
#include <weft/distributed/transport/grpc_transport.h>

#include "mailbox.h"
#include "support/certificates.h"

namespace weft::rpc {
namespace {

using namespace std::chrono_literals;

using test::Certificates;

TlsOptions options(const Certificates& files) {
  return {.ca_file = files.ca(), .certificate_file = files.certificate(), .key_file = files.key_file()};
}

/// The options of a worker with a certificate of its own.
TlsOptions options(const Certificates& files, const std::string& worker) {
  files.issue(worker);
  return {.ca_file = files.ca(),
          .certificate_file = files.certificate(worker),
          .key_file = files.key_file(worker)};
}

/// Worker 0, which is called "ps", and worker 1, called "trainer", over TCP with these certificates.
struct TlsPair {
  TlsPair(TlsOptions ps, TlsOptions trainer)
      : rt(make_threaded_runtime()),
        box_a(*rt),
        box_b(*rt),
        a(make_grpc_transport(rt, {.id = WorkerId{0}, .unix_socket = false, .tls = std::move(ps)}, box_a)),
        b(make_grpc_transport(rt, {.id = WorkerId{1}, .unix_socket = false, .tls = std::move(trainer)},
                              box_b)) {
    PeerAddress to_a = a->addresses(), to_b = b->addresses();
    to_a.name = "ps", to_b.name = "trainer";
    a->add_peer(WorkerId{1}, to_b);
    b->add_peer(WorkerId{0}, to_a);
  }
  ~TlsPair() {
    a->close();
    b->close();
  }
  std::shared_ptr<Runtime> rt;
  Mailbox box_a, box_b;
  std::shared_ptr<Transport> a, b;
};

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
  if (!ours.made() || !theirs.made()) GTEST_SKIP() << "no headers of OpenSSL";
  EXPECT_TRUE(reaches(options(ours), options(ours), 30s));
  EXPECT_FALSE(reaches(std::nullopt, options(ours), 300ms)) << "a plain connection to an encrypted port";
  EXPECT_FALSE(reaches(options(theirs), options(ours), 300ms)) << "a certificate of another authority";
}

TEST(Tls, an_encrypted_listener_needs_no_consent_beyond_loopback) {
  const Certificates ours("wildcard");
  if (!ours.made()) GTEST_SKIP() << "no headers of OpenSSL";
  auto rt = make_threaded_runtime();
  Mailbox box(*rt);
  auto t = make_grpc_transport(
      rt, {.id = WorkerId{0}, .listen = "0.0.0.0:0", .same_host_lane = false, .tls = options(ours)}, box);
  EXPECT_EQ(t->addresses().addresses.size(), 2u);
  EXPECT_NO_THROW(t->add_peer(WorkerId{1}, {.addresses = {"192.0.2.7:4711"}}));
  t->close();
}

TEST(Tls, a_certificate_names_its_worker_on_both_sides) {
  const Certificates files("names");
  if (!files.made()) GTEST_SKIP() << "no headers of OpenSSL";
  const TlsOptions ps = options(files, "ps"), trainer = options(files, "trainer"),
                   other = options(files, "other");
  {
    TlsPair right(ps, trainer);
    right.a->send(WorkerId{1}, 1, "x");
    EXPECT_TRUE(right.box_b.wait_for(1));
  }
  {
    TlsPair claimed(other, trainer);  // the connecting side shows another name
    claimed.a->send(WorkerId{1}, 1, "x");
    EXPECT_TRUE(claimed.box_a.wait_for_state(WorkerId{1}, "rejected")) << claimed.box_a.states(WorkerId{1});
    EXPECT_NE(claimed.box_a.reason(WorkerId{1}).find("for other, 127.0.0.1, localhost, and not for 'ps'"),
              std::string::npos)
        << claimed.box_a.reason(WorkerId{1});
    EXPECT_EQ(claimed.box_b.count, 0u);
  }
  {
    TlsPair answered(ps, other);  // the listening side shows another name
    answered.a->send(WorkerId{1}, 1, "x");
    EXPECT_TRUE(answered.box_a.wait_for_state(WorkerId{1}, "rejected"))
        << answered.box_a.states(WorkerId{1}) << answered.box_a.reason(WorkerId{1});
    EXPECT_EQ(answered.box_b.count, 0u);
  }
  {
    TlsOptions lenient = ps, any = other;
    lenient.check_names = any.check_names = false;
    TlsPair unchecked(any, lenient);
    unchecked.a->send(WorkerId{1}, 1, "x");
    EXPECT_TRUE(unchecked.box_b.wait_for(1));
  }
}

TEST(Tls, a_refused_certificate_is_the_reason_at_once) {
  const Certificates ours("reason_a"), theirs("reason_b");
  if (!ours.made()) GTEST_SKIP() << "no headers of OpenSSL";
  TlsPair strangers(options(theirs, "ps"), options(ours, "trainer"));
  strangers.a->send(WorkerId{1}, 1, "x");
  EXPECT_TRUE(strangers.box_a.wait_for_state(WorkerId{1}, "rejected")) << strangers.box_a.states(WorkerId{1});
  EXPECT_NE(strangers.box_a.reason(WorkerId{1}).find("handshake failed"), std::string::npos)
      << strangers.box_a.reason(WorkerId{1});
}

TEST(Tls, certificates_that_are_replaced_are_read_at_the_next_connection) {
  const Certificates files("renewed");
  if (!files.made()) GTEST_SKIP() << "no headers of OpenSSL";
  const TlsOptions ps = options(files, "ps");
  TlsOptions trainer = options(files, "nobody");  // of another worker, under the name of this one's files
  std::filesystem::rename(files.certificate("nobody"), files.certificate("trainer"));
  std::filesystem::rename(files.key_file("nobody"), files.key_file("trainer"));
  trainer.certificate_file = files.certificate("trainer");
  trainer.key_file = files.key_file("trainer");
  TlsPair pair(ps, trainer);
  pair.a->send(WorkerId{1}, 1, "x");
  EXPECT_TRUE(pair.box_a.wait_for_state(WorkerId{1}, "rejected")) << pair.box_a.states(WorkerId{1});
  files.issue("trainer");
  pair.a->send(WorkerId{1}, 1, "x");
  EXPECT_TRUE(pair.box_b.wait_for(1)) << pair.box_a.reason(WorkerId{1});
}

TEST(Tls, a_store_whose_certificate_is_refused_fails_at_once_with_the_reason) {
  const Certificates ours("store_a"), theirs("store_b");
  if (!ours.made()) GTEST_SKIP() << "no headers of OpenSSL";
  const ServedStore served = serve_store("127.0.0.1:0", {}, {.tls = options(theirs)});
  const auto client = connect_store(served.address, {.tls = options(ours)});
  const TimePoint never = std::chrono::steady_clock::now() + 1h;
  try {
    client->set("key", "value", never);
    ADD_FAILURE() << "another authority's store was believed";
  } catch (const RpcError& e) {
    EXPECT_NE(std::string(e.what()).find("handshake failed"), std::string::npos) << e.what();
  }
  const auto right = connect_store(served.address, {.tls = options(theirs)});
  right->set("key", "value", std::chrono::steady_clock::now() + 60s);
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
  EXPECT_EQ(text({.ca_file = "does-not-exist.pem"}), "tls: does-not-exist.pem: No such file or directory");
  const std::string pipe = testing::TempDir() + str("weft_tls_pipe_", getpid());
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(text({.ca_file = pipe}), "tls: " + pipe + ": not a regular file");
  unlink(pipe.c_str());
  EXPECT_EQ(text({.ca = "x", .certificate = "y", .key = "z", .require_client_certificate = false}),
            "tls: without certificates of the others anybody can connect: set insecure = true as well");
}

}  // namespace
}  // namespace weft::rpc
