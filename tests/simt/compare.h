// What the kernel tests share: an operation runs on the CPU and on emulated devices of several sizes, its threads in several orders, and gives the same.
#pragma once

#include <functional>

#include "kernels/arrays.h"
#include "support/simt/device.h"
#include "support/simt/mirror.h"
#include "support/simt/thread.h"

namespace weft::cuda {

using simt::Mirror;
using test::Array;

/// Runs f(device) for a device of one processor and one of four, whose grids differ, under every order of threads and two fillings of fresh memory.
inline void each_device(const std::function<void(CudaBackend&)>& f) {
  const struct {
    int processors;
    simt::Order order;
    unsigned char poison;
  } shapes[] = {{4, simt::Order::kForward, 0xFF}, {1, simt::Order::kReverse, 0x00}, {4, simt::Order::kShuffled, 0x7F}};
  for (const auto& shape : shapes) {
    SCOPED_TRACE("a device of " + std::to_string(shape.processors) + " processors, order " + std::to_string(static_cast<int>(shape.order)));
    simt::settings().order = shape.order;
    simt::settings().poison = shape.poison;
    f(simt::device_of(shape.processors));
    simt::settings() = {};
  }
}

/// Equal bytes, or numbers within `tolerance` of each other.
template <class T> void expect_same(Array<T>& want, Array<T>& got, double tolerance = 0) {
  ASSERT_EQ(want.numel(), got.numel());
  for (int64_t i = 0; i < want.numel(); ++i) {
    const double a = want.at(i), b = got.at(i);
    const bool same = tolerance == 0 ? std::memcmp(&want[i], &got[i], sizeof(T)) == 0 : a == b || (a != a && b != b) || std::abs(a - b) <= tolerance * (1 + std::abs(a));
    ASSERT_TRUE(same) << "element " << i << ": want " << a << ", got " << b;
  }
}

/// The text of the error of type E that f throws.
template <class E, class F> std::string text_of(const F& f) {
  try {
    f();
  } catch (const E& e) {
    return e.what();
  }
  return "no such error";
}

}  // namespace weft::cuda
