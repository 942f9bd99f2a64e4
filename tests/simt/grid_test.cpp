// The grids of kernels whose blocks loop: as many blocks as the device holds, by registers and shared memory.
#include <gtest/gtest.h>

#include <vector>

#include "support/simt/operand.h"
#include "support/simt/thread.h"

namespace weft::cuda {
namespace {

using simt::Operand;

TEST(SimtGrids, of_looping_kernels_are_what_the_device_holds) {
  Operand weights(kFloat32, {40, 64}), drawn(kInt64, {40, 1}), x(kFloat32, {20, 600}), y(kFloat32, {20, 600}),
      top(kFloat32, {20, 4}), long_rows(kFloat32, {20, 2100}), places(kInt64, {20, 600}),
      top_places(kInt64, {20, 4}), index(kInt64, {1000}), rows(kFloat32, {1000, 64}), many(kFloat32, {1});
  weights.fill(1), x.random(-1, 1, 1), long_rows.random(-1, 1, 2);
  Operand flags(kBool, {1 << 17}), found(kInt64, {1 << 17, 1});
  flags.fill(1), index.fill(3);
  std::vector<View> each(100, many.on_device());
  std::vector<double> sums(each.size());
  CudaBackend& gpu = simt::device_of(1);
  Context c;
  const auto blocks = [](const auto& f) {
    f();
    return simt::last_grid().blocks * simt::last_grid().rows;
  };
  const auto check = [&](const char* name, int held_by_threads, const auto& f) {
    simt::settings().registers = 32;
    EXPECT_EQ(blocks(f), held_by_threads) << name;
    simt::settings().registers = 64;
    EXPECT_EQ(blocks(f), held_by_threads / 2) << name;
    simt::settings().registers = 32;
  };
  check("cumulate", 8, [&] { gpu.cumulate(c, Reduce::kSum, 1, x.on_device(), y.on_device()); });
  check("take_rows", 8, [&] { gpu.take_rows(c, weights.on_device(), index.on_device(), rows.on_device()); });
  check("multinomial", 8, [&] { gpu.multinomial(c, {1, 2}, true, weights.on_device(), drawn.on_device()); });
  check("write_found", 8, [&] { gpu.nonzero(c, flags.on_device(), found.on_device()); });
  check("sort_short", 4, [&] { gpu.sort(c, false, x.on_device(), y.on_device(), places.on_device()); });
  check("select_top", 4,
        [&] { gpu.sort(c, true, long_rows.on_device(), top.on_device(), top_places.on_device()); });
  check("fold_powers", 8, [&] { gpu.powers(c, 2, each, sums.data()); });
}

}  // namespace
}  // namespace weft::cuda
