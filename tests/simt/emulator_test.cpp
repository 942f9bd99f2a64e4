// The emulator itself: its promises to a kernel, and that it catches a planted fault of each kind.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <weft/kernels/cuda/host/runtime.h>
#include <weft/kernels/dtype.h>
#include "support/simt/memory.h"
#include "support/simt/thread.h"

namespace weft::cuda {
namespace {

using simt::Order;

struct SimtEmulator : testing::Test {
  void SetUp() override {
    simt::settings() = {};
    runtime::set_device(0);  // a thread keeps the device of its last work
  }
  void TearDown() override { simt::settings() = simt::settings_of_environment(); }

  std::vector<float> download(const float* p, size_t n) {
    std::vector<float> host(n);
    runtime::copy(host.data(), p, n * sizeof(float), nullptr);
    return host;
  }
  float* block(size_t n) { return static_cast<float*>(runtime::allocate(n * sizeof(float))); }
};

struct Positions {
  float* y;
  WEFT_DEVICE void operator()(Thread t) const {
    y[t.row() * t.globals() + t.global()] = static_cast<float>(t.block() * 1000 + t.id());
  }
  static constexpr bool kIndependent = true;
};

TEST_F(SimtEmulator, every_thread_of_the_grid_runs_once) {
  float* const y = block(2 * 3 * 64);
  launch(nullptr, "positions", {.blocks = 3, .rows = 2, .threads = 64}, Positions{y});
  const auto host = download(y, 2 * 3 * 64);
  for (size_t i = 0; i < host.size(); ++i) EXPECT_EQ(host[i], static_cast<float>(i / 64 % 3 * 1000 + i % 64));
  runtime::release(y);
}

TEST_F(SimtEmulator, chosen_blocks_run_and_no_others) {
  float* const y = block(2 * 3 * 64);
  runtime::fill(y, 0, 2 * 3 * 64 * sizeof(float), nullptr);
  simt::settings().chosen = {0, -1, 7, -9};  // the first and the last; the others are outside of the grid
  launch(nullptr, "positions", {.blocks = 3, .rows = 2, .threads = 64}, Positions{y});
  const auto host = download(y, 2 * 3 * 64);
  for (size_t i = 0; i < host.size(); ++i)
    EXPECT_EQ(host[i], i / 64 % 3 == 1 ? 0 : static_cast<float>(i / 64 % 3 * 1000 + i % 64)) << i;
  runtime::release(y);
}

/// Neighbours through shared memory; `with_barrier` false is the planted fault.
template <bool with_barrier> struct Neighbour {
  float* y;
  WEFT_DEVICE void operator()(Thread t) const {
    float* const s = t.shared<float>();
    s[t.id()] = static_cast<float>(t.id());
    if constexpr (with_barrier) t.sync();
    y[t.id()] = s[(t.id() + 1) % t.count()] + s[(t.id() + t.count() - 1) % t.count()];
  }
};

template <bool with_barrier> int wrong_neighbours(SimtEmulator& test, Order order) {
  simt::settings().order = order;
  float* const y = test.block(64);
  launch(nullptr, "neighbour", {.threads = 64, .shared = 64 * sizeof(float)}, Neighbour<with_barrier>{y});
  const auto host = test.download(y, 64);
  int wrong = 0;
  for (int i = 0; i < 64; ++i)
    wrong += !(host[static_cast<size_t>(i)] == static_cast<float>((i + 1) % 64 + (i + 63) % 64));
  runtime::release(y);
  return wrong;
}

TEST_F(SimtEmulator, a_barrier_makes_writes_visible_in_every_order) {
  for (const Order order : {Order::kForward, Order::kReverse, Order::kShuffled})
    EXPECT_EQ(wrong_neighbours<true>(*this, order), 0);
}

TEST_F(SimtEmulator, a_missing_barrier_is_seen_in_every_order) {
  simt::settings().race_check = simt::RaceCheck::kNone;  // the numbers alone show it
  for (const Order order : {Order::kForward, Order::kReverse, Order::kShuffled})
    EXPECT_GT(wrong_neighbours<false>(*this, order), 0);
}

struct WarpSum {
  float* y;
  WEFT_DEVICE void operator()(Thread t) const {
    float v = static_cast<float>(t.id());
    for (int mask = 16; mask > 0; mask /= 2) v += t.shuffle_xor(v, mask);
    const uint32_t odd = t.ballot(t.lane() % 2 == 1);
    const float up = t.shuffle_up(static_cast<float>(t.lane()), 1),
                down = t.shuffle_down(static_cast<float>(t.lane()), 1), first = t.shuffle(v, 0);
    y[t.id()] = v + (odd == 0xAAAAAAAAu ? 0.5f : 0.0f) +
                (up == (t.lane() > 0 ? t.lane() - 1 : 0) ? 0.25f : 0.0f) +
                (down == (t.lane() < 31 ? t.lane() + 1 : 31) ? 0.125f : 0.0f) + (first == v ? 0.0625f : 0.0f);
  }
};

TEST_F(SimtEmulator, warps_pass_values_on) {
  for (const Order order : {Order::kForward, Order::kReverse, Order::kShuffled}) {
    simt::settings().order = order;
    float* const y = block(64);
    launch(nullptr, "warp_sum", {.threads = 64}, WarpSum{y});
    const auto host = download(y, 64);
    for (size_t i = 0; i < 64; ++i) EXPECT_EQ(host[i], (i < 32 ? 496.0f : 1520.0f) + 0.9375f);
    runtime::release(y);
  }
}

/// d [16, 8] = c + a b of a warp, from rows of a and columns of b.
template <class H> struct WarpProduct {
  const uint16_t *a, *b;
  float* d;
  WEFT_DEVICE void operator()(Thread t) const {
    const int g = t.lane() / 4, c = t.lane() % 4 * 2;
    const auto pair = [](const uint16_t* p) { return p[0] | static_cast<uint32_t>(p[1]) << 16; };
    const uint32_t left[4] = {pair(a + g * 16 + c), pair(a + (g + 8) * 16 + c), pair(a + g * 16 + c + 8),
                              pair(a + (g + 8) * 16 + c + 8)},
                   right[2] = {pair(b + g * 16 + c), pair(b + g * 16 + c + 8)};
    float* const mine = d + g * 8 + c;
    float sum[4] = {mine[0], mine[1], mine[64], mine[65]};
    t.multiply_add<H>(left, right, sum);
    t.multiply_add<H>(left, right, sum);
    mine[0] = sum[0], mine[1] = sum[1], mine[64] = sum[2], mine[65] = sum[3];
  }
};

template <class H> void expect_warp_product(SimtEmulator& test) {
  std::vector<uint16_t> a(16 * 16), b(8 * 16);
  const auto number = [](size_t i) { return static_cast<float>(i * 7 % 11) - 5; };
  for (size_t i = 0; i < a.size(); ++i) a[i] = H(number(i)).bits;
  for (size_t i = 0; i < b.size(); ++i) b[i] = H(number(i + 3)).bits;
  auto* const device_a = reinterpret_cast<uint16_t*>(test.block(a.size() / 2));
  auto* const device_b = reinterpret_cast<uint16_t*>(test.block(b.size() / 2));
  float* const d = test.block(16 * 8);
  const std::vector<float> before(16 * 8, 0.5f);
  runtime::copy(device_a, a.data(), a.size() * 2, nullptr);
  runtime::copy(device_b, b.data(), b.size() * 2, nullptr);
  runtime::copy(d, before.data(), before.size() * sizeof(float), nullptr);
  launch(nullptr, "warp_product", {.threads = 32}, WarpProduct<H>{device_a, device_b, d});
  const auto got = test.download(d, 16 * 8);
  for (size_t r = 0; r < 16; ++r)
    for (size_t s = 0; s < 8; ++s) {
      float sum = 0;
      for (size_t k = 0; k < 16; ++k) sum += number(r * 16 + k) * number(s * 16 + k + 3);
      EXPECT_EQ(got[r * 8 + s], 0.5f + 2 * sum) << r << ' ' << s;
    }
  for (void* const p : {static_cast<void*>(device_a), static_cast<void*>(device_b), static_cast<void*>(d)})
    runtime::release(p);
}

TEST_F(SimtEmulator, a_warp_multiplies_matrices_of_half_types) {
  for (const Order order : {Order::kForward, Order::kReverse, Order::kShuffled}) {
    simt::settings().order = order;
    expect_warp_product<Half>(*this);
    expect_warp_product<BFloat16>(*this);
  }
}

struct HalfAtBarrier {
  WEFT_DEVICE void operator()(Thread t) const {
    if (t.id() < 32) t.sync();
  }
};
struct HalfOfAWarp {
  float* y;
  WEFT_DEVICE void operator()(Thread t) const {
    if (t.lane() < 16) y[t.id()] = t.shuffle_xor(1.0f, 1);
  }
};
struct Outside {
  float* y;
  int64_t at;
  WEFT_DEVICE void operator()(Thread t) const {
    if (t.id() == 0) y[at] = 1;
  }
};
struct OutsideShared {
  WEFT_DEVICE void operator()(Thread t) const { t.shared<float>()[t.id() + 1] = 1; }
};
/// Reads the element at x + `at`.
struct OutsideRead {
  const float* x;
  float* y;
  int64_t at;
  WEFT_DEVICE void operator()(Thread t) const {
    if (t.id() == 0) *y = x[at];
  }
};
struct OutsideSharedRead {
  float* y;
  int64_t at;
  WEFT_DEVICE void operator()(Thread t) const {
    if (t.id() == 0) *y = t.shared<float>()[at];
  }
};
struct Unset {
  float* y;
  WEFT_DEVICE void operator()(Thread t) const { y[t.id()] = t.shared<float>()[t.id()]; }
};

TEST_F(SimtEmulator, a_barrier_that_half_the_block_reaches_is_a_fault) {
  EXPECT_THROW(launch(nullptr, "half", {.threads = 64}, HalfAtBarrier{}), simt::Fault);
  float* const y = block(64);
  EXPECT_THROW(launch(nullptr, "half_warp", {.threads = 64}, HalfOfAWarp{y}), simt::Fault);
  launch(nullptr, "warp_sum", {.threads = 64}, WarpSum{y});  // and the next launch is well
  EXPECT_EQ(download(y, 64)[0], 496.9375f);
  runtime::release(y);
}

#if defined(WEFT_SIMT_ASAN)
#define EXPECT_FOUND(statement) EXPECT_DEATH(statement, "AddressSanitizer: use-after-poison")
#else
#define EXPECT_FOUND(statement) EXPECT_THROW(statement, simt::Fault)
#endif

TEST_F(SimtEmulator, a_write_beyond_a_block_is_a_fault) {
  for (const int64_t at : {int64_t{-1}, int64_t{10}, int64_t{100}}) {
    float* const y = block(10);
    EXPECT_FOUND(launch(nullptr, "outside", {.threads = 32}, (Outside{y, at}))) << at;
    simt::repair_guards();
    runtime::release(y);
  }
  EXPECT_FOUND(
      launch(nullptr, "outside_shared", {.threads = 32, .shared = 32 * sizeof(float)}, OutsideShared{}));
  float* const y = block(32);  // and the next launch is well
  launch(nullptr, "unset", {.threads = 32, .shared = 32 * sizeof(float)}, Unset{y});
  runtime::release(y);
}

TEST_F(SimtEmulator, a_read_beyond_a_block_is_found_or_gives_a_nan) {
  float* const x = block(10);
  float* const y = block(1);
  const Grid grid{.threads = 32, .shared = 32 * sizeof(float)};
#if defined(WEFT_SIMT_ASAN)
  for (const int64_t at : {-1, 10, 100})
    EXPECT_FOUND(launch(nullptr, "outside_read", grid, (OutsideRead{x, y, at})));
  for (const int64_t at : {-1, 32})
    EXPECT_FOUND(launch(nullptr, "outside_shared_read", grid, (OutsideSharedRead{y, at})));
#else
  for (const int64_t at : {-1, 10, 100}) {
    launch(nullptr, "outside_read", grid, OutsideRead{x, y, at});
    EXPECT_TRUE(std::isnan(download(y, 1)[0])) << at;
  }
  for (const int64_t at : {-1, 32}) {
    launch(nullptr, "outside_shared_read", grid, OutsideSharedRead{y, at});
    EXPECT_TRUE(std::isnan(download(y, 1)[0])) << at;
  }
#endif
  launch(nullptr, "inside_read", grid, OutsideRead{x, y, 9});
  runtime::release(x);
  runtime::release(y);
}

TEST_F(SimtEmulator, a_guard_is_no_number_of_any_floating_type) {
  alignas(8) unsigned char bytes[8];
  for (unsigned char& b : bytes) b = simt::guard_byte(&b);
  const auto as = [&]<class T>(T value) {
    return std::memcpy(&value, bytes, sizeof value), static_cast<double>(value);
  };
  for (const double v : {as(double{}), as(float{}), as(Half{}), as(BFloat16{})}) EXPECT_TRUE(std::isnan(v));
  EXPECT_LT(as(int64_t{}), -1e9);
  EXPECT_LT(as(int32_t{}), -1e5);
}

TEST_F(SimtEmulator, a_freed_block_is_closed_to_readers) {
#if defined(WEFT_SIMT_ASAN)
  float* const x = block(10);
  float* const y = block(1);
  runtime::release(x);
  EXPECT_FOUND(launch(nullptr, "freed_read", {.threads = 32}, (OutsideRead{x, y, 0})));
  runtime::release(y);
#else
  GTEST_SKIP() << "only the address sanitizer sees it";
#endif
}

TEST_F(SimtEmulator, a_recorded_stream_may_wait_for_its_own_recording_alone) {
  const runtime::Stream a = runtime::new_stream(false), b = runtime::new_stream(false);
  const runtime::Event outside = runtime::new_event(false), inside = runtime::new_event(false),
                       never = runtime::new_event(false);
  runtime::record(outside, b);
  runtime::begin_capture(a);
  runtime::wait(a, never);
  runtime::record(inside, a);
  runtime::wait(b, inside);
  EXPECT_TRUE(runtime::capturing(b));
  runtime::record(inside, b);
  runtime::wait(a, inside);
  runtime::delete_graph(runtime::end_capture(a));
  EXPECT_FALSE(runtime::capturing(b));
  EXPECT_THROW(runtime::wait(b, inside), CudaError);
  runtime::begin_capture(a);
  EXPECT_THROW(runtime::wait(a, outside), CudaError);
  EXPECT_THROW(runtime::end_capture(a), CudaError);  // it is spoilt
  for (const runtime::Event e : {outside, inside, never}) runtime::delete_event(e);
  for (const runtime::Stream s : {a, b}) runtime::delete_stream(s);
}

TEST_F(SimtEmulator, nobody_waits_for_a_device_or_a_stream_that_is_being_recorded) {
  const runtime::Stream a = runtime::new_stream(false), b = runtime::new_stream(false);
  for (const auto& wait : {+[](runtime::Stream) { runtime::synchronize_device(); },
                           +[](runtime::Stream s) { runtime::synchronize(s); },
                           +[](runtime::Stream s) { runtime::finished(s); }}) {
    runtime::begin_capture(a);
    std::thread([&] {
      runtime::synchronize(b);
      EXPECT_TRUE(runtime::finished(nullptr));
      EXPECT_THROW(wait(a), CudaError);
    }).join();
    EXPECT_THROW(runtime::end_capture(a), CudaError);  // it is spoilt
  }
  runtime::begin_capture(a);
  std::thread([&] {
    runtime::set_device(1);
    runtime::synchronize_device();
  }).join();
  runtime::delete_graph(runtime::end_capture(a));
  runtime::synchronize_device();
  for (const runtime::Stream s : {a, b}) runtime::delete_stream(s);
}

/// The error that ends a recording, in words; empty: none.
std::string recording_error(runtime::Stream stream) {
  try {
    runtime::delete_graph(runtime::end_capture(stream));
    return "";
  } catch (const CudaError& e) {
    return e.what();
  }
}

TEST_F(SimtEmulator, a_recording_ends_after_all_that_joined_it) {
  const runtime::Stream a = runtime::new_stream(false), b = runtime::new_stream(false),
                        c = runtime::new_stream(false);
  const runtime::Event e = runtime::new_event(false);
  const auto follow = [&](runtime::Stream later, runtime::Stream earlier) {
    runtime::record(e, earlier);
    runtime::wait(later, e);
  };
  float* const y = block(1);
  runtime::fill(y, 0, sizeof *y, nullptr);
  const auto write = [&](runtime::Stream s) { runtime::fill(y, 1, sizeof *y, s); };
  const auto recorded = [&](const std::function<void()>& body) {
    runtime::begin_capture(a);
    follow(b, a);
    body();
    const std::string text = recording_error(a);
    for (const runtime::Stream s : {a, b, c}) EXPECT_FALSE(runtime::capturing(s));
    return text.substr(std::min(text.find("(cuda"), text.size()));
  };
  const char* const unjoined = "(cudaErrorStreamCaptureUnjoined)";
  EXPECT_EQ(recorded([] {}), unjoined);
  EXPECT_EQ(recorded([&] { write(b); }), unjoined);
  EXPECT_EQ(recorded([&] { follow(a, b), write(b); }), unjoined);
  EXPECT_EQ(recorded([&] { follow(a, b), follow(c, b); }), unjoined);
  EXPECT_EQ(recorded([&] { follow(c, b), write(b), follow(a, c); }), unjoined);
  EXPECT_EQ(recorded([&] { write(b), follow(a, b); }), "");
  EXPECT_EQ(recorded([&] { write(b), follow(c, b), write(c), follow(a, c); }), "");  // b by way of c
  EXPECT_EQ(recorded([&] { follow(a, b), write(a), follow(b, a); }), "");
  EXPECT_EQ(recorded([&] {
              EXPECT_NE(recording_error(b).find("cudaErrorStreamCaptureUnmatched"), std::string::npos);
              follow(a, b);
            }),
            "");
  EXPECT_EQ(download(y, 1)[0], 0);  // none of it has run
  runtime::release(y);
  runtime::delete_event(e);
  for (const runtime::Stream s : {a, b, c}) runtime::delete_stream(s);
}

TEST_F(SimtEmulator, a_block_is_open_to_other_processes_while_it_lives) {
  const bool before = std::exchange(simt::settings().shares_memory, true);
  float* const x = block(3000);
  const std::vector<float> values(3000, 7);
  runtime::copy(x, values.data(), 12000, nullptr);
  const runtime::IpcHandle handle = runtime::export_memory(x);
  EXPECT_EQ(runtime::export_memory(x), handle);
  EXPECT_THROW(runtime::export_memory(x + 1), CudaError);
  auto* const there = static_cast<float*>(runtime::open_memory(handle));
  EXPECT_NE(there, x);
  EXPECT_EQ(download(there, 3000), values);
  launch(nullptr, "outside", {.threads = 32}, Outside{there, 2999});
  EXPECT_EQ(download(x, 3000), download(there, 3000));
  EXPECT_EQ(runtime::open_memory(handle), there);  // counted
  runtime::close_memory(there);
  EXPECT_EQ(download(there, 1)[0], 7);
  EXPECT_DEATH({ *static_cast<volatile float*>(there) = 1; }, "");
#if defined(WEFT_SIMT_ASAN)
  for (const int64_t at : {-1, 3000})
    EXPECT_FOUND(launch(nullptr, "outside", {.threads = 32}, (Outside{there, at}))) << at;
#else
  EXPECT_FOUND(launch(nullptr, "outside", {.threads = 32}, (Outside{there, 3000})));
  simt::repair_guards();
#endif
  runtime::close_memory(there);
  EXPECT_THROW(runtime::close_memory(there), CudaError);
  simt::settings().shares_memory = false;
  EXPECT_THROW(runtime::open_memory(handle), CudaError);  // one's own
  simt::settings().shares_memory = true;
  runtime::release(x);
  EXPECT_THROW(runtime::open_memory(handle), CudaError);
  float* const again = block(3000);  // perhaps at the same place
  EXPECT_NE(runtime::export_memory(again), handle);
  EXPECT_THROW(runtime::open_memory(handle), CudaError);
  EXPECT_THROW(runtime::open_memory({}), CudaError);
  runtime::release(again);
  simt::settings().shares_memory = before;
}

TEST_F(SimtEmulator, a_forked_process_has_a_copy_of_the_memory) {
  float* const x = block(10);
  EXPECT_EXIT(
      {
        launch(nullptr, "outside", {.threads = 32}, (Outside{x, 0}));
        bool shared = true;
        try {
          runtime::export_memory(x);
        } catch (const CudaError&) {
          shared = false;
        }
        std::fprintf(stderr, "wrote %g, shared %d\n", static_cast<double>(download(x, 1)[0]), shared);
        std::_Exit(0);
      },
      testing::ExitedWithCode(0), "wrote 1, shared 0");
  EXPECT_TRUE(std::isnan(download(x, 1)[0]));  // as it came
  runtime::release(x);
}

TEST_F(SimtEmulator, shared_memory_that_nobody_set_gives_poison) {
  float* const y = block(32);
  launch(nullptr, "unset", {.threads = 32, .shared = 32 * sizeof(float)}, Unset{y});
  for (const float v : download(y, 32)) EXPECT_TRUE(v != v);  // 0xFFFFFFFF is a NaN
  runtime::release(y);
}

TEST_F(SimtEmulator, the_environment_chooses_order_and_poison) {
  const char* const set[] = {std::getenv("WEFT_SIMT_ORDER"), std::getenv("WEFT_SIMT_POISON")};
  const std::string before[] = {set[0] ? set[0] : "", set[1] ? set[1] : ""};
  setenv("WEFT_SIMT_ORDER", "reverse", 1), setenv("WEFT_SIMT_POISON", "0x7F", 1);
  EXPECT_EQ(simt::settings_of_environment().order, Order::kReverse);
  EXPECT_EQ(simt::settings_of_environment().poison, 0x7F);
  setenv("WEFT_SIMT_ORDER", "sideways", 1);
  EXPECT_THROW(simt::settings_of_environment(), ValueError);
  setenv("WEFT_SIMT_ORDER", "shuffled", 1), setenv("WEFT_SIMT_POISON", "256", 1);
  EXPECT_THROW(simt::settings_of_environment(), ValueError);
  setenv("WEFT_SIMT_ORDER", "", 1), setenv("WEFT_SIMT_POISON", "", 1);
  EXPECT_EQ(simt::settings_of_environment().order, Order::kForward);
  setenv("WEFT_SIMT_ORDER", before[0].c_str(), 1), setenv("WEFT_SIMT_POISON", before[1].c_str(), 1);
}

TEST_F(SimtEmulator, the_host_cannot_touch_device_memory) {
  if (!simt::closes_memory())
    GTEST_SKIP() << "earlier tests of this process have used so much device memory that it stays open";
  float* const y = block(4);
  EXPECT_DEATH({ *static_cast<volatile float*>(y) = 1; }, "");
  runtime::release(y);
}

TEST_F(SimtEmulator, a_grid_beyond_the_machine_is_a_fault) {
  EXPECT_THROW(launch(nullptr, "wide", {.threads = 48}, HalfAtBarrier{}), simt::Fault);
  EXPECT_THROW(launch(nullptr, "wide", {.threads = 2048}, HalfAtBarrier{}), simt::Fault);
}

TEST_F(SimtEmulator, a_block_has_as_much_shared_memory_as_the_device_gives) {
  float* const y = block(32);
  for (const size_t most : {kPlainShared, size_t{64} << 10, size_t{227} << 10}) {
    simt::settings().shared_memory = most;
    EXPECT_EQ(runtime::properties(0).shared_memory, most);
    launch(nullptr, "wide", {.threads = 32, .shared = most}, Unset{y});
    EXPECT_EQ(simt::last_grid().shared, most);
    EXPECT_THROW(launch(nullptr, "wide", {.threads = 32, .shared = most + 1}, Unset{y}), simt::Fault);
  }
  runtime::release(y);
}

}  // namespace
}  // namespace weft::cuda
