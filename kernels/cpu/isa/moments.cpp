// Mean and variance of rows. A row is cut into units that stay in the first-level cache, and a unit is read
// twice: for its mean, then for the squares about it, in double. Units are joined in order: M = M1 + M2 +
// d^2 n1 n2 / (n1 + n2), with d the difference of the means. Source: Chan, Golub, LeVeque 1979, eq. 2.1.
// Equal numbers have exactly this mean and no variance. Units depend on sizes only, so bits do not depend on
// the thread count. Rows whose neighbours lie side by side are computed together.
#include <weft/kernels/cpu/isa/backend.h>
#include <weft/kernels/cpu/isa/elementwise.h>
#include <weft/kernels/cpu/isa/rows.h>
#include <weft/kernels/inner/convert.h>

namespace weft::kernels::WEFT_ISA_NS {
namespace {

constexpr int64_t kUnit = 4096;               // elements of a row
constexpr int64_t kGroup = 4 * kUnit;         // of a task
constexpr int64_t kColumns = 64, kRows = 64;  // a unit of rows side by side
constexpr int64_t kUnits = 64;                // of a task

struct Moments {
  double count = 0, mean = 0, squares = 0;
  void join(const Moments& b) {
    const double n = count + b.count, d = b.mean - mean;
    squares += b.squares + d * d * (count * b.count / n);
    mean += d * (b.count / n);
    count = n;
  }
};

/// The sum of f(x) over n contiguous numbers; f takes vectors and single numbers.
template <class C, class F> WEFT_INLINE double sum_of(const C* p, int64_t n, F f) {
  constexpr int kCount = kLanes<double>;
  VecD sum[4] = {};
  int64_t i = 0;
  for (; i + 4 * kCount <= n; i += 4 * kCount)
    for (int k = 0; k < 4; ++k) sum[k] += f(load_wide(p + i + k * kCount));
  double total = sum_lanes<double>((sum[0] + sum[1]) + (sum[2] + sum[3]));
  for (; i < n; ++i) total += f(static_cast<double>(p[i]));
  return total;
}

template <class C> Moments moments_of(const C* p, int64_t n) {
  const auto count = static_cast<double>(n);
  double mean = sum_of(
                    p, n, [](auto v) __attribute__((always_inline)) { return v; }) /
                count;
  if constexpr (sizeof(C) == 8)  // a sum of floats has no such rounding error
    mean += sum_of(
                p, n, [mean](auto v) __attribute__((always_inline)) { return v - mean; }) /
            count;
  const double squares = sum_of(
      p, n, [mean](auto v) __attribute__((always_inline)) {
        const auto d = v - mean;
        return d * d;
      });
  return {count, mean, squares};
}

/// One call: its operands, and how a result is written.
template <class T> struct Call {
  using C = RowType<T>;
  double correction;
  View x, mean, var;

  /// Elements [begin, end) of row r, at most kGroup.
  Moments group(int64_t r, int64_t begin, int64_t end) const {
    const int64_t step = x.stride(1);
    const T* const row = x.as<T>() + r * x.stride(0);
    Moments all;
    alignas(64) C block[kUnit];
    for (int64_t at = begin; at < end; at += kUnit) {
      const int64_t n = end - at < kUnit ? end - at : kUnit;
      const C* unit = block;
      if constexpr (std::is_same_v<T, C>)
        if (step == 1) unit = row + at;
      if (unit == block)
        for (int64_t i = 0; i < n; ++i) block[i] = static_cast<C>(row[(at + i) * step]);
      const Moments here = moments_of(unit, n);
      if (at == begin) all = here;
      else all.join(here);
    }
    return all;
  }

  void put(int64_t r, const Moments& m) const {
    const double n = m.count - correction;
    dispatch_floating(mean.dtype, [&](auto tag) {
      using M = typename decltype(tag)::type;
      mean.as<M>()[r * mean.stride(0)] = convert<M>(m.mean);
    });
    dispatch_floating(var.dtype, [&](auto tag) {
      using V = typename decltype(tag)::type;
      var.as<V>()[r * var.stride(0)] = convert<V>(m.squares / (n > 0 ? n : 0));
    });
  }

  /// The rows, each from `count` groups: row r's group g is at r * row + g * group.
  void put_joined(const Moments* parts, int64_t count, int64_t row, int64_t group) const {
    for (int64_t r = 0; r < x.size(0); ++r, parts += row) {
      Moments all = parts[0];
      for (int64_t g = 1; g < count; ++g) all.join(parts[g * group]);
      put(r, all);
    }
  }

  void by_rows() const {
    const int64_t rows = x.size(0), length = x.size(1);
    const Parts groups(length, kGroup);
    if (groups.count == 1) {
      const Parts parts(rows, (1 << 16) / length + 1);
      return each_task(parts.count, [&](int64_t task) {
        for (int64_t r = parts.begin(task); r < parts.begin(task + 1); ++r) put(r, group(r, 0, length));
      });
    }
    const Scratch<Moments> partial(rows * groups.count);
    each_task(rows * groups.count, [&](int64_t task) {
      const int64_t g = task % groups.count;
      partial.get()[task] = group(task / groups.count, groups.begin(g), groups.begin(g + 1));
    });
    put_joined(partial.get(), groups.count, groups.count, 1);
  }

  /// Rows [first, first + n), which are neighbours in memory, over units [begin, end).
  void columns(int64_t first, int64_t n, const Parts& units, int64_t begin, int64_t end,
               Moments* found) const {
    const int64_t step = x.stride(1);
    for (int64_t u = begin; u < end; ++u) {
      const T* const from = x.as<T>() + first + units.begin(u) * step;
      const int64_t count = units.size(u);
      const auto before = static_cast<double>(units.begin(u) - units.begin(begin)),
                 here = static_cast<double>(count);
      double mean[kColumns] = {}, squares[kColumns] = {};
      const auto each = [&](auto f) __attribute__((always_inline)) {
        for (int64_t i = 0; i < count; ++i)
          for (int64_t j = 0; j < n; ++j) f(j, static_cast<double>(from[i * step + j]));
      };
      each([&](int64_t j, double v) __attribute__((always_inline)) { mean[j] += v; });
      for (int64_t j = 0; j < n; ++j) mean[j] /= here;
      if constexpr (sizeof(T) == 8) {
        double off[kColumns] = {};
        each([&](int64_t j, double v) __attribute__((always_inline)) { off[j] += v - mean[j]; });
        for (int64_t j = 0; j < n; ++j) mean[j] += off[j] / here;
      }
      each([&](int64_t j, double v)
               __attribute__((always_inline)) { squares[j] += (v - mean[j]) * (v - mean[j]); });
      for (int64_t j = 0; j < n; ++j) {
        Moments& all = found[j];
        const double d = u == begin ? 0.0 : mean[j] - all.mean, share = here / (before + here);
        all.squares = u == begin ? squares[j] : all.squares + (squares[j] + d * d * (before * share));
        all.mean = u == begin ? mean[j] : all.mean + d * share;
        all.count = before + here;
      }
    }
  }

  /// For rows that are neighbours in memory. Long ones are cut into groups of units.
  void by_columns() const {
    const int64_t rows = x.size(0), length = x.size(1);
    const Parts blocks(rows, kColumns), units(length, kRows), groups(units.count, kUnits);
    if (groups.count == 1) {
      const Parts tasks(blocks.count, (1 << 16) / (length * kColumns) + 1);
      return each_task(tasks.count, [&](int64_t task) {
        for (int64_t b = tasks.begin(task); b < tasks.begin(task + 1); ++b) {
          Moments found[kColumns];
          columns(blocks.begin(b), blocks.size(b), units, 0, units.count, found);
          for (int64_t j = 0; j < blocks.size(b); ++j) put(blocks.begin(b) + j, found[j]);
        }
      });
    }
    const Scratch<Moments> partial(groups.count * rows);
    each_task(blocks.count * groups.count, [&](int64_t task) {
      const int64_t g = task / blocks.count, b = task % blocks.count;
      columns(blocks.begin(b), blocks.size(b), units, groups.begin(g), groups.begin(g + 1),
              partial.get() + g * rows + blocks.begin(b));
    });
    put_joined(partial.get(), groups.count, 1, rows);
  }
};

}  // namespace

void IsaBackend::mean_var(Context&, double correction, View x, View mean, View var) {
  if (x.size(0) == 0) return;
  dispatch_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Call<T> call{correction, x, mean, var};
    if (std::is_same_v<T, RowType<T>> && x.size(0) >= 4 && x.stride(0) == 1 && x.stride(1) > 1)
      call.by_columns();
    else call.by_rows();
  });
}

}  // namespace weft::kernels::WEFT_ISA_NS
