// Who may speak as whom over gRPC: hellos of other lives, of strangers, of many strangers at once, and of
// connections that stay silent. A second transport in this process plays the impostor.
#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <weft/distributed/transport/address.h>
#include <weft/distributed/transport/grpc_transport.h>
#include <weft/distributed/transport/inner/frame.h>

#include "mailbox.h"
#include "raw_stream.h"

namespace weft::rpc {
namespace {

using namespace std::chrono_literals;

/// A transport and the mail that it gets.
struct Speaker {
  Speaker(const std::shared_ptr<Runtime>& rt, GrpcOptions options)
      : box(*rt), t(make_grpc_transport(rt, std::move(options), box)) {}
  ~Speaker() { t->close(); }
  Mailbox box;
  std::shared_ptr<Transport> t;
};

/// Two workers; worker 1 is the one that others speak to.
struct SmallGroup {
  explicit SmallGroup(std::optional<uint64_t> key = {})
      : rt(make_threaded_runtime()),
        a(rt, {.id = WorkerId{0}, .hello_key = key}),
        b(rt, {.id = WorkerId{1}}) {
    a.t->add_peer(WorkerId{1}, b.t->addresses());
  }
  /// The addresses of worker 1 as a stranger knows them: without its life's number.
  PeerAddress outside() const {
    PeerAddress address = b.t->addresses();
    address.incarnation = {};
    return address;
  }
  bool a_reaches_b(size_t messages) {
    a.t->send(WorkerId{1}, 1, "from the member");
    return b.box.wait_for(messages);
  }
  std::shared_ptr<Runtime> rt;
  Speaker a, b;
};

TEST(Identity, a_refusal_names_no_life) {
  SmallGroup g;
  g.b.t->add_peer(WorkerId{0}, g.a.t->addresses());
  Speaker guess(g.rt, {.id = WorkerId{0}, .connect_timeout = 300ms});
  PeerAddress wrong = g.outside();
  wrong.incarnation = Incarnation{12345};
  guess.t->add_peer(WorkerId{1}, wrong);
  guess.t->send(WorkerId{1}, 1, "x");
  ASSERT_TRUE(guess.box.wait_for_state(WorkerId{1}, "rejected"));
  EXPECT_EQ(guess.box.reason(WorkerId{1}).find(to_string(g.b.t->incarnation())), std::string::npos)
      << guess.box.reason(WorkerId{1});
  guess.t->add_peer(WorkerId{1}, g.outside());  // the right worker, but not the life of worker 0
  guess.t->send(WorkerId{1}, 1, "x");
  ASSERT_TRUE(guess.box.wait_for_state(WorkerId{1}, "rejected unreachable"));
  EXPECT_EQ(guess.box.reason(WorkerId{1}).find(to_string(g.a.t->incarnation())), std::string::npos)
      << guess.box.reason(WorkerId{1});
  EXPECT_NE(guess.box.reason(WorkerId{1}).find("does not count this life of worker 0"), std::string::npos)
      << guess.box.reason(WorkerId{1});
  EXPECT_EQ(g.b.box.count, 0u);
}

TEST(Identity, a_hello_of_another_life_leaves_the_connection_of_the_first_untouched) {
  for (const bool told : {false, true}) {  // whether worker 1 was told the life of worker 0
    SmallGroup g;
    PeerAddress known = g.a.t->addresses();
    if (!told) known.incarnation = {};
    g.b.t->add_peer(WorkerId{0}, known);
    ASSERT_TRUE(g.a_reaches_b(1));
    Speaker other(g.rt, {.id = WorkerId{0}, .connect_timeout = 300ms});
    other.t->add_peer(WorkerId{1}, g.outside());
    other.t->send(WorkerId{1}, 1, "forged");
    ASSERT_TRUE(other.box.wait_for_state(WorkerId{1}, "unreachable")) << other.box.states(WorkerId{1});
    ASSERT_TRUE(g.a_reaches_b(2));
    EXPECT_EQ(g.b.box.states(WorkerId{0}), "up");
    EXPECT_EQ(g.a.box.states(WorkerId{1}), "up");
    MutexLock lock(g.b.box.mutex);
    for (const auto& m : g.b.box.messages) EXPECT_EQ(m.incarnation, g.a.t->incarnation());
  }
}

TEST(Identity, a_second_hello_with_the_key_of_the_life_takes_the_place_of_its_connection) {
  SmallGroup g(21);
  g.b.t->add_peer(WorkerId{0}, g.a.t->addresses());
  ASSERT_TRUE(g.a_reaches_b(1));
  Speaker again(g.rt, {.id = WorkerId{0}, .incarnation = g.a.t->incarnation(), .hello_key = 21});
  again.t->add_peer(WorkerId{1}, g.outside());
  again.t->send(WorkerId{1}, 1, "the same life");
  ASSERT_TRUE(g.b.box.wait_for(2));
  EXPECT_TRUE(g.a.box.wait_for_state(WorkerId{1}, "up broken"));
  g.b.t->send(WorkerId{0}, 1, "an answer");
  EXPECT_TRUE(again.box.wait_for(1));
  EXPECT_EQ(g.b.box.states(WorkerId{0}), "up");
}

TEST(Identity, a_second_hello_with_the_number_of_the_life_alone_leaves_the_first_untouched) {
  for (const bool answered : {false, true}) {  // whether the first has said hello, or answered one
    SmallGroup g;
    g.b.t->add_peer(WorkerId{0}, g.a.t->addresses());
    if (answered) {
      g.b.t->send(WorkerId{0}, 1, "from worker 1");
      ASSERT_TRUE(g.a.box.wait_for(1));
    } else {
      ASSERT_TRUE(g.a_reaches_b(1));
    }
    const size_t heard = g.b.box.count;
    Speaker forger(g.rt, {.id = WorkerId{0}, .incarnation = g.a.t->incarnation(), .connect_timeout = 300ms});
    forger.t->add_peer(WorkerId{1}, g.outside());
    forger.t->send(WorkerId{1}, 1, "forged");
    ASSERT_TRUE(forger.box.wait_for_state(WorkerId{1}, "unreachable")) << forger.box.states(WorkerId{1});
    EXPECT_NE(forger.box.reason(WorkerId{1}).find("another key for this life"), std::string::npos)
        << forger.box.reason(WorkerId{1});
    ASSERT_TRUE(g.a_reaches_b(heard + 1));
    EXPECT_EQ(g.b.box.states(WorkerId{0}), "up");
    EXPECT_EQ(g.a.box.states(WorkerId{1}), "up");
  }
}

TEST(Identity, a_worker_that_is_not_a_member_yet_is_heard_once_it_is_one) {
  SmallGroup g;
  Speaker late(g.rt, {.id = WorkerId{2}});
  late.t->add_peer(WorkerId{1}, g.outside());
  late.t->send(WorkerId{1}, 1, "early");
  g.b.t->add_peer(WorkerId{0}, g.a.t->addresses());
  ASSERT_TRUE(g.a_reaches_b(1));
  while (late.t->counters(WorkerId{1}).refusals == 0) g.rt->sleep_for(1ms);
  EXPECT_EQ(g.b.box.count, 1u);
  EXPECT_EQ(late.box.states(WorkerId{1}), "");
  EXPECT_THROW(g.b.t->send(WorkerId{2}, 1, "to a stranger"), PeerLost);
  g.b.t->add_peer(WorkerId{2}, late.t->addresses());
  ASSERT_TRUE(g.b.box.wait_for(2));
  EXPECT_EQ(late.box.states(WorkerId{1}), "up");
}

TEST(Identity,
     a_successor_that_connects_before_it_is_announced_is_heard_afterwards_and_the_past_life_is_not) {
  SmallGroup g;
  g.b.t->add_peer(WorkerId{0}, g.a.t->addresses());
  ASSERT_TRUE(g.a_reaches_b(1));
  Speaker successor(g.rt, {.id = WorkerId{0}});
  successor.t->add_peer(WorkerId{1}, g.outside());
  successor.t->send(WorkerId{1}, 1, "successor");
  while (successor.t->counters(WorkerId{1}).refusals == 0) g.rt->sleep_for(1ms);
  EXPECT_EQ(g.b.box.states(WorkerId{0}), "up");
  g.b.t->add_peer(WorkerId{0}, successor.t->addresses());
  ASSERT_TRUE(g.b.box.wait_for(2));
  ASSERT_TRUE(g.a.box.wait_for_state(WorkerId{1}, "up broken"));
  g.a.t->send(WorkerId{1}, 1, "from the past");
  EXPECT_TRUE(g.a.box.wait_for_state(WorkerId{1}, "up broken rejected"));
  EXPECT_NE(g.a.box.reason(WorkerId{1}).find("has a successor"), std::string::npos);
}

TEST(Identity, two_thousand_hellos_of_strangers_leave_nothing_and_members_talk_meanwhile) {
  SmallGroup g;
  g.b.t->add_peer(WorkerId{0}, g.a.t->addresses());
  constexpr int kIds = 40, kEach = 50;
  for (int i = 0; i < kIds; ++i) {
    const inner::Hello hello{.id = WorkerId{100 + i},
                             .incarnation = Incarnation{7},
                             .target = WorkerId{1},
                             .host_key = "far",
                             .addresses = std::vector<std::string>(16, std::string(200, 'x'))};
    Speaker stranger(g.rt, {.id = WorkerId{100 + i},
                            .connect_timeout = 1h,
                            .first_frame = inner::encode_hello(inner::RecordType::kHello, hello)});
    for (int k = 0; k < kEach; ++k) {
      stranger.t->add_peer(WorkerId{1000 + k}, g.outside());
      stranger.t->send(WorkerId{1000 + k}, 1, "let me in");
    }
    ASSERT_TRUE(g.a_reaches_b(static_cast<size_t>(i + 1)));
    for (int k = 0; k < kEach; ++k)
      while (stranger.t->counters(WorkerId{1000 + k}).refusals == 0) g.rt->sleep_for(1ms);
    EXPECT_EQ(stranger.box.reason(WorkerId{1000}), "");
    EXPECT_EQ(g.b.t->counters(WorkerId{100 + i}).connects, 0u);
    EXPECT_THROW(g.b.t->send(WorkerId{100 + i}, 1, "x"), PeerLost);
  }
  EXPECT_EQ(g.b.box.count, static_cast<size_t>(kIds));
  EXPECT_EQ(g.b.box.states(WorkerId{0}), "up");
}

TEST(Identity, a_stranger_that_is_admitted_is_kept_no_longer_than_its_connection) {
  auto rt = make_threaded_runtime();
  Speaker host(rt, {.id = WorkerId{0}, .admit_strangers = true});
  host.box.reply_with(*host.t);
  for (int i = 0; i < 3; ++i) {
    auto guest = std::make_unique<Speaker>(rt, GrpcOptions{.id = WorkerId{5 + i}});
    guest->t->add_peer(WorkerId{0}, host.t->addresses());
    guest->t->send(WorkerId{0}, 1, "x");
    ASSERT_TRUE(guest->box.wait_for(1));
    EXPECT_EQ(host.t->counters(WorkerId{5 + i}).connects, 1u);
    guest.reset();
    ASSERT_TRUE(host.box.wait_for_state(WorkerId{5 + i}, "up broken"));
    EXPECT_EQ(host.t->counters(WorkerId{5 + i}).connects, 0u);
  }
}

TEST(Identity, a_message_right_after_the_hello_of_a_stranger_is_not_delivered) {
  SmallGroup g;
  inner::OutCursor cursor{inner::make_out_message(1, "no greeting waited for", {}, {})};
  inner::Frame frame;
  inner::append_message(frame, cursor);
  const inner::Hello hello{.id = WorkerId{9}, .incarnation = Incarnation{7}, .target = WorkerId{1}};
  Speaker rude(g.rt, {.id = WorkerId{9},
                      .connect_timeout = 300ms,
                      .first_frame = inner::encode_hello(inner::RecordType::kHello, hello) + frame.flat()});
  rude.t->add_peer(WorkerId{1}, g.outside());
  rude.t->send(WorkerId{1}, 1, "x");
  EXPECT_TRUE(rude.box.wait_for_state(WorkerId{1}, "unreachable"));
  EXPECT_EQ(g.b.box.count, 0u);
}

/// A TCP connection that never says a word.
int silent_connection(const std::string& to) {
  const HostPort at = parse_host_port(to);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(at.port);
  inet_pton(AF_INET, at.host.c_str(), &address.sin_addr);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  return fd;
}

TEST(Identity, a_connection_that_stays_silent_is_closed) {
  auto rt = make_threaded_runtime();
  Speaker b(rt, {.id = WorkerId{1}, .unix_socket = false, .handshake_timeout = 300ms});
  // one without a byte, one that opened HTTP/2 and no stream
  const std::string preface("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33);
  for (const std::string& words : {std::string(), preface}) {
    const int fd = silent_connection(b.t->addresses().addresses.at(0));
    EXPECT_EQ(send(fd, words.data(), words.size(), MSG_NOSIGNAL), static_cast<ssize_t>(words.size()));
    char bytes[4096];
    while (recv(fd, bytes, sizeof bytes, 0) > 0) {
    }
    close(fd);
  }
}

/// Sends most of a message of 4 MiB on a stream with that hello, and returns the bytes that were let through.
int64_t bytes_let_through(const Speaker& b, const std::string& hello) {
  RawStream stream(parse_host_port(b.t->addresses().addresses.at(0)), hello);
  EXPECT_TRUE(stream.is_open());
  std::string frame("\0\0\x40\0\0", 5);  // gRPC's prefix: 4 MiB follow
  frame.resize(4'000'000, 'x');
  stream.send_data(frame, 60'000);
  EXPECT_TRUE(stream.stream_ended());
  return stream.sent();
}

TEST(Identity, a_stream_without_a_welcomed_hello_ends_before_its_first_message_is_whole) {
  auto rt = make_threaded_runtime();
  Speaker a(rt, {.id = WorkerId{0}, .insecure = true});
  Speaker b(rt, {.id = WorkerId{1}, .unix_socket = false, .insecure = true});
  b.t->add_peer(WorkerId{0}, a.t->addresses());
  a.t->add_peer(WorkerId{1}, b.t->addresses());
  a.t->send(WorkerId{1}, 1, "x");
  ASSERT_TRUE(b.box.wait_for(1));
  const inner::Hello stranger{.id = WorkerId{9}, .incarnation = Incarnation{7}, .target = WorkerId{1}};
  for (const std::string& hello : {std::string(), std::string("garbage"), std::string(16'000, 'x'),
                                   inner::encode_hello(inner::RecordType::kHello, stranger)})
    EXPECT_LT(bytes_let_through(b, hello), 4'000'000) << hello.size();
  a.t->send(WorkerId{1}, 1, "y");
  EXPECT_TRUE(b.box.wait_for(2));
  EXPECT_EQ(b.box.states(WorkerId{0}), "up");
}

TEST(Identity, the_bytes_of_a_welcomed_stream_are_let_through) {
  auto rt = make_threaded_runtime();
  Speaker b(rt, {.id = WorkerId{1}, .unix_socket = false, .insecure = true});
  b.t->add_peer(WorkerId{0}, {.addresses = {"127.0.0.1:9"}, .incarnation = Incarnation{7}});
  const inner::Hello member{.id = WorkerId{0}, .incarnation = Incarnation{7}, .target = WorkerId{1}};
  RawStream stream(parse_host_port(b.t->addresses().addresses.at(0)),
                   inner::encode_hello(inner::RecordType::kHello, member));
  ASSERT_TRUE(b.box.wait_for_state(WorkerId{0}, "up"));
  std::string frame("\0\0\x3d\x09\0", 5);  // 4'000'000 bytes follow
  frame.resize(3'000'000, 'x');
  stream.send_data(frame, 60'000);
  EXPECT_EQ(stream.sent(), 3'000'000);
  EXPECT_FALSE(stream.stream_ended());
}

TEST(Identity, a_second_stream_on_a_connection_gets_no_welcome) {
  auto rt = make_threaded_runtime();
  Speaker b(rt, {.id = WorkerId{1}, .unix_socket = false, .insecure = true});
  b.t->add_peer(WorkerId{0}, {.addresses = {"127.0.0.1:9"}, .incarnation = Incarnation{7}});
  const inner::Hello member{.id = WorkerId{0}, .incarnation = Incarnation{7}, .target = WorkerId{1}};
  RawStream stream(parse_host_port(b.t->addresses().addresses.at(0)),
                   inner::encode_hello(inner::RecordType::kHello, member));
  ASSERT_TRUE(b.box.wait_for_state(WorkerId{0}, "up"));
  stream.open_another(60'000);
  // the connection ends, or the hello of the second stream takes the place of the first
  const auto connects = [&] { return b.t->counters(WorkerId{0}).connects; };
  for (int i = 0; i < 60'000 && stream.still_open() && connects() == 1; ++i) rt->sleep_for(1ms);
  EXPECT_EQ(connects(), 1u);
  EXPECT_FALSE(stream.still_open());
  EXPECT_TRUE(b.box.wait_for_state(WorkerId{0}, "up broken")) << b.box.states(WorkerId{0});
}

TEST(Identity, the_reason_of_a_refusal_is_told_at_the_first_attempt_and_once) {
  SmallGroup g;
  Speaker late(g.rt, {.id = WorkerId{2}});
  late.t->add_peer(WorkerId{1}, g.outside());
  late.t->send(WorkerId{1}, 1, "early");
  ASSERT_TRUE(late.box.wait_for_failures(WorkerId{1}, 1));
  while (late.t->counters(WorkerId{1}).refusals < 4) g.rt->sleep_for(1ms);
  EXPECT_EQ(late.box.failures(WorkerId{1}).size(), 1u);
  const std::string text = late.box.failures(WorkerId{1}).at(0);
  EXPECT_EQ(text.find(str("worker 1 at ", g.outside().addresses.at(0))), 0u) << text;
  EXPECT_NE(text.find("worker 1 does not count this life of worker 2 as a member, or not yet"),
            std::string::npos)
      << text;
  EXPECT_EQ(late.box.states(WorkerId{1}), "");
  EXPECT_EQ(late.t->counters(WorkerId{1}).queued_messages, 1);
  g.b.t->add_peer(WorkerId{2}, late.t->addresses());
  ASSERT_TRUE(g.b.box.wait_for(1));
  EXPECT_EQ(late.box.states(WorkerId{1}), "up");
}

}  // namespace
}  // namespace weft::rpc
