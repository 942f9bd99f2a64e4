// Words for the transactions of a kernel that differ from those it should have.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include <weft/kernels/cuda_settings.h>
#include "support/simt/operand.h"
#include "support/simt/thread.h"
#include "support/simt/watch.h"

namespace weft::cuda::traffic_test {

using simt::device;
using simt::DeviceTraffic;
using simt::KernelTraffic;
using simt::Operand;
using simt::SharedTraffic;

inline constexpr int64_t kSector = 32;

/// In words, how the accesses differ from those of `bytes` bytes, each moved once in whole sectors and with
/// `width` bytes of every lane (0: any width). Empty: not at all.
inline std::string waste(const DeviceTraffic& t, int64_t bytes, int64_t width = 16) {
  if (t.bytes != bytes) return str("moves ", t.bytes, " bytes instead of ", bytes);
  if (t.sectors * kSector != bytes) return str("touches ", t.sectors, " sectors for ", bytes, " bytes");
  if (width > 0 && t.accesses * kWarp * width != bytes)
    return str("makes ", t.accesses, " accesses for ", bytes, " bytes");
  return "";
}
/// The same for accesses beside which the kernel may read small tables or numbers that a warp shares.
inline std::string waste_beside(const DeviceTraffic& t, int64_t bytes, double allowed) {
  const int64_t moved = t.sectors * kSector;
  if (moved >= bytes && static_cast<double>(moved) <= (1 + allowed) * static_cast<double>(bytes)) return "";
  return str("moves ", moved, " bytes in sectors, instead of ", bytes);
}
/// `known`: turns that are allowed beyond the best per access.
inline std::string conflict(const SharedTraffic& t, int64_t known = 0) {
  return t.conflicts <= known * t.accesses ? "" : str(t.conflicts, " conflicts in ", t.accesses, " accesses");
}
inline std::string conflict(const KernelTraffic& t) { return conflict(t.loaded) + conflict(t.stored); }

struct SimtTraffic : testing::Test {
  void SetUp() override {
    if (!simt::sees_accesses()) GTEST_SKIP() << "this build does not see the accesses of kernels";
    simt::settings() = {};
  }
  void TearDown() override {
    simt::settings() = simt::settings_of_environment();
    set_recurrent_persistent(persistent);
  }
  const bool persistent = recurrent_persistent();
};

/// The traffic of a kernel in the launches of f(context).
template <class F> KernelTraffic traffic_of(const char* kernel, const F& f) {
  Context context;
  const simt::TrafficCount count;
  f(context);
  const KernelTraffic t = count.of(kernel);
  EXPECT_GT(t.read.accesses + t.written.accesses + t.stored.accesses, 0) << kernel << " was not launched";
  return t;
}

}  // namespace weft::cuda::traffic_test
