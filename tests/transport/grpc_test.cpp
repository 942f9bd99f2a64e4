// The gRPC transport on one machine: all kinds of socket, many and large messages, breaks, refusals,
// security.
#include <gtest/gtest.h>

#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstring>

#include <weft/distributed/transport/address.h>
#include <weft/distributed/transport/grpc_transport.h>
#include <weft/distributed/transport/inner/frame.h>

#include "mailbox.h"

namespace weft::rpc {
namespace {

using namespace std::chrono_literals;

struct End {
  End(const std::shared_ptr<Runtime>& rt, GrpcOptions options)
      : box(*rt), t(make_grpc_transport(rt, std::move(options), box)) {}
  ~End() { t->close(); }
  Mailbox box;
  std::shared_ptr<Transport> t;
};

/// The kinds of socket: the same-host lane, and gRPC over unix sockets and TCP.
enum class Socket { kLane, kUnix, kTcp };
constexpr auto kLane = Socket::kLane, kUnix = Socket::kUnix, kTcp = Socket::kTcp;

GrpcOptions on(Socket kind, GrpcOptions options) {
  options.unix_socket = kind != kTcp;
  options.same_host_lane = kind == kLane;
  return options;
}

/// Two workers on one kind of socket.
struct GrpcPair {
  explicit GrpcPair(Socket kind, WireLimits limits = {}, int64_t shared = GrpcOptions().shared_memory_bytes)
      : rt(make_threaded_runtime()),
        a(rt, on(kind, {.id = WorkerId{0}, .shared_memory_bytes = shared, .limits = limits})),
        b(rt, on(kind, {.id = WorkerId{1}, .shared_memory_bytes = shared, .limits = limits})) {
    a.t->add_peer(WorkerId{1}, b.t->addresses());
    b.t->add_peer(WorkerId{0}, a.t->addresses());
  }
  std::shared_ptr<Runtime> rt;
  End a, b;
};

class GrpcSockets : public ::testing::TestWithParam<Socket> {};
std::vector<Socket> kinds_of_build() {
  return has_same_host_lane() ? std::vector{kLane, kUnix, kTcp} : std::vector{kUnix, kTcp};
}
INSTANTIATE_TEST_SUITE_P(Kinds, GrpcSockets, ::testing::ValuesIn(kinds_of_build()), [](const auto& param) {
  return std::string(param.param == kLane ? "lane" : param.param == kUnix ? "unix" : "tcp");
});

TEST_P(GrpcSockets, a_message_arrives_whole_and_is_answered) {
  const std::vector<float> small(101, 1.5f);
  const std::vector<uint8_t> large(9'000'011, 7);
  GrpcPair p(GetParam());
  p.b.box.reply_with(*p.b.t);
  p.a.t->send(WorkerId{1}, 5, "header", payloads_of(small, large, std::vector<uint8_t>{}));
  ASSERT_TRUE(p.b.box.wait_for(1));
  ASSERT_TRUE(p.a.box.wait_for(1));
  MutexLock lock(p.b.box.mutex);
  const auto& m = p.b.box.messages.at(0);
  EXPECT_EQ(m.from, WorkerId{0});
  EXPECT_EQ(m.incarnation, p.a.t->incarnation());
  EXPECT_EQ(m.kind, 5);
  EXPECT_EQ(m.header, "header");
  ASSERT_EQ(m.payloads.size(), 3u);
  EXPECT_EQ(std::memcmp(m.payloads[0].data, small.data(), small.size() * 4), 0);
  EXPECT_EQ(std::memcmp(m.payloads[1].data, large.data(), large.size()), 0);
  EXPECT_EQ(m.payloads[2].bytes, 0);
}

TEST_P(GrpcSockets, ten_thousand_messages_each_way_at_once) {
  constexpr int kMessages = 10'000;
  const std::vector<uint8_t> bytes(20'011, 3);
  GrpcPair p(GetParam());
  auto sender = [&](End& from, WorkerId to) {
    return p.rt->start_service("sender", [&from, to, &bytes] {
      for (int i = 0; i < kMessages; ++i) {
        if (i % 100 == 0) {
          from.t->send(to, 1, std::to_string(i), payloads_of(bytes));
        } else {
          from.t->send(to, 1, std::to_string(i));
        }
      }
    });
  };
  auto one = sender(p.a, WorkerId{1}), other = sender(p.b, WorkerId{0});
  one->join();
  other->join();
  EXPECT_TRUE(p.a.box.wait_for(kMessages));
  EXPECT_TRUE(p.b.box.wait_for(kMessages));
  for (End* end : {&p.a, &p.b}) {
    MutexLock lock(end->box.mutex);
    ASSERT_EQ(end->box.messages.size(), static_cast<size_t>(kMessages));
    std::vector<bool> seen(kMessages);
    for (const auto& m : end->box.messages) seen[static_cast<size_t>(std::stoi(m.header))] = true;
    EXPECT_EQ(std::count(seen.begin(), seen.end(), true), kMessages);
  }
}

TEST_P(GrpcSockets, large_messages_both_ways_and_small_ones_pass_them) {
  std::vector<uint32_t> large(4 << 20);  // 16 MiB, many pieces
  for (size_t i = 0; i < large.size(); ++i) large[i] = static_cast<uint32_t>(i * 2654435761u);
  GrpcPair p(GetParam(), {}, 0);  // in shared memory a large message has gone before the small one is sent
  for (int i = 0; i < 3; ++i) {
    p.a.t->send(WorkerId{1}, 1, "large", payloads_of(large));
    p.b.t->send(WorkerId{0}, 1, "large", payloads_of(large));
    p.a.t->send(WorkerId{1}, 2, "small");
  }
  ASSERT_TRUE(p.b.box.wait_for(6));
  ASSERT_TRUE(p.a.box.wait_for(3));
  MutexLock lock(p.b.box.mutex);
  EXPECT_NE(p.b.box.messages.back().header, "small");
  for (const auto& m : p.b.box.messages) {
    if (m.kind == 2) continue;
    EXPECT_EQ(std::memcmp(m.payloads[0].data, large.data(), large.size() * 4), 0);
  }
}

TEST_P(GrpcSockets, payload_memory_is_released_once_after_it_was_sent) {
  std::vector<uint8_t> bytes(5'000'011, 1);
  GrpcPair p(GetParam());
  std::atomic<int> released{0};
  for (int i = 0; i < 7; ++i) {
    std::vector<Payload> payloads(1);
    payloads[0] = {bytes.data(), static_cast<int64_t>(bytes.size()), kHostDevice,
                   Release([](void* n) { ++*static_cast<std::atomic<int>*>(n); }, &released)};
    p.a.t->send(WorkerId{1}, 1, "", std::move(payloads));
  }
  ASSERT_TRUE(p.b.box.wait_for(7));
  p.a.t->close();
  EXPECT_EQ(released, 7);
}

/// Gives all payloads one place.
class OnePlace : public Mailbox {
 public:
  OnePlace(Runtime& runtime, size_t bytes) : Mailbox(runtime), place_(bytes) {}
  Block allocate(WorkerId, uint8_t, const std::string&, int64_t bytes, int32_t) override {
    return {place_.data(), bytes, kHostDevice, Release()};
  }

 private:
  std::vector<char> place_;
};

TEST(Grpc, received_frames_use_pages_again) {
#if !defined(__GLIBC__) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "another allocator than glibc's";
#endif
  const std::vector<char> large(8 << 20, 'x');
  const auto rt = make_threaded_runtime();
  End a(rt, on(kTcp, {.id = WorkerId{0}}));
  OnePlace box(*rt, large.size());
  const auto b = make_grpc_transport(rt, on(kTcp, {.id = WorkerId{1}}), box);
  a.t->add_peer(WorkerId{1}, b->addresses());
  b->add_peer(WorkerId{0}, a.t->addresses());
  const auto faults = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_minflt;
  };
  constexpr int kWarm = 8, kMessages = 24;
  long before = 0;
  for (int i = 0; i < kMessages; ++i) {
    if (i == kWarm) before = faults();
    a.t->send(WorkerId{1}, 1, "", payloads_of(large));
    ASSERT_TRUE(box.wait_for(static_cast<size_t>(i) + 1));
  }
  const auto pages = static_cast<long>(large.size()) / sysconf(_SC_PAGESIZE) * (kMessages - kWarm);
  EXPECT_LT(faults() - before, pages / 4);
  b->close();
}

TEST(Grpc, a_message_to_oneself_is_copied_and_delivered) {
  auto rt = make_threaded_runtime();
  End a(rt, {.id = WorkerId{0}});
  std::vector<uint8_t> bytes(101, 1);
  a.t->send(WorkerId{0}, 4, "me", payloads_of(bytes));
  ASSERT_TRUE(a.box.wait_for(1));
  MutexLock lock(a.box.mutex);
  EXPECT_NE(a.box.messages[0].payloads[0].data, bytes.data());
  EXPECT_EQ(a.box.messages[0].from, WorkerId{0});
}

TEST_P(GrpcSockets, both_ends_that_connect_at_once_reach_each_other) {
  for (int round = 0; round < 5; ++round) {
    GrpcPair p(GetParam());
    auto one = p.rt->start_service("a", [&] { p.a.t->send(WorkerId{1}, 1, "x"); });
    auto other = p.rt->start_service("b", [&] { p.b.t->send(WorkerId{0}, 1, "y"); });
    one->join();
    other->join();
    EXPECT_TRUE(p.a.box.wait_for(1));
    EXPECT_TRUE(p.b.box.wait_for(1));
    EXPECT_EQ(p.a.box.states(WorkerId{1}), "up");
  }
}

TEST_P(GrpcSockets, an_oversize_message_is_refused_by_sender_and_receiver_before_memory_is_taken) {
  const std::vector<uint8_t> bytes(1'000'001, 1);
  auto rt = make_threaded_runtime();
  End a(rt, on(GetParam(), {.id = WorkerId{0}})),
      b(rt, on(GetParam(), {.id = WorkerId{1}, .limits = {.max_message_bytes = 1'000'000}}));
  a.t->add_peer(WorkerId{1}, b.t->addresses());
  b.t->add_peer(WorkerId{0}, a.t->addresses());
  EXPECT_THROW(b.t->send(WorkerId{0}, 1, "", payloads_of(bytes)), WireError);
  a.t->send(WorkerId{1}, 1, "", payloads_of(bytes));
  ASSERT_TRUE(a.box.wait_for_state(WorkerId{1}, "up broken"));
  EXPECT_NE(a.box.reason(WorkerId{1}).find("max_message_bytes is 1000000"), std::string::npos)
      << a.box.reason(WorkerId{1});
  EXPECT_EQ(b.box.count, 0u);
  a.t->send(WorkerId{1}, 1, "fits");
  EXPECT_TRUE(b.box.wait_for(1));
}

TEST_P(GrpcSockets, a_malformed_or_missing_hello_is_rejected_with_a_reason) {
  auto rt = make_threaded_runtime();
  End b(rt, on(GetParam(), {.id = WorkerId{1}}));
  int n = 0;
  for (const std::string& hello :
       {std::string("garbage that is longer than a record"), std::string("x"), std::string(),
        inner::encode_hello(inner::RecordType::kHello, {.id = WorkerId{0}, .target = WorkerId{1}})
            .substr(0, 30)}) {
    End a(rt, on(GetParam(), {.id = WorkerId{0}, .connect_timeout = 120s, .first_frame = hello}));
    a.t->add_peer(WorkerId{1}, b.t->addresses());
    a.t->send(WorkerId{1}, 1, "never seen");
    ASSERT_TRUE(a.box.wait_for_state(WorkerId{1}, "rejected")) << n;
    EXPECT_NE(a.box.reason(WorkerId{1}).find("wire: "), std::string::npos) << a.box.reason(WorkerId{1});
    ++n;
  }
  EXPECT_EQ(b.box.count, 0u);
}

TEST(Grpc, another_wire_version_is_rejected_and_both_are_named) {
  for (const Socket kind : {kLane, kUnix}) {
    auto rt = make_threaded_runtime();
    End a(rt, on(kind, {.id = WorkerId{0}, .wire_version = 99})), b(rt, on(kind, {.id = WorkerId{1}}));
    a.t->add_peer(WorkerId{1}, b.t->addresses());
    a.t->send(WorkerId{1}, 1, "x");
    ASSERT_TRUE(a.box.wait_for_state(WorkerId{1}, "rejected"));
    EXPECT_EQ(a.box.reason(WorkerId{1}),
              str("wire version 99 from worker 0, worker 1 speaks version ", kWireVersion));
  }
}

TEST(Grpc, a_transport_may_be_closed_while_it_accepts) {
  auto rt = make_threaded_runtime();
  for (int round = 0; round < 60; ++round) {
    End a(rt, {.id = WorkerId{0}, .unix_socket = false});
    End b(rt, {.id = WorkerId{1}, .unix_socket = false});
    a.t->add_peer(WorkerId{1}, b.t->addresses());
    a.t->send(WorkerId{1}, 1, "x");
    std::this_thread::sleep_for(round % 20 * 200us);  // until its connection arrives, more or less
    b.t->close();
  }
}

TEST(Grpc, a_restarted_peer_is_reached_again_and_its_old_incarnation_is_not_mistaken_for_it) {
  auto rt = make_threaded_runtime();
  End a(rt, {.id = WorkerId{0}, .reconnect_timeout = 120s});
  const ReservedPort port;
  const std::string address = str("127.0.0.1:", port.port());
  auto b = std::make_unique<End>(rt, GrpcOptions{.id = WorkerId{1}, .listen = address, .unix_socket = false});
  a.t->add_peer(WorkerId{1}, {.addresses = {address}});
  b->t->add_peer(WorkerId{0}, a.t->addresses());
  a.t->send(WorkerId{1}, 1, "first");
  ASSERT_TRUE(b->box.wait_for(1));
  const Incarnation old = b->t->incarnation();
  b.reset();
  ASSERT_TRUE(a.box.wait_for_state(WorkerId{1}, "up broken"));
  a.t->send(WorkerId{1}, 1, "second");  // waits for the successor
  b = std::make_unique<End>(rt, GrpcOptions{.id = WorkerId{1}, .listen = address, .unix_socket = false});
  b->t->add_peer(WorkerId{0}, a.t->addresses());
  ASSERT_TRUE(b->box.wait_for(1));
  EXPECT_EQ(a.box.states(WorkerId{1}), "up broken up");

  End c(rt, {.id = WorkerId{2}});
  c.t->add_peer(WorkerId{1}, {.addresses = {address}, .incarnation = old});
  c.t->send(WorkerId{1}, 1, "to the old one");
  ASSERT_TRUE(c.box.wait_for_state(WorkerId{1}, "rejected"));
}

TEST_P(GrpcSockets, a_new_life_that_is_not_expected_yet_tries_again_until_it_is) {
  auto rt = make_threaded_runtime();
  End a(rt, on(GetParam(), {.id = WorkerId{0}}));
  End b(rt, on(GetParam(), {.id = WorkerId{1}, .connect_timeout = 120s}));
  PeerAddress old = b.t->addresses();
  old.incarnation = Incarnation{7};
  a.t->add_peer(WorkerId{1}, old);
  b.t->add_peer(WorkerId{0}, a.t->addresses());
  b.t->send(WorkerId{0}, 1, "early");
  while (a.t->counters(WorkerId{1}).connects == 0 && b.box.states(WorkerId{0}).empty()) {
    rt->sleep_for(500ms);  // some attempts
    a.t->add_peer(WorkerId{1}, b.t->addresses());
  }
  ASSERT_TRUE(a.box.wait_for(1));
  EXPECT_EQ(b.box.states(WorkerId{0}), "up");
}

TEST(Grpc, nobody_at_the_address_is_unreachable_within_the_timeout) {
  auto rt = make_threaded_runtime();
  const ReservedPort port;
  End a(rt, {.id = WorkerId{0}, .connect_timeout = 200ms});
  a.t->add_peer(WorkerId{1}, {.addresses = {str("127.0.0.1:", port.port())}});
  a.t->send(WorkerId{1}, 1, "x");
  ASSERT_TRUE(a.box.wait_for_state(WorkerId{1}, "unreachable"));
  EXPECT_NE(a.box.reason(WorkerId{1}).find("worker 1 at 127.0.0.1:"), std::string::npos)
      << a.box.reason(WorkerId{1});
  EXPECT_EQ(a.t->counters(WorkerId{1}).queued_messages, 0);
}

TEST(Grpc, a_port_in_use_is_an_error_that_names_it) {
  auto rt = make_threaded_runtime();
  End a(rt, {.id = WorkerId{0}, .unix_socket = false});
  const std::string taken = a.t->addresses().addresses.at(0);
  EXPECT_NE(parse_host_port(taken).port, 0);
  Mailbox box(*rt);
  try {
    make_grpc_transport(rt, {.id = WorkerId{1}, .listen = taken}, box);
    FAIL() << "no error";
  } catch (const RpcError& e) {
    EXPECT_NE(std::string(e.what()).find(taken), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("in use"), std::string::npos) << e.what();
  }
}

TEST(Grpc, plain_tcp_beyond_loopback_needs_consent) {
  auto rt = make_threaded_runtime();
  Mailbox box(*rt);
  EXPECT_THROW(make_grpc_transport(rt, {.id = WorkerId{1}, .listen = "0.0.0.0:0"}, box), RpcError);
  End open(rt, {.id = WorkerId{1}, .listen = "0.0.0.0:0", .insecure = true});
  End a(rt, {.id = WorkerId{0}});
  EXPECT_THROW(a.t->add_peer(WorkerId{1}, {.addresses = {"192.0.2.7:4711"}}), RpcError);
  EXPECT_THROW(a.t->add_peer(WorkerId{1}, {.addresses = {"nonsense"}}), ValueError);
  EXPECT_THROW(a.t->add_peer(WorkerId{1}, {}), RpcError);
  EXPECT_THROW(a.t->send(WorkerId{1}, 1, "x"), PeerLost);
}

TEST(Grpc, a_host_without_an_address_is_named_before_credentials_are_asked_for) {
  auto rt = make_threaded_runtime();
  End a(rt, {.id = WorkerId{0}});
  try {
    a.t->add_peer(WorkerId{1}, {.addresses = {"no..host:4711"}});  // no name at all: nobody is asked
    FAIL();
  } catch (const RpcError& e) {
    EXPECT_NE(std::string(e.what()).find("the host 'no..host' of no..host:4711 has no address: "),
              std::string::npos)
        << e.what();
    EXPECT_EQ(std::string(e.what()).find("credentials"), std::string::npos) << e.what();
  }
  Mailbox box(*rt);
  try {
    make_grpc_transport(rt, {.id = WorkerId{1}, .listen = "no..host:0"}, box);
    FAIL();
  } catch (const RpcError& e) {
    EXPECT_EQ(std::string(e.what()), "cannot listen on no..host:0: the host 'no..host' has no address: " +
                                         why_unresolved("no..host"));
  }
}

TEST(Grpc, a_full_queue_refuses_and_wait_writable_ends_when_there_is_room) {
  auto rt = make_threaded_runtime();
  const ReservedPort port, nobodys;
  const std::string address = str("127.0.0.1:", port.port());
  End a(rt, {.id = WorkerId{0}, .connect_timeout = 1h, .limits = {.max_queued_messages = 2}});
  a.t->add_peer(WorkerId{1}, {.addresses = {address}});
  a.t->send(WorkerId{1}, 1, "x");
  a.t->send(WorkerId{1}, 1, "x");
  EXPECT_THROW(a.t->send(WorkerId{1}, 1, "x"), Overloaded);
  EXPECT_FALSE(a.t->wait_writable(WorkerId{1}, rt->now()));
  End b(rt, {.id = WorkerId{1}, .listen = address, .unix_socket = false});
  b.t->add_peer(WorkerId{0}, a.t->addresses());
  EXPECT_TRUE(a.t->wait_writable(WorkerId{1}, rt->now() + 60s));  // the queue goes out

  End c(rt, {.id = WorkerId{2}, .connect_timeout = 1s, .limits = {.max_queued_messages = 1}});
  c.t->add_peer(WorkerId{1}, {.addresses = {str("127.0.0.1:", nobodys.port())}});
  c.t->send(WorkerId{1}, 1, "x");
  EXPECT_TRUE(c.t->wait_writable(WorkerId{1}, rt->now() + 60s));  // the queue is dropped as unreachable
}

TEST_P(GrpcSockets, what_was_sent_before_close_arrives) {
  const std::vector<uint8_t> bytes(3 << 20, 1);
  for (int round = 0; round < 3; ++round) {
    auto rt = make_threaded_runtime();
    auto a = std::make_unique<End>(rt, on(GetParam(), {.id = WorkerId{0}}));
    End b(rt, on(GetParam(), {.id = WorkerId{1}}));
    a->t->add_peer(WorkerId{1}, b.t->addresses());
    b.t->add_peer(WorkerId{0}, a->t->addresses());
    a->t->send(WorkerId{1}, 1, "x");
    ASSERT_TRUE(b.box.wait_for(1));
    for (int i = 0; i < 101; ++i) a->t->send(WorkerId{1}, 1, std::to_string(i));
    a->t->send(WorkerId{1}, 1, "last", payloads_of(bytes));
    a->t->close(30s);
    EXPECT_TRUE(b.box.wait_for(103));
    EXPECT_TRUE(b.box.wait_for_state(WorkerId{0}, "up broken"));
    EXPECT_THROW(a->t->send(WorkerId{1}, 1, "x"), RpcError);
  }
}

TEST_P(GrpcSockets, a_removed_peer_is_neither_heard_nor_answered) {
  GrpcPair p(GetParam());
  p.a.t->send(WorkerId{1}, 1, "x");
  ASSERT_TRUE(p.b.box.wait_for(1));
  p.b.t->remove_peer(WorkerId{0});
  ASSERT_TRUE(p.a.box.wait_for_state(WorkerId{1}, "up broken"));
  p.a.t->send(WorkerId{1}, 1, "y");
  ASSERT_TRUE(p.a.box.wait_for_state(WorkerId{1}, "up broken rejected"));
  EXPECT_EQ(p.b.box.count, 1u);
  EXPECT_THROW(p.b.t->send(WorkerId{0}, 1, "z"), PeerLost);
}

TEST_P(GrpcSockets, a_message_without_memory_is_told_and_its_connection_goes_on) {
  const std::vector<uint8_t> large(9'000'011, 7), small(101, 1);
  GrpcPair p(GetParam());
  p.a.box.most = 1'000'000;
  p.b.box.most = 1'000'000;
  for (int i = 0; i < 3; ++i) {
    p.a.t->send(WorkerId{1}, 5, str("poison ", i), payloads_of(small, large));
    p.a.t->send(WorkerId{1}, 6, "next", payloads_of(small));
  }
  p.b.t->send(WorkerId{1}, 7, "to oneself", payloads_of(small, large));
  ASSERT_TRUE(p.b.box.wait_for(7));
  EXPECT_EQ(p.a.box.states(WorkerId{1}), "up");
  EXPECT_EQ(p.b.box.states(WorkerId{0}), "up");
  MutexLock lock(p.b.box.mutex);
  ASSERT_EQ(p.b.box.unread.size(), 4u);
  for (const auto& m : p.b.box.unread) {
    EXPECT_TRUE(m.kind == 7 || m.header.rfind("poison ", 0) == 0) << m.header;
    EXPECT_TRUE(m.payloads.empty());
    EXPECT_THROW(std::rethrow_exception(m.unread), OutOfMemoryError);
  }
}

TEST_P(GrpcSockets, a_receiver_that_throws_closes_its_connection_only) {
  GrpcPair p(GetParam());
  p.b.box.handle_with([](Inbound) { throw std::runtime_error("cannot take this"); });
  p.a.t->send(WorkerId{1}, 1, "x");
  ASSERT_TRUE(p.a.box.wait_for_state(WorkerId{1}, "up broken"));
  p.b.box.handle_with({});
  p.a.t->send(WorkerId{1}, 1, "y");
  EXPECT_TRUE(p.b.box.wait_for(2));
}

}  // namespace
}  // namespace weft::rpc
