// The memory transactions of the hot kernels. Device memory is read and written once, in whole sectors and
// wide accesses. Shared memory has no bank conflicts, or no more than the known ones. A planted
// kernel breaks each of these rules.
#include <gtest/gtest.h>

#include <weft/kernels/cuda/packs.h>
#include "simt/traffic_counts.h"

namespace weft::cuda::traffic_test {
namespace {

/// Lanes read packs of N floats from device memory `step` floats apart, `times` times.
template <int N> struct Read {
  const float* x;
  float* y;
  int step, times;
  WEFT_DEVICE void operator()(Thread t) const {
    float sum = 0;
    for (int i = 0; i < times; ++i) sum += load_pack<float, N>(x, t.lane() * step).at[0];
    y[t.id()] = sum;
  }
};
/// The same for shared memory, which they write before.
template <int N> struct Shared {
  float* y;
  int step;
  WEFT_DEVICE void operator()(Thread t) const {
    Pack<float, N> pack = {};
    pack.at[0] = 1;
    store_pack(t.shared<float>(), t.lane() * step, pack);
    t.sync_warp();
    y[t.id()] = load_pack<float, N>(t.shared<float>(), t.lane() * step).at[0];
  }
};
/// Lanes from `first` on read twice, the others once; so an access of the warp is not one of all lanes.
struct ReadFewer {
  const float* x;
  float* y;
  int first;
  WEFT_DEVICE void operator()(Thread t) const {
    float sum = 0;
    for (int i = t.lane() < first ? 1 : 0; i < 2; ++i) sum += x[t.lane()];
    t.sync_warp();
    y[t.id()] = sum + x[t.lane()];
  }
};
struct Count {
  uint32_t* y;
  WEFT_DEVICE void operator()(Thread t) const { t.atomic_add(y + t.lane(), 1u); }
};

TEST_F(SimtTraffic, a_warp_touches_each_sector_once_per_access) {
  const Operand x(kFloat32, {4096}), y(kFloat32, {32});
  const auto read = [&](auto body, int64_t bytes, int64_t sectors, int64_t accesses = 1) {
    const auto t = traffic_of("read", [&](Context&) { launch(nullptr, "read", {.threads = 32}, body); });
    EXPECT_EQ(t.read.bytes, bytes);
    EXPECT_EQ(t.read.sectors, sectors);
    EXPECT_EQ(t.read.accesses, accesses);
    EXPECT_EQ(waste(t.written, 128, 4), "");
  };
  const float* const from = x.on_device().as<float>();
  float* const to = y.on_device().as<float>();
  read(Read<4>{from, to, 4, 1}, 512, 16);
  read(Read<4>{from, to, 4, 3}, 3 * 512, 3 * 16, 3);
  read(Read<1>{from, to, 1, 1}, 128, 4);
  read(Read<1>{from + 1, to, 1, 1}, 128, 5);
  read(Read<1>{from, to, 0, 1}, 128, 1);
  read(Read<1>{from, to, 2, 1}, 128, 8);
  read(Read<1>{from, to, 64, 1}, 128, 32);
  read(Read<2>{from, to, 16, 2}, 2 * 256, 2 * 32, 2);
  read(ReadFewer{from, to, 16}, 128 + 64 + 128, 4 + 2 + 4, 3);
}

TEST_F(SimtTraffic, a_bank_serves_one_word_in_a_turn) {
  const Operand y(kFloat32, {32});
  const auto turns = [&](auto body, int64_t expected, int64_t conflicts) {
    const auto t = traffic_of("shared", [&](Context&) {
      launch(nullptr, "shared", {.threads = 32, .shared = 32 * 64 * sizeof(float)}, body);
    });
    for (const SharedTraffic& s : {t.loaded, t.stored}) {
      EXPECT_EQ(s.accesses, 1);
      EXPECT_EQ(s.turns, expected);
      EXPECT_EQ(s.conflicts, conflicts);
    }
  };
  simt::settings().race_check = simt::RaceCheck::kNone;  // a step of 0
  float* const to = y.on_device().as<float>();
  turns(Shared<1>{to, 1}, 1, 0);
  turns(Shared<1>{to, 0}, 1, 0);
  turns(Shared<1>{to, 2}, 2, 1);
  turns(Shared<1>{to, 32}, 32, 31);
  turns(Shared<1>{to, 33}, 1, 0);
  turns(Shared<2>{to, 2}, 2, 0);
  turns(Shared<2>{to, 8}, 8, 6);
  turns(Shared<4>{to, 4}, 4, 0);
  turns(Shared<4>{to, 16}, 16, 12);
}

TEST_F(SimtTraffic, atomics_are_not_counted) {
  const Operand y(kInt32, {32});
  const simt::TrafficCount count;
  launch(nullptr, "count", {.threads = 32}, Count{y.on_device().as<uint32_t>()});
  EXPECT_EQ(count.of("count").read.accesses, 0);
  EXPECT_EQ(count.of("count").written.accesses, 0);
  EXPECT_THROW(simt::TrafficCount(), Error);
}

/// y = x in a planted way of N floats at a time.
template <int N, bool twice> struct PlantedCopy {
  const float* x;
  float* y;
  int64_t step;  // between the elements of neighbours
  static constexpr bool kIndependent = true;
  WEFT_DEVICE void operator()(Thread t) const {
    const int64_t at = t.global() * step % 4096;
    const Pack<float, N> pack = load_pack<float, N>(x, at);
    if (twice) store_pack(y, at, load_pack<float, N>(x, (at + 2048) % 4096));
    store_pack(y, at, pack);
  }
};

TEST_F(SimtTraffic, planted_wastes_are_named) {
  const Operand x(kFloat32, {4096}), y(kFloat32, {4096});
  const auto read = [&](auto body, int64_t blocks) {
    return traffic_of("planted", [&](Context&) { launch(nullptr, "planted", {.blocks = blocks}, body); })
        .read;
  };
  const float* const from = x.on_device().as<float>();
  float* const to = y.on_device().as<float>();
  const int64_t bytes = 4096 * 4;
  EXPECT_EQ(waste(read(PlantedCopy<4, false>{from, to, 4}, 4), bytes), "");
  EXPECT_EQ(waste(read(PlantedCopy<1, false>{from, to, 1}, 16), bytes), "makes 128 accesses for 16384 bytes");
  EXPECT_EQ(waste(read(PlantedCopy<1, false>{from, to, 17}, 16), bytes),
            "touches 4096 sectors for 16384 bytes");
  EXPECT_EQ(waste(read(PlantedCopy<4, true>{from, to, 4}, 4), bytes), "moves 32768 bytes instead of 16384");
  EXPECT_EQ(waste_beside(read(PlantedCopy<4, true>{from, to, 4}, 4), bytes, 0.5),
            "moves 32768 bytes in sectors, instead of 16384");
}

TEST_F(SimtTraffic, pointwise_kernels_move_packs) {
  for (const DType t : {kFloat32, kBFloat16, kFloat64, kInt32}) {
    const int64_t n = 65536, bytes = n * size_of(t);
    const Operand a(t, {n}), b(t, {n}), y(t, {n});
    const auto add = traffic_of(to_string(Binary::kAdd), [&](Context& c) {
      device().binary(c, Binary::kAdd, 1, 0, a.on_device(), b.on_device(), y.on_device());
    });
    EXPECT_EQ(waste(add.read, 2 * bytes), "") << t;
    EXPECT_EQ(waste(add.written, bytes), "") << t;
    const auto square = traffic_of(to_string(Unary::kSquare), [&](Context& c) {
      device().unary(c, Unary::kSquare, 0, 0, a.on_device(), y.on_device());
    });
    EXPECT_EQ(waste(square.read, bytes), "") << t;
    EXPECT_EQ(waste(square.written, bytes), "") << t;
  }
}

TEST_F(SimtTraffic, moves_are_whole_sectors) {
  const int64_t n = 65536;
  const Operand cond(kBool, {n}), a(kFloat32, {n}), b(kFloat32, {n}), y(kFloat32, {n}), h(kFloat16, {n});
  const auto where = traffic_of("where", [&](Context& c) {
    device().where(c, cond.on_device(), a.on_device(), b.on_device(), y.on_device());
  });
  EXPECT_EQ(waste(where.read, 9 * n, 0), "");
  EXPECT_EQ(waste(where.written, 4 * n), "");
  const auto convert =
      traffic_of("convert", [&](Context& c) { device().copy(c, a.on_device(), h.on_device()); });
  EXPECT_EQ(waste(convert.read, 4 * n), "");
  EXPECT_EQ(waste(convert.written, 2 * n, 8), "");
  const Operand rows(kFloat32, {64, 1024}, {1032, 1}), dense(kFloat32, {64, 1024});
  const auto copy =
      traffic_of("copy", [&](Context& c) { device().copy(c, rows.on_device(), dense.on_device()); });
  EXPECT_EQ(waste(copy.read, 4 * n), "");
  EXPECT_EQ(waste(copy.written, 4 * n), "");
}

TEST_F(SimtTraffic, transposes_have_no_conflicts_in_a_tile) {
  for (const DType t : {kFloat32, kFloat16, kFloat64, kUInt8}) {
    const int64_t rows = 256, columns = 192;
    const Operand x(t, {rows, columns}, {1, rows}), y(t, {rows, columns});
    const auto tiles =
        traffic_of("transpose", [&](Context& c) { device().copy(c, x.on_device(), y.on_device()); });
    const int64_t bytes = rows * columns * size_of(t);
    const bool packs = size_of(t) == 2 || size_of(t) == 4;
    EXPECT_EQ(waste(tiles.read, bytes, packs ? 16 : size_of(t)), "") << t;
    EXPECT_EQ(waste(tiles.written, bytes, packs ? 16 : size_of(t)), "") << t;
    EXPECT_EQ(conflict(tiles.stored), "") << t;
    // two numbers of 2 bytes lie in a word, and the lanes read every eighth
    EXPECT_EQ(conflict(tiles.loaded, size_of(t) == 2 ? 1 : 0), "") << t;
  }
}

/// A transposed tile of 32 x 32 floats whose rows are `row` floats apart.
struct PlantedTile {
  const float* x;
  float* y;
  int row;
  WEFT_DEVICE void operator()(Thread t) const {
    float* const tile = t.shared<float>();
    for (int r = t.warp(); r < 32; r += t.count() / kWarp) tile[r * row + t.lane()] = x[r * 32 + t.lane()];
    t.sync();
    for (int r = t.warp(); r < 32; r += t.count() / kWarp) y[r * 32 + t.lane()] = tile[t.lane() * row + r];
  }
};

TEST_F(SimtTraffic, planted_conflicts_are_named) {
  const Operand x(kFloat32, {1024}), y(kFloat32, {1024});
  const auto tile = [&](int row) {
    return traffic_of("planted", [&](Context&) {
      launch(nullptr, "planted", {.threads = 256, .shared = 33 * 32 * sizeof(float)},
             PlantedTile{x.on_device().as<float>(), y.on_device().as<float>(), row});
    });
  };
  EXPECT_EQ(conflict(tile(33)), "");
  EXPECT_EQ(conflict(tile(32)), "992 conflicts in 32 accesses");
  EXPECT_EQ(conflict(tile(32).loaded, 1), "992 conflicts in 32 accesses");
}

TEST_F(SimtTraffic, sums_read_once) {
  const Operand x(kFloat32, {64, 4096}), y(kFloat32, {64, 1});
  const int64_t bytes = 64 * 4096 * 4;
  const auto lines = traffic_of(
      "reduce_lines", [&](Context& c) { device().reduce(c, Reduce::kSum, x.on_device(), y.on_device()); });
  EXPECT_EQ(waste(lines.read, bytes), "");
  EXPECT_EQ(lines.written.bytes, 64 * 4);
  EXPECT_EQ(conflict(lines), "");
  const Operand tall(kFloat32, {512, 1024}), wide(kFloat32, {1, 1024});
  const auto columns = traffic_of("reduce_columns", [&](Context& c) {
    device().reduce(c, Reduce::kSum, tall.on_device(), wide.on_device());
  });
  EXPECT_EQ(waste(columns.read, 512 * 1024 * 4), "");
  EXPECT_EQ(waste(columns.written, 8 * 1024 * 8, 8), "");  // the sums of 8 segments, in float64
  EXPECT_EQ(conflict(columns.loaded), "");
  // once per block: a lane writes four float64 numbers side by side
  EXPECT_EQ(conflict(columns.stored, 6), "");
}

TEST_F(SimtTraffic, softmax_reads_and_writes_a_row_once) {
  const Shape shapes[] = {{64, 1024}, {40, 128}, {2, 16384}};
  for (const bool log : {false, true})
    for (const Shape& shape : shapes) {
      const int64_t bytes = shape.numel() * 4;
      const Operand x(kFloat32, shape), y(kFloat32, shape);
      const auto forward =
          traffic_of("softmax", [&](Context& c) { device().softmax(c, log, x.on_device(), y.on_device()); });
      EXPECT_EQ(waste(forward.read, bytes), "") << to_string(shape);
      EXPECT_EQ(waste(forward.written, bytes), "") << to_string(shape);
      EXPECT_EQ(conflict(forward), "") << to_string(shape);
    }
}

TEST_F(SimtTraffic, layer_norm_reads_and_writes_a_row_once) {
  const int64_t rows = 64, count = 1024, bytes = rows * count * 4;
  const Operand x(kFloat32, {rows, count}), y(kFloat32, {rows, count}), dy(kFloat32, {rows, count}),
      dx(kFloat32, {rows, count}), w(kFloat32, {count}), b(kFloat32, {count}), mean(kFloat32, {rows}),
      rstd(kFloat32, {rows}), dw(kFloat32, {count}), db(kFloat32, {count});
  const auto forward = traffic_of("layer_norm", [&](Context& c) {
    device().layer_norm(c, x.on_device(), w.on_device(), b.on_device(), 1e-5, y.on_device(), mean.on_device(),
                        rstd.on_device());
  });
  EXPECT_EQ(waste(forward.read, 3 * bytes), "");  // x, and weight and bias from the cache
  EXPECT_EQ(forward.written.sectors, bytes / kSector + 2 * rows);
  EXPECT_EQ(conflict(forward), "");
  const auto backward = [&](Context& c) {
    device().layer_norm_backward(c, x.on_device(), w.on_device(), mean.on_device(), rstd.on_device(),
                                 dy.on_device(), dx.on_device(), dw.on_device(), db.on_device());
  };
  const auto input = traffic_of("layer_norm_input", backward),
             sums = traffic_of("layer_norm_columns", backward);
  EXPECT_EQ(waste_beside(input.read, 3 * bytes, 0.1), "");
  EXPECT_EQ(waste(input.written, bytes), "");
  EXPECT_EQ(conflict(input), "");
  EXPECT_EQ(waste_beside(sums.read, 2 * bytes, 0.1), "");
  EXPECT_EQ(conflict(sums.loaded), "");
  EXPECT_EQ(conflict(sums.stored, 3), "");  // once per block, as for sums of columns
}

TEST_F(SimtTraffic, cross_entropy_reads_logits_once) {
  const int64_t rows = 16, count = 4096, bytes = rows * count * 4;
  const Operand x(kFloat32, {rows, count}), loss(kFloat32, {rows}), sums(kFloat32, {rows, 2}),
      dx(kFloat32, {rows, count}), g(kFloat32, {rows});
  Operand target(kInt64, {rows});
  target.fill(7);
  const auto forward = traffic_of("cross_entropy", [&](Context& c) {
    device().cross_entropy(c, x.on_device(), target.on_device(), {}, -1, 0, loss.on_device(),
                           sums.on_device());
  });
  EXPECT_EQ(waste_beside(forward.read, bytes, 0.05), "");
  EXPECT_EQ(conflict(forward), "");
  const auto backward = traffic_of("cross_entropy_backward", [&](Context& c) {
    device().cross_entropy_backward(c, x.on_device(), sums.on_device(), target.on_device(), {}, -1, 0,
                                    g.on_device(), dx.on_device());
  });
  EXPECT_EQ(waste_beside(backward.read, bytes, 0.1), "");
  EXPECT_EQ(waste(backward.written, bytes), "");
}

TEST_F(SimtTraffic, integer_products_load_an_eighth_of_a_number_per_product) {
  const int64_t m = 64, n = 96, k = 32;
  const Operand a(kInt32, {m, k}), b(kInt32, {k, n}), y(kInt32, {m, n});
  const auto t = traffic_of("matmul", [&](Context& c) {
    device().matmul(c, 1, a.on_device(), b.on_device(), 0, {}, y.on_device());
  });
  EXPECT_EQ(waste(t.read, m * n * k / 8 * 4, 4), "");
  EXPECT_EQ(waste(t.written, m * n * 4, 4), "");
  EXPECT_EQ(conflict(t), "");
}

TEST_F(SimtTraffic, rows_are_taken_in_packs) {
  const int64_t n = 64, k = 256;
  const Operand x(kFloat32, {100, k}), y(kFloat32, {n, k});
  Operand index(kInt64, {n});
  index.each([](size_t i, double) { return static_cast<double>(i * 37 % 100); });
  const auto t = traffic_of("take_rows", [&](Context& c) {
    device().take_rows(c, x.on_device(), index.on_device(), y.on_device());
  });
  EXPECT_EQ(waste(t.written, n * k * 4), "");
  EXPECT_EQ(waste_beside(t.read, n * k * 4, 0.1), "");
}

}  // namespace
}  // namespace weft::cuda::traffic_test
