// Threads of a transport that find no memory. A message whose header has come whole is answered, any other
// event ends its connection at most. The others go on, and later connections work.
#include <gtest/gtest.h>

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <new>
#include <vector>

#include <weft/distributed/transport/grpc_transport.h>
#include <weft/distributed/transport/inner/frame.h>

#include "mailbox.h"
#include "raw_lane.h"
#include "support/no_lane.h"
#include "support/replaced_new.h"
#include "support/scarce_memory.h"

namespace weft::rpc {
namespace {

using namespace std::chrono_literals;
using test::NoMemory;
using TransportNoMemory = test::ScarceMemory;

/// Counts the messages of a Decoder; it needs no memory but for payloads.
struct CountedMessages final : inner::DecoderSink {
  void on_hello(inner::RecordType, inner::Hello) override {}
  void on_text(inner::RecordType, std::string) override {}
  Block allocate(uint8_t, const std::string&, int64_t n, int32_t) override {
    char* const memory = new char[static_cast<size_t>(n)];
    return {memory, n, kHostDevice, Release([](void* p) { delete[] static_cast<char*>(p); }, memory)};
  }
  void on_message(uint8_t, std::string, std::vector<Block> payloads) override {
    ++messages;
    blocks = payloads.size();
  }
  void on_unread(uint8_t, std::string header, std::exception_ptr error) override {
    unread += error != nullptr && header.size() == 100;
  }
  int messages = 0, unread = 0;
  size_t blocks = 0;
};

TEST_F(TransportNoMemory, a_message_whose_header_has_come_is_unread_and_the_next_one_is_read) {
  const std::vector<uint8_t> bytes(10, 7), none;
  std::vector<Payload> payloads;
  for (int i = 0; i < 40; ++i)
    for (auto& p : payloads_of(bytes, none)) payloads.push_back(std::move(p));
  const size_t head = inner::kRecordBytes + inner::kBeginBytes + inner::kTableRow * payloads.size() + 100;
  inner::Frame frame;
  inner::OutCursor out{inner::make_out_message(1, std::string(100, 'h'), std::move(payloads), {})};
  ASSERT_TRUE(inner::append_message(frame, out));
  const std::string hello = inner::encode_hello(inner::RecordType::kHello, {}), whole = frame.flat();
  bool was_short = true;
  for (int after = 0; was_short; ++after) {
    CountedMessages found;
    inner::Decoder decoder({}, found);
    decoder.feed(hello.data(), hello.size());
    decoder.feed(whole.data(), head);
    {
      const NoMemory scarce(after, 1);
      EXPECT_NO_THROW(decoder.feed(whole.data() + head, whole.size() - head)) << after;
      was_short = scarce.was_short();
    }
    EXPECT_EQ(found.unread, was_short ? 1 : 0) << after;
    EXPECT_EQ(found.messages, was_short ? 0 : 1) << after;
    decoder.end_frame();
    decoder.feed(whole.data(), whole.size());
    EXPECT_EQ(found.messages, was_short ? 1 : 2) << after;
    EXPECT_EQ(found.blocks, 80u);
  }
}

/// A runtime whose polls of the lane, and whose thread of the TCP listener, may be short of memory.
class ScarceRuntime final : public Runtime {
 public:
  TimePoint now() override { return rt_->now(); }
  void post(Task task) override { rt_->post(std::move(task)); }
  void post_or_refuse(Task task) override { rt_->post_or_refuse(std::move(task)); }
  TimerId call_at(TimePoint when, Task task) override { return rt_->call_at(when, std::move(task)); }
  bool cancel(TimerId id) override { return rt_->cancel(id); }
  std::unique_ptr<Service> start_service(std::string name, Task body) override {
    if (name != "listener") return rt_->start_service(std::move(name), std::move(body));
    return rt_->start_service(std::move(name), [this, body = std::move(body)]() mutable {
      test::allocations_left.none = &listener_has_none;
      body();
    });
  }
  std::unique_ptr<Service> start_poller(std::string name, Poller& poller, bool shared) override {
    if (name != "lane") return rt_->start_poller(std::move(name), poller, shared);
    scarce_ = std::make_unique<ScarcePoller>(*this, poller);
    return rt_->start_poller(std::move(name), *scarce_, shared);
  }
  std::unique_ptr<EventImpl> make_event(const char* what) override { return rt_->make_event(what); }
  uint64_t random() override { return rt_->random(); }
  PoolStats pool_stats() override { return rt_->pool_stats(); }
  void trace(std::string_view line) override { rt_->trace(line); }
  bool tracing() const override { return rt_->tracing(); }
  bool simulated() const override { return false; }
  int stop(Duration limit) override { return rt_->stop(limit); }

  /// From the next poll on, each has that many allocations; -1: as many as it asks for.
  void leave(int allocations) {
    left_ = allocations;
    if (scarce_ != nullptr) scarce_->kick();
  }
  std::atomic<int> shortages{0};  ///< polls that asked for more
  std::atomic<bool> listener_has_none{false};

 private:
  class ScarcePoller final : public Poller {
   public:
    ScarcePoller(ScarceRuntime& rt, Poller& of) : rt_(rt), of_(of) {}
    bool poll(TimePoint deadline) override {
      const int left = rt_.left_;
      if (left < 0) return of_.poll(deadline);
      struct Counted {
        ScarceRuntime& rt;
        const NoMemory scarce;
        ~Counted() { rt.shortages += scarce.was_short(); }
      } const counted{rt_, NoMemory(left)};
      return of_.poll(deadline);
    }
    void kick() override { of_.kick(); }

   private:
    ScarceRuntime& rt_;
    Poller& of_;
  };
  const std::shared_ptr<Runtime> rt_ = make_threaded_runtime();
  std::atomic<int> left_{-1};
  std::unique_ptr<ScarcePoller> scarce_;
};

struct ScarceEnd {
  explicit ScarceEnd(int id, GrpcOptions options = {}) : box(*rt) {
    options.id = WorkerId{id};
    t = make_grpc_transport(rt, options, box);
  }
  ~ScarceEnd() {
    t->close();
    rt->stop(10s);
  }
  std::shared_ptr<ScarceRuntime> rt = std::make_shared<ScarceRuntime>();
  Mailbox box;
  std::shared_ptr<Transport> t;
};

void acquaint(ScarceEnd& one, ScarceEnd& other) {
  one.t->add_peer(other.t->id(), other.t->addresses());
  other.t->add_peer(one.t->id(), one.t->addresses());
}

/// One of many messages arrives within the limit: those under way at a break are lost.
bool reaches(ScarceEnd& from, ScarceEnd& to) {
  const size_t before = to.box.count;
  for (int i = 0; i < 1000; ++i) {
    from.t->send(to.t->id(), 1, "after the shortage");
    if (to.box.wait_for(before + 1, 20ms)) return true;
  }
  return false;
}

/// A message over a connection that never breaks arrives, and no other of its sender is under way then.
bool arrives(ScarceEnd& from, ScarceEnd& to, const std::string& header) {
  from.t->send(to.t->id(), 1, header);
  for (int ms = 0; ms < 20'000; ++ms) {
    {
      MutexLock lock(to.box.mutex);
      for (const Inbound& m : to.box.messages)
        if (m.header == header) return true;
    }
    to.rt->sleep_for(1ms);
  }
  return false;
}

constexpr char kLongHeader[] = "a header that is no short string, so that it needs memory";

/// Worker 0 and worker 1 send to each other, and the polls of one have few allocations left, one more each
/// time. `fresh`: on a new connection each time. Worker 2 has another connection to worker 1.
void check_shortages(bool at_receiver, bool fresh) {
  ScarceEnd a(0), b(1), c(2);
  acquaint(a, b);
  acquaint(c, b);
  ASSERT_TRUE(reaches(a, b));
  ASSERT_TRUE(arrives(c, b, "before the shortages"));
  ScarceEnd& scarce = at_receiver ? b : a;
  const std::vector<uint8_t> bytes(100'000, 3);
  int shortages = 1;
  for (int left = 0; left < 400 && shortages > 0; ++left) {
    if (fresh) {
      a.t->remove_peer(WorkerId{1});
      a.t->add_peer(WorkerId{1}, b.t->addresses());
    }
    const int before = scarce.rt->shortages;
    const size_t came = b.box.count;
    scarce.rt->leave(left);
    const auto waits = [&] { return scarce.rt->shortages == before && b.box.count < came + 3; };
    for (int tries = 0; tries < 20 && waits(); ++tries) {  // the end of an earlier poll may lose some
      for (int i = 0; i < 3; ++i) {
        a.t->send(WorkerId{1}, 1, kLongHeader, payloads_of(bytes));
        b.t->send(WorkerId{0}, 1, kLongHeader);
      }
      for (int ms = 0; ms < 500 && waits(); ++ms) scarce.rt->sleep_for(1ms);
    }
    scarce.rt->leave(-1);
    shortages = scarce.rt->shortages - before;
    ASSERT_TRUE(reaches(a, b)) << left;
    ASSERT_TRUE(arrives(c, b, str("after shortage ", left)));
    ASSERT_TRUE(reaches(b, a)) << left;
  }
  EXPECT_EQ(shortages, 0) << "a poll has a limited number of allocations";
  EXPECT_EQ(b.t->counters(WorkerId{2}).breaks, 0u);
  EXPECT_EQ(a.box.states(WorkerId{1}).find("rejected"), std::string::npos);
}

TEST_F(TransportNoMemory, a_shortage_at_the_receiver_ends_one_connection_of_the_lane) {
  if (!has_same_host_lane()) GTEST_SKIP() << test::kNoLane;
  check_shortages(true, false);
}
TEST_F(TransportNoMemory, a_shortage_at_the_sender_ends_one_connection_of_the_lane) {
  if (!has_same_host_lane()) GTEST_SKIP() << test::kNoLane;
  check_shortages(false, false);
}
TEST_F(TransportNoMemory, a_shortage_while_the_lane_accepts_ends_one_connection) {
  if (!has_same_host_lane()) GTEST_SKIP() << test::kNoLane;
  check_shortages(true, true);
}
TEST_F(TransportNoMemory, a_shortage_while_the_lane_connects_ends_one_connection) {
  if (!has_same_host_lane()) GTEST_SKIP() << test::kNoLane;
  check_shortages(false, true);
}

/// Worker 1 finds no memory for a message of worker 0, and over the lane none for the next thing either. Over
/// gRPC that may be one of gRPC's own, which does not expect it.
void check_receiver(const GrpcOptions& options) {
  std::atomic<int> shortages{0};  // a handler may count until the end of b
  ScarceEnd a(0, options), b(1, options), c(2, options);
  acquaint(a, b);
  acquaint(c, b);
  ASSERT_TRUE(reaches(c, b));
  b.box.handle_with([&](const Inbound& m) {
    if (m.header != "short") return;
    ++shortages;
    if (options.unix_socket && options.same_host_lane) test::allocations_left = {true, 0, 1, 0, nullptr};
    throw std::bad_alloc();
  });
  for (int i = 1; i <= 3; ++i) {
    for (int tries = 0; tries < 40 && shortages < i; ++tries) {
      a.t->send(WorkerId{1}, 1, "short");
      for (int ms = 0; ms < 500 && shortages < i; ++ms) b.rt->sleep_for(1ms);
    }
    EXPECT_EQ(shortages, i);
    ASSERT_TRUE(reaches(c, b));
  }
  EXPECT_TRUE(reaches(a, b));
  EXPECT_EQ(b.t->counters(WorkerId{2}).breaks, 0u);
}

TEST_F(TransportNoMemory, a_receiver_short_of_memory_ends_one_connection_of_the_lane) {
  if (!has_same_host_lane()) GTEST_SKIP() << test::kNoLane;
  check_receiver({});
}
TEST_F(TransportNoMemory, a_receiver_short_of_memory_ends_one_connection_of_a_unix_socket) {
  check_receiver({.same_host_lane = false});
}
TEST_F(TransportNoMemory, a_receiver_short_of_memory_ends_one_tcp_connection) {
  check_receiver({.listen = "127.0.0.1:0", .unix_socket = false});
}

TEST_F(TransportNoMemory, a_tcp_connection_without_memory_is_closed_and_the_next_one_is_let_in) {
  const GrpcOptions tcp{.listen = "127.0.0.1:0", .unix_socket = false};
  ScarceEnd a(0, tcp), b(1, tcp);
  acquaint(a, b);
  b.rt->listener_has_none = true;
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = htons(parse_host_port(b.t->addresses().addresses.front()).port);
  ASSERT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
  const timeval limit{60, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  char byte = 0;
  EXPECT_EQ(recv(fd, &byte, 1, 0), 0) << "closed without an answer";
  close(fd);
  b.rt->listener_has_none = false;
  EXPECT_TRUE(reaches(a, b));
}

/// Its polls have no memory until it is told to end.
class ScarcePolls final : public Poller {
 public:
  bool poll(TimePoint) override {
    if (ended) return false;
    ++polls;
    throw std::bad_alloc();
  }
  void kick() override {}
  std::atomic<bool> ended{false};
  std::atomic<int> polls{0};
};

TEST_F(TransportNoMemory, a_poll_that_throws_does_not_end_the_polling) {
  for (const bool shared : {true, false}) {
    const auto rt = make_threaded_runtime();
    ScarcePolls poller;
    const auto service = rt->start_poller("poller", poller, shared);
    Event never(*rt, "a thread that polls meanwhile");
    for (int i = 0; i < 6000 && poller.polls < 100; ++i) EXPECT_FALSE(never.wait_until(rt->now() + 10ms));
    EXPECT_GE(poller.polls, 100);
    poller.ended = true;
    service->join();
    rt->stop();
  }
}

}  // namespace
}  // namespace weft::rpc
