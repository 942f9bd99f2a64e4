// Payloads through shared memory between two workers: their sizes, their values and the limit of bytes.
// They may lack shared memory at one end, and no file or mapping may remain. segments_test.cpp has malformed
// payloads.
#include <gtest/gtest.h>

#include <linux/capability.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>

#include <weft/distributed/transport/inner/shared_memory.h>

#include "shared_pair.h"
#include "support/held_memory.h"

namespace weft::rpc {
namespace {

using namespace std::chrono_literals;

constexpr auto kLarge = static_cast<size_t>(inner::kSharedFrom);

TEST(SharedMemory, payloads_arrive_whole_and_large_ones_alone_are_shared) {
  SharedPair p;
  uint64_t shared = 0;
  size_t sent = 0;
  for (const size_t size : {size_t{1}, kLarge - 1, kLarge, kLarge + 1, size_t{1} << 20, size_t{5'000'001}}) {
    const auto bytes = pattern(size, static_cast<uint32_t>(size));
    p.a.t->send(WorkerId{1}, 3, "head", payloads_of(bytes));
    ASSERT_TRUE(p.b.box.wait_for(1 + ++sent));
    const Inbound& m = p.b.box.at(sent - 1);
    EXPECT_EQ(m.header, "head");
    ASSERT_EQ(m.payloads.size(), 1u);
    EXPECT_TRUE(holds(m.payloads[0], bytes)) << size;
    EXPECT_EQ(m.payloads[0].shared, size >= kLarge) << size;
    shared += size >= kLarge;
    EXPECT_EQ(p.a.t->shared_memory().payloads, shared);
  }
  EXPECT_EQ(p.a.t->shared_memory().no_room, 0u);
  EXPECT_EQ(p.b.t->shared_memory().bytes, 0);
}

TEST(SharedMemory, a_message_may_have_many_payloads_of_both_kinds) {
  SharedPair p;
  std::vector<std::vector<uint8_t>> bytes;
  std::vector<Payload> payloads;
  for (uint32_t i = 0; i < 60; ++i) {
    bytes.push_back(pattern(i % 5 == 0 ? 0 : i % 3 == 0 ? 1000 * i : kLarge + 10'000 * i, i));
    payloads.push_back({bytes[i].data(), static_cast<int64_t>(bytes[i].size()), kHostDevice, {}});
  }
  p.a.t->send(WorkerId{1}, 3, std::string(100'000, 'h'), std::move(payloads));
  ASSERT_TRUE(p.b.box.wait_for(2));
  const Inbound& m = p.b.box.at(0);
  ASSERT_EQ(m.payloads.size(), 60u);
  for (size_t i = 0; i < 60; ++i) {
    EXPECT_TRUE(bytes[i].empty() ? m.payloads[i].bytes == 0 : holds(m.payloads[i], bytes[i])) << i;
    EXPECT_EQ(m.payloads[i].shared, bytes[i].size() >= kLarge) << i;
  }
}

TEST(SharedMemory, both_directions_at_once_over_one_connection) {
  SharedPair p;
  const auto there = pattern(1'000'000, 1), back = pattern(700'000, 2);
  std::thread other([&] {
    for (int i = 0; i < 40; ++i) p.b.t->send(WorkerId{0}, 4, "back", payloads_of(back));
  });
  for (int i = 0; i < 40; ++i) p.a.t->send(WorkerId{1}, 3, "there", payloads_of(there));
  other.join();
  ASSERT_TRUE(p.b.box.wait_for(41));
  ASSERT_TRUE(p.a.box.wait_for(40));
  for (size_t i = 0; i < 40; ++i) {
    EXPECT_TRUE(holds(p.b.box.at(i).payloads[0], there)) << i;
    EXPECT_TRUE(holds(p.a.box.at(i).payloads[0], back)) << i;
  }
  EXPECT_EQ(p.a.t->counters(WorkerId{1}).connects, 1u);
  EXPECT_EQ(p.a.t->shared_memory().payloads, 40u);
  EXPECT_EQ(p.b.t->shared_memory().payloads, 40u);
}

TEST(SharedMemory, a_held_payload_is_no_memory_of_later_messages) {
  SharedPair p;
  std::vector<std::vector<uint8_t>> bytes;
  for (uint32_t i = 0; i < 8; ++i) {
    bytes.push_back(pattern(500'000, i));
    p.a.t->send(WorkerId{1}, 3, "", payloads_of(bytes[i]));
    ASSERT_TRUE(p.b.box.wait_for(2 + i));
  }
  for (size_t i = 0; i < 8; ++i) {
    ASSERT_TRUE(p.b.box.at(i).payloads[0].shared);
    EXPECT_TRUE(holds(p.b.box.at(i).payloads[0], bytes[i])) << i;
  }
  // the receiver may write to its payload: the sender's bytes and later messages do not see it
  for (size_t i = 0; i < 8; ++i) std::memset(p.b.box.at(i).payloads[0].data, 0xee, 500'000);
  EXPECT_EQ(bytes[3], pattern(500'000, 3));
  p.b.box.forget_all();
  p.a.t->send(WorkerId{1}, 3, "", payloads_of(bytes[3]));
  ASSERT_TRUE(p.b.box.wait_for(10));
  EXPECT_TRUE(holds(p.b.box.at(0).payloads[0], bytes[3]));
}

TEST(SharedMemory, the_sender_may_write_after_the_release_of_its_payload) {
  SharedPair p;
  auto bytes = pattern(600'000, 1);
  std::atomic<bool> released{false};
  std::vector<Payload> payloads = payloads_of(bytes);
  payloads[0].release =
      Release([](void* flag) { static_cast<std::atomic<bool>*>(flag)->store(true); }, &released);
  p.a.t->send(WorkerId{1}, 3, "", std::move(payloads));
  for (int i = 0; i < 60'000 && !released; ++i) p.rt->sleep_for(1ms);
  ASSERT_TRUE(released);
  std::fill(bytes.begin(), bytes.end(), uint8_t{0});
  ASSERT_TRUE(p.b.box.wait_for(2));
  EXPECT_TRUE(p.b.box.at(0).payloads[0].shared);
  EXPECT_TRUE(holds(p.b.box.at(0).payloads[0], pattern(600'000, 1)));
}

TEST(SharedMemory, a_receiver_that_keeps_no_payload_in_place_gets_copies_in_its_own_memory) {
  auto rt = make_threaded_runtime();
  SharedEnd a(rt, {.id = WorkerId{0}});
  Mailbox box(*rt);
  const auto b = make_grpc_transport(rt, {.id = WorkerId{1}, .listen = ""}, box);
  a.t->add_peer(WorkerId{1}, b->addresses());
  b->add_peer(WorkerId{0}, a.t->addresses());
  a.t->send(WorkerId{1}, 1, "first");
  ASSERT_TRUE(box.wait_for(1));
  const auto bytes = pattern(2'000'000, 7);
  for (size_t i = 0; i < 5; ++i) {
    a.t->send(WorkerId{1}, 3, "", payloads_of(bytes));
    ASSERT_TRUE(box.wait_for(2 + i));
  }
  const int64_t kept = a.t->shared_memory().bytes;
  EXPECT_LT(kept, 5'000'000);  // each segment was free again, although all messages are kept
  box.most = 1'000'000;        // no memory: the message is dropped, and its segment is free
  a.t->send(WorkerId{1}, 3, "too large", payloads_of(bytes));
  ASSERT_TRUE(box.wait_for(7));
  box.most = 10'000'000;
  a.t->send(WorkerId{1}, 3, "fits", payloads_of(bytes));
  ASSERT_TRUE(box.wait_for(8));
  EXPECT_EQ(a.t->shared_memory().payloads, 7u);
  EXPECT_EQ(a.t->shared_memory().bytes, kept);
  b->close();
  ASSERT_EQ(box.unread.size(), 1u);
  EXPECT_EQ(box.unread[0].header, "too large");
  ASSERT_EQ(box.messages.size(), 7u);
  for (size_t i = 1; i < 7; ++i) {
    EXPECT_FALSE(box.messages[i].payloads[0].shared);
    EXPECT_TRUE(holds(box.messages[i].payloads[0], bytes));
  }
}

TEST(SharedMemory, a_receiver_is_told_of_the_bytes_of_shared_payloads) {
  SharedPair p;
  const auto bytes = pattern(3'000'000, 1);
  p.a.t->send(WorkerId{1}, 3, "", payloads_of(bytes, bytes));
  ASSERT_TRUE(p.b.box.wait_for(2));
  EXPECT_EQ(p.b.box.told, 6'000'000);
  EXPECT_EQ(p.b.box.ended, 6'000'000);
  EXPECT_GE(p.a.t->counters(WorkerId{1}).bytes_sent, 6'000'000u);
  EXPECT_GE(p.b.t->counters(WorkerId{0}).bytes_received, 6'000'000u);
  EXPECT_EQ(p.a.t->counters(WorkerId{1}).queued_bytes, 0);
}

TEST(SharedMemory, beyond_its_bytes_payloads_go_through_the_socket_until_some_are_released) {
  SharedPair p(8 << 20);
  const auto bytes = pattern(1'000'000, 1);
  for (size_t i = 0; i < 12; ++i) p.a.t->send(WorkerId{1}, 3, "", payloads_of(bytes));
  ASSERT_TRUE(p.b.box.wait_for(13));
  const SharedMemoryCounters full = p.a.t->shared_memory();
  EXPECT_EQ(full.payloads + full.no_room, 12u);
  EXPECT_GE(full.payloads, 2u);
  EXPECT_LE(full.bytes, 4 << 20);  // one peer gets half at most
  for (size_t i = 0; i < 12; ++i) EXPECT_TRUE(holds(p.b.box.at(i).payloads[0], bytes)) << i;
  const auto huge = pattern(9 << 20, 1);  // more than the limit in one payload
  p.a.t->send(WorkerId{1}, 3, "", payloads_of(huge));
  ASSERT_TRUE(p.b.box.wait_for(14));
  EXPECT_EQ(p.a.t->shared_memory().no_room, full.no_room + 1);
  p.b.box.forget_all();
  p.a.t->send(WorkerId{1}, 3, "", payloads_of(bytes));
  ASSERT_TRUE(p.b.box.wait_for(15));
  EXPECT_EQ(p.a.t->shared_memory().payloads, full.payloads + 1);
  EXPECT_TRUE(p.b.box.at(0).payloads[0].shared);
}

TEST(SharedMemory, free_segments_make_room_for_other_sizes) {
  SharedPair p(16 << 20);
  const auto small = pattern(400'000, 1), large = pattern(6'000'000, 2);
  for (size_t i = 0; i < 30; ++i) p.a.t->send(WorkerId{1}, 3, "", payloads_of(small));
  ASSERT_TRUE(p.b.box.wait_for(31));
  const uint64_t before = p.a.t->shared_memory().payloads;
  p.b.box.forget_all();
  for (size_t i = 0; i < 3; ++i) {
    p.a.t->send(WorkerId{1}, 3, "", payloads_of(large));
    ASSERT_TRUE(p.b.box.wait_for(32 + i));
    EXPECT_TRUE(holds(p.b.box.at(0).payloads[0], large));
    p.b.box.forget_all();
  }
  EXPECT_EQ(p.a.t->shared_memory().payloads, before + 3);
  EXPECT_LE(p.a.t->shared_memory().bytes, 16 << 20);
  EXPECT_EQ(mapped_segments(), 2);  // the receiver forgets those that are gone
}

TEST(SharedMemory, goes_unused_with_an_end_that_has_it_off) {
  for (const auto& [of_a, of_b] : {std::pair<int64_t, int64_t>{0, 1 << 30}, {1 << 30, 0}}) {
    SharedPair p(of_a, of_b);
    const auto bytes = pattern(1'000'000, 1);
    p.a.t->send(WorkerId{1}, 3, "", payloads_of(bytes));
    p.b.t->send(WorkerId{0}, 3, "", payloads_of(bytes));
    ASSERT_TRUE(p.b.box.wait_for(2));
    ASSERT_TRUE(p.a.box.wait_for(1));
    for (SharedEnd* end : {&p.a, &p.b}) {
      EXPECT_FALSE(end->box.at(0).payloads[0].shared);
      EXPECT_TRUE(holds(end->box.at(0).payloads[0], bytes));
      EXPECT_EQ(end->t->shared_memory().payloads, 0u);
    }
    EXPECT_EQ((of_a == 0 ? p.b : p.a).t->shared_memory().not_taken, 1u);
    EXPECT_EQ(mapped_segments(), 0);
  }
}

TEST(SharedMemory, a_sender_that_may_pass_no_file_uses_those_it_has_passed_and_tries_again_later) {
  const auto memory = std::make_shared<inner::MadeSegments>(64 << 20);
  const uint64_t link = memory->open();
  const auto bytes = pattern(kLarge, 1);
  const auto place = [&] {
    auto message = inner::make_out_message(3, "", payloads_of(bytes), {});
    memory->place(link, *message);
    return message;
  };
  place();
  EXPECT_GT(memory->counters().bytes, 0);
  memory->pause_passing();
  const auto known = place();
  EXPECT_EQ(known->placed.size(), 1u);
  for (int64_t i = 0; i < inner::kPassingPause; ++i) ASSERT_TRUE(place()->placed.empty()) << i;
  EXPECT_EQ(memory->counters().no_memory, static_cast<uint64_t>(inner::kPassingPause));
  EXPECT_EQ(place()->placed.size(), 1u);
  memory->close(link);
  EXPECT_EQ(memory->counters().bytes, 0);
}

TEST(SharedMemory, a_sender_that_can_make_no_file_uses_the_socket) {
  SharedPair p;
  const auto bytes = pattern(1'000'000, 1);
  size_t sent = 0;
  for (const int resource : {RLIMIT_NOFILE, RLIMIT_FSIZE}) {
    bool come = false;
    {
      const OtherLimit none(resource, 0);
      p.a.t->send(WorkerId{1}, 3, "", payloads_of(bytes));
      come = p.b.box.wait_for(1 + ++sent);
    }
    ASSERT_TRUE(come);
    EXPECT_FALSE(p.b.box.at(sent - 1).payloads[0].shared);
    EXPECT_EQ(p.a.t->shared_memory().no_memory, sent);
  }
  p.a.t->send(WorkerId{1}, 3, "", payloads_of(bytes));
  ASSERT_TRUE(p.b.box.wait_for(2 + sent));
  EXPECT_TRUE(p.b.box.at(sent).payloads[0].shared);
  for (size_t i = 0; i <= sent; ++i) EXPECT_TRUE(holds(p.b.box.at(i).payloads[0], bytes)) << i;
}

/// Takes from this thread the rights by which root passes files beyond its limit.
void give_up_rights() {
  __user_cap_header_struct head{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct mine[_LINUX_CAPABILITY_U32S_3] = {};
  syscall(SYS_capget, &head, mine);
  mine[0].effective &= ~(1u << CAP_SYS_RESOURCE | 1u << CAP_SYS_ADMIN);
  syscall(SYS_capset, &head, mine);
}

TEST(SharedMemory, a_file_that_the_kernel_does_not_pass_ends_one_link_and_the_next_goes_without) {
  SharedPair p;
  const std::string path = ::testing::TempDir() + str("weft_unread_", getpid());
  const inner::File listener(RawLane::listen_at(path));
  RawLane unread(path);
  unlink(path.c_str());
  ASSERT_TRUE(unread.write_with_files("x", std::vector<int>(200, listener.get())));  // under way for ever
  const auto bytes = pattern(1'000'000, 1);
  std::thread([&] {
    give_up_rights();
    const OtherLimit few(RLIMIT_NOFILE, 128);
    p.a.t->send(WorkerId{1}, 3, "lost", payloads_of(bytes));
  }).join();
  ASSERT_TRUE(p.a.box.wait_for_state(WorkerId{1}, "up broken"));
  EXPECT_NE(p.a.box.reason(WorkerId{1}).find("writing: Too many references"), std::string::npos)
      << p.a.box.reason(WorkerId{1});
  ASSERT_TRUE(p.b.box.wait_for_state(WorkerId{0}, "up broken"));
  EXPECT_EQ(p.a.t->shared_memory().bytes, 0);
  EXPECT_EQ(p.b.box.count, 1u);
  p.connect();
  for (size_t i = 0; i < 2; ++i) {
    p.a.t->send(WorkerId{1}, 3, "", payloads_of(bytes));
    ASSERT_TRUE(p.b.box.wait_for(3 + i));
    EXPECT_FALSE(p.b.box.at(i).payloads[0].shared);
    EXPECT_TRUE(holds(p.b.box.at(i).payloads[0], bytes));
  }
  EXPECT_EQ(p.a.t->shared_memory().no_memory, 2u);
  EXPECT_EQ(p.a.t->shared_memory().bytes, 0);
}

void send(SharedPair& p, const test::HeldMemory& held) {
  std::vector<Payload> payloads;
  payloads.push_back({held.data(), static_cast<int64_t>(held.size()), kHostDevice, {}});
  p.a.t->send(WorkerId{1}, 3, "", std::move(payloads));
}

TEST(SharedMemory, a_message_that_is_being_copied_counts_in_its_queue_and_a_close_sends_it) {
  SharedPair p;
  test::HeldMemory held(1'000'000);
  std::jthread sender([&] { EXPECT_NO_THROW(send(p, held)); });
  EXPECT_TRUE(held.wait_until_read());
  const PeerCounters during = p.a.t->counters(WorkerId{1});
  EXPECT_EQ(during.queued_messages, 1);
  EXPECT_GE(during.queued_bytes, 1'000'000);
  std::jthread closer([&] { p.a.t->close(60s); });
  try {  // until the close has begun
    for (int i = 0; i < 60'000; ++i, p.rt->sleep_for(1ms)) p.a.t->send(WorkerId{0}, 1, "to itself");
    ADD_FAILURE() << "no close";
  } catch (const RpcError&) {
  }
  held.let_go();
  sender.join();
  closer.join();
  ASSERT_TRUE(p.b.box.wait_for(2));
  ASSERT_EQ(p.b.box.at(0).payloads.size(), 1u);
  EXPECT_TRUE(p.b.box.at(0).payloads[0].shared);
  EXPECT_TRUE(holds(p.b.box.at(0).payloads[0], std::vector<uint8_t>(1'000'000, 1)));
  EXPECT_EQ(p.a.t->counters(WorkerId{1}).queued_messages, 0);
}

TEST(SharedMemory, a_message_to_a_peer_that_goes_while_it_is_copied_counts_no_more) {
  SharedPair p;
  test::HeldMemory held(1'000'000);
  std::jthread sender([&] { EXPECT_THROW(send(p, held), PeerLost); });
  EXPECT_TRUE(held.wait_until_read());
  p.a.t->remove_peer(WorkerId{1});
  held.let_go();
  sender.join();
  EXPECT_EQ(p.a.t->counters(WorkerId{1}).queued_messages, 0);
  EXPECT_EQ(p.a.t->counters(WorkerId{1}).queued_bytes, 0);
  EXPECT_EQ(p.b.box.count, 1u);
}

TEST(SharedMemory, sizes_of_its_limit_that_make_no_sense_are_refused) {
  auto rt = make_threaded_runtime();
  Mailbox box(*rt);
  for (const int64_t bytes : {int64_t{-1}, (int64_t{16} << 30) + 1})
    EXPECT_THROW(make_grpc_transport(rt, {.id = WorkerId{0}, .shared_memory_bytes = bytes}, box), ValueError);
}

TEST(SharedMemory, a_thousand_messages_keep_few_segments_and_no_file) {
  const auto bytes = pattern(300'000, 1);  // a handler may still read it at the end of the pair
  SharedPair p;
  p.b.box.handle_with([&](Inbound m) { EXPECT_TRUE(holds(m.payloads[0], bytes)); });
  std::ptrdiff_t files = 0;
  int maps = 0;
  for (size_t i = 0; i < 1000; ++i) {
    p.a.t->send(WorkerId{1}, 3, "", payloads_of(bytes));
    ASSERT_TRUE(p.b.box.wait_for(2 + i));
    if (i == 20) files = open_files(), maps = mapped_segments();
  }
  EXPECT_EQ(p.a.t->shared_memory().payloads, 1000u);
  EXPECT_LE(open_files(), files);
  EXPECT_LE(mapped_segments(), maps + 2);  // a release may come after the next send
  EXPECT_LE(maps, 8);
}

TEST(SharedMemory, held_payloads_outlive_broken_links_and_nothing_else_does) {
  SharedPair p;
  std::vector<std::vector<uint8_t>> bytes;
  std::vector<Inbound> held;
  const auto files = open_files();
  for (uint32_t round = 0; round < 10; ++round) {
    bytes.push_back(pattern(400'000 + round, round));
    for (int i = 0; i < 3; ++i) p.a.t->send(WorkerId{1}, 3, "", payloads_of(bytes[round]));
    ASSERT_TRUE(p.b.box.wait_for(4 * round + 4));
    for (size_t i = 0; i < 3; ++i) ASSERT_TRUE(p.b.box.at(i).payloads[0].shared) << round;
    held.push_back(std::move(p.b.box.at(1)));
    p.b.box.forget_all();
    p.a.t->remove_peer(WorkerId{1});
    const auto is_connected = [&] {  // either end may hear of it first
      return p.a.t->counters(WorkerId{1}).connected || p.b.t->counters(WorkerId{0}).connected;
    };
    for (int i = 0; i < 60'000 && is_connected(); ++i) p.rt->sleep_for(1ms);
    EXPECT_EQ(p.a.t->shared_memory().bytes, 0);
    p.a.t->add_peer(WorkerId{1}, p.b.t->addresses());
    p.connect();
  }
  EXPECT_EQ(mapped_segments(), 10);
  for (size_t i = 0; i < held.size(); ++i) EXPECT_TRUE(holds(held[i].payloads[0], bytes[i])) << i;
  held.clear();
  EXPECT_EQ(mapped_segments(), 0);
  EXPECT_LE(open_files(), files);
}

TEST(SharedMemory, values_stay_while_threads_send_and_release_and_links_break) {
  SharedPair p(8 << 20);
  Mutex mutex;
  std::vector<Inbound> held;
  std::atomic<int> come{0}, wrong{0};
  std::atomic<bool> over{false};
  p.b.box.handle_with([&](Inbound m) {
    ++come;
    MutexLock lock(mutex);
    held.push_back(std::move(m));
  });
  const auto check = [&](const Inbound& m) {
    const auto* const at = static_cast<const char*>(m.payloads[0].data);
    const auto more = static_cast<size_t>(m.payloads[0].bytes) - 1;
    wrong += *at != m.header[0] || std::memcmp(at, at + 1, more) != 0;  // all are the same
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, random = std::minstd_rand(static_cast<unsigned>(t) + 1)]() mutable {
      for (int i = 0; i < 100; ++i) {
        const auto bytes =
            std::make_shared<std::vector<char>>(kLarge + random() % 900'000, static_cast<char>(random()));
        std::vector<Payload> payloads(1);
        payloads[0].data = bytes->data(), payloads[0].bytes = static_cast<int64_t>(bytes->size());
        payloads[0].release = Release::keep(bytes);
        try {
          p.a.t->send(WorkerId{1}, 3, std::string(1, bytes->front()), std::move(payloads));
        } catch (const PeerLost&) {  // the link is broken below
        }
      }
    });
  }
  std::thread releases([&, random = std::minstd_rand(9)]() mutable {
    while (!over) {
      std::vector<Inbound> taken;
      {
        MutexLock lock(mutex);
        if (held.size() > 4) std::swap(held[random() % held.size()], held.back());
        if (!held.empty()) taken.push_back(std::move(held.back())), held.pop_back();
      }
      for (const Inbound& m : taken) check(m);
      if (taken.empty()) p.rt->sleep_for(1ms);
    }
  });
  for (int i = 0; i < 8; ++i) {
    p.rt->sleep_for(5ms);
    p.a.t->remove_peer(WorkerId{1});
    p.a.t->add_peer(WorkerId{1}, p.b.t->addresses());
  }
  for (std::thread& t : threads) t.join();
  p.a.t->close(60s);
  over = true;
  releases.join();
  p.b.t->close();
  for (const Inbound& m : held) check(m);
  EXPECT_GT(come, 0);
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(p.a.t->shared_memory().bytes, 0);
}

TEST(SharedMemory, payloads_can_be_released_after_the_end_of_both_transports) {
  std::vector<Inbound> held;
  const auto bytes = pattern(1'000'000, 1);
  {
    SharedPair p;
    for (size_t i = 0; i < 3; ++i) p.a.t->send(WorkerId{1}, 3, "", payloads_of(bytes));
    ASSERT_TRUE(p.b.box.wait_for(4));
    p.b.t->close();
    p.a.t->close();
    for (size_t i = 0; i < 3; ++i) held.push_back(std::move(p.b.box.at(i)));
  }
  EXPECT_EQ(mapped_segments(), 3);
  for (const Inbound& m : held) EXPECT_TRUE(holds(m.payloads[0], bytes));
  std::thread([&] { held.clear(); }).join();
  EXPECT_EQ(mapped_segments(), 0);
}

}  // namespace
}  // namespace weft::rpc
