// Initialisers. They draw directly through the backend, so the numbers depend on the generator only.
// orthogonal_ uses modified Gram-Schmidt in float64.
#include <weft/nn/init.h>

#include <cmath>

#include <weft/autograd/tape/grad_mode.h>
#include <weft/autograd/tape/record.h>
#include <weft/tensor/factories.h>
#include <weft/tensor/inner/launch.h>

namespace weft::nn::init {
namespace {

Generator& pick(Generator* generator) { return generator ? *generator : default_generator(); }

/// Checks as the in-place method of this name does, for a tensor without history. Throws: the same errors.
void check(const char* name, const Tensor& t, std::initializer_list<double> parameters) {
  launch::check_defined(name, t);
  for (const double p : parameters) launch::check_scalar(name, t.dtype(), p);
  NoGrad quiet;
  detail::check_in_place(name, t, false);
}

}  // namespace

Tensor uniform_(Tensor t, double low, double high, Generator* generator) {
  launch::check_floating("uniform_", t);
  check("uniform_", t, {low, high});
  if (!(low <= high)) throw ValueError(str("uniform_: low ", low, " is above high ", high));
  Context context;
  backend(t.device()).uniform(context, pick(generator).take(t.numel()), low, high, t.view_of());
  t.body().storage->bump_version();
  return t;
}

Tensor normal_(Tensor t, double mean, double stddev, Generator* generator) {
  launch::check_floating("normal_", t);
  check("normal_", t, {mean, stddev});
  if (!(stddev >= 0)) throw ValueError(str("normal_: standard deviation ", stddev, " is negative"));
  Context context;
  backend(t.device()).normal(context, pick(generator).take(t.numel()), mean, stddev, t.view_of());
  t.body().storage->bump_version();
  return t;
}

Tensor constant_(Tensor t, double value) {
  check("constant_", t, {value});
  Context context;
  backend(t.device()).fill(context, value, t.view_of());
  t.body().storage->bump_version();
  return t;
}

Fan fan(const Tensor& t) {
  if (t.dim() < 2) throw ShapeError(str("fan: needs two dims or more, got ", t.sizes()));
  int64_t field = 1;
  for (int d = 2; d < t.dim(); ++d) field *= t.size(d);
  return {t.size(1) * field, t.size(0) * field};
}

Tensor xavier_uniform_(Tensor t, double gain, Generator* generator) {
  const Fan f = fan(t);
  const double a = gain * std::sqrt(6.0 / static_cast<double>(f.in + f.out));
  return uniform_(std::move(t), -a, a, generator);
}

Tensor xavier_normal_(Tensor t, double gain, Generator* generator) {
  const Fan f = fan(t);
  return normal_(std::move(t), 0, gain * std::sqrt(2.0 / static_cast<double>(f.in + f.out)), generator);
}

Tensor kaiming_uniform_(Tensor t, double slope, Generator* generator) {
  const double b = std::sqrt(6.0 / ((1 + slope * slope) * static_cast<double>(fan(t).in)));
  return uniform_(std::move(t), -b, b, generator);
}

Tensor kaiming_normal_(Tensor t, double slope, Generator* generator) {
  const double s = std::sqrt(2.0 / ((1 + slope * slope) * static_cast<double>(fan(t).in)));
  return normal_(std::move(t), 0, s, generator);
}

Tensor orthogonal_(Tensor t, double gain, Generator* generator) {
  launch::check_floating("orthogonal_", t);
  check("orthogonal_", t, {gain});
  if (t.dim() < 2) throw ShapeError(str("orthogonal_: needs two dims or more, got ", t.sizes()));
  const int64_t rows = t.size(0), cols = t.numel() / std::max<int64_t>(rows, 1);
  const int64_t n = std::min(rows, cols), length = std::max(rows, cols);
  Tensor draws = randn({n, length}, {.dtype = kFloat64}, generator);
  double* q = draws.data<double>();
  for (int64_t i = 0; i < n; ++i) {  // modified Gram-Schmidt, twice per vector for full accuracy
    double* row = q + i * length;
    for (int pass = 0; pass < 2; ++pass)
      for (int64_t j = 0; j < i; ++j) {
        double dot = 0;
        for (int64_t k = 0; k < length; ++k) dot += row[k] * q[j * length + k];
        for (int64_t k = 0; k < length; ++k) row[k] -= dot * q[j * length + k];
      }
    double norm = 0;
    for (int64_t k = 0; k < length; ++k) norm += row[k] * row[k];
    norm = std::sqrt(norm);
    for (int64_t k = 0; k < length; ++k) row[k] *= gain / norm;
  }
  const Shape strides = rows <= cols ? Shape{length, 1} : Shape{1, length};
  Tensor matrix = alias(draws, {rows, cols}, strides, 0);
  Context context;
  View target = t.view_of();
  if (!target.is_contiguous()) throw ShapeError("orthogonal_: needs contiguous memory");
  target.sizes = {rows, cols};
  target.strides = {cols, 1};
  backend(t.device()).copy(context, matrix.view_of(), target);
  t.body().storage->bump_version();
  return t;
}

}  // namespace weft::nn::init
