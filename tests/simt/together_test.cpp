// Blocks that run side by side: the promises of the emulation to such a kernel, and a planted fault of each
// kind.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include <weft/kernels/cuda/host/runtime.h>
#include "support/simt/thread.h"
#include "support/simt/watch.h"

namespace weft::cuda::together_test {
namespace {

using simt::Order;
using simt::RaceCheck;

constexpr Order kOrders[] = {Order::kForward, Order::kReverse, Order::kShuffled};

struct SimtTogether : testing::Test {
  void SetUp() override {
    simt::settings() = {};
    runtime::set_device(0);
    memory = static_cast<float*>(runtime::allocate(kNumbers * sizeof(float)));
  }
  void TearDown() override {
    simt::settings() = simt::settings_of_environment();
    runtime::release(memory);
  }

  std::vector<float> numbers() const {
    std::vector<float> host(kNumbers);
    runtime::copy(host.data(), memory, kNumbers * sizeof(float), nullptr);
    return host;
  }
  /// The fault of a launch in words, with the threads and blocks in an order; empty: none.
  template <class Body>
  static std::string fault_of(const Body& body, Order order = Order::kForward, int64_t blocks = 5,
                              int64_t rows = 1) {
    simt::settings().order = order;
    try {
      launch_together(nullptr, "planted", {.blocks = blocks, .rows = rows, .threads = 64, .shared = 1024},
                      body);
    } catch (const simt::Fault& f) {
      return f.what();
    }
    return "";
  }
  /// Whether a launch has a race of two blocks, in every order.
  template <class Body> static bool races(const Body& body) {
    int found = 0;
    for (const Order order : kOrders)
      found += fault_of(body, order).find("with no barrier of the grid between") != std::string::npos;
    EXPECT_TRUE(found == 0 || found == 3) << found;
    return found > 0;
  }

  static constexpr size_t kNumbers = 4096;
  float* memory = nullptr;
};
struct SimtTogetherRaces : SimtTogether {
  void SetUp() override {
    SimtTogether::SetUp();
    if (!simt::sees_accesses()) GTEST_SKIP() << "this build does not see the accesses of kernels";
  }
};

/// Each block passes its neighbour a number, `rounds` times, between two halves of the memory. Without
/// `with_barrier` it does not wait.
template <bool with_barrier> struct Ring {
  float* x;
  int rounds;
  WEFT_DEVICE void operator()(Thread t) const {
    const int64_t blocks = t.blocks() * t.rows(), mine = t.row() * t.blocks() + t.block();
    if (t.id() == 7) x[mine] = static_cast<float>(mine);
    for (int round = 0; round < rounds; ++round) {
      if constexpr (with_barrier) t.sync_grid();
      else t.sync();
      const float* const from = x + round % 2 * 2048;
      if (t.id() == round) x[(round + 1) % 2 * 2048 + mine] = from[(mine + 1) % blocks] + 100;
    }
  }
};

/// How many of the blocks' numbers are not those of the ring.
template <bool with_barrier> int wrong(const SimtTogether& test, int64_t blocks, int64_t rows, Order order) {
  const int rounds = 7;
  runtime::fill(test.memory, 0xFF, SimtTogether::kNumbers * sizeof(float), nullptr);
  EXPECT_EQ(test.fault_of(Ring<with_barrier>{test.memory, rounds}, order, blocks, rows), "");
  const std::vector<float> got = test.numbers();
  int off = 0;
  for (int64_t i = 0; i < blocks * rows; ++i)
    off += got[static_cast<size_t>(2048 + i)] != static_cast<float>((i + rounds) % (blocks * rows) + 700);
  return off;
}

TEST_F(SimtTogether, a_barrier_of_the_grid_makes_writes_visible_in_every_order) {
  for (const Order order : kOrders) {
    EXPECT_EQ(wrong<true>(*this, 5, 1, order), 0);
    EXPECT_EQ(wrong<true>(*this, 3, 4, order), 0);
    EXPECT_EQ(wrong<true>(*this, 1, 1, order), 0);
  }
  simt::settings().processors = 1;
  EXPECT_EQ(wrong<true>(*this, 5, 1, Order::kForward), 0);
}

TEST_F(SimtTogether, a_missing_barrier_of_the_grid_is_seen_in_every_order) {
  simt::settings().race_check = RaceCheck::kNone;  // the numbers alone show it
  for (const Order order : kOrders) EXPECT_GT(wrong<false>(*this, 5, 1, order), 0);
}

/// Some threads or blocks leave out a barrier of the grid, or wait at another one.
enum class Skips { kThread, kBlock, kSecondOfBlock, kForBlockBarrier, kForWarp };
template <Skips skips> struct Skipper {
  WEFT_DEVICE void operator()(Thread t) const {
    t.sync_grid();
    if constexpr (skips == Skips::kThread) {
      if (t.id() != 5) t.sync_grid();
    } else if constexpr (skips == Skips::kBlock) {
      if (t.block() != 3) t.sync_grid();
    } else if constexpr (skips == Skips::kSecondOfBlock) {
      for (int64_t i = 0; i < 2 + t.block() % 2; ++i) t.sync_grid();
    } else if constexpr (skips == Skips::kForBlockBarrier) {
      if (t.id() < 32) t.sync_grid();
      else t.sync();
    } else {
      if (t.id() < 32) t.sync_grid();
      else if (t.id() < 63) t.sync_warp();
    }
  }
};

TEST_F(SimtTogether, a_barrier_of_the_grid_that_is_not_reached_by_all_is_a_fault) {
  for (const Order order : kOrders) {
    EXPECT_NE(fault_of(Skipper<Skips::kThread>{}, order)
                  .find("0 of 64 threads wait at a barrier, 63 at one of the grid and 0 at a warp operation "
                        "that the others do not reach"),
              std::string::npos);
    EXPECT_EQ(fault_of(Skipper<Skips::kBlock>{}, order),
              "kernel planted: 4 of 5 blocks wait at a barrier of the grid that the others do not reach");
    EXPECT_EQ(fault_of(Skipper<Skips::kSecondOfBlock>{}, order),
              "kernel planted: 2 of 5 blocks wait at a barrier of the grid that the others do not reach");
    EXPECT_NE(fault_of(Skipper<Skips::kForBlockBarrier>{}, order)
                  .find("32 of 64 threads wait at a barrier, 32 at one of the grid and 0 at"),
              std::string::npos);
    EXPECT_NE(fault_of(Skipper<Skips::kForWarp>{}, order).find("32 at one of the grid and 31 at a warp"),
              std::string::npos);
    EXPECT_EQ(wrong<true>(*this, 5, 1, order), 0);  // the next launch is well
  }
}

struct IndependentRing {
  static constexpr bool kIndependent = true;
  WEFT_DEVICE void operator()(Thread t) const { t.sync_grid(); }
};

TEST_F(SimtTogether, a_barrier_of_the_grid_in_another_launch_is_a_fault) {
  const auto fault = [&](const auto& body) -> std::string {
    try {
      launch(nullptr, "alone", {.threads = 64, .shared = 1024}, body);
    } catch (const simt::Fault& f) {
      return f.what();
    }
    return "";
  };
  const char* const text = "a barrier of the grid in a launch whose blocks do not run together";
  EXPECT_NE(fault(Ring<true>{memory, 1}).find(text), std::string::npos);
  EXPECT_NE(fault(IndependentRing{}).find(text), std::string::npos);
}

TEST_F(SimtTogether, no_more_blocks_run_than_the_device_holds) {
  const auto most = [](int threads, size_t shared) {
    return blocks_together<Ring<true>>("planted", threads, shared);
  };
  simt::settings().processors = 3;
  EXPECT_EQ(most(64, 0), 3 * 32);
  EXPECT_EQ(most(512, 0), 3 * 4);
  EXPECT_EQ(most(1024, 0), 3 * 2);
  EXPECT_EQ(most(64, 113 << 10), 3 * 2);
  EXPECT_EQ(most(64, (113 << 10) + 1), 3);
  EXPECT_EQ(most(64, 227 << 10), 3);
  EXPECT_EQ(most(64, (227 << 10) + 1), 0);
  simt::settings().together = false;
  EXPECT_EQ(most(64, 0), 0);
  simt::settings().together = true;
  simt::settings().processors = 1;
  simt::settings().shared_memory = 4 << 10;  // two blocks of 1 KiB
  EXPECT_EQ(fault_of(Ring<true>{memory, 1}, Order::kForward, 2), "");
  EXPECT_EQ(fault_of(Ring<true>{memory, 1}, Order::kForward, 3),
            "kernel planted: 3 blocks cannot run together, the device holds 2");
  EXPECT_EQ(fault_of(Ring<true>{memory, 1}, Order::kForward, 2, 2),
            "kernel planted: 4 blocks cannot run together, the device holds 2");
}

struct Throws {
  WEFT_DEVICE void operator()(Thread t) const {
    t.sync_grid();
    if (t.block() == 1 && t.id() == 40) throw simt::Fault("planted");
    t.sync_grid();
  }
};
struct ThrowsAlone {
  WEFT_DEVICE void operator()(Thread t) const {
    t.sync();
    if (t.id() == 40) throw simt::Fault("planted");
    t.sync();
  }
};
struct Numbers {
  float* y;
  WEFT_DEVICE void operator()(Thread t) const {
    y[t.id()] = -1;
    t.sync();
    y[t.id()] = static_cast<float>(t.id());
  }
};
struct Outside {
  WEFT_DEVICE void operator()(Thread t) const {
    t.sync_grid();
    if (t.block() == 4) t.shared<unsigned char>()[1024] = 1;
  }
};

TEST_F(SimtTogether, a_failure_of_one_block_ends_all) {
  for (const Order order : kOrders) {
    EXPECT_EQ(fault_of(Throws{}, order), "planted");
#if !defined(__SANITIZE_ADDRESS__)
    EXPECT_EQ(fault_of(Outside{}, order),
              "kernel planted, block 4: a write beyond shared memory, at byte 1024 of 1024");
#endif
    EXPECT_EQ(wrong<true>(*this, 5, 1, order), 0);
  }
}

TEST_F(SimtTogether, a_failure_between_two_barriers_ends_the_block) {
  for (const Order order : kOrders) {
    simt::settings().order = order;
    EXPECT_THROW(launch(nullptr, "planted", {.threads = 64}, ThrowsAlone{}), simt::Fault);
    launch(nullptr, "numbers", {.threads = 64}, Numbers{memory});
    const std::vector<float> got = numbers();
    for (size_t i = 0; i < 64; ++i) EXPECT_EQ(got[i], static_cast<float>(i));
  }
}

TEST_F(SimtTogether, a_recorded_launch_is_replayed) {
  runtime::fill(memory, 0, kNumbers * sizeof(float), nullptr);
  const runtime::Stream s = runtime::new_stream(false);
  runtime::begin_capture(s);
  launch_together(s, "ring", {.blocks = 5, .threads = 64}, Ring<true>{memory, 1});
  const runtime::Graph graph = runtime::end_capture(s);
  EXPECT_EQ(numbers()[2048], 0);
  runtime::launch_graph(graph, s);
  EXPECT_EQ(numbers()[2048], 101);
  runtime::delete_graph(graph);
  runtime::delete_stream(s);
}

TEST_F(SimtTogetherRaces, a_read_of_another_blocks_number_needs_a_barrier_of_the_grid) {
  EXPECT_FALSE(races(Ring<true>{memory, 7}));
  EXPECT_TRUE(races(Ring<false>{memory, 7}));
  EXPECT_EQ(fault_of(Ring<false>{memory, 1}),
            "kernel planted: a race of threads 0 of block 0 (read) and 7 of block 1 (write) for byte 4 of a "
            "block of device memory, with no barrier of the grid between");
  simt::settings().race_check = RaceCheck::kNone;
  EXPECT_FALSE(races(Ring<false>{memory, 7}));
}

/// The ring within one half of the memory: a number is read and written between the same two barriers.
template <bool with_second> struct InPlace {
  float* x;
  WEFT_DEVICE void operator()(Thread t) const {
    if (t.id() == 0) x[t.block()] = 0;
    for (int round = 0; round < 3; ++round) {
      t.sync_grid();
      const float got = x[(t.block() + 1) % t.blocks()];
      if constexpr (with_second) t.sync_grid();
      if (t.id() == 0) x[t.block()] = got + 1;
    }
  }
};

TEST_F(SimtTogetherRaces, a_write_after_another_blocks_read_needs_a_barrier_of_the_grid) {
  EXPECT_FALSE(races(InPlace<true>{memory}));
  EXPECT_TRUE(races(InPlace<false>{memory}));
}

enum class Case { kTwoWrites, kOneWrite, kBytes, kBytesOfAWord, kAtomics, kReadOfAtomic, kShared, kBarrier };
/// Accesses of all blocks to a few places, with no barrier of the grid between.
template <Case which> struct Places {
  float* x;
  WEFT_DEVICE void operator()(Thread t) const {
    if (t.id() != 3 && which != Case::kBarrier) return;
    auto* const bytes = reinterpret_cast<uint8_t*>(x);
    auto* const word = reinterpret_cast<uint32_t*>(x);
    switch (which) {
      case Case::kTwoWrites: x[9] = 1; break;
      case Case::kOneWrite:
        if (t.block() == 2) x[9] = 1;
        break;
      case Case::kBytes: bytes[t.block()] = 1; break;
      case Case::kBytesOfAWord:
        if (t.block() == 2) word[0] = 0;
        else bytes[t.block()] = 1;
        break;
      case Case::kAtomics: t.atomic_add(word, 1u); break;
      case Case::kReadOfAtomic:
        if (t.block() == 2) x[7] = static_cast<float>(word[0]);
        else t.atomic_add(word, 1u);
        break;
      case Case::kShared: t.shared<float>()[5] = 1; break;
      case Case::kBarrier:  // of each block alone
        if (t.block() == 1 && t.id() == 3) x[9] = 1;
        t.sync();
        if (t.block() == 2 && t.id() == 40) x[10] = x[9];
        t.sync();
        break;
    }
  }
};

TEST_F(SimtTogetherRaces, blocks_race_for_the_same_bytes_only) {
  EXPECT_TRUE(races(Places<Case::kTwoWrites>{memory}));
  EXPECT_FALSE(races(Places<Case::kOneWrite>{memory}));
  EXPECT_FALSE(races(Places<Case::kBytes>{memory}));
  EXPECT_TRUE(races(Places<Case::kBytesOfAWord>{memory}));
  EXPECT_FALSE(races(Places<Case::kAtomics>{memory}));
  EXPECT_TRUE(races(Places<Case::kReadOfAtomic>{memory}));
  EXPECT_FALSE(races(Places<Case::kShared>{memory}));
  EXPECT_TRUE(races(Places<Case::kBarrier>{memory}));
}

/// All blocks read a number in two warps; one of the last readers writes it, its own block's barrier later.
template <bool with_barrier> struct ManyReaders {
  float* x;
  WEFT_DEVICE void operator()(Thread t) const {
    x[16 + t.global()] = x[3];
    t.sync();
    x[16 + t.global()] += x[3];
    if constexpr (with_barrier) t.sync_grid();
    else t.sync();
    if (t.block() == 2 && t.id() == 1) x[3] = 1;
  }
};

TEST_F(SimtTogetherRaces, readers_of_other_blocks_are_remembered) {
  EXPECT_FALSE(races(ManyReaders<true>{memory}));
  EXPECT_TRUE(races(ManyReaders<false>{memory}));
}

/// Threads of one block race, while the other blocks run between their barriers.
template <bool with_barrier> struct WithinBlock {
  WEFT_DEVICE void operator()(Thread t) const {
    float* const s = t.shared<float>();
    s[t.id()] = 1;
    t.shuffle(1, 0);
    if constexpr (with_barrier) t.sync();
    s[64 + t.id()] = s[t.id() ^ 32];
    t.sync_grid();
  }
};

TEST_F(SimtTogetherRaces, threads_of_a_block_race_as_in_any_launch) {
  for (const Order order : kOrders) {
    EXPECT_EQ(fault_of(WithinBlock<true>{}, order), "");
    const std::string text = fault_of(WithinBlock<false>{}, order);
    EXPECT_NE(text.find("a race of threads"), std::string::npos);
    EXPECT_NE(text.find("of shared memory, with no barrier between"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace weft::cuda::together_test
