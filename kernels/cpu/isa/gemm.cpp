// Divides a product into tasks and calls an engine for each. A row-major b is used in place, and a transposed
// one for few rows. Else blocks of b that stay in cache are packed, one after the other. A weight may have a
// kept pack of all its blocks (packed_b.h).
#include <weft/kernels/cpu/isa/gemm.h>

#include <algorithm>

#include <weft/kernels/cpu/autotune.h>
#include <weft/kernels/cpu/gemm.h>
#include <weft/kernels/cpu/isa/engines.h>
#include <weft/kernels/cpu/isa/packed_b.h>
#include <weft/kernels/cpu/isa/tasks.h>
#include <weft/kernels/cpu_settings.h>

namespace weft::kernels::WEFT_ISA_NS {

namespace {

// Each task packs the blocks of b that it needs, so it has many rows if there are.
inline constexpr int64_t kTaskRows = 960, kLeastRows = 96;
// multiply-adds below which a task is not worth another thread
inline constexpr int64_t kTaskWork = 1 << 20;
inline constexpr int64_t kTasksWanted = 32;  // enough to keep many threads busy evenly
// a library packs b anew in every task: with many columns, cut those instead
inline constexpr int64_t kLibraryRows = 1024;
// Rows of a up to which a pack costs more than it saves, even a kept one.
inline constexpr int64_t kDirectRowsOfPack = 24;                // b row-major
inline constexpr int64_t kCachedBytes = 1 << 20;                // up to here b counts as one without a pack
inline constexpr int64_t kDotRows = kVecBytes == 64 ? 12 : 24;  // b transposed; twice as many where cached
inline constexpr int64_t kFewRows = 48;                         // the same where b is cached, and for tasks

/// The partition of c: parts of rows, and parts of columns in whole panels.
struct Partition {
  Parts rows, panels;
  int64_t panel, n;
  Partition(int64_t m, int64_t columns, int64_t k, int64_t panel_width, int64_t task_rows = kTaskRows,
            int64_t tasks = kTasksWanted)
      : rows(m, task_rows), panels(0, 1), panel(panel_width), n(columns) {
    const int64_t count = (n + panel - 1) / panel;
    int64_t wanted = m * n * k / kTaskWork / rows.count;
    if (wanted * rows.count > tasks) wanted = (tasks + rows.count - 1) / rows.count;
    if (wanted > count / 2) wanted = count / 2;
    if (wanted < 1) wanted = 1;
    panels = Parts(count, (count + wanted - 1) / wanted);
  }
  int64_t first(int64_t part) const { return panels.begin(part) * panel; }
  int64_t last(int64_t part) const { return part + 1 == panels.count ? n : panels.begin(part + 1) * panel; }
};

/// Eigen and oneDNN take operands with one stride of 1 and no overlap.
template <class T> bool is_plain(const Operand<T>& x, int64_t rows, int64_t columns) {
  return (x.col == 1 && x.row >= columns) || (x.row == 1 && x.col >= rows);
}

/// Whether a call of a library costs more than it saves.
bool is_small(int64_t m, int64_t n, int64_t k) {
  return n < kEngineSide || k < kEngineSide || m * n * k < kEngineWork;
}

/// The table's engine for a product of float32, or the tiles where the build lacks it.
GemmEngine engine_for(int64_t m, int64_t n, int64_t k, bool transposed_b) {
  if (is_small(m, n, k)) return GemmEngine::kTile;
  for (const EngineRow& row : kEngineRows)
    if (row.transposed_b == transposed_b && m >= row.least_m && m <= row.most_m && n * k >= row.least_b &&
        n * k <= row.most_b && (row.engine != GemmEngine::kOnednn || has_onednn()))
      return row.engine;
  return GemmEngine::kTile;
}

template <class T> void add_bias(int64_t m, int64_t n, T* c, int64_t c_row, const T* bias) {
  for (int64_t i = 0; i < m; ++i) {
    T* row = c + i * c_row;
    int64_t j = 0;
    for (; j + kLanes<T> <= n; j += kLanes<T>) store(row + j, load(row + j) + load(bias + j));
    for (; j < n; ++j) row[j] += bias[j];
  }
}

void library_task(GemmEngine engine, int64_t m, int64_t n, int64_t k, Operand<float> a, Operand<float> b,
                  float* c, int64_t c_row, Finish<float> finish) {
  // oneDNN reads c in some shapes then, even if beta is 0
  if (finish.alpha == 0) return multiply_direct<float>(m, n, 0, a, b, c, c_row, finish);
  if (engine == GemmEngine::kEigen) {
    eigen_gemm(m, n, k, a, b, c, c_row, finish.alpha, finish.beta);
  } else {
    const bool ta = a.col != 1 || a.row < k, tb = b.col != 1 || b.row < n;
    const auto sgemm = engine == GemmEngine::kMkl ? mkl_sgemm : onednn_sgemm;
    sgemm(ta, tb, m, n, k, finish.alpha, a.data, ta ? a.col : a.row, b.data, tb ? b.col : b.row, finish.beta,
          c, c_row);
  }
  if (finish.bias) add_bias(m, n, c, c_row, finish.bias);
}

void library_gemm(GemmEngine engine, int64_t m, int64_t n, int64_t k, Operand<float> a, Operand<float> b,
                  float* c, int64_t c_row, Finish<float> finish, bool relu) {
  const Partition partition(m, n, k, kPanel<float>, n >= 2 * kLibraryRows ? kLibraryRows : kTaskRows,
                            kTasksWanted / 2);
  each_task(partition.rows.count * partition.panels.count, [&](int64_t task) {
    const int64_t i = partition.rows.begin(task / partition.panels.count),
                  rows = partition.rows.size(task / partition.panels.count);
    const int64_t j = partition.first(task % partition.panels.count),
                  columns = partition.last(task % partition.panels.count) - j;
    Finish<float> finish_here = finish;
    const Operand<float> x{a.data + i * a.row, a.row, a.col}, y{b.data + j * b.col, b.row, b.col};
    if (finish.bias) finish_here.bias = finish.bias + j;
    library_task(engine, rows, columns, k, x, y, c + i * c_row + j, c_row, finish_here);
    if (relu) positive_part(rows, columns, c + i * c_row + j, c_row);
  });
}

/// Whether a product is one task for any number of threads.
bool is_one_task(int64_t m, int64_t n, int64_t k) { return m * n * k < 2 * kTaskWork; }

/// A task with few columns would pack its rows of a for too little work, so it has all columns then, if there
/// are rows for each thread. One thread takes one task. The bits do not depend on the partition.
template <class T> Partition packed_partition(int64_t m, int64_t n, int64_t k) {
  const int64_t threads = num_threads(), tasks = threads == 1 ? 1 : kTasksWanted;
  if (is_one_task(m, n, k)) return Partition(m, n, k, kPanel<T>, m, 1);
  if (n > kBlockColumns<T> || threads == 1) return Partition(m, n, k, kPanel<T>, kTaskRows, tasks);
  const int64_t rows = (m + threads - 1) / threads;
  return Partition(m, n, k, kPanel<T>, std::clamp(rows, kLeastRows, kTaskRows), threads);
}

template <class T>
void direct_gemm(int64_t m, int64_t n, int64_t k, Operand<T> a, Operand<T> b, T* c, int64_t c_row,
                 Finish<T> finish, bool relu) {
  if (is_one_task(m, n, k)) return multiply_direct(m, n, k, a, b, c, c_row, finish, relu);
  const bool few = m <= kFewRows && num_threads() > 1;
  const Partition partition = few ? Partition(m, n, k, kPanel<T>) : packed_partition<T>(m, n, k);
  each_task(partition.rows.count * partition.panels.count, [&](int64_t task) {
    const int64_t part = task / partition.panels.count, i = partition.rows.begin(part);
    const int64_t j = partition.first(task % partition.panels.count), rows = partition.rows.size(part),
                  columns = partition.last(task % partition.panels.count) - j;
    Finish<T> f = finish;
    if (f.bias) f.bias += j;
    T* const to = c + i * c_row + j;
    multiply_direct(rows, columns, k, a.from(i, 0), b.from(0, j), to, c_row, f, relu);
  });
}

template <class T>
void packed_gemm(int64_t m, int64_t n, int64_t k, Operand<T> a, Operand<T> b, T* c, int64_t c_row,
                 Finish<T> finish, bool relu) {
  KeptB<T> kept(b, k, n);
  if (b.col == 1 && !kept.get()) return direct_gemm(m, n, k, a, b, c, c_row, finish, relu);
  const Partition partition = packed_partition<T>(m, n, k);
  const Parts &rows = partition.rows, &panels = partition.panels;
  // Several tasks read a kept pack, and a pack of a where columns are divided: both are made first.
  const int64_t fills = kept.get() && !kept.is_filled() ? panels.count : 0;
  const int64_t shared = panels.count > 1 && !is_read_in_place(a, m, n) ? rows.count : 0;
  const Scratch<T> strips(shared > 0 ? m * k : 0);
  each_task(fills + shared, [&](int64_t task) {
    if (task < fills) return pack_b(kept.get(), b, k, n, partition.first(task), partition.last(task));
    const int64_t i = rows.begin(task - fills);
    pack_a(strips.get() + i * k, a.from(i, 0), rows.size(task - fills), k);
  });
  each_task(rows.count * panels.count, [&](int64_t task) {
    const int64_t part = task / panels.count, i = rows.begin(part), column = task % panels.count;
    multiply<T>(rows.size(part), n, k, {shared > 0 ? strips.get() + i * k : nullptr, a.from(i, 0)},
                {kept.get(), b}, partition.first(column), partition.last(column), c + i * c_row, c_row,
                finish, relu);
  });
  kept.keep();
}

template <class T> bool is_cached(int64_t n, int64_t k) { return n * k * int64_t{sizeof(T)} <= kCachedBytes; }

/// A product by our tiles.
template <class T>
void tile_gemm(int64_t m, int64_t n, int64_t k, Operand<T> a, Operand<T> b, T* c, int64_t c_row,
               Finish<T> finish, bool relu) {
  // a column: its transpose is one row
  if (n == 1 && m > 1 && c_row == 1 && !finish.bias && (a.row == 1 || (a.col == 1 && b.row == 1)))
    return direct_gemm<T>(1, m, k, b.transposed(), a.transposed(), c, m, finish, relu);
  const bool row_major = b.col == 1, dots = b.row == 1 && a.col == 1;
  const int64_t few = is_cached<T>(n, k) ? kFewRows : kDirectRowsOfPack;
  if ((row_major && (m <= few || !packs::may_be_watched(b.data))) || (dots && takes_dots<T>(m, n, k)))
    return direct_gemm(m, n, k, a, b, c, c_row, finish, relu);
  packed_gemm(m, n, k, a, b, c, c_row, finish, relu);
}

/// A product by an engine that is given, or by that of its shape.
void engine_gemm(GemmEngine engine, int64_t m, int64_t n, int64_t k, Operand<float> a, Operand<float> b,
                 float* c, int64_t c_row, Finish<float> finish, bool relu) {
  const auto by = [&](GemmEngine taken, float* to, int64_t to_row, Finish<float> last) {
    if (taken == GemmEngine::kTile) tile_gemm(m, n, k, a, b, to, to_row, last, relu);
    else library_gemm(taken, m, n, k, a, b, to, to_row, last, relu);
  };
  if (engine == GemmEngine::kAuto && autotunes()) {
    engine = tuned_engine({m, n, k, a.col != 1, b.col != 1}, [&](GemmEngine tried) {
      const Scratch<float> trial(m * n);
      by(tried, trial.get(), n, {});
    });
  } else if (engine == GemmEngine::kAuto) {
    engine = engine_for(m, n, k, b.col != 1);
  }
  by(engine, c, c_row, finish);
}

}  // namespace

template <class T> bool takes_dots(int64_t m, int64_t n, int64_t k) {
  return m <= (is_cached<T>(n, k) ? 2 * kDotRows : kDotRows) || m * n * k <= 4096;
}

template <class T>
void gemm(int64_t m, int64_t n, int64_t k, Operand<T> a, Operand<T> b, T* c, int64_t c_row, Finish<T> finish,
          bool relu) {
  if (m == 0 || n == 0) return;
  // The stride of a dim of size 1 is arbitrary: replace it by that of a packed matrix.
  if (m == 1) a.row = a.col == 1 ? k : 1, c_row = n;
  if (k == 1) a.col = 1, b.row = b.col == 1 ? n : 1;
  if (n == 1) b.col = b.row == 1 ? k : 1;
  if constexpr (sizeof(T) == sizeof(float)) {  // double uses weft's tiles only
    const GemmEngine engine = gemm_engine();
    const bool tile = engine == GemmEngine::kTile || (engine == GemmEngine::kAuto && is_small(m, n, k));
    if (!tile && k > 0 && is_plain(a, m, k) && is_plain(b, k, n))
      return engine_gemm(engine, m, n, k, a, b, c, c_row, finish, relu);
  }
  tile_gemm(m, n, k, a, b, c, c_row, finish, relu);
}

template <class T>
void gemm_here(int64_t m, int64_t n, int64_t k, Operand<T> a, Operand<T> b, T* c, int64_t c_row,
               Finish<T> finish) {
  if constexpr (sizeof(T) == sizeof(float)) {
    const GemmEngine engine = gemm_engine();
    const GemmEngine taken = engine == GemmEngine::kAuto ? engine_for(m, n, k, b.col != 1) : engine;
    if (taken != GemmEngine::kTile && k > 0) return library_task(taken, m, n, k, a, b, c, c_row, finish);
  }
  if (b.col == 1 || (m <= kDotRows && a.col == 1 && b.row == 1))
    return multiply_direct(m, n, k, a, b, c, c_row, finish);
  const Parts rows(m, kTaskRows);
  for (int64_t part = 0; part < rows.count; ++part) {
    const int64_t i = rows.begin(part);
    multiply<T>(rows.size(part), n, k, {nullptr, a.from(i, 0)}, {nullptr, b}, 0, n, c + i * c_row, c_row,
                finish);
  }
}

template bool takes_dots<float>(int64_t, int64_t, int64_t);
template void gemm_here<float>(int64_t, int64_t, int64_t, Operand<float>, Operand<float>, float*, int64_t,
                               Finish<float>);
template void gemm_here<double>(int64_t, int64_t, int64_t, Operand<double>, Operand<double>, double*, int64_t,
                                Finish<double>);
template void gemm<float>(int64_t, int64_t, int64_t, Operand<float>, Operand<float>, float*, int64_t,
                          Finish<float>, bool);
template void gemm<double>(int64_t, int64_t, int64_t, Operand<double>, Operand<double>, double*, int64_t,
                           Finish<double>, bool);

}  // namespace weft::kernels::WEFT_ISA_NS
