// An operation runs on the CPU and on emulated devices of several sizes, its threads in several orders, and
// gives the same.
#pragma once

#include <functional>
#include <limits>

#include "support/errors.h"
#include "support/simt/operand.h"
#include "support/simt/thread.h"

namespace weft::cuda {

using simt::expect_same;
using simt::Operand;
using test::error_of;
using test::has;

inline constexpr DType kAll[] = {kBool, kUInt8, kInt32, kInt64, kFloat16, kBFloat16, kFloat32, kFloat64};
inline constexpr DType kFloats[] = {kFloat16, kBFloat16, kFloat32, kFloat64};
inline constexpr double kInf = std::numeric_limits<double>::infinity();

/// Runs f(device) for a device of one processor and one of four, whose grids differ. Each runs under every
/// order of threads and two fillings of fresh memory.
inline void each_device(const std::function<void(CudaBackend&)>& f) {
  const struct {
    int processors;
    simt::Order order;
    unsigned char poison;
  } shapes[] = {
      {4, simt::Order::kForward, 0xFF}, {1, simt::Order::kReverse, 0x00}, {4, simt::Order::kShuffled, 0x7F}};
  for (const auto& shape : shapes) {
    SCOPED_TRACE("a device of " + std::to_string(shape.processors) + " processors, order " +
                 std::to_string(static_cast<int>(shape.order)));
    simt::settings().order = shape.order;
    simt::settings().poison = shape.poison;
    f(simt::device_of(shape.processors));
    simt::settings() = {};
  }
}

}  // namespace weft::cuda
