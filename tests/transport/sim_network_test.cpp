// The codec of the wire and the simulated network: faults, states of peers, replay.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>
#include <set>

#include <weft/distributed/sim/sim_transport.h>
#include <weft/distributed/transport/inner/frame.h>

#include "mailbox.h"

namespace weft::rpc {
namespace {

using namespace std::chrono_literals;
using inner::RecordType;

/// Two workers that know each other.
struct Pair {
  explicit Pair(SimNetOptions options = {}, uint64_t seed = 1)
      : rt({.seed = seed}),
        net(rt, options),
        box0(rt),
        box1(rt),
        t0(net.attach(WorkerId{0}, box0)),
        t1(net.attach(WorkerId{1}, box1)) {
    t0->add_peer(WorkerId{1}, t1->addresses());
    t1->add_peer(WorkerId{0}, t0->addresses());
  }
  SimRuntime rt;
  SimNetwork net;
  Mailbox box0, box1;
  std::shared_ptr<Transport> t0, t1;
};

TEST(SimNetwork, a_message_arrives_whole_with_its_sender) {
  Pair p;
  const std::vector<float> a(1009, 2.5f);
  const std::vector<uint8_t> b(5 << 20, 7);
  p.t0->send(WorkerId{1}, 3, "hello", payloads_of(a, b, std::vector<uint8_t>{}));
  p.rt.run_until_idle();
  ASSERT_EQ(p.box1.messages.size(), 1u);
  const auto& m = p.box1.messages[0];
  EXPECT_EQ(m.from, WorkerId{0});
  EXPECT_EQ(m.incarnation, p.t0->incarnation());
  EXPECT_EQ(m.kind, 3);
  EXPECT_EQ(m.header, "hello");
  ASSERT_EQ(m.payloads.size(), 3u);
  EXPECT_EQ(std::memcmp(m.payloads[0].data, a.data(), a.size() * 4), 0);
  EXPECT_EQ(std::memcmp(m.payloads[1].data, b.data(), b.size()), 0);
  EXPECT_EQ(m.payloads[2].bytes, 0);
  EXPECT_EQ(p.box0.states(WorkerId{1}), "up");
  EXPECT_EQ(p.box1.states(WorkerId{0}), "up");
}

TEST(SimNetwork, payload_memory_is_released_once_and_bytes_are_copied) {
  Pair p;
  int released = 0;
  std::vector<uint8_t> bytes(101, 1);
  std::vector<Payload> payloads(1);
  payloads[0] = {bytes.data(), 101, kHostDevice,
                 Release([](void* n) { ++*static_cast<int*>(n); }, &released)};
  p.t0->send(WorkerId{1}, 1, "", std::move(payloads));
  p.rt.run_for(100us + 100us);
  EXPECT_EQ(released, 1);
  bytes.assign(101, 9);
  p.rt.run_until_idle();
  ASSERT_EQ(p.box1.messages.size(), 1u);
  EXPECT_EQ(static_cast<uint8_t*>(p.box1.messages[0].payloads[0].data)[50], 1);
}

TEST(SimNetwork, rules_drop_the_first_three_of_a_kind_and_delay_another) {
  Pair p;
  p.net.add_rule({.kind = 5, .count = 3, .action = FaultRule::Action::kDrop});
  p.net.add_rule({.kind = 6, .action = FaultRule::Action::kDelay, .delay = 2s});
  for (int i = 0; i < 5; ++i) p.t0->send(WorkerId{1}, 5, std::to_string(i));
  p.t0->send(WorkerId{1}, 6, "late");
  p.rt.run_for(1s);
  EXPECT_EQ(p.box1.messages.size(), 2u);
  p.rt.run_until_idle();
  ASSERT_EQ(p.box1.messages.size(), 3u);
  EXPECT_EQ(p.box1.messages.back().header, "late");
  EXPECT_GE(p.rt.now().time_since_epoch(), 2s);
}

TEST(SimNetwork, duplicates_and_reordering_happen_by_seed) {
  Pair p({.duplicate = 0.5}, 11);
  for (int i = 0; i < 101; ++i) p.t0->send(WorkerId{1}, 1, std::to_string(i));
  p.rt.run_until_idle();
  EXPECT_GT(p.box1.messages.size(), 120u);
  EXPECT_LT(p.box1.messages.size(), 180u);
  std::set<std::string> distinct;
  bool reordered = false;
  int last = -1;
  for (const auto& m : p.box1.messages) {
    distinct.insert(m.header);
    reordered = reordered || std::stoi(m.header) < last;
    last = std::stoi(m.header);
  }
  EXPECT_EQ(distinct.size(), 101u);
  EXPECT_TRUE(reordered);
}

TEST(SimNetwork, fifo_keeps_the_order) {
  Pair p({.fifo = true}, 11);
  for (int i = 0; i < 101; ++i) p.t0->send(WorkerId{1}, 1, std::to_string(i));
  p.rt.run_until_idle();
  ASSERT_EQ(p.box1.messages.size(), 101u);
  for (int i = 0; i < 101; ++i) EXPECT_EQ(p.box1.messages[static_cast<size_t>(i)].header, std::to_string(i));
}

std::pair<uint64_t, std::vector<std::string>> faulty_run(uint64_t seed) {
  Pair p({.drop = 0.1, .duplicate = 0.1}, seed);
  for (int i = 0; i < 53; ++i) {
    p.t0->send(WorkerId{1}, 1, std::to_string(i));
    p.t1->send(WorkerId{0}, 2, std::to_string(i));
  }
  p.rt.run_for(1ms);
  p.net.kill(WorkerId{1});
  p.t0->send(WorkerId{1}, 1, "nobody there");
  p.rt.run_until_idle();
  return {p.rt.log_hash(), p.rt.log()};
}

TEST(SimNetwork, one_seed_replays_the_same_event_log) {
  const auto first = faulty_run(23), again = faulty_run(23), other = faulty_run(24);
  EXPECT_EQ(first.first, again.first);
  EXPECT_EQ(first.second, again.second);
  EXPECT_NE(first.first, other.first);
}

TEST(SimNetwork, a_killed_worker_is_seen_as_broken_then_unreachable_and_its_successor_is_reached) {
  Pair p({.connect_timeout = 2s});
  p.t0->send(WorkerId{1}, 1, "a");
  p.rt.run_until_idle();
  p.net.kill(WorkerId{1});
  p.rt.run_until_idle();
  EXPECT_EQ(p.box0.states(WorkerId{1}), "up broken");
  p.t0->send(WorkerId{1}, 1, "b");
  p.rt.run_until_idle();
  EXPECT_EQ(p.box0.states(WorkerId{1}), "up broken unreachable");
  EXPECT_EQ(p.box1.messages.size(), 1u);

  Mailbox box2(p.rt);
  auto t2 = p.net.attach(WorkerId{1}, box2, "sim:1");
  p.t0->send(WorkerId{1}, 1, "c");  // still expects the old incarnation
  p.rt.run_until_idle();
  EXPECT_EQ(p.box0.states(WorkerId{1}), "up broken unreachable rejected");
  p.t0->add_peer(WorkerId{1}, t2->addresses());
  p.t0->send(WorkerId{1}, 1, "d");
  p.rt.run_until_idle();
  EXPECT_EQ(p.box0.states(WorkerId{1}), "up broken unreachable rejected up");
  ASSERT_EQ(box2.messages.size(), 1u);
  EXPECT_EQ(box2.messages[0].header, "d");
}

TEST(SimNetwork, the_reason_of_failed_attempts_is_told_once) {
  Pair p({.connect_timeout = 1h});
  p.net.kill(WorkerId{1});
  p.t0->send(WorkerId{1}, 1, "x");
  p.rt.run_for(50min);
  EXPECT_EQ(p.box0.failures(WorkerId{1}),
            std::vector<std::string>{"nobody listens at the address of worker 1"});
  EXPECT_EQ(p.box0.states(WorkerId{1}), "");
}

TEST(SimNetwork, a_partition_is_silent_then_broken_and_heals) {
  Pair p({.silence_notice = 3s, .connect_timeout = 1s});
  p.t0->send(WorkerId{1}, 1, "a");
  p.rt.run_until_idle();
  p.net.partition({WorkerId{0}}, {WorkerId{1}});
  p.t0->send(WorkerId{1}, 1, "lost");
  p.rt.run_for(2s);
  EXPECT_EQ(p.box0.states(WorkerId{1}), "up");
  p.rt.run_for(2s);
  EXPECT_EQ(p.box0.states(WorkerId{1}), "up broken");
  EXPECT_EQ(p.box1.states(WorkerId{0}), "up broken");
  p.net.heal();
  p.t0->send(WorkerId{1}, 1, "b");
  p.rt.run_until_idle();
  ASSERT_EQ(p.box1.messages.size(), 2u);
  EXPECT_EQ(p.box1.messages[1].header, "b");
}

TEST(SimNetwork, a_peer_that_never_was_added_is_an_error_and_one_that_calls_becomes_known) {
  SimRuntime rt;
  SimNetwork net(rt);
  Mailbox box0(rt), box1(rt);
  auto t0 = net.attach(WorkerId{0}, box0), t1 = net.attach(WorkerId{1}, box1);
  EXPECT_THROW(t1->send(WorkerId{0}, 1, "x"), PeerLost);
  t0->add_peer(WorkerId{1}, t1->addresses());
  t0->send(WorkerId{1}, 1, "x");
  rt.run_until_idle();
  t1->send(WorkerId{0}, 1, "back");
  t1->send(WorkerId{1}, 1, "self");
  rt.run_until_idle();
  EXPECT_EQ(box0.messages.size(), 1u);
  EXPECT_EQ(box1.messages.size(), 2u);
}

TEST(SimNetwork, a_full_queue_refuses_and_wait_writable_waits) {
  Pair p({.bytes_per_second = 1e6, .limits = {.max_queued_bytes = 200'000}});
  const std::vector<uint8_t> bytes(100'000, 1);
  for (int i = 0; i < 2; ++i) p.t0->send(WorkerId{1}, 1, "", payloads_of(bytes));
  EXPECT_THROW(p.t0->send(WorkerId{1}, 1, "", payloads_of(bytes)), Overloaded);
  EXPECT_FALSE(p.t0->wait_writable(WorkerId{1}, p.rt.now() + 1ms));
  EXPECT_TRUE(p.t0->wait_writable(WorkerId{1}, p.rt.now() + 1s));
  p.t0->send(WorkerId{1}, 1, "", payloads_of(bytes));
  p.rt.run_until_idle();
  EXPECT_EQ(p.box1.messages.size(), 3u);
  EXPECT_GE(p.rt.now().time_since_epoch(), 300ms);
}

TEST(SimNetwork, an_oversize_message_is_refused_by_the_sender) {
  Pair p({.limits = {.max_message_bytes = 1000, .max_header_bytes = 100, .max_payloads = 2}});
  const std::vector<uint8_t> bytes(1001, 1), few(10, 1);
  EXPECT_THROW(p.t0->send(WorkerId{1}, 1, "", payloads_of(bytes)), WireError);
  EXPECT_THROW(p.t0->send(WorkerId{1}, 1, std::string(101, 'x')), WireError);
  EXPECT_THROW(p.t0->send(WorkerId{1}, 1, "", payloads_of(few, few, few)), WireError);
  EXPECT_EQ(p.t0->counters(WorkerId{1}).queued_messages, 0);
}

TEST(SimNetwork, malformed_bytes_close_the_connection_and_later_messages_pass) {
  Pair p;
  p.t0->send(WorkerId{1}, 1, "a");
  p.rt.run_until_idle();
  p.net.inject(WorkerId{0}, WorkerId{1}, "no frame at all, just text that is long enough");
  p.rt.run_until_idle();
  EXPECT_EQ(p.box0.states(WorkerId{1}), "up broken");
  p.t0->send(WorkerId{1}, 1, "b");
  p.rt.run_until_idle();
  EXPECT_EQ(p.box1.messages.size(), 2u);
}

TEST(SimNetwork, an_address_in_use_is_an_error_that_names_it) {
  Pair p;
  Mailbox box(p.rt);
  try {
    p.net.attach(WorkerId{2}, box, "sim:1");
    FAIL() << "no error";
  } catch (const RpcError& e) {
    EXPECT_NE(std::string(e.what()).find("sim:1"), std::string::npos);
  }
}

TEST(SimNetwork, a_thousand_workers_talk_to_one) {
  SimRuntime rt({.seed = 3, .keep_log = false});
  SimNetwork net(rt);
  constexpr int kWorkers = 1000;
  std::vector<std::unique_ptr<Mailbox>> boxes;
  std::vector<std::shared_ptr<Transport>> ends;
  for (int i = 0; i < kWorkers; ++i) {
    boxes.push_back(std::make_unique<Mailbox>(rt));
    ends.push_back(net.attach(WorkerId{i}, *boxes.back()));
  }
  boxes[0]->reply_with(*ends[0]);
  int answered = 0;
  for (int i = 1; i < kWorkers; ++i) {
    ends[static_cast<size_t>(i)]->add_peer(WorkerId{0}, ends[0]->addresses());
    rt.post([&, i] {  // a task that blocks on each
      ends[static_cast<size_t>(i)]->send(WorkerId{0}, 1, std::to_string(i));
      boxes[static_cast<size_t>(i)]->wait_for(1);
      ++answered;
    });
  }
  rt.run_until_idle();
  EXPECT_EQ(answered, kWorkers - 1);
  EXPECT_EQ(boxes[0]->messages.size(), static_cast<size_t>(kWorkers - 1));
}

/// Collects the findings of a Decoder.
struct Found final : inner::DecoderSink {
  std::vector<std::string> headers, unread;
  int64_t most = int64_t{1} << 40;  // larger payloads find no memory
  std::vector<std::vector<uint8_t>> bytes;
  int64_t allocated = 0;
  void on_hello(RecordType, inner::Hello) override {}
  void on_text(RecordType, std::string) override {}
  Block allocate(uint8_t, const std::string&, int64_t n, int32_t) override {
    if (n > most) throw std::bad_alloc();
    allocated += n;
    auto memory = std::make_shared<std::vector<uint8_t>>(static_cast<size_t>(n));
    return {memory->data(), n, kHostDevice, Release::keep(memory)};
  }
  void on_message(uint8_t, std::string header, std::vector<Block> payloads) override {
    headers.push_back(std::move(header));
    for (const auto& p : payloads) {
      bytes.emplace_back(static_cast<uint8_t*>(p.data), static_cast<uint8_t*>(p.data) + p.bytes);
    }
  }
  void on_unread(uint8_t, std::string header, std::exception_ptr) override {
    unread.push_back(std::move(header));
  }
};

TEST(Frames, interleaved_messages_survive_any_split_of_the_bytes) {
  std::mt19937 random(5);
  std::vector<uint8_t> large(9 << 20), small(101);
  for (auto& b : large) b = static_cast<uint8_t>(random());
  for (auto& b : small) b = static_cast<uint8_t>(random());
  std::vector<std::string> frames{inner::encode_hello(RecordType::kHello, {})};
  inner::OutCursor one{inner::make_out_message(1, "large", payloads_of(large), {})};
  for (bool whole = false; !whole;) {
    inner::Frame frame;
    inner::OutCursor two{inner::make_out_message(2, "small", payloads_of(small), {})};
    EXPECT_TRUE(inner::append_message(frame, two));
    whole = inner::append_message(frame, one);
    EXPECT_LE(frame.bytes, kMaxFrameBytes);
    EXPECT_EQ(frame.flat().size(), static_cast<size_t>(frame.bytes));
    frames.push_back(frame.flat());
  }
  Found found;
  inner::Decoder decoder({}, found);
  for (const auto& frame : frames) {
    for (size_t at = 0; at < frame.size();) {
      const size_t n =
          std::min<size_t>(frame.size() - at, 1 + random() % (frame.size() < 1000 ? 7 : 300'000));
      decoder.feed(frame.data() + at, n);
      at += n;
    }
    decoder.end_frame();
  }
  ASSERT_EQ(found.headers.size(), frames.size());
  EXPECT_EQ(found.headers.back(), "large");
  EXPECT_EQ(found.bytes.back(), large);
  EXPECT_EQ(found.bytes.front(), small);
}

TEST(Frames, a_declared_size_over_the_limit_is_refused_before_any_allocation) {
  const std::vector<uint8_t> bytes(5000, 1);
  inner::OutCursor cursor{inner::make_out_message(1, "header", payloads_of(bytes), {})};
  inner::Frame frame;
  inner::append_message(frame, cursor);
  for (const WireLimits& limits : {WireLimits{.max_message_bytes = 4999}, WireLimits{.max_header_bytes = 5},
                                   WireLimits{.max_payloads = 0}}) {
    Found found;
    inner::Decoder decoder(limits, found);
    const std::string hello = inner::encode_hello(RecordType::kHello, {}), flat = frame.flat();
    decoder.feed(hello.data(), hello.size());
    EXPECT_THROW(decoder.feed(flat.data(), flat.size()), WireError);
    EXPECT_EQ(found.allocated, 0);
  }
}

TEST(Frames, a_message_without_memory_for_a_payload_is_read_to_its_end_and_the_next_one_arrives) {
  const std::vector<uint8_t> small(50, 1), large(200'000, 2), none;
  std::string flat = inner::encode_hello(RecordType::kHello, {});
  for (const char* name : {"poison", "next"}) {
    const bool poison = name == std::string("poison");
    inner::OutCursor cursor{inner::make_out_message(
        1, name, poison ? payloads_of(small, large, none, small) : payloads_of(small), {})};
    for (bool whole = false; !whole;) {
      inner::Frame frame;
      whole = inner::append_message(frame, cursor, 70'000);
      flat += frame.flat();
    }
  }
  for (const size_t step : {size_t{1}, size_t{1009}, flat.size()}) {
    Found found;
    found.most = 100;
    inner::Decoder decoder({}, found);
    for (size_t at = 0; at < flat.size(); at += step)
      decoder.feed(flat.data() + at, std::min(step, flat.size() - at));
    decoder.end_frame();
    EXPECT_EQ(found.unread, std::vector<std::string>{"poison"});
    EXPECT_EQ(found.headers, std::vector<std::string>{"next"});
    EXPECT_EQ(found.bytes, std::vector<std::vector<uint8_t>>{small});
  }
}

TEST(Frames, ten_thousand_damaged_frames_give_errors_never_harm) {
  std::mt19937 random(29);
  const std::vector<uint8_t> bytes(300, 1);
  int refused = 0;
  for (int round = 0; round < 10'000; ++round) {
    inner::OutCursor cursor{inner::make_out_message(1, "some header", payloads_of(bytes, bytes), {})};
    inner::Frame frame;
    inner::append_message(frame, cursor);
    std::string flat =
        inner::encode_hello(RecordType::kHello, {.host_key = "key", .addresses = {"a:1", "b:2"}}) +
        frame.flat();
    for (int i = 0; i < 3; ++i) flat[random() % flat.size()] = static_cast<char>(random());
    if (round % 3 == 0) flat.resize(random() % flat.size());
    Found found;
    inner::Decoder decoder({.max_message_bytes = 1 << 20}, found);
    try {
      decoder.feed(flat.data(), flat.size());
      decoder.end_frame();
    } catch (const WireError&) {
      ++refused;
    }
    EXPECT_LE(found.allocated, 2 << 20);
  }
  EXPECT_GT(refused, 3000);
}

}  // namespace
}  // namespace weft::rpc
