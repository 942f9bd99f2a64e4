// Certificates that a group refuses, at both ends: out of date, of another authority, missing. Each refusal
// comes at once, although the limit of the connection is an hour. It has its cause, and the group goes on.
#include <gtest/gtest.h>

#include <csignal>
#include <fstream>
#include <functional>
#include <iterator>

#include <weft/distributed/launch/rendezvous.h>
#include <weft/distributed/launch/store_etcd.h>
#include <weft/distributed/launch/store_service.h>
#include <weft/distributed/rpc/rpc.h>
#include <weft/distributed/transport/address.h>
#include <weft/distributed/transport/grpc_transport.h>
#include <weft/distributed/transport/inner/certificate_dates.h>

#include "mailbox.h"
#include "support/certificates.h"
#include "support/errors.h"
#ifdef WEFT_TEST_TLS
#include "raw_tls.h"
#endif

namespace weft::rpc {
namespace {

using namespace std::chrono_literals;
using test::Certificates;

constexpr int kPast = -10, kFuture = 10;  // days from now; the certificates are valid for two

TlsOptions files_of(const Certificates& files, const std::string& name, int begin = 0) {
  files.issue(name, {}, begin);
  return {
      .ca_file = files.ca(), .certificate_file = files.certificate(name), .key_file = files.key_file(name)};
}

/// A worker over TCP whose attempts to connect have an hour.
struct OverTls {
  OverTls(const std::shared_ptr<Runtime>& rt, int id, std::optional<TlsOptions> tls, bool insecure = false)
      : box(*rt),
        t(make_grpc_transport(rt,
                              {.id = WorkerId{id},
                               .unix_socket = false,
                               .tls = std::move(tls),
                               .insecure = insecure,
                               .connect_timeout = 1h},
                              box)) {}
  ~OverTls() { t->close(); }
  PeerAddress as(const std::string& name) const {
    PeerAddress address = t->addresses();
    address.name = name;
    return address;
  }
  /// The reason why worker 1 refuses this worker, or this worker refuses it; empty: it does not.
  std::string refusal() {
    t->send(WorkerId{1}, 1, "let me in");
    return box.wait_for_state(WorkerId{1}, "rejected") ? box.reason(WorkerId{1}) : "";
  }
  Mailbox box;
  std::shared_ptr<Transport> t;
};

/// Two workers, "ps" and "trainer", of which the second is the one that others come to.
struct TlsGroup {
  explicit TlsGroup(const std::string& name)
      : files(name),
        rt(make_threaded_runtime()),
        ps(rt, 0, files_of(files, "ps")),
        trainer(rt, 1, files_of(files, "trainer")) {
    trainer.t->add_peer(WorkerId{0}, ps.as("ps"));
    trainer.t->add_peer(WorkerId{2}, {.addresses = {"127.0.0.1:9"}, .name = "late"});
    ps.t->add_peer(WorkerId{1}, trainer.as("trainer"));
  }
  /// The members talk, and nothing came from anybody else.
  bool goes_on() {
    ps.t->send(WorkerId{1}, 1, "from the member");
    if (!trainer.box.wait_for(++sent)) return false;
    return trainer.box.count == sent && trainer.box.states(WorkerId{0}) == "up" &&
           trainer.box.states(WorkerId{2}).empty();
  }
  /// Worker 2 with these certificates and the right address of the trainer.
  std::unique_ptr<OverTls> late(std::optional<TlsOptions> tls, bool insecure = false) {
    auto worker = std::make_unique<OverTls>(rt, 2, std::move(tls), insecure);
    worker->t->add_peer(WorkerId{1}, trainer.as("trainer"));
    return worker;
  }
  Certificates files;
  std::shared_ptr<Runtime> rt;
  OverTls ps, trainer;
  size_t sent = 0;
};

#ifdef WEFT_TEST_TLS
TEST(Certificates, a_client_that_shows_none_or_a_bad_one_gets_no_byte_and_the_group_goes_on) {
  signal(SIGPIPE, SIG_IGN);  // of the foreign client
  TlsGroup g("raw");
  const Certificates theirs("raw_theirs");
  ASSERT_TRUE(g.goes_on());
  const HostPort port = parse_host_port(g.trainer.t->addresses().addresses.at(0));
  const auto is_accepted = [&](const TlsOptions& shown) {
    RawTls client(port, shown.certificate_file, shown.key_file);
    EXPECT_TRUE(client.is_ready());
    return client.is_accepted();
  };
  EXPECT_TRUE(is_accepted(files_of(g.files, "late")));
  EXPECT_FALSE(is_accepted({})) << "no certificate";
  EXPECT_FALSE(is_accepted(files_of(g.files, "late", kPast))) << "an expired one";
  EXPECT_FALSE(is_accepted(files_of(g.files, "late", kFuture))) << "one that is not valid yet";
  EXPECT_FALSE(is_accepted(files_of(theirs, "late"))) << "one of another authority";
  EXPECT_TRUE(g.goes_on());
}
#endif

TEST(Certificates, a_worker_whose_own_certificate_is_out_of_date_hears_so_before_it_connects) {
  if (!Certificates::made()) GTEST_SKIP() << "no headers of OpenSSL";
  TlsGroup g("own");
  const std::string expired = test::error_of<RpcError>([&] { g.late(files_of(g.files, "late", kPast)); });
  EXPECT_EQ(expired.find("tls: the certificate " + g.files.certificate("late") + " expired at 20"), 0u)
      << expired;
  const std::string early = test::error_of<RpcError>([&] { g.late(files_of(g.files, "late", kFuture)); });
  EXPECT_EQ(early.find("tls: the certificate " + g.files.certificate("late") + " is not valid before 20"), 0u)
      << early;
  EXPECT_TRUE(g.goes_on());
}

TEST(Certificates, one_that_expires_while_its_worker_runs_is_the_reason_at_its_next_connection) {
  if (!Certificates::made()) GTEST_SKIP() << "no headers of OpenSSL";
  TlsGroup g("expires");
  for (const int begin : {kPast, kFuture}) {
    const auto late = g.late(files_of(g.files, "late"));
    g.files.issue("late", {}, begin);  // as if the time had passed
    const std::string text = late->refusal();
    EXPECT_NE(text.find(begin == kPast ? "late.pem expired at 20" : "late.pem is not valid before 20"),
              std::string::npos)
        << text;
    EXPECT_TRUE(g.goes_on());
  }
}

TEST(Certificates, one_of_another_authority_is_refused_with_the_cause_on_both_sides) {
  if (!Certificates::made()) GTEST_SKIP() << "no headers of OpenSSL";
  TlsGroup g("foreign");
  const Certificates theirs("foreign_theirs");
  TlsOptions mixed = files_of(theirs, "late");
  mixed.ca_file = g.files.ca();  // it trusts the group, which does not trust it
  std::string text = g.late(mixed)->refusal();
  EXPECT_NE(text.find("as for a certificate that it does not accept"), std::string::npos) << text;
  EXPECT_TRUE(g.goes_on());
  text = g.late(files_of(theirs, "late"))->refusal();
  EXPECT_NE(text.find("not of the authority that this side knows"), std::string::npos) << text;
  EXPECT_TRUE(g.goes_on());
}

TEST(Certificates, a_listener_whose_certificate_is_out_of_date_is_refused_with_the_cause) {
  if (!Certificates::made()) GTEST_SKIP() << "no headers of OpenSSL";
  for (const int begin : {kPast, kFuture}) {
    TlsGroup g("listener");
    ASSERT_TRUE(g.goes_on());
    g.files.issue("trainer", {}, begin);
    const std::string text = g.late(files_of(g.files, "late"))->refusal();
    EXPECT_NE(text.find("the other side's certificate is out of date"), std::string::npos) << text;
    EXPECT_TRUE(g.goes_on()) << "a connection that stands needs no new handshake";
  }
}

TEST(Certificates, a_plain_end_is_told_that_the_port_speaks_tls_and_the_other_way_round) {
  if (!Certificates::made()) GTEST_SKIP() << "no headers of OpenSSL";
  TlsGroup g("plain");
  for (const bool insecure : {false, true}) {
    const std::string text = g.late(std::nullopt, insecure)->refusal();
    EXPECT_NE(text.find("that port speaks TLS, and this side has no certificates: set tls"),
              std::string::npos)
        << insecure << text;
    EXPECT_TRUE(g.goes_on());
  }
  OverTls plain(g.rt, 1, std::nullopt, true), late(g.rt, 2, files_of(g.files, "late"));
  late.t->add_peer(WorkerId{1}, plain.as("trainer"));
  const std::string text = late.refusal();
  EXPECT_NE(text.find("that port does not speak TLS"), std::string::npos) << text;
}

TEST(Certificates, a_store_and_a_rendezvous_refuse_them_at_once_with_the_cause) {
  if (!Certificates::made()) GTEST_SKIP() << "no headers of OpenSSL";
  const Certificates ours("meeting"), theirs("meeting_theirs");
  const ServedStore served = serve_store("127.0.0.1:0", {}, {.tls = files_of(ours, "ps")});
  const HostPort at = parse_host_port(served.address);
  TlsOptions mixed = files_of(theirs, "trainer");
  mixed.ca_file = ours.ca();
  const auto said = [&](const StoreNetwork& network) {
    const auto client = connect_store(served.address, network);
    return test::error_of<RpcError>([&] { client->set("key", "x", std::chrono::steady_clock::now() + 1h); });
  };
  EXPECT_TRUE(test::has(said({.tls = mixed}), "as for a certificate that it does not accept"));
  EXPECT_TRUE(test::has(said({.insecure = true}), "set tls"));
  EXPECT_TRUE(test::has(said({}), "set tls"));
  EXPECT_TRUE(test::has(
      test::error_of<RpcError>([&] {
        const auto runtime = make_threaded_runtime();
        LaunchInfo launch;
        launch.rank = 1, launch.world_size = 2;
        launch.master_addr = at.host, launch.master_port = at.port;
        make_rendezvous(runtime, launch, {.tls = mixed})->join({.name = "trainer"}, runtime->now() + 1h);
      }),
      "as for a certificate that it does not accept"));
  connect_store(served.address, {.tls = files_of(ours, "trainer")})
      ->set("key", "x", std::chrono::steady_clock::now() + 60s);
}

TEST(Certificates, a_second_hello_of_one_that_is_no_member_shows_the_certificate_of_the_first) {
  if (!Certificates::made()) GTEST_SKIP() << "no headers of OpenSSL";
  const Certificates files("second");
  const auto rt = make_threaded_runtime();
  Mailbox box(*rt), first_box(*rt), second_box(*rt);
  const auto make = [&](int id, const std::string& name, bool admits, Mailbox& mail) {
    return make_grpc_transport(rt,
                               {.id = WorkerId{id},
                                .incarnation = Incarnation{7},
                                .unix_socket = false,
                                .tls = files_of(files, name),
                                .connect_timeout = 1h,
                                .admit_strangers = admits},
                               mail);
  };
  const auto host = make(1, "store", true, box), first = make(5, "ps", false, first_box),
             second = make(5, "trainer", false, second_box);
  for (const auto& guest : {first, second}) guest->add_peer(WorkerId{1}, host->addresses());
  first->send(WorkerId{1}, 1, "from ps");
  ASSERT_TRUE(box.wait_for(1));
  second->send(WorkerId{1}, 1, "from ps, it says");
  while (second->counters(WorkerId{1}).refusals == 0 && box.count == 1) rt->sleep_for(1ms);
  EXPECT_EQ(box.count, 1u);
  EXPECT_EQ(box.states(WorkerId{5}), "up");
  first->send(WorkerId{1}, 1, "from ps");
  EXPECT_TRUE(box.wait_for(2));
  EXPECT_EQ(first_box.states(WorkerId{1}), "up");
  for (const auto& one : {second, first, host}) one->close();
}

TEST(Certificates, a_worker_that_is_told_to_do_without_says_what_is_open) {
  const auto said = [](const InitOptions& options) {
    testing::internal::CaptureStderr();
    init_rpc("alone", options);
    rpc::shutdown();
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(
      said({.world_size = 1, .insecure = true}),
      "weft: worker 'alone': insecure = true: its messages are neither encrypted nor checked; anybody who "
      "reaches its port or the network between can read, change and forge them, and speak as any worker\n");
  EXPECT_EQ(said({.world_size = 1}), "");
  if (!Certificates::made()) GTEST_SKIP() << "no headers of OpenSSL";
  const Certificates files("open");
  TlsOptions tls = files_of(files, "alone");
  EXPECT_EQ(said({.world_size = 1, .tls = tls, .insecure = true}), "");
  tls.require_client_certificate = false;
  EXPECT_EQ(said({.world_size = 1, .tls = tls, .insecure = true}),
            "weft: worker 'alone': insecure = true: its messages are encrypted, but its clients not checked; "
            "anybody who reaches its port can speak as any worker\n");
}

TEST(Certificates, a_store_or_a_rendezvous_that_is_told_to_do_without_says_what_is_open) {
  const auto runtime = make_threaded_runtime({.threads = 1});
  const auto said = [](const std::function<void()>& make) {
    testing::internal::CaptureStderr();
    make();
    return testing::internal::GetCapturedStderr();
  };
  const auto line = [](const std::string& who, const std::string& can) {
    return str("weft: ", who,
               ": insecure = true: its messages are neither encrypted nor checked; anybody who ",
               "reaches its port or the network between can ", can, "\n");
  };
  LaunchInfo second;
  second.rank = 1, second.world_size = 2, second.master_addr = "127.0.0.1", second.master_port = 9;
  EXPECT_EQ(said([&] { make_rendezvous(runtime, second, {.insecure = true}); }),
            line("the rendezvous at 127.0.0.1:9", "announce itself as any rank"));
  EXPECT_EQ(said([&] { make_rendezvous(runtime, second); }), "");
  EXPECT_EQ(said([&] {
              connect_store("127.0.0.1:9", {runtime, {}, true});
            }),
            line("the store at 127.0.0.1:9", "read and change all keys"));
  EXPECT_EQ(said([&] { make_etcd_store("127.0.0.1:9", {.runtime = runtime, .insecure = true}); }),
            line("etcd at 127.0.0.1:9", "read and change all keys"));
  EXPECT_EQ(said([&] {
              connect_store("127.0.0.1:9", {runtime, {}, false});
              make_etcd_store("127.0.0.1:9", {.runtime = runtime});
            }),
            "");
  runtime->stop();
}

TEST(Certificates, dates_are_read_and_no_text_that_is_none) {
  EXPECT_FALSE(inner::dates_of(""));
  EXPECT_FALSE(inner::dates_of("-----BEGIN CERTIFICATE-----"));
  EXPECT_FALSE(inner::dates_of("-----BEGIN CERTIFICATE-----\nMIIB!!!!\n-----END CERTIFICATE-----"));
  EXPECT_EQ(inner::why_out_of_date("no certificate", 0), "");
  if (!Certificates::made()) GTEST_SKIP() << "no headers of OpenSSL";
  const Certificates files("dates");
  std::ifstream in(files.certificate());
  const std::string pem((std::istreambuf_iterator<char>(in)), {});
  const auto dates = inner::dates_of(pem);
  ASSERT_TRUE(dates);
  EXPECT_NEAR(dates->end - dates->begin, 2 * 24 * 3600 + 300, 1);  // the clock goes on
  EXPECT_EQ(inner::why_out_of_date(pem, dates->begin), "");
  EXPECT_EQ(inner::why_out_of_date(pem, dates->end), "");
  EXPECT_TRUE(inner::why_out_of_date(pem, dates->begin - 1).starts_with("is not valid before 20"));
  EXPECT_TRUE(inner::why_out_of_date(pem, dates->end + 1).starts_with("expired at 20"));
  EXPECT_EQ(inner::why_out_of_date("text before\n" + pem, dates->end + 1).size(),
            std::string("expired at 2026-01-31 12:00:00 UTC").size());
  for (size_t cut = 0; cut < pem.size(); cut += 3) inner::dates_of(pem.substr(0, cut));
  for (size_t at = 30; at + 30 < pem.size(); ++at) {  // no length leads beyond the bytes
    std::string broken = pem;
    broken[at] = '/';
    inner::dates_of(broken);
  }
}

}  // namespace
}  // namespace weft::rpc
