// The pointwise table on the CPU: for each row and computing type one loop over contiguous blocks (blocks.h brings any views into that
// form), collected in tables by enumerator. exp, tanh and their kin run in vectors of our own (vmath.h); the other loops are plain and
// left to the compiler. Reads its operands once, writes the result once.
#include <weft/kernels/cpu/isa/blocks.h>
#include <weft/kernels/cpu/isa/vmath.h>
#include <weft/kernels/cpu/isa_table.h>
#include <weft/kernels/functors.h>

namespace weft::kernels::WEFT_ISA_NS {
namespace {

// ---- loops
/// Rows with a vector form: f(x) on a Vec.
template <class Op> struct VectorForm { static constexpr bool kHas = false; };
#define WEFT_VECTOR_FORM(Op, expression)                        \
  template <> struct VectorForm<functors::Op> {                 \
    static constexpr bool kHas = true;                          \
    template <class T> WEFT_INLINE static Vec<T> run(Vec<T> x) { return expression; } \
  };
WEFT_VECTOR_FORM(Exp, vexp<T>(x))
WEFT_VECTOR_FORM(Tanh, vtanh<T>(x))
WEFT_VECTOR_FORM(Sigmoid, vsigmoid<T>(x))
WEFT_VECTOR_FORM(Silu, x * vsigmoid<T>(x))
WEFT_VECTOR_FORM(GeluTanh, T(0.5) * x * (T(1) + vtanh<T>(T(0.79788456080286536) * (x + T(0.044715) * x * x * x))))
#undef WEFT_VECTOR_FORM

template <class Op, class C, class Out>
void unary_loop(const C* const* in, Out* out, int64_t n, C s, C t) {
  const C* x = in[0];
  if constexpr (VectorForm<Op>::kHas && !std::is_same_v<C, int64_t>) {
    int64_t i = 0;
    for (; i + kLanes<C> <= n; i += kLanes<C>) store(out + i, VectorForm<Op>::template run<C>(load(x + i)));
    if (i < n) store_part(out + i, n - i, VectorForm<Op>::template run<C>(load_part(x + i, n - i)));
  } else {
    for (int64_t i = 0; i < n; ++i) out[i] = Op::run(x[i], s, t);
  }
}
template <class Op, class C, class Out>
void binary_loop(const C* const* in, Out* out, int64_t n, C s, C t) {
  const C *a = in[0], *b = in[1];
  for (int64_t i = 0; i < n; ++i) out[i] = Op::run(a[i], b[i], s, t);
}
template <class Op, class C, class Out>
void ternary_loop(const C* const* in, Out* out, int64_t n, C s, C) {
  const C *a = in[0], *b = in[1], *c = in[2];
  for (int64_t i = 0; i < n; ++i) out[i] = Op::run(a[i], b[i], c[i], s);
}

template <class C, class Out> using Loop = void (*)(const C* const* in, Out* out, int64_t n, C s, C t);

// ---- tables; a row leaves out the types it does not take (pointwise.h)
template <OpClass cls, class C> inline constexpr bool kTakes = cls == OpClass::kFloat ? !std::is_same_v<C, int64_t> : true;

template <class C, class Out, bool test>
Loop<C, Out> unary_row(Unary op) {
#define WEFT_UNARY_ROW(Op, cls) \
  case Unary::k##Op:            \
    if constexpr ((OpClass::cls == OpClass::kTest) == test && kTakes<OpClass::cls, C>) return &unary_loop<functors::Op, C, Out>; \
    break;
  switch (op) {
    WEFT_UNARY_OPS(WEFT_UNARY_ROW)
    default: break;
  }
#undef WEFT_UNARY_ROW
  return nullptr;
}
template <class C, class Out, bool test>
Loop<C, Out> binary_row(Binary op) {
#define WEFT_BINARY_ROW(Op, cls) \
  case Binary::k##Op:            \
    if constexpr ((OpClass::cls == OpClass::kTest) == test && kTakes<OpClass::cls, C>) return &binary_loop<functors::Op, C, Out>; \
    break;
  switch (op) {
    WEFT_BINARY_OPS(WEFT_BINARY_ROW)
    default: break;
  }
#undef WEFT_BINARY_ROW
  return nullptr;
}
template <class C>
Loop<C, C> ternary_row(Ternary op) {
#define WEFT_TERNARY_ROW(Op, cls) \
  case Ternary::k##Op:            \
    if constexpr (kTakes<OpClass::cls, C>) return &ternary_loop<functors::Op, C, C>; \
    break;
  switch (op) {
    WEFT_TERNARY_OPS(WEFT_TERNARY_ROW)
    default: break;
  }
#undef WEFT_TERNARY_ROW
  return nullptr;
}

template <class C, class Out, int N>
void launch(const char* name, Loop<C, Out> loop, Scalar s, Scalar t, const View* const (&views)[N]) {
  if (!loop) throw DTypeError(str(name, ": does not take ", views[1]->dtype));
  const C a = s.to<C>(), b = t.to<C>();
  // Dense and of the computing type: one run, without the bookkeeping of blocks.
  const int64_t n = views[0]->numel();
  bool direct = n <= kGrain && views[0]->dtype == dtype_of<Out> && views[0]->is_contiguous();
  for (int k = 1; k < N && direct; ++k) direct = stored_as<C>(views[k]->dtype) && views[k]->is_contiguous();
  if (direct) {
    const C* in[N - 1];
    for (int k = 1; k < N; ++k) in[k - 1] = views[k]->template as<C>();
    loop(in, views[0]->template as<Out>(), n, a, b);
    return;
  }
  each_block<C, Out>(views, [&](const C* const* in, Out* out, int64_t count) { loop(in, out, count, a, b); });
}

/// f(TypeTag<C>) for the computing type of an input.
template <class F>
void dispatch_compute(DType t, const F& f) {
  switch (compute_of(t)) {
    case Compute::kFloat: return f(TypeTag<float>{});
    case Compute::kDouble: return f(TypeTag<double>{});
    case Compute::kInt: return f(TypeTag<int64_t>{});
  }
}

void unary(Unary op, Scalar s, Scalar t, V x, V y) {
  const View* const views[] = {&y, &x};
  dispatch_compute(x.dtype, [&](auto tag) {
    using C = typename decltype(tag)::type;
    if (op_class(op) == OpClass::kTest) launch<C, bool>(to_string(op), unary_row<C, bool, true>(op), s, t, views);
    else launch<C, C>(to_string(op), unary_row<C, C, false>(op), s, t, views);
  });
}

void binary(Binary op, Scalar s, Scalar t, V a, V b, V y) {
  const View* const views[] = {&y, &a, &b};
  dispatch_compute(a.dtype, [&](auto tag) {
    using C = typename decltype(tag)::type;
    if (op_class(op) == OpClass::kTest) launch<C, bool>(to_string(op), binary_row<C, bool, true>(op), s, t, views);
    else launch<C, C>(to_string(op), binary_row<C, C, false>(op), s, t, views);
  });
}

void ternary(Ternary op, Scalar s, V a, V b, V c, V y) {
  const View* const views[] = {&y, &a, &b, &c};
  dispatch_compute(a.dtype, [&](auto tag) {
    using C = typename decltype(tag)::type;
    launch<C, C>(to_string(op), ternary_row<C>(op), s, Scalar(), views);
  });
}

}  // namespace

void fill_pointwise(IsaTable& t) {
  t.unary = unary;
  t.binary = binary;
  t.ternary = ternary;
}

}  // namespace weft::kernels::WEFT_ISA_NS
