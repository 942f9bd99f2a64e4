// Counter-based random kernels with the CPU's numbers: element i of a call depends only on the key and on i
// (PhiloxKey in backend.h). A thread takes two Philox blocks at a time and writes the four elements of each,
// two for float64 numbers and integers. A block takes about 70 integer operations. Like the CPU's file, this
// one is compiled without fused multiply-add. So uniform and normal numbers in float and the half dtypes,
// uniform float64, integers, masks and dropout have the CPU's bits. Only normal float64 numbers use the
// library's log, cos and sin, and may differ in their last bits.
#include <weft/kernels/inner/random.h>

#include <optional>

#include <weft/kernels/cuda/host/cuda_backend.h>
#include <weft/kernels/cuda/host/device_key.h>
#include <weft/kernels/cuda/packs.h>
#include <weft/kernels/inner/convert.h>

namespace weft::cuda {

namespace {

namespace draws = kernels::random;

/// The number of elements of a compute type from one Philox block.
template <class C> inline constexpr int kPerBlock = sizeof(C) == 8 ? 2 : 4;

template <class T, class V, int E> WEFT_DEVICE void write_pack(void* y, int64_t at, const V (&v)[E]) {
  Pack<T, E> pack;
  for (int k = 0; k < E; ++k) pack.at[k] = kernels::convert<T>(v[k]);
  store_pack(y, at, pack);
}
/// Packs from at[0] on, at[1] on and so forth; all are loaded before the first is converted.
template <class T, class V, int E, int P>
WEFT_DEVICE void read_packs(const void* x, const int64_t (&at)[P], bool splat, V (&v)[P][E]) {
  Pack<T, E> packs[P];
  for (int p = 0; p < P; ++p) packs[p] = load_pack<T, E>(x, at[p], splat);
  for (int p = 0; p < P; ++p)
    for (int k = 0; k < E; ++k) v[p][k] = kernels::convert<V>(packs[p].at[k]);
}

/// Writes v from `at` on, in dtype `t`. Floating numbers can be written in the dtypes that they are the
/// compute type of, others in all dtypes.
template <class V, int E> WEFT_DEVICE void write(void* y, DType t, int64_t at, const V (&v)[E]) {
  if constexpr (std::is_same_v<V, double>) return write_pack<double>(y, at, v);
  else if (t == DType::kFloat32) return write_pack<float>(y, at, v);
  else if (t == DType::kFloat16) return write_pack<Half>(y, at, v);
  else if (t == DType::kBFloat16) return write_pack<BFloat16>(y, at, v);
  if constexpr (std::is_integral_v<V>) {
    if (t == DType::kBool) write_pack<bool>(y, at, v);
    else if (t == DType::kUInt8) write_pack<uint8_t>(y, at, v);
    else if (t == DType::kInt32) write_pack<int32_t>(y, at, v);
    else if (t == DType::kInt64) write_pack<int64_t>(y, at, v);
    else write_pack<double>(y, at, v);
  }
}
template <class V, int E, int P>
WEFT_DEVICE void read(const void* x, [[maybe_unused]] DType t, const int64_t (&at)[P], bool splat,
                      V (&v)[P][E]) {
  if constexpr (std::is_same_v<V, double>) return read_packs<double>(x, at, splat, v);
  else if (t == DType::kFloat32) read_packs<float>(x, at, splat, v);
  else if (t == DType::kFloat16) read_packs<Half>(x, at, splat, v);
  else read_packs<BFloat16>(x, at, splat, v);
}
template <class V, int E> WEFT_DEVICE V pick(const V (&v)[E], int64_t k) {
  V one = v[0];
  for (int i = 1; i < E; ++i) one = k == i ? v[i] : one;
  return one;
}

// The distributions: functors from a block of lanes to numbers.
template <class C> struct Uniform {
  using In = C;
  using Out = C;
  static constexpr int kEach = kPerBlock<C>;
  draws::Uniform<C> range;
  WEFT_DEVICE void operator()(const PhiloxBlock& bits, const C (&)[kEach], C (&v)[kEach]) const {
    for (int k = 0; k < kEach; ++k) v[k] = range(draws::unit<C>(bits.v, k));
  }
};
template <class C> struct Normal {
  using In = C;
  using Out = C;
  static constexpr int kEach = kPerBlock<C>;
  C mean, stddev;
  WEFT_DEVICE void operator()(const PhiloxBlock& bits, const C (&)[kEach], C (&v)[kEach]) const {
    for (int k = 0; k < kEach; k += 2) draws::normal_pair(bits.v + k * (4 / kEach), mean, stddev, v + k);
  }
};
struct RandomInt {
  using In = int64_t;
  using Out = int64_t;
  static constexpr int kEach = 2;
  int64_t low;
  uint64_t range;
  WEFT_DEVICE void operator()(const PhiloxBlock& bits, const int64_t (&)[2], int64_t (&v)[2]) const {
    for (int k = 0; k < 2; ++k) v[k] = draws::bounded(bits.v[2 * k], bits.v[2 * k + 1], low, range);
  }
};
// Masks use one lane per element for every dtype, so they do not depend on the dtype of the output.
template <class C> struct Bernoulli {
  using In = C;
  using Out = bool;
  static constexpr int kEach = 4;
  Fault* fault;
  WEFT_DEVICE void check(Thread t, C chance, int64_t at) const {
    if (!(chance >= 0 && chance <= 1))
      fault->report(t, Fault::kChance, 0, 0, at, static_cast<double>(chance));
  }
  WEFT_DEVICE void operator()(const PhiloxBlock& bits, const C (&chance)[4], bool (&hit)[4]) const {
    for (int k = 0; k < 4; ++k) hit[k] = static_cast<C>(unit_float(bits.v[k])) < chance[k];
  }
};
template <class C> struct Dropout {
  using In = C;
  using Out = C;
  static constexpr int kEach = 4;
  float limit;
  C scale;
  WEFT_DEVICE void operator()(const PhiloxBlock& bits, const C (&x)[4], C (&y)[4]) const {
    for (int k = 0; k < 4; ++k) {
      const C scaled = x[k] * scale;
      y[k] = unit_float(bits.v[k]) >= limit ? scaled : C(0);
    }
  }
};

/// Operand 0 is written; operand 1, if there is one, is read.
template <class Make, int N> struct Draw {
  static constexpr bool kIndependent = true;
  static constexpr int kThreads = 256, kBlocks = 4, kEach = Make::kEach;
  Packs<N> loop;
  DeviceKey key;
  DType y_dtype, x_dtype;
  void* y;
  const void* x;
  Make make;

  WEFT_DEVICE void operator()(Thread t) const {
    each_two_packs(t, loop.packs, [&](int64_t first, int64_t second, bool both) {
      int64_t a[N], b[N];
      loop.layout.locate(first, a);
      loop.layout.locate(both ? second : first, b);
      typename Make::In in[2][kEach] = {};
      if constexpr (N > 1) {
        const int64_t from[2] = {a[1], b[1]};
        read(x, x_dtype, from, loop.splats(1), in);
      }
      draw(t, first, a[0], in[0]);
      if (both) draw(t, second, b[0], in[1]);
    });
    int64_t at[N];
    // each element draws its block again
    for (int64_t i = loop.packs * loop.width + t.global(); i < loop.numel; i += t.globals()) {
      loop.element(i, at);
      typename Make::In in[kEach] = {};
      if constexpr (N > 1) {
        typename Make::In one[1][1];
        const int64_t from[1] = {at[1]};
        read(x, x_dtype, from, false, one);
        for (int k = 0; k < kEach; ++k) in[k] = one[0][0];
        if constexpr (requires { make.check(t, in[0], i); }) make.check(t, in[0], i);
      }
      typename Make::Out out[kEach];
      make(key.block(static_cast<uint64_t>(i / kEach)), in, out);
      const typename Make::Out drawn[1] = {pick(out, i % kEach)};
      write(y, y_dtype, at[0], drawn);
    }
  }
  /// Writes a block's elements from `at` on.
  WEFT_DEVICE void draw(Thread t, int64_t block, int64_t at, const typename Make::In (&in)[kEach]) const {
    if constexpr (requires { make.check(t, in[0], block); })
      for (int k = 0; k < kEach; ++k) make.check(t, in[k], block * kEach + k);
    typename Make::Out out[kEach];
    make(key.block(static_cast<uint64_t>(block)), in, out);
    write(y, y_dtype, at, out);
  }
};

/// Row-major positions; a pack has the elements of one Philox block.
template <class Make, int N>
void run_draw(CudaBackend& backend, Context& c, const char* name, PhiloxKey key, const Make& make,
              const View* const (&views)[N]) {
  const View &y = *views[0], &x = *views[N - 1];
  const auto loop = packs_of(views, layout_of(views, false), Make::kEach);
  launch(backend.stream_of(c), name, backend.grid_for(loop.threads()),
         Draw<Make, N>{loop, backend.device_key(c, key), y.dtype, x.dtype, y.data, x.data, make});
}

struct CountReplay {
  static constexpr bool kIndependent = true;
  uint32_t* replays;
  WEFT_DEVICE void operator()(Thread t) const {
    if (t.global() == 0) ++*replays;
  }
};

void check_real(DType t) {
  if (!is_floating(t)) throw DTypeError(str("random: takes a floating tensor, got ", t));
}
/// Calls f(TypeTag<C>) for the compute type of a floating dtype.
template <class F> void with_compute_type(DType t, const F& f) {
  if (t == kFloat64) f(TypeTag<double>{});
  else f(TypeTag<float>{});
}

}  // namespace

void count_replay(void* stream, uint32_t* replays) {
  launch(stream, "count_replay", {.blocks = 1, .threads = 32}, CountReplay{replays});
}

void CudaBackend::uniform(Context& c, PhiloxKey key, double low, double high, View y) {
  enter();
  check_real(y.dtype);
  if (y.numel() == 0) return;
  with_compute_type(y.dtype, [&]<class C>(TypeTag<C>) {
    run_draw<Uniform<C>, 1>(*this, c, "uniform", key, {{low, high, y.dtype}}, {&y});
  });
}

void CudaBackend::normal(Context& c, PhiloxKey key, double mean, double stddev, View y) {
  enter();
  check_real(y.dtype);
  if (y.numel() == 0) return;
  with_compute_type(y.dtype, [&]<class C>(TypeTag<C>) {
    run_draw<Normal<C>, 1>(*this, c, "normal", key, {static_cast<C>(mean), static_cast<C>(stddev)}, {&y});
  });
}

void CudaBackend::random_int(Context& c, PhiloxKey key, int64_t low, int64_t high, View y) {
  enter();
  if (y.numel() == 0) return;
  run_draw<RandomInt, 1>(*this, c, "random_int", key,
                         {low, static_cast<uint64_t>(high) - static_cast<uint64_t>(low)}, {&y});
}

void CudaBackend::bernoulli(Context& c, PhiloxKey key, View p, View y) {
  enter();
  check_real(p.dtype);
  if (y.numel() == 0) return;
  with_compute_type(p.dtype, [&]<class C>(TypeTag<C>) {
    run_draw<Bernoulli<C>, 2>(*this, c, "bernoulli", key, {fault()}, {&y, &p});
  });
  after_launch();
}

void CudaBackend::dropout(Context& c, PhiloxKey key, double p, View x, View y) {
  enter();
  check_real(y.dtype);
  if (y.numel() == 0) return;
  with_compute_type(y.dtype, [&]<class C>(TypeTag<C>) {
    const bool reads =
        std::is_same_v<C, double> ? x.dtype == kFloat64 : x.dtype == kFloat32 || is_half(x.dtype);
    std::optional<Scratch> scratch;
    View from = x;
    // a copy pays: without packs, each element would draw a block
    if (!reads || (!x.is_contiguous() && y.is_contiguous())) {
      scratch.emplace(*this, c, static_cast<size_t>(x.numel()) * sizeof(C));
      from = {scratch->as<void>(), reads ? x.dtype : dtype_of<C>, x.sizes, contiguous_strides(x.sizes)};
      copy(c, x, from);
    }
    const C scale = p < 1 ? static_cast<C>(1 / (1 - p)) : 0;
    run_draw<Dropout<C>, 2>(*this, c, "dropout", key, {static_cast<float>(p), scale}, {&y, &from});
  });
}

}  // namespace weft::cuda
