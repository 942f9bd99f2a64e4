// Messages that arrive in part: their bytes are counted, and one that gets no further byte ends its
// connection.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include <weft/distributed/transport/grpc_transport.h>
#include <weft/distributed/transport/inner/progress.h>

#include "mailbox.h"
#include "raw_peer.h"

namespace weft::rpc {
namespace {

using namespace std::chrono_literals;
using inner::RecordType;

/// Counts the bytes of incomplete messages, for which it may have no room.
struct PartCounter final : inner::DecoderSink {
  int64_t room = int64_t{1} << 40, held = 0, most = 0, blocks = 0;
  std::vector<std::string> whole, unread;
  void on_hello(RecordType, inner::Hello) override {}
  void on_text(RecordType, std::string) override {}
  Block allocate(uint8_t, const std::string&, int64_t bytes, int32_t device) override {
    ++blocks;
    std::shared_ptr<char[]> memory(new char[static_cast<size_t>(bytes)], [this](char* p) {
      --blocks;
      delete[] p;
    });
    void* const data = memory.get();
    return {data, bytes, device, Release::keep(std::move(memory))};
  }
  void on_part(uint8_t, int64_t before, int64_t bytes) override {
    EXPECT_EQ(before, held);
    if (held + bytes > room) throw Overloaded("no room");
    held += bytes;
    most = std::max(most, held);
  }
  void on_part_end(uint8_t, int64_t bytes) override { held -= bytes; }
  void on_message(uint8_t, std::string header, std::vector<Block>) override {
    whole.push_back(std::move(header));
  }
  void on_unread(uint8_t, std::string header, std::exception_ptr) override {
    unread.push_back(std::move(header));
  }
};

std::string hello_frame() { return inner::encode_hello(RecordType::kHello, {}); }

/// The frames of one message.
std::vector<std::string> frames_of(const std::string& header, std::vector<Payload> payloads) {
  std::vector<std::string> frames;
  inner::OutCursor cursor{inner::make_out_message(1, header, std::move(payloads), {})};
  for (bool whole = false; !whole;) {
    inner::Frame frame;
    whole = inner::append_message(frame, cursor, 300'000);
    frames.push_back(frame.flat());
  }
  return frames;
}

TEST(Parts, bytes_of_incomplete_messages_are_counted_as_they_arrive_and_given_back) {
  const std::vector<uint8_t> large(5'000'000, 1), small(900'000, 2);
  PartCounter counter;
  int64_t arrived = 0;
  {
    inner::Decoder decoder({}, counter);
    decoder.feed(hello_frame().data(), hello_frame().size());
    const auto feed = [&](const std::string& frame) {
      decoder.feed(frame.data(), frame.size());
      decoder.end_frame();
      arrived += static_cast<int64_t>(frame.size());
    };
    for (const std::string& frame : frames_of("whole", payloads_of(large, small, large))) {
      feed(frame);
      EXPECT_LE(counter.held, arrived);
      if (counter.whole.empty()) {
        EXPECT_GT(counter.held, arrived - kUncountedBytes - 10'000);
      }
    }
    EXPECT_EQ(counter.whole, std::vector<std::string>{"whole"});
    EXPECT_EQ(counter.held, 0);
    EXPECT_GT(counter.most, 9'000'000);
    counter.most = 0;
    for (const std::string& frame : frames_of("small", payloads_of(small))) feed(frame);
    EXPECT_EQ(counter.most, 0);
    for (const std::string& frame : frames_of("never whole", payloads_of(large, large)))
      if (counter.held < 6'000'000) feed(frame);
    EXPECT_EQ(counter.blocks, 2);
  }
  EXPECT_EQ(counter.held, 0);
  EXPECT_EQ(counter.blocks, 0);
}

TEST(Parts, a_message_that_finds_no_room_on_its_way_frees_its_memory_and_the_next_one_arrives) {
  const std::vector<uint8_t> large(5'000'000, 1), small(500'000, 2);
  PartCounter counter;
  counter.room = 3'000'000;
  inner::Decoder decoder({}, counter);
  decoder.feed(hello_frame().data(), hello_frame().size());
  for (const char* name : {"too large", "fits"}) {
    const bool fits = name == std::string("fits");
    for (const std::string& frame : frames_of(name, fits ? payloads_of(small) : payloads_of(small, large))) {
      decoder.feed(frame.data(), frame.size());
      if (counter.most > 2'000'000 && counter.held == 0 && !fits) {
        EXPECT_EQ(counter.blocks, 0);
      }
    }
  }
  EXPECT_EQ(counter.unread, std::vector<std::string>{"too large"});
  EXPECT_EQ(counter.whole, std::vector<std::string>{"fits"});
  EXPECT_LE(counter.most, counter.room);
}

TEST(Parts, memory_for_a_device_is_counted_whole_since_it_is_taken_whole) {
  const std::vector<uint8_t> some(1 << 20, 1);
  std::vector<Payload> payloads(1);
  payloads[0].data = some.data(), payloads[0].bytes = 50'000'000, payloads[0].device = 0;
  const std::string frame = begin_of_message(1, "", std::move(payloads), int64_t{1} << 19);
  PartCounter counter;
  inner::Decoder decoder({}, counter);
  decoder.feed(hello_frame().data(), hello_frame().size());
  decoder.feed(frame.data(), frame.size());
  EXPECT_EQ(counter.held, 50'000'000);
}

TEST(Parts, an_incomplete_message_waits_for_its_next_byte_no_longer_than_the_limit) {
  PartCounter counter;
  inner::Decoder decoder({}, counter);
  inner::Progress progress(100ms);
  decoder.feed(hello_frame().data(), hello_frame().size());
  TimePoint now(1h);
  EXPECT_FALSE(progress.note(decoder, now));
  const std::vector<uint8_t> large(3'000'000, 1), small(10, 1);
  const auto frames = frames_of("large", payloads_of(large));
  bool timed = false;
  for (const std::string& frame : frames) {  // slow, and never too slow
    if (&frame == &frames.back()) break;
    decoder.feed(frame.data(), frame.size());
    EXPECT_EQ(progress.note(decoder, now), !std::exchange(timed, true));
    now += 90ms;
    EXPECT_EQ(progress.due(now, now), now + 10ms);
  }
  const TimePoint last = now - 90ms;
  EXPECT_GT(now, TimePoint(1h) + 500ms);
  for (int i = 0; i < 5; ++i) {  // other messages pass it, and do not count
    const std::string other = frames_of("small", payloads_of(small)).front();
    decoder.feed(other.data(), other.size());
    EXPECT_FALSE(progress.note(decoder, now));
  }
  EXPECT_EQ(progress.due(last + 99ms, last + 99ms), last + 100ms);
  EXPECT_EQ(progress.due(last + 150ms, last + 100ms), last + 250ms) << "the process was suspended";
  EXPECT_EQ(progress.due(last + 250ms, last + 250ms), TimePoint());
  decoder.feed(frames.back().data(), frames.back().size());
  EXPECT_FALSE(progress.note(decoder, now));
  EXPECT_EQ(progress.due(last + 300ms, last + 300ms), kNever);
  decoder.feed(frames.front().data(), frames.front().size());
  EXPECT_TRUE(progress.note(decoder, now)) << "the timer has ended, and is set again";
}

TEST(Parts, a_large_message_moves_on_under_a_flood_of_small_ones) {
  auto rt = make_threaded_runtime();
  Mailbox box_a(*rt), box_b(*rt);
  auto b = make_grpc_transport(rt, {.id = WorkerId{1}}, box_b);
  auto a = make_grpc_transport(rt, {.id = WorkerId{0}}, box_a);
  a->add_peer(WorkerId{1}, b->addresses());
  const std::vector<uint8_t> large(2'000'000, 1);
  a->send(WorkerId{1}, 1, "large", payloads_of(large));  // nothing goes before b knows a
  constexpr size_t kSmall = 400;
  for (size_t i = 0; i < kSmall; ++i) a->send(WorkerId{1}, 2, std::string(60'000, 'x'));
  b->add_peer(WorkerId{0}, a->addresses());
  ASSERT_TRUE(box_b.wait_for(kSmall + 1));
  MutexLock lock(box_b.mutex);
  EXPECT_EQ(box_b.messages.back().kind, 2);
  EXPECT_LT(std::find_if(box_b.messages.begin(), box_b.messages.end(),
                         [](const Inbound& m) { return m.kind == 1; }) -
                box_b.messages.begin(),
            200);
}

/// A mailbox that knows the bytes of incomplete messages.
struct CountingBox : Mailbox {
  using Mailbox::Mailbox;
  void on_part(uint8_t, int64_t, int64_t bytes) override { held += bytes; }
  void on_part_end(uint8_t, int64_t bytes) override { held -= bytes; }
  std::atomic<int64_t> held{0};
};

TEST(Parts, a_peer_that_sends_half_a_message_and_stops_loses_its_connection_and_no_other_does) {
  auto rt = make_threaded_runtime();
  CountingBox box(*rt);
  Mailbox box_a(*rt);
  auto b = make_grpc_transport(rt, {.id = WorkerId{1}, .progress_timeout = 300ms}, box);
  auto a = make_grpc_transport(rt, {.id = WorkerId{0}}, box_a);
  b->add_peer(WorkerId{0}, a->addresses());
  a->add_peer(WorkerId{1}, b->addresses());
  b->add_peer(WorkerId{2}, {.addresses = {"127.0.0.1:9"}, .incarnation = Incarnation{7}});
  const std::vector<uint8_t> large(20'000'000, 1);
  RawPeer half(rt, b->addresses().addresses.at(0),
               {.id = WorkerId{2}, .incarnation = Incarnation{7}, .target = WorkerId{1}});
  ASSERT_TRUE(half.wait_answered());
  a->send(WorkerId{1}, 1, "before");
  ASSERT_TRUE(box.wait_for(1));
  ASSERT_TRUE(half.write(begin_of_message(1, "half", payloads_of(large), 3'000'000)));
  ASSERT_TRUE(half.wait_closed());
  ASSERT_TRUE(box.wait_for_state(WorkerId{2}, "up broken"));
  EXPECT_NE(box.reason(WorkerId{2}).find("no byte of an incomplete message came for 0.3 s"),
            std::string::npos)
      << box.reason(WorkerId{2});
  EXPECT_EQ(box.held, 0);
  a->send(WorkerId{1}, 1, "after");
  ASSERT_TRUE(box.wait_for(2));
  EXPECT_EQ(box.states(WorkerId{0}), "up");
  a->close();
  b->close();
}

/// Keeps the messages of a decoder as text.
struct TextSink final : inner::DecoderSink {
  void on_hello(inner::RecordType, inner::Hello) override {}
  void on_text(inner::RecordType, std::string) override {}
  Block allocate(uint8_t, const std::string&, int64_t bytes, int32_t) override {
    void* memory = std::malloc(static_cast<size_t>(bytes));
    return {memory, bytes, kHostDevice, Release(std::free, memory)};
  }
  void on_part(uint8_t, int64_t before, int64_t bytes) override {
    EXPECT_EQ(before, held);
    held += bytes;
  }
  void on_part_end(uint8_t, int64_t bytes) override { held -= bytes; }
  void on_message(uint8_t kind, std::string header, std::vector<Block> payloads) override {
    text += str(int{kind}, header);
    for (const Block& p : payloads)
      text.append(static_cast<const char*>(p.data), static_cast<size_t>(p.bytes));
  }
  void on_unread(uint8_t, std::string, std::exception_ptr) override {}
  std::string text;
  int64_t held = 0;
};

TEST(Parts, bytes_stored_in_the_decoders_room_make_the_same_messages_as_bytes_fed) {
  std::mt19937 random(7);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::vector<uint8_t>> memory;
    std::string frame =
        inner::encode_hello(inner::RecordType::kHello, {.id = WorkerId{0}, .target = WorkerId{1}});
    for (int m = 0; m < 3; ++m) {
      std::vector<Payload> payloads;
      for (size_t k = random() % 4; k > 0; --k) {
        memory.emplace_back(random() % 2 == 0 ? random() % 100 : random() % 1'200'000);
        for (auto& byte : memory.back()) byte = static_cast<uint8_t>(random());
        payloads.push_back(
            {memory.back().data(), static_cast<int64_t>(memory.back().size()), kHostDevice, {}});
      }
      inner::OutCursor cursor{
          inner::make_out_message(static_cast<uint8_t>(m), str("header ", m), std::move(payloads), {})};
      inner::Frame out;
      while (!inner::append_message(out, cursor, 1 + static_cast<int64_t>(random() % 1'000'000) + 64)) {
      }
      frame += out.flat();
    }
    TextSink fed, placed;
    inner::Decoder plain({}, fed), direct({}, placed);
    plain.feed(frame.data(), frame.size());
    size_t in_room = 0;
    for (size_t at = 0; at < frame.size();) {
      const std::span<char> room = direct.room();
      const size_t n = std::min({frame.size() - at, 1 + random() % 300'000, room.empty() ? 40 : room.size()});
      const char* from = frame.data() + at;
      if (!room.empty()) {
        std::memcpy(room.data(), from, n);
        from = room.data();
        in_room += n;
      }
      direct.feed(from, n);
      at += n;
    }
    EXPECT_EQ(fed.text, placed.text);
    EXPECT_EQ(placed.held, 0);
    EXPECT_TRUE(in_room > 0 || frame.size() < 100'000);
  }
}

}  // namespace
}  // namespace weft::rpc
