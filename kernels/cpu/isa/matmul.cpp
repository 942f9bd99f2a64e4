// Matrix product of views. For float and double it is gemm(), for the half dtypes the same through float
// copies. Integers run a plain loop with sums in int64. A batch is one product if b is shared and a and c can
// be joined along the batch. Otherwise small matrices are distributed over tasks.
#include <weft/kernels/cpu/isa/elementwise.h>
#include <weft/kernels/cpu/isa/gemm.h>
#include <weft/kernels/cpu/isa/tasks.h>
#include <weft/kernels/cpu/packs.h>
#include <weft/kernels/inner/convert.h>

namespace weft::kernels::WEFT_ISA_NS {

namespace {

/// Sizes and strides of one batched product, in elements; rank 2 is a batch of one.
struct Problem {
  int64_t batch = 1, m, n, k;
  int64_t a_batch = 0, a_row, a_col, b_batch = 0, b_row, b_col, c_batch = 0, c_row, c_col;
  int64_t bias_stride = 1;

  Problem(V a, V b, V bias, V c) {
    const int r = c.ndim();
    if (r == 3) {
      batch = c.size(0);
      a_batch = a.size(0) == 1 ? 0 : a.stride(0);
      b_batch = b.size(0) == 1 ? 0 : b.stride(0);
      c_batch = c.stride(0);
    }
    m = c.size(r - 2), n = c.size(r - 1), k = a.size(r - 1);
    a_row = a.stride(r - 2), a_col = a.stride(r - 1);
    b_row = b.stride(r - 2), b_col = b.stride(r - 1);
    c_row = c.stride(r - 2), c_col = c.stride(r - 1);
    if (bias.defined()) bias_stride = bias.stride(0);
  }
};

/// dst[i * columns + j] = src[i * row + j * col], converted.
template <class To, class From>
void gather_matrix(To* dst, const From* src, int64_t rows, int64_t columns, int64_t row, int64_t col) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) dst[i * columns + j] = static_cast<To>(src[i * row + j * col]);
}
template <class To, class From>
void scatter_matrix(To* dst, const From* src, int64_t rows, int64_t columns, int64_t row, int64_t col) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) dst[i * row + j * col] = static_cast<To>(src[i * columns + j]);
}

/// One product of floats; c of any strides.
template <class T>
void multiply(const Problem& p, const T* a, const T* b, T* c, Finish<T> finish, bool relu) {
  const Operand<T> x{a, p.a_row, p.a_col}, y{b, p.b_row, p.b_col};
  if (p.c_col == 1 || p.n == 1) return gemm<T>(p.m, p.n, p.k, x, y, c, p.c_row, finish, relu);
  if (p.c_row == 1 && !finish.bias)
    return gemm<T>(p.n, p.m, p.k, y.transposed(), x.transposed(), c, p.c_col, finish, relu);
  const Scratch<T> out(p.m * p.n);
  if (finish.beta != 0) gather_matrix(out.get(), c, p.m, p.n, p.c_row, p.c_col);
  gemm<T>(p.m, p.n, p.k, x, y, out.get(), p.n, finish, relu);
  scatter_matrix(c, out.get(), p.m, p.n, p.c_row, p.c_col);
}

/// The batch as one tall product, if its layout allows it.
bool stack(Problem& p) {
  if (p.batch <= 1 || p.b_batch != 0 || p.c_col != 1) return false;
  if (p.m == 1) p.a_row = p.a_batch, p.c_row = p.c_batch;
  else if (p.a_batch != p.m * p.a_row || p.c_batch != p.m * p.c_row) return false;
  p.m *= p.batch;
  p.batch = 1;
  return true;
}

template <class T> void run_float(Problem p, const T* a, const T* b, T* c, Finish<T> finish, bool relu) {
  stack(p);
  const auto one = [&](int64_t i) {
    multiply(p, a + i * p.a_batch, b + i * p.b_batch, c + i * p.c_batch, finish, relu);
  };
  const int64_t work = p.m * p.n * p.k;
  if (p.batch == 1) return one(0);
  if (work >= (int64_t{1} << 22)) {  // large matrices: gemm() divides each into tasks
    for (int64_t i = 0; i < p.batch; ++i) one(i);
    return;
  }
  const Parts parts(p.batch, work >= (int64_t{1} << 18) ? 1 : (int64_t{1} << 18) / (work + 1) + 1);
  each_task(parts.count, [&](int64_t part) {
    for (int64_t i = parts.begin(part); i < parts.begin(part + 1); ++i) one(i);
  });
}

/// A matrix of a half dtype to or from a dense one of floats, on the pool.
template <class T>
void widen(float* dst, const T* src, int64_t rows, int64_t columns, int64_t row, int64_t col) {
  copy_any({const_cast<T*>(src), dtype_of<T>, {rows, columns}, {row, col}},
           {dst, DType::kFloat32, {rows, columns}, {columns, 1}});
}
template <class T> void narrow(T* dst, float* src, int64_t rows, int64_t columns, int64_t row, int64_t col) {
  copy_any({src, DType::kFloat32, {rows, columns}, {columns, 1}},
           {dst, dtype_of<T>, {rows, columns}, {row, col}});
}

/// A matrix of a half dtype as floats in `dst`. A transposed one stays so, unless it has to be row-major: it
/// is contiguous the other way.
template <class T>
Operand<float> widened(float* dst, const T* src, int64_t rows, int64_t columns, int64_t row, int64_t col,
                       bool row_major) {
  if (row != 1 || col == 1) {
    widen(dst, src, rows, columns, row, col);
    return {dst, columns, 1};
  }
  Scratch<float> apart;
  try {
    apart.resize(row_major ? rows * columns : 0);
  } catch (const OutOfMemoryError&) {  // number by number
    widen(dst, src, rows, columns, row, col);
    return {dst, columns, 1};
  }
  float* const to = row_major ? apart.get() : dst;
  widen(to, src, columns, rows, col, row);
  if (!row_major) return {to, 1, rows};
  copy_any({to, DType::kFloat32, {rows, columns}, {1, rows}},
           {dst, DType::kFloat32, {rows, columns}, {columns, 1}});
  return {dst, columns, 1};
}

/// The floats of a weight of a half type are kept as a pack, row-major. A row has the same bits among few
/// rows as among many: no product is made by dot products, except those of one column without a bias.
template <class T>
void run_half(const Problem& p, const T* a, const T* b, const T* bias, T* c, Finish<float> finish,
              bool relu) {
  const int64_t numbers = p.k * p.n, bytes = numbers * int64_t{sizeof(float)};
  constexpr int kElement =
      int{sizeof(T)} + 256 * (1 + static_cast<int>(dtype_of<T>));  // no other pack has it
  packs::Lease kept;
  if (p.b_batch == 0 && bytes >= packs::kLeastBytes && packs::may_be_watched(b))
    kept =
        packs::Lease({b, p.k, p.n, p.b_row, p.b_col, 1, kElement, kLanes<float>}, static_cast<size_t>(bytes));
  auto* const pack = static_cast<float*>(kept.data());
  const Scratch<float> x(p.m * p.k), y(pack ? 0 : numbers), z(p.m * p.n), w(bias ? p.n : 1);
  const bool row_major = pack || takes_dots<float>(p.m, p.n, p.k);
  Operand<float> right{pack, p.n, 1};
  if (bias) widen(w.get(), bias, 1, p.n, 0, p.bias_stride), finish.bias = w.get();
  for (int64_t i = 0; i < p.batch; ++i) {
    const auto left = widened(x.get(), a + i * p.a_batch, p.m, p.k, p.a_row, p.a_col, p.n == 1);
    if (p.b_batch != 0 || (i == 0 && !kept.is_filled()))
      right = widened(pack ? pack : y.get(), b + i * p.b_batch, p.k, p.n, p.b_row, p.b_col, row_major);
    if (finish.beta != 0) widen(z.get(), c + i * p.c_batch, p.m, p.n, p.c_row, p.c_col);
    gemm<float>(p.m, p.n, p.k, left, right, z.get(), p.n, finish, relu);
    narrow(c + i * p.c_batch, z.get(), p.m, p.n, p.c_row, p.c_col);
  }
  kept.keep();
}

template <class T>
void run_integer(const Problem& p, const T* a, const T* b, const T* bias, T* c, double alpha, double beta) {
  const auto scaled = [](double factor, uint64_t x) {  // a whole factor; products and sums wrap as int64 does
    return static_cast<uint64_t>(to_integer<int64_t>(factor)) * x;
  };
  const Parts rows(p.batch * p.m, 1 + (int64_t{1} << 16) / (p.n * p.k + 1));
  each_task(rows.count, [&](int64_t part) {
    for (int64_t r = rows.begin(part); r < rows.begin(part + 1); ++r) {
      const T* x = a + r / p.m * p.a_batch + r % p.m * p.a_row;
      const T* y = b + r / p.m * p.b_batch;
      T* z = c + r / p.m * p.c_batch + r % p.m * p.c_row;
      for (int64_t j = 0; j < p.n; ++j) {
        uint64_t sum = 0;
        for (int64_t q = 0; q < p.k; ++q)
          sum += static_cast<uint64_t>(x[q * p.a_col]) * static_cast<uint64_t>(y[q * p.b_row + j * p.b_col]);
        sum = scaled(alpha, sum);
        if (beta != 0) sum += scaled(beta, static_cast<uint64_t>(z[j * p.c_col]));
        if (bias) sum += static_cast<uint64_t>(bias[j * p.bias_stride]);
        z[j * p.c_col] = static_cast<T>(sum);
      }
    }
  });
}

}  // namespace

void IsaBackend::matmul(Context& context, double alpha, View a, View b, double beta, View bias, View c,
                        bool relu) {
  const Problem p(a, b, bias, c);
  if (p.batch == 0 || p.m == 0 || p.n == 0) return;
  dispatch(c.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T *x = a.as<T>(), *y = b.as<T>(), *w = bias.defined() ? bias.as<T>() : nullptr;
    if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>) {
      const bool gathered = w && p.bias_stride != 1;
      const Scratch<T> dense(gathered ? p.n : 0);
      if (gathered) gather_matrix(dense.get(), w, 1, p.n, 0, p.bias_stride);
      run_float<T>(p, x, y, c.as<T>(),
                   {static_cast<T>(alpha), static_cast<T>(beta), gathered ? dense.get() : w}, relu);
    } else if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>) {
      run_half<T>(p, x, y, w, c.as<T>(), {static_cast<float>(alpha), static_cast<float>(beta)}, relu);
    } else {
      run_integer<T>(p, x, y, w, c.as<T>(), alpha, beta);
      if (relu) unary(context, Unary::kRelu, 0, 0, c, c);
    }
  });
}

}  // namespace weft::kernels::WEFT_ISA_NS
