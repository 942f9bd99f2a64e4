// Kernels over tensors of more than 2^31 and 2^32 elements. Of each launch the first and the last blocks run.
// The first and last results are compared with the CPU's for the same elements, and those of attention with a
// call of one head. No other page may be touched. A planted kernel that counts in 32 bits is found.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include <weft/kernels/inner/convert.h>
#include <weft/optim/optim.h>
#include "support/simt/device.h"
#include "support/simt/thread.h"
#include "support/simt/vast.h"

namespace weft::cuda::vast_test {
namespace {

using simt::Vast;

/// Fills `to` with elements first, first + 1 ... of the result.
using Reference = std::function<void(int64_t first, const View& to)>;

constexpr int64_t k2To31 = int64_t{1} << 31, k2To32 = int64_t{1} << 32;

std::vector<double> numbers_of(const View& v) {
  std::vector<double> out;
  dispatch(v.dtype, [&]<class T>(TypeTag<T>) {
    for (int64_t i = 0; i < v.numel(); ++i) out.push_back(kernels::convert<double>(v.as<T>()[i]));
  });
  return out;
}

/// Where a launch may write.
struct Places {
  int64_t ends;            ///< elements from the ends of the tensor
  bool also_half = false;  ///< and as many around its middle: threads go on there
};

/// In words, how the first and last n elements differ from the reference, or which page in other places was
/// touched. Empty: neither.
std::string fault_of(const Vast& y, int64_t n, const Places& places, const Reference& reference,
                     double tolerance = 0) {
  const DType dtype = y.view().dtype;
  const int64_t page = Vast::kPage / size_of(dtype), reach = y.reach();
  const auto inside = [&](const Vast::Range& r, int64_t begin, int64_t end) {
    return r.begin >= begin - page && r.end <= end + page;
  };
  for (const Vast::Range& r : y.touched())  // before a read touches more
    if (r.begin < 0 || (!inside(r, 0, places.ends) && !inside(r, reach - places.ends, reach) &&
                        !(places.also_half && inside(r, reach / 2 - places.ends, reach / 2 + places.ends))))
      return str("elements ", r.begin, " to ", r.end, " of ", reach, " were touched");
  for (const int64_t first : {int64_t{0}, reach - n}) {
    std::vector<std::byte> bytes(static_cast<size_t>(n * size_of(dtype)));
    const View expected{bytes.data(), dtype, {n}, {1}};
    reference(first, expected);
    const std::vector<double> wanted = numbers_of(expected), got = numbers_of(y.part(first, {n}));
    for (size_t i = 0; i < wanted.size(); ++i)
      if (!(std::abs(got[i] - wanted[i]) <= tolerance * (1 + std::abs(wanted[i]))))
        return str("element ", first + static_cast<int64_t>(i), " is ", got[i], " instead of ", wanted[i]);
  }
  return "";
}

/// The same memory in other sizes.
View shaped(View v, const Shape& sizes) {
  v.sizes = sizes, v.strides = contiguous_strides(sizes);
  return v;
}

struct SimtVast : testing::Test {
  void SetUp() override {
    if (!Vast::possible())
      GTEST_SKIP() << "this machine gives too few addresses, or does not tell touched pages";
    simt::settings() = {};
    simt::settings().chosen = {0, 1, 2, 3, -4, -3, -2, -1};
  }
  void TearDown() override { simt::settings() = simt::settings_of_environment(); }

  // Grids by the number of blocks that a device holds have one for each piece of work.
  CudaBackend& gpu = simt::device_of(1 << 20);
  Backend& cpu = backend(kCpu);
  Context c;
};

/// y = x + 1 with an index of the type Index.
template <class Index> struct AddOne {
  const float* x;
  float* y;
  int64_t n;
  static constexpr bool kIndependent = true;
  WEFT_DEVICE void operator()(Thread t) const {
    const auto i = static_cast<Index>(t.global());
    if (static_cast<int64_t>(i) < n) y[i] = x[i] + 1;
  }
};
/// y[row] = x[row, 3] of rows of k elements.
template <class Index> struct Fourth {
  const float* x;
  float* y;
  uint32_t k;
  static constexpr bool kIndependent = true;
  WEFT_DEVICE void operator()(Thread t) const {
    y[t.global()] = x[static_cast<Index>(static_cast<std::make_unsigned_t<Index>>(t.global()) * k) + 3];
  }
};

TEST_F(SimtVast, a_planted_index_of_32_bits_is_found) {
  const auto fault = [&]<class Index>(int64_t n, Index) {
    const Vast x(kFloat32, {n}, Vast::kNumbers), y(kFloat32, {n}, Vast::kZeros);
    launch(nullptr, "planted", {.blocks = blocks_for(n, 256)},
           AddOne<Index>{x.view().as<float>(), y.view().as<float>(), n});
    return fault_of(y, 64, {2048}, [&](int64_t first, const View& to) {
      for (int64_t i = 0; i < 64; ++i) to.as<float>()[i] = x.view().as<float>()[first + i] + 1;
    });
  };
  EXPECT_EQ(fault(k2To31 + 43, int64_t{}), "");
  EXPECT_EQ(fault(k2To31 + 43, uint32_t{}), "");
  EXPECT_NE(fault(k2To31 + 43, int32_t{}), "");
  EXPECT_EQ(fault(k2To32 + 43, int64_t{}), "");
  EXPECT_NE(fault(k2To32 + 43, uint32_t{}), "");
  EXPECT_NE(fault(k2To32 + 43, int32_t{}), "");
}

TEST_F(SimtVast, a_planted_product_of_32_bits_is_found) {
  const auto fault = [&]<class Index>(Index) {
    constexpr int64_t rows = 1 << 20, k = 2052;
    const Vast x(kFloat32, {rows, k}, Vast::kNumbers), y(kFloat32, {rows}, Vast::kZeros);
    launch(nullptr, "planted", {.blocks = rows / 256},
           Fourth<Index>{x.view().as<float>(), y.view().as<float>(), static_cast<uint32_t>(k)});
    return fault_of(y, 64, {2048}, [&](int64_t first, const View& to) {
      for (int64_t i = 0; i < 64; ++i) to.as<float>()[i] = x.view().as<float>()[(first + i) * k + 3];
    });
  };
  EXPECT_EQ(fault(int64_t{}), "");
  EXPECT_NE(fault(int32_t{}), "");
}

TEST_F(SimtVast, pointwise) {
  constexpr int64_t n = 64, within = 1 << 17;
  for (const int64_t all : {k2To31 + 43, k2To32 + 43}) {
    const Vast a(kFloat32, {all}, Vast::kNumbers), b(kUInt8, {all}, Vast::kNumbers);
    const Vast sum(kFloat32, {all}, Vast::kZeros), test(kBool, {all}, Vast::kZeros),
        either(kFloat32, {all}, Vast::kZeros), half(kFloat16, {all}, Vast::kZeros);
    gpu.binary(c, Binary::kAdd, 2, 0, a.view(), a.view(), sum.view());
    EXPECT_EQ(fault_of(sum, n, {within},
                       [&](int64_t first, const View& to) {
                         cpu.binary(c, Binary::kAdd, 2, 0, a.part(first, {n}), a.part(first, {n}), to);
                       }),
              "");
    gpu.unary(c, Unary::kGtScalar, 60, 0, b.view(), test.view());
    EXPECT_EQ(fault_of(test, n, {within},
                       [&](int64_t first, const View& to) {
                         cpu.unary(c, Unary::kGtScalar, 60, 0, b.part(first, {n}), to);
                       }),
              "");
    View one = a.view();
    one.strides[0] = 0;
    View bits = b.view();
    bits.dtype = kBool;
    gpu.where(c, bits, a.view(), one, either.view());
    EXPECT_EQ(fault_of(either, n, {within, true},
                       [&](int64_t first, const View& to) { cpu.copy(c, a.part(first, {n}), to); }),
              "");
    gpu.copy(c, a.view(), half.view());
    EXPECT_EQ(fault_of(half, n, {within},
                       [&](int64_t first, const View& to) { cpu.copy(c, a.part(first, {n}), to); }),
              "");
  }
}

TEST_F(SimtVast, constants_sequences_and_draws) {
  constexpr int64_t n = 64, within = 1 << 17, all = k2To32 + 44;
  const Vast constant(kFloat32, {all}, Vast::kZeros), sequence(kInt64, {k2To31 + 43}, Vast::kZeros),
      drawn(kFloat32, {all}, Vast::kZeros), dropped(kFloat32, {all}, Vast::kZeros),
      x(kFloat32, {all}, Vast::kNumbers);
  gpu.fill(c, 1.5, constant.view());
  EXPECT_EQ(fault_of(constant, n, {within, true}, [&](int64_t, const View& to) { cpu.fill(c, 1.5, to); }),
            "");
  gpu.arange(c, 5, 3, sequence.view());
  EXPECT_EQ(fault_of(sequence, n, {within},
                     [&](int64_t first, const View& to) { cpu.arange(c, 5 + 3 * first, 3, to); }),
            "");
  // four elements of a call are a block of its key
  const auto key = [](int64_t first) { return PhiloxKey{7, 11 + static_cast<uint64_t>(first / 4)}; };
  gpu.uniform(c, key(0), 0, 1, drawn.view());
  EXPECT_EQ(fault_of(drawn, n, {within},
                     [&](int64_t first, const View& to) { cpu.uniform(c, key(first), 0, 1, to); }),
            "");
  gpu.dropout(c, key(0), 0.5, x.view(), dropped.view());
  EXPECT_EQ(fault_of(dropped, n, {within},
                     [&](int64_t first, const View& to) {
                       cpu.dropout(c, key(first), 0.5, x.part(first, {n}), to);
                     }),
            "");
}

TEST_F(SimtVast, copies_of_strided_rows) {
  constexpr int64_t n = 64, rows = (1 << 21) + 1, k = 1024;
  for (const int64_t apart : {1028, 1027}) {  // in packs, and by elements
    const Vast x(kFloat32, {rows, k}, Vast::kNumbers, {apart, 1}), y(kFloat32, {rows, k}, Vast::kZeros);
    gpu.copy(c, x.view(), y.view());
    EXPECT_EQ(fault_of(y, n, {1 << 17},
                       [&](int64_t first, const View& to) {
                         cpu.copy(c, x.part(first / k * apart + first % k, {n}), to);
                       }),
              "");
  }
}

struct Matrix {
  int64_t rows, columns;
};

TEST_F(SimtVast, transposes) {
  constexpr int64_t n = 64;
  for (const Matrix& m : {Matrix{65536 + 64, 65536}, Matrix{65537, 65539}}) {  // in packs, and by elements
    const Shape sizes = {m.rows, m.columns};
    const Vast x(kFloat32, sizes, Vast::kNumbers, {1, m.rows}), y(kFloat32, sizes, Vast::kZeros);
    gpu.copy(c, x.view(), y.view());
    EXPECT_EQ(fault_of(y, n, {64 * m.columns},
                       [&](int64_t first, const View& to) {
                         cpu.copy(c, x.part(first / m.columns + first % m.columns * m.rows, {n}, {m.rows}),
                                  to);
                       }),
              "");
  }
}

TEST_F(SimtVast, triangles) {
  constexpr int64_t n = 64, rows = 65536 + 8, columns = 65536;
  const Vast x(kFloat32, {rows, columns}, Vast::kNumbers), y(kFloat32, {rows, columns}, Vast::kZeros);
  gpu.triangle(c, true, -1000, x.view(), y.view());  // both ends are kept
  EXPECT_EQ(fault_of(y, n, {4 * columns},
                     [&](int64_t first, const View& to) { cpu.copy(c, x.part(first, {n}), to); }),
            "");
}

TEST_F(SimtVast, sums_of_rows_and_columns) {
  constexpr int64_t n = 16, rows = (1 << 21) + 3, k = 1024;
  const Vast x(kFloat32, {rows, k}, Vast::kNumbers), y(kFloat32, {rows, 1}, Vast::kZeros);
  gpu.reduce(c, Reduce::kSum, x.view(), y.view());
  EXPECT_EQ(fault_of(y, n, {1024},
                     [&](int64_t first, const View& to) {
                       cpu.reduce(c, Reduce::kSum, x.part(first * k, {n, k}), shaped(to, {n, 1}));
                     }),
            "");
  constexpr int64_t width = (1 << 28) + 64;
  const Vast wide(kFloat32, {16, width}, Vast::kNumbers), sums(kFloat32, {1, width}, Vast::kZeros);
  gpu.reduce(c, Reduce::kSum, wide.view(), sums.view());
  EXPECT_EQ(fault_of(sums, n, {4096},
                     [&](int64_t first, const View& to) {
                       cpu.reduce(c, Reduce::kSum, wide.part(first, {16, n}, {width, 1}), shaped(to, {1, n}));
                     }),
            "");
}

TEST_F(SimtVast, a_sum_over_one_line) {
  simt::settings().chosen = {0, -1};
  simt::settings().poison = 0;  // the sums of the segments whose blocks do not run
  constexpr int64_t all = k2To31 + (1 << 20), segment = blocks_for(blocks_for(all, 512), 64) * 64,
                    last = all - blocks_for(all, segment) * segment + segment;
  const Vast x(kFloat32, {1, all}, Vast::kNumbers);
  double sum = 0, wanted[2] = {};
  gpu.reduce(c, Reduce::kSum, x.view(), {&sum, kFloat64, {1, 1}, {1, 1}});
  cpu.reduce(c, Reduce::kSum, x.part(0, {1, segment}), {&wanted[0], kFloat64, {1, 1}, {1, 1}});
  cpu.reduce(c, Reduce::kSum, x.part(all - last, {1, last}), {&wanted[1], kFloat64, {1, 1}, {1, 1}});
  EXPECT_EQ(sum, wanted[0] + wanted[1]);
}

TEST_F(SimtVast, softmax) {
  for (const int64_t k : {4096, 4099}) {  // in registers, and not
    const Shape sizes = {(1 << 19) + 5, k};
    const Vast x(kFloat32, sizes, Vast::kNumbers), y(kFloat32, sizes, Vast::kZeros),
        dx(kFloat32, sizes, Vast::kZeros);
    const auto row = [&](int64_t first) { return x.part(first, {1, k}); };
    gpu.softmax(c, true, x.view(), y.view());
    EXPECT_EQ(fault_of(
                  y, k, {4 * k},
                  [&](int64_t first, const View& to) {
                    cpu.softmax(c, true, row(first), shaped(to, {1, k}));
                  },
                  4e-6),
              "");
    gpu.softmax_backward(c, false, x.view(), x.view(), dx.view());
    EXPECT_EQ(fault_of(
                  dx, k, {4 * k},
                  [&](int64_t first, const View& to) {
                    cpu.softmax_backward(c, false, row(first), row(first), shaped(to, {1, k}));
                  },
                  1e-5),
              "");
  }
}

TEST_F(SimtVast, layer_norm_and_cumulated_rows) {
  constexpr int64_t rows = (1 << 19) + 5, k = 4096;
  const Shape sizes = {rows, k};
  const Vast x(kFloat32, sizes, Vast::kNumbers), y(kFloat32, sizes, Vast::kZeros),
      sums(kFloat32, sizes, Vast::kZeros), mean(kFloat32, {rows}, Vast::kZeros),
      rstd(kFloat32, {rows}, Vast::kZeros);
  float few[2];
  const View one{&few[0], kFloat32, {1}, {1}}, other{&few[1], kFloat32, {1}, {1}};
  gpu.layer_norm(c, x.view(), {}, {}, 1e-5, y.view(), mean.view(), rstd.view());
  EXPECT_EQ(fault_of(
                y, k, {4 * k},
                [&](int64_t first, const View& to) {
                  cpu.layer_norm(c, x.part(first, {1, k}), {}, {}, 1e-5, shaped(to, {1, k}), one, other);
                },
                1e-5),
            "");
  gpu.cumulate(c, Reduce::kSum, 1, x.view(), sums.view());
  EXPECT_EQ(fault_of(sums, k, {4 * k},
                     [&](int64_t first, const View& to) {
                       cpu.cumulate(c, Reduce::kSum, 1, x.part(first, {1, k}), shaped(to, {1, k}));
                     }),
            "");
}

TEST_F(SimtVast, cross_entropy) {
  constexpr int64_t rows = (1 << 19) + 5, k = 4096, n = 4;
  const Vast x(kFloat32, {rows, k}, Vast::kNumbers), target(kInt64, {rows}, Vast::kNumbers),
      loss(kFloat32, {rows}, Vast::kZeros), sums(kFloat32, {rows, 2}, Vast::kZeros),
      dx(kFloat32, {rows, k}, Vast::kZeros), g(kFloat32, {rows}, Vast::kNumbers);
  float few[2 * n];
  const View few_sums{few, kFloat32, {n, 2}, {2, 1}};
  gpu.cross_entropy(c, x.view(), target.view(), {}, -1, 0, loss.view(), sums.view());
  EXPECT_EQ(
      fault_of(
          loss, n, {1024},
          [&](int64_t first, const View& to) {
            cpu.cross_entropy(c, x.part(first * k, {n, k}), target.part(first, {n}), {}, -1, 0, to, few_sums);
          },
          1e-5),
      "");
  // it reads the sums that forward has just written
  gpu.cross_entropy_backward(c, x.view(), sums.view(), target.view(), {}, -1, 0, g.view(), dx.view());
  EXPECT_EQ(fault_of(
                dx, k, {4 * k},
                [&](int64_t first, const View& to) {
                  const int64_t r = first / k;
                  cpu.cross_entropy_backward(c, x.part(first, {1, k}), sums.part(2 * r, {1, 2}),
                                             target.part(r, {1}), {}, -1, 0, g.part(r, {1}),
                                             shaped(to, {1, k}));
                },
                1e-5),
            "");
}

TEST_F(SimtVast, attention) {
  const std::vector<int64_t> ends = {0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1};
  simt::settings().chosen = ends;
  constexpr int64_t heads = (1 << 19) + 1, rows = 64, k = 64, head = rows * k;
  for (const DType t : {kFloat32, kBFloat16}) {
    const Shape sizes = {1, heads, rows, k}, kept = {1, heads, rows, 2};
    const Vast x(t, sizes, Vast::kNumbers), stats(kFloat32, kept, Vast::kZeros), y(t, sizes, Vast::kZeros),
        dq(t, sizes, Vast::kZeros), dk(t, sizes, Vast::kZeros), dv(t, sizes, Vast::kZeros);
    const auto run = [&](const View& in, const View& sums, const View(&out)[4]) {
      AttentionViews a;
      a.q = a.k = a.v = a.dy = in, a.stats = sums, a.scale = 1e-4;
      a.y = out[0], a.dq = out[1], a.dk = out[2], a.dv = out[3];
      gpu.attention(c, a);
      gpu.attention_backward(c, a);
    };
    run(x.view(), stats.view(), {y.view(), dq.view(), dk.view(), dv.view()});
    const Vast* const results[] = {&y, &dq, &dk, &dv};
    for (int i = 0; i < 4; ++i)
      EXPECT_EQ(
          fault_of(
              *results[i], head, {8 * head},
              [&](int64_t first, const View& to) {  // a call of this head has the same bits
                simt::settings().chosen = {};
                std::vector<float> room(4 * head), sums(2 * rows);
                View out[4];
                for (int j = 0; j < 4; ++j)
                  out[j] = {&room[static_cast<size_t>(j * head)], t, {1, 1, rows, k}, {head, head, k, 1}};
                out[i].data = to.data;
                run(x.part(first, {1, 1, rows, k}),
                    {sums.data(), kFloat32, {1, 1, rows, 2}, {128, 128, 2, 1}}, out);
                simt::settings().chosen = ends;
              }),
          "")
          << t << " result " << i;
  }
}

TEST_F(SimtVast, sorted_rows) {
  constexpr int64_t rows = (1 << 20) + 3, k = 2048;
  const Vast x(kFloat32, {rows, k}, Vast::kNumbers), values(kFloat32, {rows, k}, Vast::kZeros),
      indices(kInt64, {rows, k}, Vast::kZeros);
  gpu.sort(c, false, x.view(), values.view(), indices.view());
  std::vector<float> some(k);
  std::vector<int64_t> places(k);
  const View values_of{some.data(), kFloat32, {1, k}, {k, 1}},
      places_of{places.data(), kInt64, {1, k}, {k, 1}};
  EXPECT_EQ(fault_of(values, k, {4 * k},
                     [&](int64_t first, const View& to) {
                       cpu.sort(c, false, x.part(first, {1, k}), shaped(to, {1, k}), places_of);
                     }),
            "");
  EXPECT_EQ(fault_of(indices, k, {4 * k},
                     [&](int64_t first, const View& to) {
                       cpu.sort(c, false, x.part(first, {1, k}), values_of, shaped(to, {1, k}));
                     }),
            "");
}

TEST_F(SimtVast, rows_by_index) {
  simt::settings().chosen = {};  // few rows, far apart
  constexpr int64_t rows = (1 << 21) + 4, k = 1024, n = 3;
  int64_t at[n] = {rows - 1, 0, rows - 1};
  const View index{at, kInt64, {n}, {1}};
  const Vast x(kFloat32, {rows, k}, Vast::kNumbers), y(kFloat32, {n, k}, Vast::kZeros),
      dx(kFloat32, {rows, k}, Vast::kZeros), scattered(kFloat32, {rows, k}, Vast::kZeros);
  gpu.take_rows(c, x.view(), index, y.view());
  for (int64_t i = 0; i < n; ++i)
    EXPECT_EQ(numbers_of(y.part(i * k, {k})), numbers_of(x.part(at[i] * k, {k}))) << i;
  gpu.add_rows(c, index, y.view(), -1, dx.view());
  EXPECT_EQ(fault_of(dx, k, {k},
                     [&](int64_t first, const View& to) {
                       cpu.copy(c, y.part(first == 0 ? k : 0, {k}), to);
                       if (first > 0) cpu.binary(c, Binary::kAdd, 1, 0, to, y.part(2 * k, {k}), to);
                     }),
            "");
  // the same rows, each element by an index of its own
  View each = index;
  each.sizes = {n, k}, each.strides = {1, 0};
  gpu.gather(c, 0, x.view(), each, y.view());
  for (int64_t i = 0; i < n; ++i)
    EXPECT_EQ(numbers_of(y.part(i * k, {k})), numbers_of(x.part(at[i] * k, {k}))) << i;
  gpu.scatter(c, ScatterRule::kAssign, 0, each, y.view(), scattered.view());
  EXPECT_EQ(fault_of(scattered, k, {k},
                     [&](int64_t first, const View& to) { cpu.copy(c, x.part(first, {k}), to); }),
            "");
}

TEST_F(SimtVast, products_of_integers) {
  constexpr int64_t rows = 65536 + 8, columns = 65536, k = 16, n = 64;
  const Vast a(kInt32, {rows, k}, Vast::kNumbers), b(kInt32, {k, columns}, Vast::kNumbers),
      y(kInt32, {rows, columns}, Vast::kZeros);
  gpu.matmul(c, 1, a.view(), b.view(), 0, {}, y.view());
  EXPECT_EQ(fault_of(y, n, {16 * columns},
                     [&](int64_t first, const View& to) {
                       cpu.matmul(c, 1, a.part(first / columns * k, {1, k}),
                                  b.part(first % columns, {k, n}, {columns, 1}), 0, {}, shaped(to, {1, n}));
                     }),
            "");
}

TEST_F(SimtVast, optimizer_steps) {
  constexpr int64_t all = k2To31 + 40, n = 64;
  const optim::AdamOptions options;
  const optim::Variant v = optim::detail::rule_variant<optim::AdamRule>(options);
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> functor(v.functor_bytes / sizeof(Line) + 1);
  optim::detail::rule_construct<optim::AdamRule>(functor.data(), options, 1);
  const Vast p(kFloat32, {all}, Vast::kNumbers), y(kFloat32, {all}, Vast::kZeros),
      first_moment(kFloat32, {all}, Vast::kZeros), second_moment(kFloat32, {all}, Vast::kZeros);
  const StepTensor whole{.param = p.view().data,
                         .out = y.view().data,
                         .grad = p.view().data,
                         .state = {first_moment.view().data, second_moment.view().data},
                         .numel = all,
                         .hyper = functor.data()};
  static_cast<Backend&>(gpu).step(c, v.kernel, kFloat32, {&whole, 1});
  EXPECT_EQ(fault_of(
                y, n, {1 << 18},
                [&](int64_t first, const View& to) {
                  float moments[2][n] = {};
                  StepTensor some = whole;
                  some.param = p.part(first, {n}).data, some.grad = some.param, some.out = to.data;
                  some.state[0] = moments[0], some.state[1] = moments[1], some.numel = n;
                  cpu.step(c, v.kernel, kFloat32, {&some, 1});
                },
                1e-6),
            "");
}

}  // namespace
}  // namespace weft::cuda::vast_test
