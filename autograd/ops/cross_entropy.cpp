// cross_entropy and linear_cross_entropy, one node each. Forward makes one pass over the logits and keeps two
// numbers per row, the parts of its logsumexp; backward makes one more pass. For a mean or a sum on the CPU,
// forward's pass makes the gradient too, and backward only scales it (MadeAhead). The linear form holds the
// logits of one block of rows at a time. For a mean or a sum it computes the gradients together with the
// loss, block by block, and backward only scales them. For a loss per row, backward computes the logits
// again. So it does for float16, which would lose small gradients before a loss scale multiplies them. Under
// an Autocast on a device the logits are of the half type, and losses of float32. Sums of a half type over
// several blocks are float32 until the last block.
#include <algorithm>
#include <mutex>
#include <optional>

#include <weft/autograd/ops/inner/class_loss.h>
#include <weft/tensor/inner/tracer.h>

namespace weft {

std::atomic<int64_t> formula::linear_loss_block{0};

using formula::ClassRows;
using launch::context;

namespace {

// The gradient of each row's loss from the gradient of the result: [R], with stride 0 if all share one
// number.
View row_gradient(const Tensor& g, int64_t rows) {
  return {g.address(), g.dtype(), {rows}, {g.numel() == 1 ? 0 : 1}};
}

// g over the divisor of a mean, contiguous, in the loss's dtype.
Tensor scaled_gradient(const Tensor& g, const Tensor& divisor, DType t) {
  const Tensor scaled =
      divisor.defined() ? launch::binary(Binary::kDiv, launch::cast(g, t), divisor) : launch::cast(g, t);
  return launch::contiguous(scaled);
}

// [R] losses reduced, without recording.
Tensor reduce_plain(const Tensor& losses, const Tensor& divisor, const ClassRows& r,
                    const CrossEntropyOptions& options) {
  if (options.reduction == Reduction::kNone) return launch::reshaped(losses, r.sizes);
  Tensor y = launch::reduce("cross_entropy", Reduce::kSum, losses,
                            launch::reduced_dims("cross_entropy", losses, {}), false);
  return divisor.defined() ? launch::binary(Binary::kDiv, y, divisor) : y;
}

Tensor divisor_of(const ClassRows& r, const CrossEntropyOptions& options, DType t) {
  return options.reduction == Reduction::kMean ? formula::loss_divisor(r.target, options, t) : Tensor();
}

// Memory for the parts of each row's logsumexp: [R, 2].
Tensor log_sums_of(int64_t rows, DType t, Device device) {
  return empty({rows, 2}, {.dtype = accumulate_type(t), .device = device});
}

// The options with detached class weights in the dtype of the loss.
CrossEntropyOptions plain_options(const CrossEntropyOptions& options, DType t) {
  CrossEntropyOptions o = options;
  if (o.weight.defined()) o.weight = launch::contiguous(launch::cast(o.weight.detach(), t));
  return o;
}

// The same kept for backward, the class weights as each saved tensor.
class SavedOptions {
 public:
  explicit SavedOptions(const CrossEntropyOptions& o) : rest_(o), weight_(o.weight) {
    rest_.weight = Tensor();
  }
  CrossEntropyOptions get() const {
    CrossEntropyOptions o = rest_;
    o.weight = weight_.get();
    return o;
  }

 private:
  CrossEntropyOptions rest_;
  Saved weight_;
};

// The gradient of each row's loss if that of the result is 1.
Tensor unit_gradient(const Tensor& losses, const Tensor& divisor) {
  return divisor.defined() ? launch::unary(Unary::kRdivScalar, divisor, 1) : formula::number_like(losses, 1);
}

// Whether g is 1, as far as that is known: not on a device, and not in a recording (compile.h) whose replays
// may have another g.
bool is_known_one(const Tensor& g) {
  if (!g.device().is_cpu()) return false;
  if (const Tracer* const t = detail::tracer(); t && !t->is_fixed(g.address())) return false;
  return g.item_scalar().to<double>() == 1;
}

// Gradients for the gradient 1, of which nobody else has a handle, times g, in place. The first one has a row
// per target. Where targets are ignored it stays 0 for any g, and so do the others where all are.
GradList times(const Tensor& g, GradList grads, const Tensor& target, int64_t ignore) {
  if (is_known_one(g)) return grads;
  const Tensor kept = ne(target, ignore), one = formula::number_like(g, 1),
               of_rows = launch::where(unsqueeze(kept, 1), g, one),
               of_others = grads.size() > 1 ? launch::where(any(kept), g, one) : Tensor();
  for (size_t i = 0; i < grads.size(); ++i) {
    const View part = formula::optional_view(grads[i]);
    if (!part.defined() || part.numel() == 0) continue;
    launch::backend_of(grads[i]).binary(context(), Binary::kMul, 1, 0, part,
                                        launch::expand_view(i == 0 ? of_rows : of_others, part.sizes), part);
  }
  return grads;
}

// The gradients made in forward, for the gradient 1. The first backward takes them, so that it may write to
// them. A later one over that graph computes them again.
class MadeAhead {
 public:
  explicit MadeAhead(GradList grads) : grads_(std::move(grads)) {}
  std::optional<GradList> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(grads_, std::nullopt);
  }

 private:
  std::mutex mutex_;  // several passes may run at once
  std::optional<GradList> grads_;
};

// Gradients of a loss per row are not: each row has its own factor. Nor are they where saved-tensor hooks
// store all that backward needs.
bool may_be_made_ahead(const CrossEntropyOptions& options) {
  return options.reduction != Reduction::kNone && !autograd_state().saved_hooks;
}

// The gradient of x, with losses and log_sums, for a loss whose gradient is 1. Null: nothing is written.
std::shared_ptr<MadeAhead> gradient_ahead(const Tensor& x, const Tensor& target, const CrossEntropyOptions& o,
                                          const Tensor& divisor, const Tensor& losses,
                                          const Tensor& log_sums) {
  const Tensor unit = unit_gradient(losses, divisor);
  const Tensor dx = empty(x.sizes(), {.dtype = x.dtype(), .device = x.device()});
  bool done = false;
  launch::named("cross_entropy", [&] {
    done = launch::backend_of(x).cross_entropy_both(context(), x.view_of(), target.view_of(),
                                                    formula::optional_view(o.weight), o.ignore_index,
                                                    o.label_smoothing, row_gradient(unit, x.sizes()[0]),
                                                    losses.view_of(), log_sums.view_of(), dx.view_of());
  });
  return done ? std::make_shared<MadeAhead>(GradList{dx}) : nullptr;
}

}  // namespace

Tensor cross_entropy(Fp32Arg logits, In target, const CrossEntropyOptions& options) {
  const ClassRows r = formula::class_rows("cross_entropy", logits, target, options);
  const DType t = r.x.dtype();
  const CrossEntropyOptions o = plain_options(options, t);
  const Tensor x = launch::contiguous(r.x);
  const int64_t rows = x.sizes()[0];
  const Tensor losses = empty({rows}, {.dtype = t, .device = x.device()});
  const Tensor log_sums = log_sums_of(rows, t, x.device());
  const Tensor divisor = divisor_of(r, o, t);
  std::shared_ptr<MadeAhead> ahead;
  if (rows != 0 && may_be_made_ahead(o) && x.device().is_cpu() && detail::wants_record({r.x}))
    ahead = gradient_ahead(x, r.target, o, divisor, losses, log_sums);
  if (rows != 0 && !ahead)
    launch::named("cross_entropy", [&] {
      launch::backend_of(x).cross_entropy(context(), x.view_of(), r.target.view_of(),
                                          formula::optional_view(o.weight), o.ignore_index, o.label_smoothing,
                                          losses.view_of(), log_sums.view_of());
    });
  Tensor y = reduce_plain(losses, divisor, r, o);
  return record(
      "cross_entropy", y, {r.x},
      [x = Saved(r.x), target = Saved(r.target), sums = Saved(ahead ? Tensor() : log_sums),
       options = SavedOptions(o), divisor, ahead, sizes = r.sizes](const Tensor& g, Needs needs) -> GradList {
        const Tensor v = x.get(), ids = target.get();
        const CrossEntropyOptions o = options.get();
        if (ahead && !grad_enabled())
          if (auto made = ahead->take()) return times(g, *std::move(made), ids, o.ignore_index);
        if (grad_enabled()) {
          return formula::composed_backward(
              [&](const std::vector<Tensor>& in) {
                return std::vector<Tensor>{formula::reduce_rows(
                    formula::composed_class_loss(log_softmax(in[0], 1), ids, o), ids, sizes, o)};
              },
              {v}, {g}, needs);
        }
        const Tensor xc = launch::contiguous(v);
        if (ahead) {
          const int64_t rows = v.sizes()[0];
          const auto again = gradient_ahead(xc, ids, o, divisor, empty({rows}, {.dtype = v.dtype()}),
                                            log_sums_of(rows, v.dtype(), v.device()));
          return times(g, *again->take(), ids, o.ignore_index);
        }
        const Tensor log_sums = sums.get(), gr = scaled_gradient(g, divisor, v.dtype());
        Tensor dx = empty(v.sizes(), {.dtype = v.dtype(), .device = v.device()});
        if (dx.numel() != 0)
          launch::backend_of(v).cross_entropy_backward(
              context(), xc.view_of(), log_sums.view_of(), ids.view_of(), formula::optional_view(o.weight),
              o.ignore_index, o.label_smoothing, row_gradient(gr, v.sizes()[0]), dx.view_of());
        return {dx};
      });
}

namespace {

// Rows per block of the linear form where the backend has no kernel for it. A block has about 2 million
// logits on the CPU, to stay in its caches. On other devices it has 64 million, to keep them busy. At least
// 32 rows, so that the matrix products stay efficient.
int64_t block_rows(int64_t rows, int64_t classes, const Device& device) {
  const int64_t set = formula::linear_loss_block.load(std::memory_order_relaxed);
  const int64_t logits = set > 0 ? set : int64_t{1} << (device.is_cpu() ? 21 : 26);
  return std::clamp<int64_t>(logits / std::max<int64_t>(classes, 1), std::min<int64_t>(rows, 32),
                             std::max<int64_t>(rows, 1));
}

View rows_of(const Tensor& x, int64_t start, int64_t count) {
  View v = x.view_of();
  v.data = static_cast<char*>(v.data) + start * v.strides[0] * size_of(v.dtype);
  v.sizes[0] = count;
  return v;
}

View transposed_view(View v) {
  std::swap(v.sizes[0], v.sizes[1]);
  std::swap(v.strides[0], v.strides[1]);
  return v;
}

struct LinearGrads {
  Tensor x, w, b;
  GradList list() const { return {x, w, b}; }
};

struct LinearLoss {
  Tensor x, w, b, target;  // contiguous, one dtype; b may be undefined
  CrossEntropyOptions o;
  int64_t rows() const { return x.sizes()[0]; }
  int64_t classes() const { return w.sizes()[0]; }
  int64_t block() const { return block_rows(rows(), classes(), x.device()); }
  /// Sums over several blocks are float32 for a half type, which would round them after each block.
  DType sum_type() const { return rows() > block() ? accumulate_type(x.dtype()) : x.dtype(); }
  // Memory for the logits of a block. On a device each row begins at a border of 16 bytes, for any number of
  // classes: products and kernels of rows move such packs.
  Tensor workspace() const {
    const int64_t pack = x.device().is_cpu() ? 1 : 16 / size_of(x.dtype());
    const int64_t row = (classes() + pack - 1) / pack * pack;
    return empty({block(), row}, {.dtype = x.dtype(), .device = x.device()});
  }
  View logits_in(const Tensor& space, int64_t n) const {
    View v = rows_of(space, 0, n);
    v.sizes[1] = classes();
    return v;
  }

  void logits(int64_t start, int64_t n, const Tensor& out) const {
    launch::backend_of(x).matmul(context(), 1, rows_of(x, start, n), launch::transposed(w, 0, 1).view_of(), 0,
                                 formula::optional_view(b), logits_in(out, n));
  }

  void losses_of(const Tensor& space, int64_t start, int64_t n, const Tensor& losses,
                 const Tensor& log_sums) const {
    logits(start, n, space);
    launch::named("linear_cross_entropy", [&] {
      launch::backend_of(x).cross_entropy(context(), logits_in(space, n), rows_of(target, start, n),
                                          formula::optional_view(o.weight), o.ignore_index, o.label_smoothing,
                                          rows_of(losses, start, n), rows_of(log_sums, start, n));
    });
  }

  // A factor of a sum over blocks. On the CPU, whose products have one dtype, it is a copy in `copy`.
  View factor(const View& v, Tensor& copy) const {
    if (!x.device().is_cpu() || v.dtype == sum_type()) return v;
    copy = empty(v.sizes, {.dtype = sum_type()});
    launch::backend_of(x).copy(context(), v, copy.view_of());
    return copy.view_of();
  }

  // Adds the contribution of one block of rows, whose logits are in `space`, to the gradients, which
  // empty_gradients made. Undefined ones are not wanted.
  void gradients_of(const Tensor& space, const Tensor& dspace, int64_t start, int64_t n,
                    const Tensor& log_sums, const Tensor& g, const LinearGrads& d) const {
    Backend& device = launch::backend_of(x);
    View rows = row_gradient(g, this->rows());
    rows.data = static_cast<char*>(rows.data) + start * rows.strides[0] * size_of(rows.dtype);
    rows.sizes[0] = n;
    const View dl = logits_in(dspace, n);
    device.cross_entropy_backward(context(), logits_in(space, n), rows_of(log_sums, start, n),
                                  rows_of(target, start, n), formula::optional_view(o.weight), o.ignore_index,
                                  o.label_smoothing, rows, dl);
    if (d.x.defined()) device.matmul(context(), 1, dl, w.view_of(), 0, {}, rows_of(d.x, start, n));
    if (d.w.defined()) {
      Tensor left, right;
      device.matmul(context(), 1, transposed_view(factor(dl, left)), factor(rows_of(x, start, n), right),
                    start == 0 ? 0 : 1, {}, d.w.view_of());
    }
    if (d.b.defined()) {
      const Tensor part = empty({classes()}, {.dtype = sum_type(), .device = x.device()});
      device.reduce(context(), Reduce::kSum, dl,
                    {part.address(), part.dtype(), {1, classes()}, {classes(), 1}});
      device.binary(context(), Binary::kAdd, 1, 0, d.b.view_of(), part.view_of(), d.b.view_of());
    }
  }

  // Memory for the gradients; db is zeros.
  LinearGrads empty_gradients(bool dx, bool dw, bool db) const {
    const TensorOptions like{.dtype = x.dtype(), .device = x.device()},
        sum{.dtype = sum_type(), .device = x.device()};
    LinearGrads d{dx ? empty(x.sizes(), like) : Tensor(), dw ? empty(w.sizes(), sum) : Tensor(),
                  db && b.defined() ? zeros(b.sizes(), sum) : Tensor()};
    if (rows() == 0 && d.w.defined()) launch::fill_into(d.w, 0);
    return d;
  }
  // The gradients after the last block, in x's dtype.
  LinearGrads rounded(const LinearGrads& d) const {
    const auto cast = [&](const Tensor& t) { return t.defined() ? launch::cast(t, x.dtype()) : Tensor(); };
    return {d.x, cast(d.w), cast(d.b)};
  }

  template <class F> void each_block(F&& f) const {
    for (int64_t start = 0; start < rows(); start += block()) f(start, std::min(block(), rows() - start));
  }
};

// Forward and backward together, block by block: the gradients of a loss whose gradient is 1.
LinearGrads forward_with_gradients(const LinearLoss& l, const Tensor& losses, const Tensor& log_sums,
                                   const Tensor& unit, bool dx, bool dw, bool db) {
  const LinearGrads d = l.empty_gradients(dx, dw, db);
  const auto view = [](const Tensor& t) { return formula::optional_view(t); };
  bool done = false;
  launch::named("linear_cross_entropy", [&] {
    done = launch::backend_of(l.x).linear_cross_entropy(
        context(),
        {l.x.view_of(), l.w.view_of(), view(l.b), l.target.view_of(), view(l.o.weight),
         row_gradient(unit, l.rows()), losses.view_of(), view(d.x), view(d.w), view(d.b)},
        l.o.ignore_index, l.o.label_smoothing);
  });
  if (done) return d;
  const Tensor space = l.workspace(), dspace = l.workspace();
  l.each_block([&](int64_t start, int64_t n) {
    l.losses_of(space, start, n, losses, log_sums);
    l.gradients_of(space, dspace, start, n, log_sums, unit, d);
  });
  return l.rounded(d);
}

// The gradients from log_sums: the logits are computed again.
LinearGrads gradients_again(const LinearLoss& l, const Tensor& log_sums, const Tensor& g, Needs needs) {
  const LinearGrads d = l.empty_gradients(needs[0], needs[1], needs[2]);
  const Tensor space = l.workspace(), dspace = l.workspace();
  l.each_block([&](int64_t start, int64_t n) {
    l.logits(start, n, space);
    l.gradients_of(space, dspace, start, n, log_sums, g, d);
  });
  return l.rounded(d);
}

// The loss of arguments that are checked. `wide`: losses are float32 if the logits are of a half type.
Tensor loss_of_linear(const In& x, const In& weight, const In& bias, const In& target,
                      const CrossEntropyOptions& options, bool wide);

}  // namespace

Tensor linear_cross_entropy(In x, In weight, In bias, In target, const CrossEntropyOptions& options) {
  launch::check_defined("linear_cross_entropy", x, weight, target);
  constexpr const char* name = "linear_cross_entropy";
  if (x->dim() != 2 || weight->dim() != 2 || x->sizes()[1] != weight->sizes()[1])
    throw ShapeError(str(name, ": x must be [N, I] and weight [C, I]: x is ", x->sizes(), ", weight is ",
                         weight->sizes()));
  if (bias->defined() && !(bias->sizes() == Shape{weight->sizes()[0]}))
    throw ShapeError(str(name, ": bias is ", bias->sizes(), ", weight is ", weight->sizes()));
  if (!(target->sizes() == Shape{x->sizes()[0]}))
    throw ShapeError(str(name, ": target must be [", x->sizes()[0], "], is ", target->sizes()));
  const bool mixed = autograd_state().autocast != kFloat32;
  if (mixed && x->device().is_cpu())  // whose kernels take logits and losses of one dtype
    return cross_entropy(linear(x.get(), weight.get(), bias.get()), target.get(), options);
  launch::check_index(name, target);
  launch::check_floating(name, x);
  launch::check_floating(name, weight);
  for (const Tensor* other : {&weight.get(), &bias.get(), &target.get()})
    if (other->defined()) launch::check_devices(name, x, *other);
  formula::check_class_options(name, weight->sizes()[0], x, options);
  if (!mixed) return loss_of_linear(x, weight, bias, target, options, false);
  return loss_of_linear(AutocastArg(x), AutocastArg(weight), AutocastArg(bias), target, options, true);
}

namespace {

Tensor loss_of_linear(const In& x, const In& weight, const In& bias, const In& target,
                      const CrossEntropyOptions& options, bool wide) {
  constexpr const char* name = "linear_cross_entropy";
  const DType t = promote(x->dtype(), weight->dtype()), loss_type = wide && is_half(t) ? kFloat32 : t;
  const CrossEntropyOptions o = plain_options(options, loss_type);
  const ClassRows r{Tensor(), launch::contiguous(launch::cast(target, kInt64)), target->sizes()};
  LinearLoss l{launch::contiguous(launch::cast(x, t)), launch::contiguous(launch::cast(weight, t)),
               bias->defined() ? launch::contiguous(launch::cast(bias, t)) : Tensor(), r.target, o};
  const TensorOptions like{.dtype = loss_type, .device = x->device()};
  const Tensor losses = empty({l.rows()}, like), log_sums = log_sums_of(l.rows(), t, x->device());
  const Tensor divisor = divisor_of(r, o, loss_type);
  std::shared_ptr<MadeAhead> ahead;
  Tensor unit;
  if (may_be_made_ahead(o) && t != kFloat16 && detail::wants_record({x, weight, bias})) {
    unit = unit_gradient(losses, divisor);
    ahead = std::make_shared<MadeAhead>(forward_with_gradients(l, losses, log_sums, unit, x->requires_grad(),
                                                               weight->requires_grad(),
                                                               bias->defined() && bias->requires_grad())
                                            .list());
  } else {
    const Tensor space = l.workspace();
    l.each_block([&](int64_t start, int64_t n) { l.losses_of(space, start, n, losses, log_sums); });
  }
  Tensor y = reduce_plain(losses, divisor, r, o);
  return record(
      name, y, {x, weight, bias},
      [x = Saved(x), w = Saved(weight), b = Saved(bias), target = Saved(r.target),
       sums = Saved(ahead ? Tensor() : log_sums), options = SavedOptions(o), t, loss_type, divisor, ahead,
       unit](const Tensor& g, Needs needs) -> GradList {
        const Tensor v = x.get(), m = w.get(), c = b.get(), ids = target.get();
        const CrossEntropyOptions o = options.get();
        if (ahead && !grad_enabled())
          if (auto made = ahead->take()) return times(g, *std::move(made), ids, o.ignore_index);
        if (grad_enabled()) {
          return formula::composed_backward(
              [&](const std::vector<Tensor>& in) {
                const Tensor logits = to(linear(in[0], in[1], in[2]), loss_type);
                return std::vector<Tensor>{cross_entropy(logits, ids, o)};
              },
              {v, m, c}, {g}, needs);
        }
        const LinearLoss again{launch::contiguous(launch::cast(v, t)), launch::contiguous(launch::cast(m, t)),
                               c.defined() ? launch::contiguous(launch::cast(c, t)) : Tensor(), ids, o};
        if (ahead) {  // with memory of its own, since several passes may run at once
          const Tensor losses = empty({again.rows()}, {.dtype = loss_type, .device = v.device()});
          const LinearGrads made = forward_with_gradients(
              again, losses, log_sums_of(again.rows(), t, v.device()), unit, needs[0], needs[1], needs[2]);
          return times(g, made.list(), ids, o.ignore_index);
        }
        return gradients_again(again, sums.get(), scaled_gradient(g, divisor, loss_type), needs).list();
      });
}

}  // namespace

}  // namespace weft
