// Matrix products. All of them use two kernels: [M, K] [K, N], and a batch of it. A transpose only exchanges
// strides, so backward makes no copy; a broadcast batch has stride 0. The products with gelu have a node for
// x weight^T + bias and one behind it, so that backward may join either with the products beside it.
#include <weft/autograd/ops/inner/formula.h>

namespace weft {

using formula::saved_for;

namespace {

Tensor swapped(const Tensor& x) { return transpose(x, -2, -1); }

// The common dtype. Throws: DTypeError for bool.
DType product_dtype(const char* name, const Tensor& a, const Tensor& b) {
  launch::check_devices(name, a, b);
  if (a.dtype() == kBool || b.dtype() == kBool)
    throw DTypeError(str(name, ": takes numbers, got ", a.dtype(), " and ", b.dtype()));
  return promote(a.dtype(), b.dtype());
}

void check_rank(const char* name, const Tensor& x, const char* which, int rank) {
  if (x.dim() != rank)
    throw ShapeError(
        str(name, ": ", which, " must have ", rank, rank == 1 ? " dim, is " : " dims, is ", x.sizes()));
}

void check_inner(const char* name, const Tensor& a, const Tensor& b, int64_t inner_a, int64_t inner_b) {
  if (inner_a != inner_b)
    throw ShapeError(str(name, ": inner sizes differ: a is ", a.sizes(), ", b is ", b.sizes()));
}

// c = a b for matrices or batches of them; `a` and `b` already have c's dtype.
void multiply(double alpha, const View& a, const View& b, double beta, const View& bias, const Tensor& c,
              bool relu = false) {
  if (c.numel() == 0) return;
  if (a.numel() == 0 && beta == 0) {
    launch::fill_into(c, 0);
    if (bias.defined())
      launch::backend_of(c).copy(launch::context(), {bias.data, bias.dtype, c.sizes(), {0, bias.strides[0]}},
                                 c.view_of());
    if (relu) launch::unary_into(Unary::kRelu, c);
    return;
  }
  launch::backend_of(c).matmul(launch::context(), alpha, a, b, beta, bias, c.view_of(), relu);
}

// Both of rank 2 or both of rank 3 with equal batches.
Tensor product(const char* name, const Tensor& a, const Tensor& b) {
  const DType dtype = product_dtype(name, a, b);
  const int r = a.dim();
  Shape sizes = a.sizes();
  sizes[r - 1] = b.sizes()[r - 1];
  const launch::Cast x(a, dtype), z(b, dtype);
  if (b.is_frozen() || (b.requires_grad() && b.is_leaf())) launch::watch_weight(b);
  Tensor y = empty(sizes, {.dtype = dtype, .device = a.device()});
  multiply(1, x->view_of(), z->view_of(), 0, {}, y);
  return record(name, y, {a, b},
                [name, a = saved_for(b, a), b = saved_for(a, b)](const Tensor& g, Needs needs) -> GradList {
                  return {needs[0] ? product(name, g, swapped(b.get())) : Tensor(),
                          needs[1] ? product(name, swapped(a.get()), g) : Tensor()};
                });
}

// x broadcast to `batch`, with its leading dims joined: [.., M, K] -> [B, M, K]. A repeated matrix is not
// copied: it has stride 0.
Tensor batched(const Tensor& x, const Shape& batch, int64_t count) {
  const int64_t m = x.sizes()[x.dim() - 2], k = x.sizes()[x.dim() - 1];
  if (x.dim() == 2 || x.numel() == m * k) return expand(reshape(x, {1, m, k}), {count, m, k});
  Shape sizes = batch;
  sizes.push_back(m);
  sizes.push_back(k);
  return reshape(expand(x, sizes), {count, m, k});
}

Shape without_last(const Shape& sizes, int n) {
  Shape out = sizes;
  for (int i = 0; i < n; ++i) out.erase(out.size() - 1);
  return out;
}

Tensor of_matrices(const char* name, const Tensor& a, const Tensor& b) {
  check_rank(name, a, "a", 2);
  check_rank(name, b, "b", 2);
  check_inner(name, a, b, a.sizes()[1], b.sizes()[0]);
  return product(name, a, b);
}

Tensor of_vectors(const char* name, const Tensor& a, const Tensor& b) {
  check_rank(name, a, "a", 1);
  check_rank(name, b, "b", 1);
  check_inner(name, a, b, a.sizes()[0], b.sizes()[0]);
  return reshape(product(name, unsqueeze(a, 0), unsqueeze(b, 1)), {});
}

}  // namespace

Tensor matmul(AutocastArg a, AutocastArg b) {
  launch::check_defined("matmul", a, b);
  if (a->dim() == 2 && b->dim() == 2) return of_matrices("matmul", a, b);
  if (a->dim() == 0 || b->dim() == 0)
    throw ShapeError(str("matmul: takes at least one dim: a is ", a->sizes(), ", b is ", b->sizes()));
  check_inner("matmul", a, b, a->sizes().back(), b->sizes()[b->dim() == 1 ? 0 : b->dim() - 2]);
  if (a->dim() == 1 && b->dim() == 1) return of_vectors("matmul", a, b);
  if (b->dim() == 1) return squeeze(matmul(a.get(), unsqueeze(b.get(), 1)), -1);
  if (a->dim() == 1) return squeeze(matmul(unsqueeze(a.get(), 0), b.get()), -2);
  const int64_t m = a->sizes()[a->dim() - 2], k = a->sizes().back(), n = b->sizes().back();
  Shape sizes;
  if (b->dim() == 2) {  // one matrix for all rows
    sizes = without_last(a->sizes(), 1);
    const int64_t rows = sizes.numel();
    sizes.push_back(n);
    return reshape(of_matrices("matmul", reshape(a.get(), {rows, k}), b), sizes);
  }
  const Shape batch = broadcast("matmul", without_last(a->sizes(), 2), without_last(b->sizes(), 2));
  sizes = batch;
  sizes.push_back(m);
  sizes.push_back(n);
  const int64_t count = batch.numel();
  return reshape(product("matmul", batched(a, batch, count), batched(b, batch, count)), sizes);
}

Tensor mm(AutocastArg a, AutocastArg b) {
  launch::check_defined("mm", a, b);
  return of_matrices("mm", a, b);
}

Tensor mv(AutocastArg a, AutocastArg x) {
  launch::check_defined("mv", a, x);
  check_rank("mv", a, "a", 2);
  check_rank("mv", x, "x", 1);
  check_inner("mv", a, x, a->sizes()[1], x->sizes()[0]);
  return squeeze(product("mv", a, unsqueeze(x.get(), 1)), 1);
}

Tensor dot(AutocastArg a, AutocastArg b) {
  launch::check_defined("dot", a, b);
  return of_vectors("dot", a, b);
}

Tensor bmm(AutocastArg a, AutocastArg b) {
  launch::check_defined("bmm", a, b);
  check_rank("bmm", a, "a", 3);
  check_rank("bmm", b, "b", 3);
  if (a->sizes()[0] != b->sizes()[0])
    throw ShapeError(str("bmm: batches differ: a is ", a->sizes(), ", b is ", b->sizes()));
  check_inner("bmm", a, b, a->sizes()[2], b->sizes()[1]);
  return product("bmm", a, b);
}

Tensor addmm(AutocastArg c, AutocastArg a, AutocastArg b, Scalar beta, Scalar alpha) {
  launch::check_defined("addmm", c, a, b);
  check_rank("addmm", a, "a", 2);
  check_rank("addmm", b, "b", 2);
  check_inner("addmm", a, b, a->sizes()[1], b->sizes()[0]);
  const Shape sizes{a->sizes()[0], b->sizes()[1]};
  if (!(broadcast("addmm", c->sizes(), sizes) == sizes))
    throw ShapeError(str("addmm: c of ", c->sizes(), " does not broadcast to ", sizes));
  product_dtype("addmm", c, a);
  const DType dtype = promote(product_dtype("addmm", a, b), c->dtype());
  launch::check_factor("addmm", dtype, beta);
  launch::check_factor("addmm", dtype, alpha);
  const launch::Cast x(a, dtype), z(b, dtype);
  Tensor y = empty(sizes, {.dtype = dtype, .device = a->device()});
  if (a->sizes()[1] == 0) {
    launch::fill_into(y, 0);
    if (beta.d != 0) launch::copy_into(y, c), launch::unary_into(Unary::kMulScalar, y, beta);
  } else if (is_floating(dtype)) {
    if (beta.d != 0) launch::copy_into(y, c);
    multiply(alpha.d, x->view_of(), z->view_of(), beta.d, {}, y);
  } else {  // integer factors, which a double may not hold exactly
    multiply(1, x->view_of(), z->view_of(), 0, {}, y);
    launch::unary_into(Unary::kMulScalar, y, alpha);
    launch::binary_into(Binary::kAdd, y, c, beta);
  }
  return record(
      "addmm", y, {c, a, b},
      [a = saved_for(b, a), b = saved_for(a, b), alpha, beta](const Tensor& g, Needs needs) -> GradList {
        return {needs[0] ? g * beta : Tensor(), needs[1] ? mm(g, swapped(b.get())) * alpha : Tensor(),
                needs[2] ? mm(swapped(a.get()), g) * alpha : Tensor()};
      });
}

namespace {

// The operands of x weight^T + bias, checked, in one dtype and as matrices.
struct Affine {
  const DType dtype;
  const int64_t in, out, rows;
  const Device device;
  Shape sizes;  // of the result

  /// `real`: integers are taken as float32.
  [[gnu::always_inline]] inline Affine(const char* name, const Tensor& input, const Tensor& weight,
                                       const Tensor& bias, bool real = false)
      : dtype(checked(name, input, weight, bias, real)),
        in(weight.sizes()[1]),
        out(weight.sizes()[0]),
        rows(in == 0 ? without_last(input.sizes(), 1).numel() : input.numel() / in),
        device(input.device()),
        sizes(input.sizes()),
        weight_(weight, dtype),
        input_(input, dtype) {
    sizes[sizes.size() - 1] = out;
    if (bias.defined()) bias_ = launch::contiguous(launch::cast(bias, dtype));
    // rows of equal distance, so that the leading dims can be joined
    if (input.dim() != 2 && !input_->is_contiguous()) dense_ = launch::clone(input_);
    if (weight.dtype() == dtype) launch::watch_weight(weight);
  }
  View x() const {  // [rows, in]
    View v = (dense_.defined() ? dense_ : input_.get()).view_of();
    if (sizes.size() != 2) v.sizes = {rows, in}, v.strides = {in, 1};
    return v;
  }
  View w() const {  // [in, out]
    View v = weight_->view_of();
    std::swap(v.sizes[0], v.sizes[1]);
    std::swap(v.strides[0], v.strides[1]);
    return v;
  }
  View b() const { return formula::optional_view(bias_); }
  Tensor result() const { return empty(sizes, {.dtype = dtype, .device = device}); }
  /// A result as [rows, out].
  Tensor matrix(const Tensor& y) const { return y.dim() == 2 ? y : launch::reshaped(y, {rows, out}); }

 private:
  [[gnu::always_inline]] static DType checked(const char* name, const Tensor& x, const Tensor& weight,
                                              const Tensor& bias, bool real) {
    launch::check_defined(name, x, weight);
    check_rank(name, weight, "weight", 2);
    const int64_t out = weight.sizes()[0], in = weight.sizes()[1];
    if (x.dim() == 0 || x.sizes().back() != in)
      throw ShapeError(str(name, ": inner sizes differ: x is ", x.sizes(), ", weight is ", weight.sizes()));
    if (bias.defined() && !(bias.sizes() == Shape{out}))
      throw ShapeError(str(name, ": bias is ", bias.sizes(), ", weight is ", weight.sizes()));
    const DType dtype = product_dtype(name, x, weight);
    if (bias.defined()) product_dtype(name, x, bias);
    return real && !is_floating(dtype) ? kFloat32 : dtype;
  }
  launch::Cast weight_, input_;
  Tensor bias_, dense_;
};

// The gradients of weight and bias of x weight^T + bias for g2 [rows, out]. `joined`: by one call of the
// backend, where a device may sum within the product.
struct WeightGrads {
  Tensor weight, bias;
};
WeightGrads weight_grads(const Tensor& g2, const Tensor& x2, bool weight, bool bias, bool joined) {
  if (!joined || !weight || !bias || grad_enabled() || g2.dtype() != x2.dtype() || g2.numel() == 0 ||
      x2.numel() == 0)
    return {weight ? mm(swapped(g2), x2) : Tensor(), bias ? sum(g2, {0}) : Tensor()};
  const TensorOptions like{.dtype = g2.dtype(), .device = g2.device()};
  const WeightGrads grads{empty({g2.sizes()[1], x2.sizes()[1]}, like), empty({g2.sizes()[1]}, like)};
  View g = g2.view_of();
  std::swap(g.sizes[0], g.sizes[1]);
  std::swap(g.strides[0], g.strides[1]);
  launch::backend_of(g2).matmul_sums(launch::context(), g, x2.view_of(), grads.weight.view_of(),
                                     grads.bias.view_of());
  return grads;
}

// (g w) times the slope of gelu_tanh at `before`.
Tensor product_gelu_grad(const Tensor& g, const Tensor& w, const Tensor& before) {
  if (grad_enabled() || g.dtype() != w.dtype() || g.dtype() != before.dtype() || before.numel() == 0 ||
      g.numel() == 0)
    return formula::gelu_tanh_grad(mm(g, w), before);
  Tensor y = empty(before.sizes(), {.dtype = before.dtype(), .device = before.device()});
  launch::backend_of(y).matmul_gelu_grad(launch::context(), g.view_of(), w.view_of(), before.view_of(),
                                         y.view_of());
  return y;
}

// Records y, which is x weight^T + bias, or with `relu` the positive part of it.
[[gnu::always_inline]] inline Tensor record_affine(const char* name, const Affine& a, Tensor&& y,
                                                   const Tensor& x, const Tensor& weight, const Tensor& bias,
                                                   bool relu, bool joined) {
  auto backward = [x = saved_for(weight, x), w = saved_for(x, weight),
                   y = relu ? SavedOutput(y) : SavedOutput(), rows = a.rows, in = a.in, out = a.out,
                   x_sizes = x.sizes(), joined](const Tensor& g, Needs needs) -> GradList {
    const Tensor g2 = reshape(y.defined() ? formula::relu_grad(g, y.get()) : g, {rows, out});
    const WeightGrads grads =
        weight_grads(g2, needs[1] ? reshape(x.get(), {rows, in}) : g2, needs[1], needs[2], joined);
    return {needs[0] ? reshape(mm(g2, w.get()), x_sizes) : Tensor(), grads.weight, grads.bias};
  };
  return record(name, std::move(y), {x, weight, bias}, std::move(backward));
}

Tensor affine(const char* name, const Tensor& x, const Tensor& weight, const Tensor& bias, bool relu,
              bool joined = false) {
  const Affine a(name, x, weight, bias);
  if (relu && !is_floating(a.dtype)) return weft::relu(affine(name, x, weight, bias, false));
  Tensor y = a.result();
  multiply(1, a.x(), a.w(), 0, a.b(), a.matrix(y), relu);
  return record_affine(name, a, std::move(y), x, weight, bias, relu, joined);
}

// gelu_tanh(x weight^T + bias), and its argument if a gradient may be asked for.
struct Gelu {
  Tensor before, y;
};
Gelu affine_gelu(const char* name, const Affine& a, const Tensor& x, const Tensor& weight, const Tensor& bias,
                 bool keeps) {
  Gelu r{keeps ? a.result() : Tensor(), a.result()};
  const Tensor y = a.matrix(r.y), before = keeps ? a.matrix(r.before) : Tensor();
  if (y.numel() == 0 || a.rows * a.in == 0) {
    multiply(1, a.x(), a.w(), 0, a.b(), y);
    if (keeps) launch::copy_into(before, y);
    launch::unary_into(Unary::kGeluTanh, y);
  } else {
    launch::backend_of(y).matmul_gelu(launch::context(), a.x(), a.w(), a.b(), formula::optional_view(before),
                                      y.view_of());
  }
  if (keeps) r.before = record_affine(name, a, std::move(r.before), x, weight, bias, false, true);
  return r;
}

}  // namespace

Tensor linear(AutocastArg x, AutocastArg weight, AutocastArg bias) {
  return affine("linear", x, weight, bias, false);
}
Tensor linear_relu(AutocastArg x, AutocastArg weight, AutocastArg bias) {
  return affine("linear_relu", x, weight, bias, true);
}

Tensor linear_gelu_tanh(AutocastArg x, AutocastArg weight, AutocastArg bias) {
  constexpr const char* kName = "linear_gelu_tanh";
  const Affine a(kName, x, weight, bias, true);
  const bool keeps = detail::wants_record({x, weight, bias});
  const Gelu r = affine_gelu(kName, a, x, weight, bias, keeps);
  if (!keeps) return r.y;
  return record(kName, r.y, {r.before}, [before = Saved(r.before)](const Tensor& g, Needs) -> GradList {
    return {formula::gelu_tanh_grad(g, before.get())};
  });
}

Tensor feed_forward(AutocastArg x, AutocastArg weight1, AutocastArg bias1, AutocastArg weight2,
                    AutocastArg bias2) {
  constexpr const char* kName = "feed_forward";
  if (!weight2->defined()) launch::throw_undefined(kName, 4);
  const Affine a(kName, x, weight1, bias1, true);
  if (!detail::wants_record({x, weight1, bias1}))
    return affine(kName, affine_gelu(kName, a, x, weight1, bias1, false).y, weight2, bias2, false, true);
  const Gelu hidden = affine_gelu(kName, a, x, weight1, bias1, true);
  const Affine b(kName, hidden.y, weight2, bias2);
  Tensor y = b.result();
  multiply(1, b.x(), b.w(), 0, b.b(), b.matrix(y));
  return record(kName, std::move(y), {hidden.before, weight2, bias2},
                [before = Saved(hidden.before), w = Saved(weight2), h = saved_for(weight2, hidden.y),
                 rows = b.rows, in = b.in, out = b.out](const Tensor& g, Needs needs) -> GradList {
                  const Tensor g2 = reshape(g, {rows, out}), v = before.get();
                  const auto matrix = [&](const Tensor& t) { return reshape(t, {rows, in}); };
                  const WeightGrads grads =
                      weight_grads(g2, !needs[1] ? g2 : matrix(grad_enabled() ? gelu_tanh(v) : h.get()),
                                   needs[1], needs[2], true);
                  return {needs[0] ? reshape(product_gelu_grad(g2, w.get(), matrix(v)), v.sizes()) : Tensor(),
                          grads.weight, grads.bias};
                });
}

Tensor outer(In a, In b) {
  launch::check_defined("outer", a, b);
  check_rank("outer", a, "a", 1);
  check_rank("outer", b, "b", 1);
  checked_numel("outer", {a->numel(), b->numel()});
  return unsqueeze(a.get(), 1) * b.get();
}

}  // namespace weft
