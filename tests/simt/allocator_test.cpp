// The caching allocator over emulated memory: which blocks are reused and when, and a device that is full.
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include <weft/kernels/cuda/host/allocator.h>
#include <weft/kernels/cuda/host/runtime.h>
#include "support/simt/memory.h"
#include "support/simt/thread.h"

namespace weft::cuda {
namespace {

constexpr size_t kMega = size_t{1} << 20;

struct SimtAllocator : testing::Test {
  SimtAllocator() : before(simt::live_blocks()) { simt::settings() = {}; }
  ~SimtAllocator() override { simt::settings() = {}; }
  int segments() const { return simt::live_blocks() - before; }
  /// Leaves room on the devices for `bytes` beside the segments of earlier tests.
  static void limit_room(size_t bytes) {
    size_t available = 0, total = 0;
    runtime::memory_info(&available, &total);
    simt::settings().device_bytes = total - available + bytes;
  }

  int before;
  void* const a = reinterpret_cast<void*>(0x10);  // streams: the allocator compares them and nothing else
  void* const b = reinterpret_cast<void*>(0x20);
};

TEST_F(SimtAllocator, small_blocks_share_a_segment_in_steps_of_512_bytes) {
  Allocator m(0, true);
  auto* const p = static_cast<char*>(m.allocate(1, a));
  auto* const q = static_cast<char*>(m.allocate(513, a));
  auto* const r = static_cast<char*>(m.allocate(0, a));
  EXPECT_EQ(q - p, 512);
  EXPECT_EQ(r - q, 1024);
  EXPECT_EQ(segments(), 1);
  EXPECT_EQ(m.segment_of(r).begin, p);
  EXPECT_EQ(m.segment_of(p + 700).begin, p);
  EXPECT_EQ(m.segment_of(p).number, m.segment_of(r).number);
  EXPECT_EQ(m.segment_of(p).bytes, 2 * kMega);
  const MemoryStats s = m.stats();
  EXPECT_EQ(s.in_use, 2048);
  EXPECT_EQ(s.reserved, static_cast<int64_t>(2 * kMega));
  EXPECT_EQ(s.cached, s.reserved - s.in_use);
  EXPECT_EQ(s.allocations, 3);
  for (void* x : {p, q, r}) m.deallocate(x);
  EXPECT_EQ(m.stats().in_use, 0);
  EXPECT_THROW(m.segment_of(&m), ValueError);
}

TEST_F(SimtAllocator, a_freed_block_is_reused_on_its_stream_alone) {
  Allocator m(0, true);
  void* const p = m.allocate(4096, a);
  m.deallocate(p);
  void* const other = m.allocate(4096, b);
  EXPECT_NE(other, p);
  EXPECT_EQ(m.allocate(4096, a), p);
  m.deallocate(p);
  m.deallocate(other);
}

TEST_F(SimtAllocator, the_smallest_block_that_fits_is_taken_and_cut) {
  Allocator m(0, true);
  std::vector<void*> p;
  for (const size_t bytes : {4096, 512, 2048, 512}) p.push_back(m.allocate(bytes, a));
  m.deallocate(p[0]);
  m.deallocate(p[2]);
  EXPECT_EQ(m.allocate(1024, a), p[2]);
  EXPECT_EQ(m.allocate(1024, a), static_cast<char*>(p[2]) + 1024);
  EXPECT_EQ(m.allocate(1024, a), p[0]);
}

TEST_F(SimtAllocator, free_neighbours_merge_in_any_order_of_frees) {
  for (const std::vector<int>& order : {std::vector<int>{0, 1, 2}, {2, 1, 0}, {0, 2, 1}, {1, 0, 2}}) {
    Allocator m(0, true);
    std::vector<void*> p;
    for (int i = 0; i < 3; ++i) p.push_back(m.allocate(512 * 1024, a));
    for (const int i : order) m.deallocate(p[static_cast<size_t>(i)]);
    EXPECT_EQ(m.allocate(kMega, a), p[0]);
    EXPECT_EQ(segments(), 1);
    m.deallocate(p[0]);
    m.empty_cache();
    EXPECT_EQ(segments(), 0);
    EXPECT_EQ(m.stats().reserved, 0);
  }
}

TEST_F(SimtAllocator, large_requests_have_segments_of_their_own) {
  Allocator m(0, true);
  void* const p = m.allocate(9 * kMega, a);
  EXPECT_EQ(m.stats().reserved, static_cast<int64_t>(10 * kMega));
  void* const q = m.allocate(3 * kMega, a);
  void* const r = m.allocate(8 * kMega, a);
  EXPECT_EQ(m.stats().reserved, static_cast<int64_t>(42 * kMega));
  EXPECT_EQ(m.segment_of(r).begin, q);
  EXPECT_NE(m.segment_of(r).number, m.segment_of(p).number);
  for (void* x : {p, q, r}) m.deallocate(x);
  EXPECT_EQ(m.stats().peak_reserved, static_cast<int64_t>(42 * kMega));
}

TEST_F(SimtAllocator, a_block_that_another_stream_uses_waits_for_that_stream) {
  Allocator m(0, true);
  void* const p = m.allocate(4096, a);
  m.record_stream(p, b);
  simt::settings().hold_events = true;
  m.deallocate(p);
  EXPECT_EQ(m.stats().in_use, 0);
  void* const q = m.allocate(4096, a);
  EXPECT_NE(q, p);
  simt::settings().hold_events = false;  // the other stream is past it
  EXPECT_EQ(m.allocate(4096, a), p);
  m.deallocate(p);
  m.record_stream(p, b);  // not in use any more: says nothing
  EXPECT_EQ(m.allocate(4096, a), p);
  m.deallocate(p);
  m.deallocate(q);
}

TEST_F(SimtAllocator, an_address_within_a_block_marks_that_block) {
  Allocator m(0, true);
  void* const before = m.allocate(4096, a);
  void* const p = m.allocate(4096, a);
  m.record_stream(static_cast<char*>(p) + 4095, b);
  int elsewhere = 0;
  m.record_stream(&elsewhere, b);  // memory of others: says nothing
  simt::settings().hold_events = true;
  m.deallocate(before);
  m.deallocate(p);
  void* const q = m.allocate(4096, a);
  EXPECT_EQ(q, before);
  void* const r = m.allocate(4096, a);
  EXPECT_NE(r, p);
  simt::settings().hold_events = false;
  for (void* x : {q, r}) m.deallocate(x);
}

TEST_F(SimtAllocator, its_own_stream_is_no_other_stream) {
  Allocator m(0, true);
  void* const p = m.allocate(4096, a);
  m.record_stream(p, a);
  simt::settings().hold_events = true;
  m.deallocate(p);
  EXPECT_EQ(m.allocate(4096, a), p);
  m.deallocate(p);
}

TEST_F(SimtAllocator, a_full_device_empties_the_cache_once_and_repeats) {
  limit_room(64 * kMega);
  Allocator m(0, true);
  void* const p = m.allocate(40 * kMega, a);
  m.deallocate(p);
  void* const q = m.allocate(50 * kMega, b);  // the cached block is of another stream
  EXPECT_EQ(segments(), 1);
  m.deallocate(q);
  void* const waiting = m.allocate(30 * kMega, a);
  m.record_stream(waiting, b);
  simt::settings().hold_events = true;
  m.deallocate(waiting);
  void* const r = m.allocate(60 * kMega, a);  // waits for the other stream rather than fail
  EXPECT_EQ(segments(), 1);
  m.deallocate(r);
}

TEST_F(SimtAllocator, out_of_memory_tells_the_sizes_and_changes_nothing) {
  limit_room(64 * kMega);
  Allocator m(1, true);
  void* const p = m.allocate(20 * kMega, a);
  try {
    m.allocate(50 * kMega, a);
    FAIL() << "no error";
  } catch (const OutOfMemoryError& e) {
    const std::string text = e.what();
    for (const char* part : {"cuda:1: out of memory", "asked for 50 MiB", "reserved 20 MiB", "in use 20 MiB",
                             "free on the device 44 MiB of", "limit none"})
      EXPECT_NE(text.find(part), std::string::npos) << text;
  }
  EXPECT_EQ(m.stats().in_use, static_cast<int64_t>(20 * kMega));
  EXPECT_EQ(m.stats().allocations, 1);
  EXPECT_THROW(m.allocate(SIZE_MAX, a), OutOfMemoryError);
  void* const q = m.allocate(44 * kMega, a);  // the rest can be had
  m.deallocate(p);
  m.deallocate(q);
}

TEST_F(SimtAllocator, the_limit_bounds_what_is_reserved) {
  Allocator m(0, true);
  m.set_limit(8 * kMega);
  void* const p = m.allocate(5 * kMega, a);  // a segment of its own, since one of 32 MiB is too much
  EXPECT_EQ(m.stats().reserved, static_cast<int64_t>(6 * kMega));
  try {
    m.allocate(3 * kMega, a);
    FAIL() << "no error";
  } catch (const OutOfMemoryError& e) {
    EXPECT_NE(std::string(e.what()).find("limit 8 MiB"), std::string::npos) << e.what();
  }
  EXPECT_THROW(m.set_limit(kMega), ValueError);
  m.set_limit(0);
  void* const q = m.allocate(3 * kMega, a);
  m.deallocate(q);
  m.set_limit(7 * kMega);  // gives back the cached blocks beyond it
  EXPECT_EQ(m.stats().reserved, static_cast<int64_t>(6 * kMega));
  m.deallocate(p);
}

TEST_F(SimtAllocator, a_recorded_graph_keeps_its_memory_to_itself) {
  Allocator m(0, true);
  void* const outside = m.allocate(4096, a);
  m.deallocate(outside);
  m.begin_pool(a);
  EXPECT_THROW(m.begin_pool(b), CudaError);
  void* const p = m.allocate(4096, a);
  EXPECT_NE(p, outside);
  m.deallocate(p);
  EXPECT_EQ(m.allocate(4096, a), p);       // reuse within the graph
  void* const side = m.allocate(4096, b);  // the recording thread's other streams are part of it
  std::thread([&] { EXPECT_NE(m.allocate(4096, b), nullptr); }).join();
  void* const pool = m.end_pool();
  EXPECT_EQ(m.allocate(4096, a), outside);
  EXPECT_NE(m.allocate(4096, a), p);
  m.deallocate(p);
  EXPECT_NE(m.allocate(4096, a), p);  // still the graph's
  m.deallocate(side);
  const int held = segments();
  m.empty_cache();
  EXPECT_EQ(segments(), held);
  m.release_pool(pool);
  m.empty_cache();  // two segments of the graph, none of which is used
  EXPECT_EQ(segments(), held - 2);
}

TEST_F(SimtAllocator, a_recording_does_not_keep_the_cache_from_other_threads) {
  limit_room(64 * kMega);
  Allocator m(0, true);
  const auto elsewhere = [](auto&& f) { std::thread(f).join(); };
  void* const cached = m.allocate(20 * kMega, b);
  void* const waiting = m.allocate(20 * kMega, a);
  m.record_stream(waiting, b);
  simt::settings().hold_events = true;
  m.deallocate(waiting);
  m.deallocate(cached);
  m.begin_pool(a);
  EXPECT_THROW(m.allocate(30 * kMega, a), OutOfMemoryError);  // a recording can neither wait nor give back
  EXPECT_THROW(m.allocate_outside_pool(30 * kMega, a), OutOfMemoryError);
  EXPECT_EQ(m.stats().reserved, static_cast<int64_t>(40 * kMega));
  void* p = nullptr;
  elsewhere([&] { EXPECT_NO_THROW(p = m.allocate(60 * kMega, b)); });
  EXPECT_EQ(m.stats().reserved, static_cast<int64_t>(60 * kMega));
  m.deallocate(p);
  m.empty_cache();
  EXPECT_EQ(m.stats().reserved, static_cast<int64_t>(60 * kMega));
  elsewhere([&] { m.empty_cache(); });
  EXPECT_EQ(m.stats().reserved, 0);
  m.release_pool(m.end_pool());
}

TEST_F(SimtAllocator, a_recording_may_ask_for_a_block_that_its_pool_never_had) {
  for (const bool caching : {true, false}) {
    Allocator m(0, caching);
    m.begin_pool(a);
    void* const early = m.allocate(4096, a);
    m.deallocate(early);
    void* const kept = m.allocate_outside_pool(4096, a);
    EXPECT_NE(m.segment_of(kept).begin, m.segment_of(early).begin);
    EXPECT_GE(m.stats().in_use, 4096);
    void* const pool = m.end_pool();
    m.deallocate(kept);
    m.empty_cache();
    EXPECT_EQ(segments(), 1);  // the pool's
    m.release_pool(pool);
    m.empty_cache();
    EXPECT_EQ(segments(), 0);
  }
}

TEST_F(SimtAllocator, a_block_in_use_outlives_its_graph) {
  Allocator m(0, true);
  m.begin_pool(a);
  void* const p = m.allocate(4096, a);
  void* const shared = m.allocate(4096, a);
  m.record_stream(shared, b);
  m.deallocate(shared);  // no event while the graph is recorded
  m.release_pool(m.end_pool());
  m.deallocate(p);
  EXPECT_EQ(m.stats().in_use, 0);
  m.empty_cache();
  EXPECT_EQ(segments(), 0);
}

TEST_F(SimtAllocator, what_outlives_its_graph_waits_for_the_streams_of_the_replays) {
  Allocator m(0, true);
  m.begin_pool(a);
  void* const kept = m.allocate(4096, a);
  void* const behind = m.allocate(4096, a);
  void* const streams[] = {a, b};
  m.release_pool(m.end_pool(), streams);
  simt::settings().hold_events = true;  // b still reads it
  m.deallocate(kept);
  void* const other = m.allocate(4096, a);
  EXPECT_NE(other, kept);
  simt::settings().hold_events = false;
  EXPECT_EQ(m.allocate(4096, a), kept);
  for (void* p : {kept, behind, other}) m.deallocate(p);
  m.empty_cache();
  EXPECT_EQ(segments(), 0);
}

TEST_F(SimtAllocator, without_caching_blocks_come_and_go_as_asked_for) {
  Allocator m(0, false);
  void* const p = m.allocate(100, a);
  EXPECT_EQ(m.stats().reserved, 100);
  EXPECT_EQ(m.segment_of(p).begin, p);
  const uint64_t number = m.segment_of(p).number;
  m.record_stream(p, b);
  m.deallocate(p);
  EXPECT_EQ(segments(), 0);
  EXPECT_EQ(m.stats().reserved, 0);
  EXPECT_FALSE(Allocator::caches_by_default());
  m.begin_pool(a);
  void* const q = m.allocate(100, a);
  EXPECT_NE(m.segment_of(q).number, number) << "not even at the same place";
  m.deallocate(q);
  EXPECT_EQ(m.allocate(100, a), q);  // a graph's memory stays even so
  m.deallocate(q);
  m.release_pool(m.end_pool());
  m.empty_cache();
  EXPECT_EQ(segments(), 0);
}

TEST_F(SimtAllocator, threads_may_allocate_and_free_for_each_other) {
  Allocator m(0, true);
  std::vector<std::vector<void*>> given(4);
  const auto each = [](auto&& f) {
    std::vector<std::thread> threads;
    for (size_t t = 0; t < 4; ++t) threads.emplace_back([&f, t] { f(t); });
    for (std::thread& t : threads) t.join();
  };
  each([&](size_t t) {
    void* const stream = reinterpret_cast<void*>(t % 2);
    for (size_t i = 0; i < 500; ++i) {
      void* const p = m.allocate(1 + i * 997 % 9000, stream);
      if (i % 3 == 0) m.record_stream(p, reinterpret_cast<void*>(5));
      if (i % 2 == 0) m.deallocate(p);
      else given[t].push_back(p);
    }
  });
  each([&](size_t t) {
    for (void* p : given[(t + 1) % 4]) m.deallocate(p);
  });
  EXPECT_EQ(m.stats().in_use, 0);
  EXPECT_EQ(m.stats().allocations, 2000);
  m.empty_cache();
  EXPECT_EQ(m.stats().reserved, 0);
  EXPECT_EQ(segments(), 0);
}

}  // namespace
}  // namespace weft::cuda
