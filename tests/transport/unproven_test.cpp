// The limit of unproven TCP connections at a worker's port. Strangers hold a bounded number of them for a
// bounded time, plain and under TLS. Members stay, come and come back meanwhile.
#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <weft/distributed/transport/address.h>
#include <weft/distributed/transport/grpc_transport.h>
#include <weft/distributed/transport/inner/frame.h>
#include <weft/distributed/transport/inner/tcp_listener.h>

#include "mailbox.h"
#include "raw_stream.h"
#include "support/certificates.h"
#include "support/errors.h"

namespace weft::rpc {
namespace {

using namespace std::chrono_literals;

const std::string& http2_begin() {
  static const std::string bytes("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33);
  return bytes;
}

/// A connection from an address of the loopback interface, with its first bytes.
class Unproven {
 public:
  explicit Unproven(const std::string& to, const std::string& bytes = {},
                    const std::string& from = "127.0.0.1")
      : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const HostPort at = parse_host_port(to);
    sockaddr_in here{}, there{};
    here.sin_family = there.sin_family = AF_INET;
    inet_pton(AF_INET, from.c_str(), &here.sin_addr);
    inet_pton(AF_INET, at.host.c_str(), &there.sin_addr);
    there.sin_port = htons(at.port);
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&here), sizeof here), 0);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&there), sizeof there), 0);
    if (!bytes.empty()) send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  ~Unproven() { close(fd_); }
  Unproven(const Unproven&) = delete;
  uint16_t port() const {
    sockaddr_in here{};
    socklen_t size = sizeof here;
    EXPECT_EQ(getsockname(fd_, reinterpret_cast<sockaddr*>(&here), &size), 0);
    return ntohs(here.sin_port);
  }
  bool is_open() {
    char bytes[4096];
    for (ssize_t n = 1; n > 0;) {
      n = recv(fd_, bytes, sizeof bytes, MSG_DONTWAIT);
      if (n == 0 || (n < 0 && errno != EAGAIN)) return false;
    }
    return true;
  }

 private:
  const int fd_;
};
using Unprovens = std::vector<std::unique_ptr<Unproven>>;

/// Workers 0 and 1, which know each other, over TCP.
struct TwoOverTcp {
  explicit TwoOverTcp(GrpcOptions of_b, std::optional<TlsOptions> tls = std::nullopt) {
    of_b.id = WorkerId{1}, of_b.unix_socket = false, of_b.tls = tls;
    b = make_grpc_transport(rt, of_b, box_b);
    a = make_grpc_transport(rt, {.id = WorkerId{0}, .unix_socket = false, .tls = tls}, box_a);
    b->add_peer(WorkerId{0}, a->addresses());
    a->add_peer(WorkerId{1}, b->addresses());
    port = b->addresses().addresses.at(0);
  }
  ~TwoOverTcp() {
    a->close();
    b->close();
  }
  bool talks() {
    a->send(WorkerId{1}, 1, "from the member");
    return box_b.wait_for(++sent);
  }
  /// The member's connection ends, and it makes another.
  bool comes_back() {
    a->remove_peer(WorkerId{1});
    a->add_peer(WorkerId{1}, b->addresses());
    while (a->counters(WorkerId{1}).connected) rt->sleep_for(1ms);
    return talks();
  }
  /// Waits for a state of the worker's counters.
  template <class Holds> bool until(Holds holds) {
    for (int i = 0; i < 60'000 && !holds(b->unproven()); ++i) rt->sleep_for(1ms);
    return holds(b->unproven());
  }
  std::shared_ptr<Runtime> rt = make_threaded_runtime();
  Mailbox box_a{*rt}, box_b{*rt};
  std::shared_ptr<Transport> a, b;
  std::string port;
  size_t sent = 0;
};

int64_t open_of(Unprovens& all) {
  return std::count_if(all.begin(), all.end(), [](auto& one) { return one->is_open(); });
}

TEST(Unproven, connections_are_held_up_to_the_limit_and_the_newest_is_one_of_them) {
  TwoOverTcp w({.handshake_timeout = 10min, .max_unproven = 8});
  ASSERT_TRUE(w.talks());
  Unprovens strangers;
  for (uint64_t i = 0; i < 60; ++i)
    strangers.push_back(std::make_unique<Unproven>(w.port, i % 2 == 0 ? "" : http2_begin()));
  EXPECT_TRUE(w.until([](const UnprovenCounters& c) { return c.open == 8 && c.closed == 52; }));
  for (int i = 0; i < 60'000 && open_of(strangers) > 8; ++i) w.rt->sleep_for(1ms);
  EXPECT_EQ(open_of(strangers), 8);
  EXPECT_TRUE(strangers.back()->is_open());
  EXPECT_TRUE(w.comes_back());
  strangers.clear();
  EXPECT_TRUE(w.until([](const UnprovenCounters& c) { return c.open == 0; }));
}

TEST(Unproven, connections_end_no_member_with_the_smallest_limit_either) {
  TwoOverTcp w({.max_unproven = 1});
  ASSERT_TRUE(w.talks());
  EXPECT_EQ(w.b->unproven().open, 0);
  Unprovens strangers;
  for (int i = 0; i < 100; ++i) {
    strangers.push_back(std::make_unique<Unproven>(w.port, http2_begin()));
    ASSERT_TRUE(w.talks());
  }
  EXPECT_TRUE(w.until([](const UnprovenCounters& c) { return c.closed >= 99; }));
  EXPECT_EQ(w.box_b.states(WorkerId{0}), "up");
  EXPECT_EQ(w.a->counters(WorkerId{1}).connects, 1u);
  EXPECT_TRUE(w.comes_back());
}

TEST(Unproven, connections_of_one_address_end_before_those_of_another) {
  TwoOverTcp w({.handshake_timeout = 10min, .max_unproven = 8});
  Unproven other(w.port);
  Unprovens strangers;
  for (int i = 0; i < 60; ++i) strangers.push_back(std::make_unique<Unproven>(w.port, "", "127.0.0.2"));
  EXPECT_TRUE(w.until([](const UnprovenCounters& c) { return c.closed == 53; }));
  EXPECT_TRUE(other.is_open());
}

TEST(Unproven, connections_beyond_a_few_wait_for_their_turn_at_grpc) {
  const auto rt = make_threaded_runtime();
  Mutex mutex;
  std::vector<int> taken;
  inner::TcpListener listener({.host = "127.0.0.1"}, {.prove_within = 10min,
                                                      .max_waiting = 100,
                                                      .takes_at_once = 4,
                                                      .take_pause = 1h,
                                                      .arrivals_per_take = 1'000'000});
  const auto until_taken = [&](size_t count) {
    for (int i = 0; i < 60'000 && count > (MutexLock(mutex), taken.size()); ++i) rt->sleep_for(1ms);
    rt->sleep_for(20ms);  // in which another might be taken
    MutexLock lock(mutex);
    return taken.size() == count;
  };
  const auto origin = [&](size_t i) {
    MutexLock lock(mutex);
    sockaddr_in from{};
    socklen_t size = sizeof from;
    EXPECT_EQ(getpeername(taken.at(i), reinterpret_cast<sockaddr*>(&from), &size), 0);
    char host[INET_ADDRSTRLEN] = {};
    inet_ntop(AF_INET, &from.sin_addr, host, sizeof host);
    return str("ipv4:", host, ":", ntohs(from.sin_port));
  };
  const auto until_open = [&](int64_t count) {
    for (int i = 0; i < 60'000 && listener.counters().open != count; ++i) rt->sleep_for(1ms);
    return listener.counters().open == count;
  };
  const std::string port = str("127.0.0.1:", listener.port());
  Unprovens strangers;
  const auto add_strangers = [&](int count) {
    for (int i = 0; i < count; ++i) strangers.push_back(std::make_unique<Unproven>(port, http2_begin()));
  };
  add_strangers(4);
  const Unproven member(port, http2_begin(), "127.0.0.2");
  add_strangers(56);
  listener.start(*rt, [&](int, int connection) {
    MutexLock lock(mutex);
    taken.push_back(connection);
  });
  EXPECT_TRUE(until_open(61));
  ASSERT_TRUE(until_taken(4));
  EXPECT_EQ(origin(0), str("ipv4:127.0.0.2:", member.port()));  // of the address with the fewest
  EXPECT_EQ(origin(1), str("ipv4:127.0.0.1:", strangers[0]->port()));
  listener.prove(origin(1));  // a proven one gives its turn back
  ASSERT_TRUE(until_taken(5));
  EXPECT_EQ(origin(4), str("ipv4:127.0.0.1:", strangers[3]->port()));
  listener.prove(origin(2));
  ASSERT_TRUE(until_taken(6));
  EXPECT_TRUE(until_open(59));
  strangers.clear();  // those that wait end as well
  EXPECT_TRUE(until_open(1));
  const size_t before = (MutexLock(mutex), taken.size());  // the last of the strangers may have had a turn
  const Unproven alone(port, http2_begin());               // no other waits, so it has its turn at once
  EXPECT_TRUE(until_taken(before + 1));
  listener.close();
  for (const int fd : taken) close(fd);
}

TEST(Unproven, connections_that_wait_for_grpc_are_few_and_the_newest_is_one_of_them) {
  const auto rt = make_threaded_runtime();
  std::atomic<int> taken = 0;
  inner::TcpListener listener({.host = "127.0.0.1"}, {.prove_within = 10min,
                                                      .max_waiting = 8,
                                                      .takes_at_once = 1,
                                                      .take_pause = 1h,
                                                      .arrivals_per_take = 1'000'000});
  Unprovens strangers;
  for (int i = 0; i < 30; ++i)
    strangers.push_back(std::make_unique<Unproven>(str("127.0.0.1:", listener.port()), http2_begin()));
  listener.start(*rt, [&](int, int connection) {
    ++taken;
    close(connection);
  });
  for (int i = 0; i < 60'000 && listener.counters().open != 9; ++i) rt->sleep_for(1ms);
  EXPECT_EQ(listener.counters().open, 9);  // one was taken, and eight wait
  EXPECT_EQ(listener.counters().closed, 21u);
  EXPECT_TRUE(strangers.back()->is_open());
  EXPECT_EQ(taken, 1);
  listener.close();
}

TEST(Unproven, connections_that_come_together_have_their_turns_before_any_is_closed) {
  const auto rt = make_threaded_runtime();
  std::atomic<int> taken = 0;
  inner::TcpListener listener({.host = "127.0.0.1"}, {.prove_within = 10min});
  Unprovens members;
  for (int i = 0; i < 60; ++i)
    members.push_back(std::make_unique<Unproven>(str("127.0.0.1:", listener.port()), http2_begin()));
  listener.start(*rt, [&](int, int connection) {
    ++taken;
    close(connection);
  });
  for (int i = 0; i < 60'000 && taken < 60 && listener.counters().closed == 0; ++i) rt->sleep_for(1ms);
  EXPECT_EQ(taken, 60);
  EXPECT_EQ(listener.counters().closed, 0u);
  listener.close();
}

TEST(Unproven, connections_of_a_flood_have_more_turns_at_grpc) {
  const auto rt = make_threaded_runtime();
  std::atomic<int> taken = 0;
  inner::TcpListener listener(
      {.host = "127.0.0.1"},
      {.prove_within = 10min, .max_waiting = 100, .takes_at_once = 1, .take_pause = 1h});
  Unprovens strangers;  // one turn in four seconds for one, in 40 ms for a hundred
  for (int i = 0; i < 100; ++i)
    strangers.push_back(std::make_unique<Unproven>(str("127.0.0.1:", listener.port()), http2_begin()));
  const TimePoint begin = rt->now();
  listener.start(*rt, [&](int, int connection) {
    ++taken;
    close(connection);
  });
  while (taken < 20 && rt->now() < begin + 60s) rt->sleep_for(1ms);
  EXPECT_GE(taken, 20) << (rt->now() - begin).count();
  listener.close();
}

TEST(Unproven, a_connection_whose_hello_was_refused_ends_in_time) {
  TwoOverTcp w({.handshake_timeout = 300ms});
  RawStream refused(
      parse_host_port(w.port),
      inner::encode_hello(inner::RecordType::kHello,
                          {.id = WorkerId{9}, .incarnation = Incarnation{7}, .target = WorkerId{1}}));
  EXPECT_TRUE(refused.read_to_end(60'000));
  for (int i = 0; i < 60'000 && refused.still_open(); ++i) w.rt->sleep_for(1ms);
  EXPECT_FALSE(refused.still_open());
  EXPECT_TRUE(w.talks());
}

TEST(Unproven, connections_are_bounded_under_tls_too) {
  const test::Certificates files("unproven");
  if (!files.made()) GTEST_SKIP() << "no headers of OpenSSL";
  TwoOverTcp w(
      {.handshake_timeout = 10min, .max_unproven = 8},
      TlsOptions{
          .ca_file = files.ca(), .certificate_file = files.certificate(), .key_file = files.key_file()});
  ASSERT_TRUE(w.talks());
  Unprovens strangers;
  // silent ones, ones that speak plainly, and ones that begin a record of TLS and no more
  for (size_t i = 0; i < 60; ++i)
    strangers.push_back(std::make_unique<Unproven>(w.port, i % 3 == 0 ? ""
                                                           : i % 3 == 1
                                                               ? http2_begin()
                                                               : std::string("\x16\x03\x01\x02\x00\x01", 6)));
  EXPECT_TRUE(w.until([](const UnprovenCounters& c) { return c.open <= 8 && c.closed > 0; }));
  EXPECT_TRUE(w.talks());
  EXPECT_TRUE(w.comes_back());
  EXPECT_EQ(w.a->counters(WorkerId{1}).connects, 2u);
}

TEST(Unproven, a_listener_at_all_addresses_hears_both_families) {
  auto rt = make_threaded_runtime();
  Mailbox box_a(*rt), box_b(*rt);
  const auto b = make_grpc_transport(
      rt, {.id = WorkerId{1}, .listen = "0.0.0.0:0", .unix_socket = false, .insecure = true}, box_b);
  const auto a = make_grpc_transport(
      rt, {.id = WorkerId{0}, .listen = "[::]:0", .unix_socket = false, .insecure = true}, box_a);
  const auto at_loopback = [](const Transport& t) {
    return PeerAddress{.addresses = {str("127.0.0.1:", parse_host_port(t.addresses().addresses[0]).port)}};
  };
  a->add_peer(WorkerId{1}, at_loopback(*b));
  b->add_peer(WorkerId{0}, at_loopback(*a));
  a->send(WorkerId{1}, 1, "x");
  EXPECT_TRUE(box_b.wait_for(1));
  b->send(WorkerId{0}, 1, "x");
  EXPECT_TRUE(box_a.wait_for(1));
  a->close();
  b->close();
}

TEST(Unproven, a_limit_below_one_is_refused) {
  auto rt = make_threaded_runtime();
  Mailbox box(*rt);
  EXPECT_TRUE(test::has(test::error_of<ValueError>(
                            [&] { make_grpc_transport(rt, {.id = WorkerId{1}, .max_unproven = 0}, box); }),
                        "max_unproven is 0"));
}

TEST(Unproven, origins_are_read_from_the_texts_of_grpc) {
  const auto text = [](const std::string& peer) {
    const auto from = inner::origin_of(peer);
    char out[INET6_ADDRSTRLEN] = {};
    return from ? str(inet_ntop(AF_INET6, from->address.data(), out, sizeof out), " ", from->port) : "";
  };
  EXPECT_EQ(text("ipv4:127.0.0.1:80"), "::ffff:127.0.0.1 80");
  EXPECT_EQ(text("ipv6:%5B::1%5D:4711"), "::1 4711");
  EXPECT_EQ(text("ipv6:[::ffff:10.0.0.1]:65535"), "::ffff:10.0.0.1 65535");
  EXPECT_EQ(text("ipv6:%5Bfe80::1%25eth0%5D:5"), "fe80::1 5");
  for (const char* other :
       {"", "unix:/x", "unix:", "ipv4:", "ipv4:x:1", "ipv4:127.0.0.1", "ipv4:1.2.3.4:99999", "ipv6:[::1]",
        "ipv6:[x]:1", "ipv5:1.2.3.4:1", "ipv6:1.2.3.4:1"})
    EXPECT_EQ(text(other), "") << other;
}

}  // namespace
}  // namespace weft::rpc
