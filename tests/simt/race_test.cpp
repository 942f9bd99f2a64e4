// The emulator finds races of a block's threads. A planted kernel of each kind is a fault in every order of
// threads, and its right form is none.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include <weft/kernels/cuda/host/runtime.h>
#include "support/simt/thread.h"
#include "support/simt/watch.h"

namespace weft::cuda::race_test {
namespace {

using simt::Order;
using simt::RaceCheck;

struct SimtRaces : testing::Test {
  void SetUp() override {
    if (!simt::sees_accesses()) GTEST_SKIP() << "this build does not see the accesses of kernels";
    simt::settings() = {};
    simt::settings().race_check = RaceCheck::kAll;
    memory = static_cast<float*>(runtime::allocate(kBytes));
    runtime::fill(memory, 0, kBytes, nullptr);
  }
  void TearDown() override {
    simt::settings() = simt::settings_of_environment();
    runtime::release(memory);
  }

  /// The fault of a launch in the usual order of threads, in words; empty: none. The other orders must agree.
  template <class Body> std::string fault_of(const Body& body, int threads = 64, int64_t blocks = 1) {
    std::string text;
    for (const Order order : {Order::kForward, Order::kReverse, Order::kShuffled}) {
      simt::settings().order = order;
      std::string found;
      try {
        launch(nullptr, "planted", {.blocks = blocks, .threads = threads, .shared = kBytes}, body);
      } catch (const simt::Fault& f) {
        found = f.what();
      }
      if (order == Order::kForward) text = found;
      EXPECT_EQ(found.empty(), text.empty()) << found << text;
    }
    simt::settings().order = Order::kForward;
    return text;
  }
  template <class Body> bool races(const Body& body, int threads = 64, int64_t blocks = 1) {
    return fault_of(body, threads, blocks).find("a race of threads") != std::string::npos;
  }

  static constexpr size_t kBytes = 4096;
  float* memory = nullptr;
};

/// Each thread writes a number and reads that of the next thread.
template <bool with_barrier> struct Neighbour {
  float* y;
  WEFT_DEVICE void operator()(Thread t) const {
    float* const s = t.shared<float>();
    s[t.id()] = 1;
    if constexpr (with_barrier) t.sync();
    y[t.id()] = s[(t.id() + 1) % t.count()];
  }
};

TEST_F(SimtRaces, a_read_after_a_write_needs_a_barrier) {
  EXPECT_EQ(fault_of(Neighbour<true>{memory}), "");
  EXPECT_EQ(fault_of(Neighbour<false>{memory}),
            "kernel planted, block 0: a race of threads 0 (read) and 1 (write) for byte 4 of shared memory, "
            "with no barrier between");
}

/// The same twice; without the last barrier the second write may come before the first read.
template <bool with_last> struct TwoRounds {
  float* y;
  WEFT_DEVICE void operator()(Thread t) const {
    float* const s = t.shared<float>();
    for (int round = 0; round < 2; ++round) {
      s[t.id()] = static_cast<float>(round);
      t.sync();
      y[t.id()] += s[(t.id() + 1) % t.count()];
      if constexpr (with_last) t.sync();
    }
  }
};

TEST_F(SimtRaces, a_write_after_a_read_needs_a_barrier) {
  EXPECT_FALSE(races(TwoRounds<true>{memory}));
  EXPECT_TRUE(races(TwoRounds<false>{memory}));
}

template <bool one_thread> struct OneNumber {
  WEFT_DEVICE void operator()(Thread t) const {
    if (!one_thread || t.id() == 0) t.shared<float>()[5] = 1;
  }
};

TEST_F(SimtRaces, two_writes_need_a_barrier) {
  EXPECT_FALSE(races(OneNumber<true>{}));
  EXPECT_TRUE(races(OneNumber<false>{}));
}

/// Each thread writes `width` bytes, `apart` bytes from the next thread's. Then one may read a whole word.
template <class U, bool reads_word> struct Bytes {
  int apart;
  float* y;
  WEFT_DEVICE void operator()(Thread t) const {
    unsigned char* const s = t.shared<unsigned char>();
    *reinterpret_cast<U*>(s + t.id() * apart) = U(1);
    if (reads_word && t.id() == 2) y[0] = static_cast<float>(*t.shared<uint32_t>());
  }
};

TEST_F(SimtRaces, parts_of_a_word_are_places_of_their_own) {
  EXPECT_FALSE(races(Bytes<uint8_t, false>{1, memory}));
  EXPECT_FALSE(races(Bytes<uint16_t, false>{2, memory}));
  EXPECT_TRUE(races(Bytes<uint8_t, true>{1, memory}));
  EXPECT_TRUE(races(Bytes<uint64_t, false>{4, memory}));
}

enum class By { kNothing, kSyncWarp, kBallot, kShuffle };
/// Each thread writes a number and reads that of a partner.
template <By by, int partner> struct Partner {
  float* y;
  WEFT_DEVICE void operator()(Thread t) const {
    float* const s = t.shared<float>();
    s[t.id()] = 1;
    if constexpr (by == By::kSyncWarp) t.sync_warp();
    if constexpr (by == By::kBallot) t.ballot(true);
    if constexpr (by == By::kShuffle) t.shuffle(1, 0);
    y[t.id()] = s[t.id() ^ partner];
  }
};

TEST_F(SimtRaces, an_operation_of_the_warp_orders_its_lanes) {
  EXPECT_TRUE(races(Partner<By::kNothing, 1>{memory}));
  EXPECT_FALSE(races(Partner<By::kSyncWarp, 1>{memory}));
  EXPECT_FALSE(races(Partner<By::kBallot, 1>{memory}));
  EXPECT_FALSE(races(Partner<By::kShuffle, 1>{memory}));
  EXPECT_TRUE(races(Partner<By::kSyncWarp, 32>{memory}));  // a lane of another warp
}

TEST_F(SimtRaces, only_sync_warp_orders_them_on_request) {
  simt::settings().shuffles_order = false;
  EXPECT_FALSE(races(Partner<By::kSyncWarp, 1>{memory}));
  EXPECT_TRUE(races(Partner<By::kBallot, 1>{memory}));
  EXPECT_TRUE(races(Partner<By::kShuffle, 1>{memory}));
}

/// All threads read a number; later one lane writes it.
struct ReadThenOneWrites {
  float* y;
  WEFT_DEVICE void operator()(Thread t) const {
    float* const s = t.shared<float>();
    y[t.id()] = s[0];
    t.sync_warp();
    if (t.id() == 1) s[0] = 1;
  }
};

TEST_F(SimtRaces, readers_of_other_warps_are_remembered) {
  EXPECT_FALSE(races(ReadThenOneWrites{memory}, 32));
  EXPECT_TRUE(races(ReadThenOneWrites{memory}, 64));
}

enum class Then { kNothing, kBarrier, kRead, kWrite };
/// All threads add to a few numbers; one reads or writes such a number without a barrier.
template <Then then> struct Histogram {
  float* y;
  WEFT_DEVICE void operator()(Thread t) const {
    auto* const count = t.shared<uint32_t>();
    if (t.id() < 4) count[t.id()] = 0;
    t.sync();
    t.atomic_add(&count[t.id() % 4], 1u);
    t.atomic_add(&count[t.id() % 4], 1u);
    if constexpr (then == Then::kBarrier) t.sync();
    if (t.id() != 7) return;
    if constexpr (then == Then::kBarrier || then == Then::kRead) y[0] = static_cast<float>(count[2]);
    if constexpr (then == Then::kWrite) count[2] = 0;
  }
};
struct VolatileFlag {
  WEFT_DEVICE void operator()(Thread t) const { *const_cast<volatile float*>(t.shared<float>()) = 1; }
};

TEST_F(SimtRaces, atomics_race_with_plain_accesses_only) {
  EXPECT_FALSE(races(Histogram<Then::kNothing>{memory}));
  EXPECT_FALSE(races(Histogram<Then::kBarrier>{memory}));
  EXPECT_TRUE(races(Histogram<Then::kRead>{memory}));
  EXPECT_TRUE(races(Histogram<Then::kWrite>{memory}));
  EXPECT_FALSE(races(VolatileFlag{}));
}

/// Neighbours through device memory.
template <bool with_barrier> struct ThroughDevice {
  float* x;
  WEFT_DEVICE void operator()(Thread t) const {
    x[t.id()] = 1;
    if constexpr (with_barrier) t.sync();
    x[512 + t.id()] = x[(t.id() + 1) % t.count()];
  }
};
struct SameResult {
  float* y;
  static constexpr bool kIndependent = true;
  WEFT_DEVICE void operator()(Thread) const { y[3] = 1; }
};

TEST_F(SimtRaces, device_memory_is_checked_within_a_block) {
  EXPECT_FALSE(races(ThroughDevice<true>{memory}));
  EXPECT_FALSE(races(ThroughDevice<true>{memory}, 64, 3));  // whether blocks race is not asked
  EXPECT_EQ(
      fault_of(ThroughDevice<false>{memory}),
      "kernel planted, block 0: a race of threads 0 (read) and 1 (write) for byte 4 of a block of device "
      "memory, with no barrier between");
  EXPECT_TRUE(races(SameResult{memory}));
  simt::settings().race_check = RaceCheck::kShared;
  EXPECT_FALSE(races(SameResult{memory}));
  EXPECT_TRUE(races(Neighbour<false>{memory}));
  simt::settings().race_check = RaceCheck::kNone;
  EXPECT_FALSE(races(Neighbour<false>{memory}));
}

TEST_F(SimtRaces, blocks_and_launches_after_a_race_are_well) {
  EXPECT_TRUE(races(Neighbour<false>{memory}));
  EXPECT_FALSE(races(Neighbour<true>{memory}, 64, 3));
}

TEST_F(SimtRaces, the_environment_chooses_the_memory) {
  const char* const set = std::getenv("WEFT_SIMT_RACES");
  const std::string before = set ? set : "";
  setenv("WEFT_SIMT_RACES", "all", 1);
  EXPECT_EQ(simt::settings_of_environment().race_check, RaceCheck::kAll);
  setenv("WEFT_SIMT_RACES", "none", 1);
  EXPECT_EQ(simt::settings_of_environment().race_check, RaceCheck::kNone);
  setenv("WEFT_SIMT_RACES", "", 1);
  EXPECT_EQ(simt::settings_of_environment().race_check, RaceCheck::kShared);
  setenv("WEFT_SIMT_RACES", "some", 1);
  EXPECT_THROW(simt::settings_of_environment(), ValueError);
  setenv("WEFT_SIMT_RACES", before.c_str(), 1);
}

}  // namespace
}  // namespace weft::cuda::race_test
