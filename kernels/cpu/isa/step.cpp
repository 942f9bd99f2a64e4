// Kernels over lists of tensors: an optimizer step, sums of powers (for gradient norms) and scaling. The list
// counts as one concatenated array, which is cut into tasks of a fixed number of elements. So a thousand
// small tensors need few tasks, and one large tensor is divided into many. A step of a half type converts
// blocks that stay in the first-level cache.
#include <cstring>

#include <weft/kernels/cpu/isa/backend.h>
#include <weft/kernels/cpu/isa/elementwise.h>
#include <weft/kernels/cpu/isa/prefetch.h>
#include <weft/kernels/cpu/isa/rows.h>

namespace weft::kernels::WEFT_ISA_NS {

namespace {

inline constexpr int64_t kTaskElements = 1 << 16;

/// Runs f(tensor, begin, end) over every element of every tensor; size(i) is the length of tensor i.
/// No task crosses kTaskElements.
template <class Size, class F> void each_range(int64_t count, const Size& size, const F& f) {
  const Scratch<int64_t> starts(count + 1);
  int64_t total = 0;
  for (int64_t i = 0; i < count; ++i) starts.get()[i] = total, total += size(i);
  starts.get()[count] = total;
  each_task((total + kTaskElements - 1) / kTaskElements, [&](int64_t task) {
    int64_t at = task * kTaskElements;
    const int64_t end = at + kTaskElements < total ? at + kTaskElements : total;
    int64_t low = 0, high = count;  // the last tensor that starts at or before `at`
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      if (starts.get()[middle] <= at) low = middle;
      else high = middle;
    }
    for (int64_t i = low; at < end; ++i) {
      const int64_t start = starts.get()[i], stop = starts.get()[i + 1] < end ? starts.get()[i + 1] : end;
      if (stop > at) f(i, at - start, stop - start);
      if (stop > at) at = stop;
    }
  });
}

/// The rule over elements [begin, end) of a float32 master, whose rounded values go to the parameter.
void step_master(const StepKernel& kernel, DType half, const StepTensor& t, int64_t begin, int64_t end) {
  constexpr int64_t kAtOnce = 512;
  const Convert widened = converter(half, kFloat32), rounded = converter(kFloat32, half);
  float grad[kAtOnce], stored[kAtOnce];
  uint16_t expected[kAtOnce];
  for (int64_t at = begin; at < end; at += kAtOnce) {
    const int64_t n = end - at < kAtOnce ? end - at : kAtOnce;
    const uint16_t* const param = static_cast<const uint16_t*>(t.param) + at;
    float* const master = static_cast<float*>(t.master) + at;
    widened(static_cast<const uint16_t*>(t.grad) + at, grad, n);
    widened(param, stored, n);
    rounded(master, expected, n);
#pragma GCC ivdep
    for (int64_t k = 0; k < n; ++k) master[k] = expected[k] == param[k] ? master[k] : stored[k];
    StepTensor part = t;
    part.param = master, part.out = nullptr, part.grad = grad;
    for (int k = 0; k < kernel.state_count; ++k) part.state[k] = static_cast<float*>(t.state[k]) + at;
    kernel.run_f32(part, 0, n);
    rounded(master, static_cast<uint16_t*>(t.out ? t.out : t.param) + at, n);
  }
}

}  // namespace

void IsaBackend::step(Context&, const StepKernel& kernel, DType dtype, std::span<const StepTensor> tensors,
                      const NextStep&, const double* skip) {
  if (skip && *skip != 0) {
    for (const StepTensor& t : tensors)
      if (t.out) std::memcpy(t.out, t.param, static_cast<size_t>(t.numel * size_of(dtype)));
    return;
  }
  const auto run = dtype == DType::kFloat64 ? kernel.run_f64 : kernel.run_f32;
  const bool half = is_half(dtype);
  const StepTensor* list = tensors.data();
  const int64_t count = static_cast<int64_t>(tensors.size());
  const int64_t fetched = count < 64 ? 0 : count - kRowsAhead;
  each_range(
      count, [&](int64_t i) { return list[i].numel; },
      [&](int64_t i, int64_t begin, int64_t end) {
        if (i < fetched) {  // a short tensor of many may be a row of a table
          const StepTensor& next = list[i + kRowsAhead];
          const int64_t bytes = next.numel * size_of(accumulate_type(dtype));
          fetch_row<1>(next.param, next.numel * size_of(dtype));
          fetch_row<1>(const_cast<void*>(next.grad), next.numel * size_of(dtype));
          if (half) fetch_row<1>(next.master, bytes);
          for (int k = 0; k < kernel.state_count; ++k) fetch_row<1>(next.state[k], bytes);
        }
        if (half) step_master(kernel, dtype, list[i], begin, end);
        else run(list[i], begin, end);
      });
}

namespace {

/// |x|^p summed in double, or the largest |x| for p = infinity (NaN wins). Four sums by position modulo 4.
template <class T> double power_sum(double p, const T* x, int64_t count) {
  double sum[4] = {};
  if (p == __builtin_inf()) {
    double top = 0;
    for (int64_t i = 0; i < count; ++i) {
      const double a = __builtin_fabs(static_cast<double>(x[i]));
      top = a > top || a != a ? a : top;
      if (a != a) break;
    }
    return top;
  }
  const auto add = [&](auto f) __attribute__((always_inline)) {
    int64_t i = 0;
    for (; i + 4 <= count; i += 4)
      for (int u = 0; u < 4; ++u) sum[u] += f(static_cast<double>(x[i + u]));
    for (; i < count; ++i) sum[i % 4] += f(static_cast<double>(x[i]));
  };
  if (p == 2) add([](double v) { return v * v; });
  else if (p == 1) add([](double v) { return __builtin_fabs(v); });
  else if (p == 0) add([](double v) { return v != 0 ? 1.0 : 0.0; });
  else add([p](double v) { return __builtin_pow(__builtin_fabs(v), p); });
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/// Squares of floats in double. A core fetches several places of memory at once faster than one alone, so
/// the four quarters are read side by side.
double square_sum(const float* x, int64_t count) {
  constexpr int kWidth = kLanes<double>;
  const int64_t quarter = count / (8 * kWidth) * (2 * kWidth);
  VecD sum[4][2] = {};
  for (int64_t i = 0; i < quarter; i += 2 * kWidth)
#pragma GCC unroll 4
    for (int u = 0; u < 4; ++u) {
      const VecD a = load_wide(x + u * quarter + i), b = load_wide(x + u * quarter + i + kWidth);
      sum[u][0] += a * a;
      sum[u][1] += b * b;
    }
  VecD total{};
  for (int u = 0; u < 4; ++u) total += sum[u][0] + sum[u][1];
  double rest = 0;
  for (int64_t i = 4 * quarter; i < count; ++i) rest += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return sum_lanes<double>(total) + rest;
}

double view_power_sum(double p, const View& v, int64_t begin, int64_t end) {
  double result = 0;
  dispatch_floating(v.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* x = v.as<T>() + begin;
    if constexpr (std::is_same_v<T, float>) {
      if (p == 2) return void(result = square_sum(x, end - begin));
    }
    result = power_sum(p, x, end - begin);
  });
  return result;
}

}  // namespace

/// One partial result per tensor and block of kTaskElements of it, folded in order.
void IsaBackend::powers(Context&, double p, std::span<const View> xs, double* out) {
  const int64_t count = static_cast<int64_t>(xs.size());
  const View* list = xs.data();
  const Scratch<int64_t> first(count + 1);  // block numbers
  int64_t blocks = 0;
  for (int64_t i = 0; i < count; ++i)
    first.get()[i] = blocks, blocks += (list[i].numel() + kTaskElements - 1) / kTaskElements;
  first.get()[count] = blocks;
  const Scratch<double> partial(blocks);
  const Parts parts(count, 64);  // many small tensors: several to a task
  const auto block = [&](int64_t i, int64_t number) {
    const int64_t begin = number * kTaskElements, size = list[i].numel();
    const int64_t end = begin + kTaskElements < size ? begin + kTaskElements : size;
    partial.get()[first.get()[i] + number] = view_power_sum(p, list[i], begin, end);
  };
  each_task(parts.count, [&](int64_t part) {
    for (int64_t i = parts.begin(part); i < parts.begin(part + 1); ++i)
      if (list[i].numel() <= kTaskElements && list[i].numel() > 0) block(i, 0);
  });
  for (int64_t i = 0; i < count; ++i)
    if (list[i].numel() > kTaskElements)
      each_task(first.get()[i + 1] - first.get()[i], [&](int64_t number) { block(i, number); });
  for (int64_t i = 0; i < count; ++i) {
    double total = 0;
    for (int64_t k = first.get()[i]; k < first.get()[i + 1]; ++k) {
      const double value = partial.get()[k];
      if (p != __builtin_inf()) total += value;
      else if (value > total || value != value) total = value;
    }
    out[i] = total;
  }
}

void IsaBackend::scale(Context&, double factor, std::span<const View> xs) {
  const View* list = xs.data();
  each_range(
      static_cast<int64_t>(xs.size()), [&](int64_t i) { return list[i].numel(); },
      [&](int64_t i, int64_t begin, int64_t end) {
        dispatch_floating(list[i].dtype, [&](auto tag) {
          using T = typename decltype(tag)::type;
          using C = RowType<T>;
          T* x = list[i].as<T>() + begin;
          const C f = static_cast<C>(factor);
          if constexpr (std::is_same_v<T, C>) {
            map_row(
                end - begin, x, [f](Vec<T> v) __attribute__((always_inline)) { return v * f; }, x);
          } else {
            for (int64_t k = 0; k < end - begin; ++k) x[k] = T(static_cast<C>(x[k]) * f);
          }
        });
      });
}

}  // namespace weft::kernels::WEFT_ISA_NS
