// The forwarding methods of the CPU backend; see cpu_backend.h.
#include <weft/kernels/cpu/cpu_backend.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <weft/kernels/cpu/allocator.h>
#include <weft/kernels/cpu/isa_table.h>
#include <weft/kernels/loss_scale.h>
#include <weft/kernels/norm.h>

namespace weft::kernels {

namespace {

class CpuBackend final : public Backend {
 public:
  Device device() const override { return kCpu; }

  void* allocate(size_t bytes) override { return kernels::allocate(bytes); }
  void deallocate(void* p, size_t bytes) noexcept override { kernels::deallocate(p, bytes); }
  void copy_from_host(Context&, const void* host, void* to, size_t bytes) override {
    if (bytes > 0) std::memcpy(to, host, bytes);
  }
  void copy_to_host(Context&, const void* from, void* host, size_t bytes) override {
    if (bytes > 0) std::memcpy(host, from, bytes);
  }

  void unary(Context&, Unary op, Scalar s, Scalar t, View x, View y) override {
    isa_table().unary(op, s, t, x, y);
  }
  void binary(Context&, Binary op, Scalar s, Scalar t, View a, View b, View y) override {
    isa_table().binary(op, s, t, a, b, y);
  }
  void ternary(Context&, Ternary op, Scalar s, View a, View b, View c, View y) override {
    isa_table().ternary(op, s, a, b, c, y);
  }
  void where(Context&, View cond, View a, View b, View y) override { isa_table().where(cond, a, b, y); }
  void copy(Context&, View x, View y) override { isa_table().copy(x, y); }
  void fill(Context&, Scalar value, View y) override { isa_table().fill(value, y); }
  void arange(Context&, Scalar start, Scalar step, View y) override { isa_table().arange(start, step, y); }

  void reduce(Context&, Reduce op, View x, View y) override { isa_table().reduce(op, x, y); }
  void arg_reduce(Context&, bool largest, int dim, View x, View values, View indices) override {
    isa_table().arg_reduce(largest, dim, x, values, indices);
  }
  void mean_var(Context&, int64_t correction, View x, View mean, View var) override {
    isa_table().mean_var(correction, x, mean, var);
  }
  void cumulate(Context&, Reduce op, int dim, View x, View y) override {
    isa_table().cumulate(op, dim, x, y);
  }
  void sort(Context&, bool descending, View x, View values, View indices) override {
    isa_table().sort(descending, x, values, indices);
  }

  void softmax(Context&, bool log, View x, View y) override { isa_table().softmax(log, x, y); }
  void softmax_backward(Context&, bool log, View y, View dy, View dx) override {
    isa_table().softmax_backward(log, y, dy, dx);
  }
  void logsumexp(Context&, View x, View y) override { isa_table().logsumexp(x, y); }
  void cross_entropy(Context&, View x, View target, View weight, int64_t ignore, double smoothing, View loss,
                     View lse) override {
    isa_table().cross_entropy(x, target, weight, ignore, smoothing, loss, lse);
  }
  void cross_entropy_backward(Context&, View x, View lse, View target, View weight, int64_t ignore,
                              double smoothing, View g, View dx) override {
    isa_table().cross_entropy_backward(x, lse, target, weight, ignore, smoothing, g, dx);
  }
  void layer_norm(Context&, View x, View weight, View bias, double eps, View y, View mean,
                  View rstd) override {
    isa_table().layer_norm(x, weight, bias, eps, y, mean, rstd);
  }
  void layer_norm_backward(Context&, View x, View weight, View mean, View rstd, View dy, View dx,
                           View dweight, View dbias) override {
    isa_table().layer_norm_backward(x, weight, mean, rstd, dy, dx, dweight, dbias);
  }

  void matmul(Context&, double alpha, View a, View b, double beta, View bias, View c, bool relu) override {
    isa_table().matmul(alpha, a, b, beta, bias, c);
    if (relu) isa_table().unary(Unary::kRelu, 0, 0, c, c);
  }

  void take_rows(Context&, View x, View index, View y) override { isa_table().take_rows(x, index, y); }
  void add_rows(Context&, View index, View dy, int64_t skip, View dx) override {
    isa_table().add_rows(index, dy, skip, dx);
  }
  void gather(Context&, int dim, View x, View index, View y) override {
    isa_table().gather(dim, x, index, y);
  }
  void scatter(Context&, bool add, int dim, View index, View src, View y) override {
    isa_table().scatter(add, dim, index, src, y);
  }
  int64_t count_nonzero(Context&, View x) override { return isa_table().count_nonzero(x); }
  void nonzero(Context&, View x, View out) override { isa_table().nonzero(x, out); }
  void triangle(Context&, bool upper, int64_t k, View x, View y) override {
    isa_table().triangle(upper, k, x, y);
  }

  void uniform(Context&, PhiloxKey key, double low, double high, View y) override {
    isa_table().uniform(key, low, high, y);
  }
  void normal(Context&, PhiloxKey key, double mean, double stddev, View y) override {
    isa_table().normal(key, mean, stddev, y);
  }
  void bernoulli(Context&, PhiloxKey key, View p, View y) override { isa_table().bernoulli(key, p, y); }
  void random_int(Context&, PhiloxKey key, int64_t low, int64_t high, View y) override {
    isa_table().random_int(key, low, high, y);
  }
  void dropout(Context&, PhiloxKey key, double p, View x, View y) override {
    isa_table().dropout(key, p, x, y);
  }
  void multinomial(Context&, PhiloxKey key, bool replacement, View p, View indices) override {
    isa_table().multinomial(key, replacement, p, indices);
  }

  void rnn_forward(Context&, const RnnLayer& layer, const RnnInputs& in, const RnnOutputs& out) override {
    isa_table().rnn_forward(layer, in, out);
  }
  void rnn_backward(Context&, const RnnLayer& layer, const RnnInputs& in, const RnnOutputs& out, View dy,
                    View dhn, View dcn, const RnnGrads& grads) override {
    isa_table().rnn_backward(layer, in, out, dy, dhn, dcn, grads);
  }

  void step(Context&, const StepKernel& kernel, DType dtype, std::span<const StepTensor> tensors,
            const NextStep&, const double* skip) override {
    if (!skip || *skip == 0) return isa_table().step(kernel, dtype, tensors);
    for (const StepTensor& t : tensors)
      if (t.out) std::memcpy(t.out, t.param, static_cast<size_t>(t.numel * size_of(dtype)));
  }
  void powers(Context&, double p, std::span<const View> xs, double* out) override {
    isa_table().powers(p, xs, out);
  }
  void scale(Context&, double factor, std::span<const View> xs) override { isa_table().scale(factor, xs); }
  void clip_norm(Context&, double max_norm, double p, std::span<const View> xs, View norm) override {
    std::vector<double> each(xs.size());
    isa_table().powers(p, xs, each.data());
    NormSum sum(p);
    for (const double power : each) sum.add(power);
    *norm.as<double>() = sum.norm();
    isa_table().scale(clip_factor(sum.norm(), max_norm), xs);
  }
  void unscale(Context&, std::span<const View> xs, View state) override {
    auto& found = *state.as<LossScale>();
    isa_table().scale(found.inverse, xs);
    std::vector<double> largest(xs.size());
    isa_table().powers(std::numeric_limits<double>::infinity(), xs, largest.data());
    for (const double x : largest)
      if (!std::isfinite(x)) found.nonfinite = 1;
  }
  void update_scale(Context&, double growth, double backoff, int64_t interval, View state) override {
    state.as<LossScale>()->update(growth, backoff, interval);
  }

  void synchronize() override {}
};

}  // namespace

Backend& cpu_backend() {
  static CpuBackend* const object =
      new CpuBackend;  // never destroyed: tensors in static storage may outlive main
  return *object;
}

}  // namespace weft::kernels
