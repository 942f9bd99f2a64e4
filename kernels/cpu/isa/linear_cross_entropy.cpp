// Cross entropy of a linear layer, with its gradients, by blocks of classes that stay in the second-level
// cache. Forward makes the logits of a block, and writes their exponentials below the row's maximum there.
// Maxima and sums of the blocks give the row's logsumexp. Backward reads the exponentials. A factor per row
// and block makes them the gradient of the logits, which is multiplied with x and w. So no exponential is
// computed twice, and the exponentials of all classes are written once and read once. The rows are divided
// into parts of 8 million exponentials, but 64 rows at least. Groups of blocks sum dx apart, and the groups
// are added in order. Parts, blocks and groups depend on sizes only.
#include <weft/kernels/cpu/isa/backend.h>
#include <weft/kernels/cpu/isa/class_loss.h>
#include <weft/kernels/cpu/isa/gemm.h>

namespace weft::kernels::WEFT_ISA_NS {

namespace {

constexpr int64_t kClasses = 256;                    // of a block: 700 rows of it take 0.7 MB
constexpr int64_t kExponentials = int64_t{1} << 23;  // of a part of the rows
constexpr int64_t kFewestRows = 64, kMostRows = 1024;
constexpr int64_t kMostGroups = 8, kBlocksPerGroup = 2;
constexpr int64_t kRowsPerSum = 32;  // rows whose bias gradients are added before they join the total

/// A part of the rows, with the numbers that forward keeps for backward.
template <class T> class Part {
 public:
  Part(const LinearLossViews& v, const Weights<T>& weights, int64_t ignore, double smoothing, int64_t first,
       int64_t count)
      : v_(v),
        weights_(weights),
        ignore_(ignore),
        smoothing_(smoothing),
        first_(first),
        rows_(count),
        width_(v.x.size(1)),
        blocks_(v.w.size(0), kClasses),
        x_{v.x.as<T>() + first * v.x.stride(0), v.x.stride(0), 1},
        w_{v.w.as<T>(), v.w.stride(0), 1},
        exponentials_(v.w.size(0) * rows_),
        tops_(blocks_.count * rows_),
        sums_(blocks_.count * rows_),
        flat_sums_(smoothing != 0 ? blocks_.count * rows_ : 0),
        own_(rows_),
        rows_kept_(rows_) {}

  void forward() {
    each_task(blocks_.count, [&](int64_t b) { forward_block(b); });
    for (int64_t r = 0; r < rows_; ++r) finish_row(r);
  }

  /// Adds to dw and db unless this is the first part.
  void backward() {
    const Parts groups(blocks_.count, group_size());
    const int64_t size = rows_ * width_;
    const Scratch<T> apart(v_.dx.defined() ? (groups.count - 1) * size : 0);
    T* const dx = v_.dx.defined() ? v_.dx.as<T>() + first_ * width_ : nullptr;
    each_task(groups.count, [&](int64_t i) {
      T* const sum = !dx || i == 0 ? dx : apart.get() + (i - 1) * size;
      backward_group(groups.begin(i), groups.begin(i + 1), sum);
    });
    for (int64_t i = 1; dx && i < groups.count; ++i)
      map_row(
          size, dx, [](Vec<T> a, Vec<T> b) __attribute__((always_inline)) { return a + b; }, dx,
          apart.get() + (i - 1) * size);
  }

 private:
  /// The numbers that the gradients of a row need.
  struct Row {
    T factor, top;   // dlogits = factor * exp(block's maximum - top) * e - flat * class weight
    double p, grad;  // the target's probability; the gradient of the row's loss, 0 if it is ignored
  };

  int64_t target(int64_t r) const { return v_.target.as<int64_t>()[(first_ + r) * v_.target.stride(0)]; }
  int64_t group_size() const {
    const int64_t least = (blocks_.count + kMostGroups - 1) / kMostGroups;
    return least > kBlocksPerGroup ? least : kBlocksPerGroup;
  }
  Operand<T> weights_of(int64_t b) const { return {w_.data + blocks_.begin(b) * w_.row, w_.row, 1}; }
  double even() const { return smoothing_ / static_cast<double>(v_.w.size(0)); }

  void forward_block(int64_t b) {
    const int64_t c = blocks_.begin(b), count = blocks_.size(b);
    const Scratch<T> logits(rows_ * count);
    gemm_here<T>(rows_, count, width_, x_, weights_of(b).transposed(), logits.get(), count,
                 {1, 0, v_.bias.defined() ? v_.bias.as<T>() + c : nullptr});
    T* e = exponentials_.get() + c * rows_;
    for (int64_t r = 0; r < rows_; ++r, e += count) {
      const T* const x = logits.get() + r * count;
      const int64_t t = target(r), at = b * rows_ + r;
      if (t >= c && t < c + count) own_.get()[r] = x[t - c];
      const T top = max_row(count, x), shift = top == -__builtin_inf() ? T(0) : top;
      tops_.get()[at] = top;
      sums_.get()[at] = exp_row(count, x, shift, e);
      if (smoothing_ != 0)
        flat_sums_.get()[at] = weighted_sum(count, shift, x, weights_.each ? weights_.each + c : nullptr);
    }
  }

  /// The loss of a row from its blocks.
  void finish_row(int64_t r) {
    T top = -__builtin_inf();
    for (int64_t b = 0; b < blocks_.count; ++b) {
      const T here = tops_.get()[b * rows_ + r];
      top = here > top ? here : top;
    }
    double sum = 0;
    for (int64_t b = 0; b < blocks_.count; ++b) {
      const int64_t at = b * rows_ + r;
      sum += static_cast<double>(sums_.get()[at]) * __builtin_exp(static_cast<double>(tops_.get()[at] - top));
    }
    const double log = __builtin_log(sum), share = 1 / sum;
    const int64_t t = target(r);
    Row& row = rows_kept_.get()[r];
    if (t == ignore_) {
      row = {0, top, 0, 0};
      return set_number(v_.loss, first_ + r, 0);
    }
    const double below = static_cast<double>(own_.get()[r]) - static_cast<double>(top),
                 mine = (1 - smoothing_) * weights_.of(t);
    double loss = mine * (log - below);
    if (smoothing_ != 0) loss += even() * (weights_.sum * log - flat_sum(r, top));
    set_number(v_.loss, first_ + r, loss);
    const double grad = get_number(v_.g, first_ + r);
    row = {static_cast<T>(grad * (mine + even() * weights_.sum) * share), top, __builtin_exp(below) * share,
           grad};
  }

  /// sum_k w[k] (x[k] - top).
  double flat_sum(int64_t r, T top) const {
    double sum = 0;
    for (int64_t b = 0; b < blocks_.count; ++b) {
      const int64_t at = b * rows_ + r, c = blocks_.begin(b), count = blocks_.size(b);
      const T here = tops_.get()[at], shift = here == -__builtin_inf() ? T(0) : here;
      double all = static_cast<double>(count);
      if (weights_.each) {
        all = 0;
        for (int64_t k = c; k < c + count; ++k) all += static_cast<double>(weights_.each[k]);
      }
      sum += flat_sums_.get()[at] + all * (static_cast<double>(shift) - static_cast<double>(top));
    }
    return sum;
  }

  /// The gradients of blocks [begin, end): their rows of dw and db, and their sum of dx.
  void backward_group(int64_t begin, int64_t end, T* dx) {
    const Scratch<T> dlogits(rows_ * blocks_.size(0));
    for (int64_t b = begin; b < end; ++b) {
      const int64_t count = blocks_.size(b);
      const Operand<T> d{dlogits.get(), count, 1};
      gradients_of_logits(b, dlogits.get());
      if (v_.dw.defined())
        gemm_here<T>(count, width_, rows_, d.transposed(), x_, v_.dw.as<T>() + blocks_.begin(b) * width_,
                     width_, {1, first_ == 0 ? T(0) : T(1), nullptr});
      if (dx)
        gemm_here<T>(rows_, width_, count, d, weights_of(b), dx, width_,
                     {1, b == begin ? T(0) : T(1), nullptr});
    }
  }

  void gradients_of_logits(int64_t b, T* dlogits) {
    const int64_t c = blocks_.begin(b), count = blocks_.size(b);
    const T* e = exponentials_.get() + c * rows_;
    const T* const w = weights_.each ? weights_.each + c : nullptr;
    T bias[kClasses] = {};
    double total[kClasses] = {};
    T* to = dlogits;
    for (int64_t r = 0; r < rows_; ++r, e += count, to += count) {
      const Row& row = rows_kept_.get()[r];
      const int64_t t = target(r);
      if (t == ignore_) {
        for (int64_t k = 0; k < count; ++k) to[k] = 0;
        continue;
      }
      const T factor =
                  row.factor *
                  static_cast<T>(__builtin_exp(static_cast<double>(tops_.get()[b * rows_ + r] - row.top))),
              flat = static_cast<T>(row.grad * even());
      if (w && smoothing_ != 0)
        map_row(
            count,
            to, [=](Vec<T> v, Vec<T> u) __attribute__((always_inline)) { return v * factor - flat * u; }, e,
            w);
      else
        map_row(
            count, to, [=](Vec<T> v) __attribute__((always_inline)) { return v * factor - flat; }, e);
      // The target's element from the probability itself, so that no digits cancel if it is near 1.
      if (t >= c && t < c + count)
        to[t - c] = static_cast<T>(row.grad * ((1 - smoothing_) * weights_.of(t) * (row.p - 1) +
                                               even() * (weights_.sum * row.p - weights_.of(t))));
      if (!v_.db.defined()) continue;
      map_row(
          count, bias, [](Vec<T> a, Vec<T> d) __attribute__((always_inline)) { return a + d; }, bias, to);
      if (r % kRowsPerSum == kRowsPerSum - 1) flush(count, bias, total);
    }
    if (!v_.db.defined()) return;
    flush(count, bias, total);
    T* const db = v_.db.as<T>() + c;
    for (int64_t k = 0; k < count; ++k)
      db[k] = static_cast<T>((first_ == 0 ? 0.0 : static_cast<double>(db[k])) + total[k]);
  }

  static void flush(int64_t count, T* bias, double* total) {
    for (int64_t k = 0; k < count; ++k) {
      total[k] += static_cast<double>(bias[k]);
      bias[k] = 0;
    }
  }

  const LinearLossViews& v_;
  const Weights<T>& weights_;
  const int64_t ignore_;
  const double smoothing_;
  const int64_t first_, rows_, width_;
  const Parts blocks_;
  const Operand<T> x_, w_;  // rows of x; all of w
  const Scratch<T> exponentials_, tops_, sums_;
  const Scratch<double> flat_sums_;
  const Scratch<T> own_;
  const Scratch<Row> rows_kept_;
};

}  // namespace

bool IsaBackend::linear_cross_entropy(Context&, const LinearLossViews& v, int64_t ignore, double smoothing) {
  const int64_t rows = v.x.size(0), classes = v.w.size(0);
  const bool single = v.x.dtype == DType::kFloat32;
  if (classes < 2 * kClasses || (!single && v.x.dtype != DType::kFloat64)) return false;
  check_targets(v.target, rows, classes, ignore);
  int64_t most = kExponentials / classes;
  most = most < kFewestRows ? kFewestRows : most > kMostRows ? kMostRows : most;
  const Parts parts(rows, most);
  dispatch_floating(v.x.dtype, [&](auto tag) {
    using T = RowType<typename decltype(tag)::type>;
    const Weights<T> weights(v.weight, classes);
    for (int64_t i = 0; i < parts.count; ++i) {
      Part<T> part(v, weights, ignore, smoothing, parts.begin(i), parts.size(i));
      part.forward();
      part.backward();
    }
  });
  return true;
}

}  // namespace weft::kernels::WEFT_ISA_NS
