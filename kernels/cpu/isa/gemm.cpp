// Divides a product into tasks and calls an engine for each. Small products and those with few rows use the
// operands in place. Larger ones pack b once: each task packs its columns, or all tasks together if several
// rows of tasks share them. A weight may have a kept pack (packed_b.h).
#include <weft/kernels/cpu/isa/gemm.h>

#include <weft/kernels/cpu/gemm.h>
#include <weft/kernels/cpu/isa/packed_b.h>
#include <weft/kernels/cpu/isa/tasks.h>

namespace weft::kernels::WEFT_ISA_NS {

namespace {

// with kBlockK columns, a block of a that stays in the second-level cache
inline constexpr int64_t kTaskRows = 240;
// multiply-adds below which a task is not worth another thread
inline constexpr int64_t kTaskWork = 1 << 20;
inline constexpr int64_t kTasksWanted = 32;  // enough to keep many threads busy evenly
// a library packs b anew in every task: with many columns, cut those instead
inline constexpr int64_t kLibraryRows = 1024;
inline constexpr int64_t kDirectRows = 24;  // b row-major: up to here packing costs more than it saves
inline constexpr int64_t kDotRows = 8;      // b transposed: the same

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

#if defined(__AVX512F__)
/// oneDNN where it measured faster than our tiles: single precision, AVX-512, blocks with many rows and
/// enough work.
bool prefer_onednn(int64_t m, int64_t n, int64_t k) {
  return has_onednn() && m >= 64 && n >= 64 && k >= 64 && m * n * k >= (int64_t{1} << 24);
}
#else
bool prefer_onednn(int64_t, int64_t, int64_t) { return false; }
#endif

/// Whether Eigen computes it: few rows with b transposed, where packing b costs as much as the product.
bool prefer_eigen(int64_t m, int64_t n, int64_t k, bool transposed_b) {
  return transposed_b && m > kDotRows && m <= kDirectRows && n * k >= (int64_t{1} << 16);
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
  if (engine == GemmEngine::kOnednn) {
    const bool ta = a.col != 1 || a.row < k, tb = b.col != 1 || b.row < n;
    onednn_sgemm(ta, tb, m, n, k, finish.alpha, a.data, ta ? a.col : a.row, b.data, tb ? b.col : b.row,
                 finish.beta, c, c_row);
  } else {
    eigen_gemm(m, n, k, a, b, c, c_row, finish.alpha, finish.beta);
  }
  if (finish.bias) add_bias(m, n, c, c_row, finish.bias);
}

void library_gemm(GemmEngine engine, int64_t m, int64_t n, int64_t k, Operand<float> a, Operand<float> b,
                  float* c, int64_t c_row, Finish<float> finish) {
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
  });
}

template <class T>
void direct_gemm(int64_t m, int64_t n, int64_t k, Operand<T> a, Operand<T> b, T* c, int64_t c_row,
                 Finish<T> finish) {
  const Partition partition(m, n, k, kPanel<T>);
  if (partition.panels.count <= 1)
    return multiply_direct(m, n, k, a.data, a.row, a.col, b.data, b.row, b.col, c, c_row, finish);
  each_task(partition.panels.count, [&](int64_t task) {
    const int64_t j = partition.first(task);
    Finish<T> f = finish;
    if (f.bias) f.bias += j;
    multiply_direct(m, partition.last(task) - j, k, a.data, a.row, a.col, b.data + j * b.col, b.row, b.col,
                    c + j, c_row, f);
  });
}

template <class T>
void packed_gemm(int64_t m, int64_t n, int64_t k, Operand<T> a, Operand<T> b, T* c, int64_t c_row,
                 Finish<T> finish) {
  const Partition partition(m, n, k, kPanel<T>);
  PackedB<T> packed(b, k, n);
  const bool shared = partition.rows.count > 1, own = !packed.is_filled();
  const auto pack_part = [&](int64_t part) {
    pack_b(packed.get(), b.data, b.row, b.col, k, n, partition.first(part), partition.last(part));
  };
  if (shared && own) each_task(partition.panels.count, pack_part);
  each_task(partition.rows.count * partition.panels.count, [&](int64_t task) {
    const int64_t i = partition.rows.begin(task / partition.panels.count),
                  rows = partition.rows.size(task / partition.panels.count);
    const int64_t part = task % partition.panels.count;
    if (!shared && own) pack_part(part);
    const Scratch<T> strips(rows * (k < kBlockK ? k : kBlockK));
    multiply_packed(rows, n, k, a.data + i * a.row, a.row, a.col, packed.get(), partition.first(part),
                    partition.last(part), c + i * c_row, c_row, finish, strips.get());
  });
  packed.keep();
}

}  // namespace

template <class T>
void gemm(int64_t m, int64_t n, int64_t k, Operand<T> a, Operand<T> b, T* c, int64_t c_row,
          Finish<T> finish) {
  if (m == 0 || n == 0) return;
  // The stride of a dim of size 1 is arbitrary: replace it by that of a packed matrix.
  if (m == 1) a.row = a.col == 1 ? k : 1, c_row = n;
  if (k == 1) a.col = 1, b.row = b.col == 1 ? n : 1;
  if (n == 1) b.col = b.row == 1 ? k : 1;
  if constexpr (sizeof(T) == sizeof(float)) {  // double is multiplied by our own tiles alone
    const GemmEngine engine = gemm_engine();
    if (k > 0 && engine != GemmEngine::kTile && is_plain(a, m, k) && is_plain(b, k, n)) {
      if (engine != GemmEngine::kAuto) return library_gemm(engine, m, n, k, a, b, c, c_row, finish);
      if (prefer_onednn(m, n, k)) return library_gemm(GemmEngine::kOnednn, m, n, k, a, b, c, c_row, finish);
      if (prefer_eigen(m, n, k, b.col != 1))
        return library_gemm(GemmEngine::kEigen, m, n, k, a, b, c, c_row, finish);
    }
  }
  // a column of dot products: its transpose is one row
  if (n == 1 && m > 1 && c_row == 1 && !finish.bias && a.col == 1 && b.row == 1)
    return direct_gemm<T>(1, m, k, b.transposed(), a.transposed(), c, m, finish);
  const bool row_major = b.col == 1, dots = b.row == 1 && a.col == 1;
  if ((row_major && m <= kDirectRows) || (dots && (m <= kDotRows || m * n * k <= 4096)))
    return direct_gemm(m, n, k, a, b, c, c_row, finish);
  packed_gemm(m, n, k, a, b, c, c_row, finish);
}

template <class T>
void gemm_here(int64_t m, int64_t n, int64_t k, Operand<T> a, Operand<T> b, T* c, int64_t c_row,
               Finish<T> finish) {
  if constexpr (sizeof(T) == sizeof(float)) {
    const GemmEngine engine = gemm_engine();
    if (engine == GemmEngine::kOnednn || (engine == GemmEngine::kAuto && prefer_onednn(m, n, k)))
      return library_task(GemmEngine::kOnednn, m, n, k, a, b, c, c_row, finish);
  }
  const Scratch<T> packed(packed_columns<T>(n) * k);
  pack_b(packed.get(), b.data, b.row, b.col, k, n, int64_t{0}, n);
  const Parts rows(m, kTaskRows);
  const Scratch<T> strips(rows.size(0) * (k < kBlockK ? k : kBlockK));
  for (int64_t i = 0; i < rows.count; ++i)
    multiply_packed(rows.size(i), n, k, a.data + rows.begin(i) * a.row, a.row, a.col, packed.get(),
                    int64_t{0}, n, c + rows.begin(i) * c_row, c_row, finish, strips.get());
}

template void gemm_here<float>(int64_t, int64_t, int64_t, Operand<float>, Operand<float>, float*, int64_t,
                               Finish<float>);
template void gemm_here<double>(int64_t, int64_t, int64_t, Operand<double>, Operand<double>, double*, int64_t,
                                Finish<double>);
template void gemm<float>(int64_t, int64_t, int64_t, Operand<float>, Operand<float>, float*, int64_t,
                          Finish<float>);
template void gemm<double>(int64_t, int64_t, int64_t, Operand<double>, Operand<double>, double*, int64_t,
                           Finish<double>);

}  // namespace weft::kernels::WEFT_ISA_NS
