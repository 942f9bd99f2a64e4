// The moving role of the poller: waiting threads poll, polling threads run handlers, and nothing may wait for
// a thread that waits.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <thread>

#include <weft/distributed/transport/grpc_transport.h>

#include "mailbox.h"
#include "raw_lane.h"
#include "raw_peer.h"
#include "support/no_lane.h"

namespace weft::rpc {
namespace {

using namespace std::chrono_literals;

/// A worker whose requests are served by handlers that call the other worker and block until it has answered.
class Nester : public Mailbox {
 public:
  Nester(std::shared_ptr<Runtime> rt, int id) : Mailbox(*rt), rt_(rt), other_{1 - id} {
    transport = make_grpc_transport(rt, {.id = WorkerId{id}}, *this);
  }
  ~Nester() override { transport->close(); }

  void on_message(Inbound m) override {
    const auto colon = m.header.find(':');
    const int number = std::stoi(m.header), depth = std::stoi(m.header.substr(colon + 1));
    if (m.kind == 2) {
      std::shared_ptr<Event> done;
      {
        MutexLock lock(mutex);
        done = calls_[number];
        calls_.erase(number);
      }
      done->set();
      return;
    }
    rt_->post([this, from = m.from, header = m.header, depth] {
      if (depth > 0) call(depth - 1);
      transport->send(from, 2, header);
    });
  }

  /// A request to the other worker and its answer.
  void call(int depth) {
    auto done = std::make_shared<Event>(*rt_, "a nested call");
    int number = 0;
    {
      MutexLock lock(mutex);
      number = next_++;
      calls_[number] = done;
    }
    transport->send(other_, 1, str(number, ":", depth));
    if (!done->wait_until(rt_->now() + 60s)) throw Timeout("a nested call");
  }

  std::shared_ptr<Transport> transport;

 private:
  const std::shared_ptr<Runtime> rt_;
  const WorkerId other_;
  std::map<int, std::shared_ptr<Event>> calls_ WEFT_GUARDED_BY(mutex);
  int next_ WEFT_GUARDED_BY(mutex) = 1;
};

void check_nesting(const std::shared_ptr<Runtime>& rt0, const std::shared_ptr<Runtime>& rt1) {
  constexpr int kWidth = 11, kDepth = 13;
  Nester a(rt0, 0), b(rt1, 1);
  a.transport->add_peer(WorkerId{1}, b.transport->addresses());
  b.transport->add_peer(WorkerId{0}, a.transport->addresses());
  std::atomic<int> done{0};
  std::vector<std::unique_ptr<Service>> callers;
  for (int i = 0; i < kWidth; ++i) {
    callers.push_back(rt0->start_service("caller", [&] {
      for (int k = 0; k < 5; ++k) a.call(kDepth);
      ++done;
    }));
  }
  for (auto& c : callers) c->join();
  EXPECT_EQ(done, kWidth);
}

TEST(Polling, nested_blocking_handlers_on_two_workers_with_one_thread_each_complete) {
  check_nesting(make_threaded_runtime({.threads = 1}), make_threaded_runtime({.threads = 1}));
}

TEST(Polling, nested_blocking_handlers_of_two_workers_on_one_runtime_complete) {
  auto rt = make_threaded_runtime({.threads = 2});
  check_nesting(rt, rt);
}

TEST(Polling, a_polling_wait_ends_when_its_event_is_set_elsewhere_or_its_time_is_up) {
  auto rt = make_threaded_runtime();
  Mailbox box(*rt);
  auto t = make_grpc_transport(rt, {.id = WorkerId{0}}, box);
  for (int i = 0; i < 20; ++i) {
    Event event(*rt);
    rt->call_at(rt->now() + Duration(i * 50'000), [&] { event.set(); });
    EXPECT_TRUE(event.wait_until(rt->now() + 60s));
    Event posted(*rt);
    rt->post([&] { posted.set(); });
    EXPECT_TRUE(posted.wait_until(rt->now() + 60s));
    Event never(*rt);
    EXPECT_FALSE(never.wait_until(rt->now() + 1ms));
  }
  t->close();
}

/// Two workers with runtimes of their own; `b` gets the messages of `a`.
struct PollingPair {
  std::shared_ptr<Runtime> rt = make_threaded_runtime(), peer_rt = make_threaded_runtime();
  Mailbox a{*peer_rt}, b{*rt};
  std::shared_ptr<Transport> ta = make_grpc_transport(peer_rt, {.id = WorkerId{0}}, a),
                             tb = make_grpc_transport(rt, {.id = WorkerId{1}}, b);
  PollingPair() {
    ta->add_peer(WorkerId{1}, tb->addresses());
    tb->add_peer(WorkerId{0}, ta->addresses());
  }
  ~PollingPair() { ta->close(), tb->close(); }
  PollingPair(const PollingPair&) = delete;
};

TEST(Polling, a_handler_that_computes_does_not_keep_messages_waiting) {
  PollingPair pair;
  auto& [rt, peer_rt, a, b, ta, tb] = pair;
  std::atomic<bool> second{false}, first_saw_second{false};
  b.handle_with([&](Inbound m) {
    rt->post([&, first = m.header == "first"] {
      if (!first) {
        second = true;
        return;
      }
      while (!second) std::this_thread::yield();  // computes until the other message has come
      first_saw_second = true;
    });
  });
  ta->send(WorkerId{1}, 1, "first");
  ASSERT_TRUE(b.wait_for(1));
  ta->send(WorkerId{1}, 1, "second");
  while (!first_saw_second) rt->sleep_for(1ms);
  EXPECT_TRUE(second);
}

/// Whether 20 messages, one after the other, are handled without a thread of the pool while a thread of the
/// same runtime waits.
bool needs_no_pool_beside_a_long_wait() {
  PollingPair pair;
  auto& [rt, peer_rt, a, b, ta, tb] = pair;
  b.handle_with([&](Inbound m) { rt->post([&, from = m.from] { tb->send(from, 2, "done"); }); });
  Event end(*rt, "the end of the messages");
  const auto waits = rt->start_service("waits", [&] { end.wait_until(rt->now() + 60s); });
  std::this_thread::sleep_for(20ms);  // a long wait by now
  for (size_t i = 0; i < 20; ++i) {
    ta->send(WorkerId{1}, 1, "work");
    EXPECT_TRUE(a.wait_for(i + 1));
  }
  std::this_thread::sleep_for(20ms);  // a thread of the pool rests for longer
  const int threads = rt->pool_stats().threads;
  end.set();
  waits->join();
  return threads == 0;
}

TEST(Polling, handlers_run_where_their_messages_arrive_while_another_thread_waits_for_long) {
  // One may meet the other service thread, whose turn comes after some rest, and take a thread of the pool.
  for (int i = 0; i < 20; ++i)
    if (needs_no_pool_beside_a_long_wait()) return;
  FAIL() << "a thread of the pool was woken in each of 20 runs";
}

TEST(Polling, a_handler_may_close_the_transport_that_brought_its_message) {
  auto rt = make_threaded_runtime(), peer_rt = make_threaded_runtime();
  Mailbox a(*peer_rt), b(*rt);
  auto ta = make_grpc_transport(peer_rt, {.id = WorkerId{0}}, a),
       tb = make_grpc_transport(rt, {.id = WorkerId{1}}, b);
  ta->add_peer(WorkerId{1}, tb->addresses());
  tb->add_peer(WorkerId{0}, ta->addresses());
  std::atomic<bool> closed{false};
  b.handle_with([&](Inbound) {
    rt->post([&] {
      tb->close();
      closed = true;
    });
  });
  ta->send(WorkerId{1}, 1, "close");
  EXPECT_TRUE(a.wait_for_state(WorkerId{1}, "up broken"));
  while (!closed) peer_rt->sleep_for(1ms);
  EXPECT_THROW(tb->send(WorkerId{0}, 1, "x"), RpcError);
  ta->close();
}

TEST(Polling, stopping_the_runtime_ends_a_polling_wait) {
  auto rt = make_threaded_runtime();
  Mailbox box(*rt);
  auto t = make_grpc_transport(rt, {.id = WorkerId{0}}, box);
  std::atomic<bool> stopped{false};
  auto waiter = rt->start_service("waiter", [&] {
    Event never(*rt);
    try {
      never.wait();
    } catch (const RuntimeStopped&) {
      stopped = true;
    }
  });
  rt->sleep_for(5ms);
  rt->stop();
  waiter->join();
  EXPECT_TRUE(stopped);
  t->close();
}

/// Keeps the senders of its messages in their order. A message of worker 2 takes long, until one of worker 0
/// has come; the first one waits until that was sent.
class Ordered : public Mailbox {
 public:
  explicit Ordered(Runtime& runtime) : Mailbox(runtime) {}
  void on_message(Inbound m) override {
    if (m.from == WorkerId{0}) {
      other_came = true;
    } else {
      came = true;
      for (int i = 0; i < 60'000 && !sent; ++i) std::this_thread::sleep_for(1ms);
      if (!other_came) std::this_thread::sleep_for(500us);
    }
    Mailbox::on_message(std::move(m));
  }
  std::atomic<bool> came{false}, sent{false}, other_came{false};
};

/// Worker 2 is a raw end of the lane or of gRPC. It sends one frame of many messages, and worker 0 one
/// message meanwhile.
void check_turns(bool lane) {
  constexpr size_t kMessages = 4000;
  const auto rt = make_threaded_runtime(), rt_a = make_threaded_runtime(), rt_c = make_threaded_runtime();
  Ordered box(*rt);
  Mailbox box_a(*rt_a);
  const auto b = make_grpc_transport(rt, {.id = WorkerId{1}, .same_host_lane = lane}, box);
  const auto a = make_grpc_transport(rt_a, {.id = WorkerId{0}, .same_host_lane = lane}, box_a);
  a->add_peer(WorkerId{1}, b->addresses());
  b->add_peer(WorkerId{0}, a->addresses());
  b->add_peer(WorkerId{2}, {.addresses = {"127.0.0.1:9"}, .incarnation = Incarnation{7}});
  box.other_came = box.sent = true;
  a->send(WorkerId{1}, 1, "x");  // they are connected then
  ASSERT_TRUE(box.wait_for(1));
  box.other_came = box.sent = false;
  std::string frame;
  for (size_t i = 0; i < kMessages; ++i) frame += begin_of_message(1, str("m", i), {}, 1000);
  const inner::Hello hello{.id = WorkerId{2}, .incarnation = Incarnation{7}, .target = WorkerId{1}};
  std::optional<RawPeer> over_grpc;
  std::optional<RawLane> over_lane;
  std::unique_ptr<Service> writer;
  if (lane) {
    over_lane.emplace(lane_path_of(*b), lane_hello(hello));
    ASSERT_NE(over_lane->read_frame(), "");
    // the socket may take less than all before the other end reads
    writer = rt_c->start_service("writer", [&] { over_lane->write(lane_frame(frame)); });
  } else {
    over_grpc.emplace(rt_c, b->addresses().addresses.at(0), hello);
    ASSERT_TRUE(over_grpc->wait_answered());
    ASSERT_TRUE(over_grpc->write(frame));
  }
  // no wait of the runtime: it would poll, and take the message that waits for this thread
  for (int i = 0; i < 60'000 && !box.came; ++i) std::this_thread::sleep_for(1ms);
  ASSERT_TRUE(box.came);
  a->send(WorkerId{1}, 1, "y");
  box.sent = true;
  ASSERT_TRUE(box.wait_for(kMessages + 2));
  if (writer != nullptr) writer->join();
  over_grpc.reset();
  over_lane.reset();
  MutexLock lock(box.mutex);
  const auto other = std::find_if(box.messages.begin() + 1, box.messages.end(),
                                  [](const Inbound& m) { return m.from == WorkerId{0}; });
  ASSERT_NE(other, box.messages.end());
  EXPECT_NE(other, box.messages.end() - 1) << "it came after the whole frame";
  int64_t next = 0;  // the frame's own messages keep their order
  for (const Inbound& m : box.messages)
    if (m.from == WorkerId{2}) {
      EXPECT_EQ(m.header, str("m", next++));
    }
  EXPECT_EQ(next, static_cast<int64_t>(kMessages));
  lock.unlock();
  a->close();
  b->close();
}

TEST(Polling, a_message_is_delivered_between_those_of_a_long_frame_of_another) { check_turns(false); }

TEST(Polling, a_message_of_the_lane_is_delivered_between_those_of_a_long_frame_of_another) {
  if (!has_same_host_lane()) GTEST_SKIP() << test::kNoLane;
  check_turns(true);
}

/// Ends when it is told to; a kick is remembered until the next poll.
class CountedPoller final : public Poller {
 public:
  bool poll(TimePoint) override {
    kicked.wait(false);
    kicked = false;
    return !ended;
  }
  void kick() override {
    kicked = true;
    kicked.notify_all();
  }
  std::atomic<bool> kicked{false}, ended{false};
};

TEST(Polling, a_poller_that_finds_no_thread_is_refused_and_polled_by_none) {
  for (const int given : {0, 1}) {
    int most = given;
    auto rt = make_threaded_runtime({.threads = 1, .may_start = [&](int threads) { return threads < most; }});
    CountedPoller poller;
    EXPECT_THROW(static_cast<void>(rt->start_poller("poller", poller, true)), Overloaded);
    most = 2;
    const auto service = rt->start_poller("poller", poller, true);
    poller.ended = true;
    poller.kick();
    service->join();
    EXPECT_EQ(rt->stop(), 0);
  }
}

}  // namespace
}  // namespace weft::rpc
