// unary, binary and ternary: the choice of the kernel (blocks/map.h) for a call, and copies of operands that
// the kernel cannot read in place. Also where (=), which only moves elements and is therefore compiled per
// width: 1 byte and 3 widths per element.
#include <weft/kernels/cuda/blocks/map.h>

#include <algorithm>
#include <optional>

namespace weft::cuda {

namespace {

constexpr DType compute_type(DType t) { return is_half(t) ? kFloat32 : t; }

/// Row `op` of the column for `compute`.
template <int Inputs>
MapLaunch<Inputs> find_row(DType compute, size_t op, const MapLaunch<Inputs>* f32,
                           const MapLaunch<Inputs>* f64, const MapLaunch<Inputs>* u8,
                           const MapLaunch<Inputs>* i32, const MapLaunch<Inputs>* i64,
                           const MapLaunch<Inputs>* b) {
  switch (compute) {
    case DType::kFloat32: return f32[op];
    case DType::kFloat64: return f64[op];
    case DType::kUInt8: return u8[op];
    case DType::kInt32: return i32[op];
    case DType::kInt64: return i64[op];
    case DType::kBool: return b[op];
    default: return nullptr;
  }
}

template <int Inputs>
void run_map(CudaBackend& backend, Context& c, const char* name, MapLaunch<Inputs> launch, DType compute,
             bool test, Scalar s, Scalar t, const View& y, const View* const (&x)[Inputs]) {
  constexpr int kN = Inputs + 1;
  if (y.numel() == 0) return;
  const auto taken = [&](DType d) { return d == compute || (compute == kFloat32 && is_half(d)); };
  View v[kN] = {y};
  std::optional<Scratch> scratch[kN];
  const auto stage = [&](int i, DType dtype, const Shape& strides) {
    scratch[i].emplace(backend, c, static_cast<size_t>(v[i].numel() * size_of(dtype)));
    v[i] = {scratch[i]->template as<void>(), dtype, v[i].sizes, strides};
  };
  if (!(test ? y.dtype == kBool : taken(y.dtype)))
    stage(0, test ? kBool : compute, contiguous_strides(y.sizes));
  for (int i = 1; i < kN; ++i) {
    v[i] = *x[i - 1];
    if (taken(v[i].dtype)) continue;
    stage(i, compute, contiguous_strides(y.sizes));
    backend.copy(c, *x[i - 1], v[i]);
  }
  const View* views[kN];
  for (int i = 0; i < kN; ++i) views[i] = &v[i];
  Layout<kN> layout = layout_of(views);
  bool moved = false;
  for (int i = 1; i < kN; ++i) {
    if (!reads_across(layout, i)) continue;
    const View from = v[i];
    stage(i, from.dtype, dense_strides(v[0]));
    backend.copy(c, from, v[i]);
    moved = true;
  }
  if (moved) layout = layout_of(views);
  MapCall<Inputs> call;
  call.out = v[0].data, call.out_dtype = v[0].dtype;
  int64_t widest = size_of(v[0].dtype);
  bool same = test || v[0].dtype == v[1].dtype;
  for (int i = 0; i < Inputs; ++i) {
    call.in[i] = v[i + 1].data, call.in_dtype[i] = v[i + 1].dtype;
    widest = std::max(widest, size_of(v[i + 1].dtype));
    same = same && v[i + 1].dtype == v[1].dtype;
  }
  call.loop = packs_of(views, layout, same ? static_cast<int>(16 / widest) : 1);
  launch(backend.stream_of(c), name, backend.grid_for(call.loop.threads()), call, s, t);
  if (v[0].data != y.data) backend.copy(c, v[0], y);
}

template <class U> struct Where {
  static constexpr bool kIndependent = true;
  static constexpr int kEach = 16 / static_cast<int>(sizeof(U));
  Packs<4> loop;
  const void *cond, *a, *b;
  void* y;

  WEFT_DEVICE void pack(const int64_t (&at)[4]) const {
    const auto chosen = load_pack<uint8_t, kEach>(cond, at[1], loop.splats(1));
    auto first = load_pack<U, kEach>(a, at[2], loop.splats(2));
    const auto second = load_pack<U, kEach>(b, at[3], loop.splats(3));
    for (int i = 0; i < kEach; ++i) first.at[i] = chosen.at[i] ? first.at[i] : second.at[i];
    store_pack(y, at[0], first);
  }
  WEFT_DEVICE void operator()(Thread t) const {
    int64_t at[4];
    for (int64_t i = t.global(); i < loop.packs; i += t.globals()) {
      loop.layout.locate(i, at);
      pack(at);
    }
    for (int64_t i = loop.packs * loop.width + t.global(); i < loop.numel; i += t.globals()) {
      loop.element(i, at);
      const bool chosen = static_cast<const uint8_t*>(cond)[at[1]] != 0;
      static_cast<U*>(y)[at[0]] = chosen ? static_cast<const U*>(a)[at[2]] : static_cast<const U*>(b)[at[3]];
    }
  }
};

}  // namespace

#define WEFT_FIND(kind, op, compute)                                                                  \
  find_row(compute, static_cast<size_t>(op), kind##_float, kind##_double, kind##_uint8, kind##_int32, \
           kind##_int64, kind##_bool)

void CudaBackend::unary(Context& c, Unary op, Scalar s, Scalar t, View x, View y) {
  enter();
  if (op == Unary::kPowScalar) {  // the powers that need no logarithm
    if (s.d == 2) op = Unary::kSquare;
    else if (s.d == -1 && is_floating(x.dtype)) op = Unary::kReciprocal;
  }
  const DType compute = compute_type(x.dtype);
  const auto row = WEFT_FIND(unary, op, compute);
  if (!row) throw DTypeError(str(to_string(op), ": does not take ", x.dtype));
  run_map<1>(*this, c, to_string(op), row, compute, op_class(op) == OpClass::kTest, s, t, y, {&x});
}

void CudaBackend::binary(Context& c, Binary op, Scalar s, Scalar t, View a, View b, View y) {
  enter();
  const DType compute = compute_type(a.dtype);
  const auto row = WEFT_FIND(binary, op, compute);
  if (!row) throw DTypeError(str(to_string(op), ": does not take ", a.dtype));
  run_map<2>(*this, c, to_string(op), row, compute, op_class(op) == OpClass::kTest, s, t, y, {&a, &b});
}

void CudaBackend::ternary(Context& c, Ternary op, Scalar s, View a, View b, View third, View y) {
  enter();
  const DType compute = compute_type(y.dtype);
  const auto row = WEFT_FIND(ternary, op, compute);
  if (!row) throw DTypeError(str(to_string(op), ": does not take ", y.dtype));
  run_map<3>(*this, c, to_string(op), row, compute, false, s, {}, y, {&a, &b, &third});
}

#undef WEFT_FIND

void CudaBackend::where(Context& c, View cond, View a, View b, View y) {
  enter();
  if (y.numel() == 0) return;
  for (View* const v : {&a, &b}) {
    if (v->dtype == y.dtype) continue;
    const Scratch scratch(*this, c, static_cast<size_t>(y.numel() * size_of(y.dtype)));
    const View converted{scratch.as<void>(), y.dtype, y.sizes, contiguous_strides(y.sizes)};
    copy(c, *v, converted);
    return v == &a ? where(c, cond, converted, b, y) : where(c, cond, a, converted, y);
  }
  const View* const views[] = {&y, &cond, &a, &b};
  const Layout<4> layout = layout_of(views);
  with_width(size_of(y.dtype), [&]<class U>(TypeTag<U>) {
    const Packs<4> loop = packs_of(views, layout, Where<U>::kEach);
    launch(stream_of(c), "where", grid_for(loop.threads()),
           Where<U>{loop, cond.data, a.data, b.data, y.data});
  });
}

}  // namespace weft::cuda
