// Random factories. randperm draws keys on the host and sorts them, so that it gives the same permutation for
// every device and thread count.
#include <weft/tensor/factories.h>

#include <algorithm>
#include <numeric>

#include <weft/kernels/backend.h>
#include <weft/tensor/inner/launch.h>

namespace weft {
namespace {

Generator& chosen(Generator* generator) { return generator ? *generator : default_generator(); }

template <class Draw>
Tensor drawn(const char* name, const Shape& sizes, const TensorOptions& options, Generator* generator,
             Draw&& draw) {
  launch::checked_bytes(name, sizes, options.dtype);
  Tensor y = empty(sizes, {.dtype = options.dtype, .device = options.device, .pinned = options.pinned});
  Context context;
  if (y.numel() > 0) draw(backend(options.device), context, chosen(generator).take(y.numel()), y.view_of());
  if (options.requires_grad) y.requires_grad_();
  return y;
}

void check_floating(const char* what, DType dtype) {
  if (!is_floating(dtype)) throw DTypeError(str(what, ": takes a floating dtype, got ", dtype));
}

Tensor uniform(const char* name, const Shape& sizes, const TensorOptions& options, Generator* generator) {
  check_floating(name, options.dtype);
  return drawn(name, sizes, options, generator,
               [](Backend& b, Context& c, PhiloxKey key, View y) { b.uniform(c, key, 0, 1, y); });
}

Tensor normal(const char* name, const Shape& sizes, const TensorOptions& options, Generator* generator) {
  check_floating(name, options.dtype);
  return drawn(name, sizes, options, generator,
               [](Backend& b, Context& c, PhiloxKey key, View y) { b.normal(c, key, 0, 1, y); });
}

}  // namespace

Tensor rand(const Shape& sizes, const TensorOptions& options, Generator* generator) {
  return uniform("rand", sizes, options, generator);
}
Tensor rand_like(const Tensor& x, Generator* generator) {
  return uniform("rand_like", x.sizes(), {.dtype = x.dtype(), .device = x.device()}, generator);
}

Tensor randn(const Shape& sizes, const TensorOptions& options, Generator* generator) {
  return normal("randn", sizes, options, generator);
}
Tensor randn_like(const Tensor& x, Generator* generator) {
  return normal("randn_like", x.sizes(), {.dtype = x.dtype(), .device = x.device()}, generator);
}

Tensor randint(int64_t low, int64_t high, const Shape& sizes, const TensorOptions& given,
               Generator* generator) {
  TensorOptions options = given;
  if (!given.dtype.given()) options.dtype = kInt64;
  if (low >= high) throw ValueError(str("randint: the range [", low, ", ", high, ") is empty"));
  launch::check_scalar("randint", options.dtype, low);
  launch::check_scalar("randint", options.dtype, high - 1);
  return drawn("randint", sizes, options, generator,
               [=](Backend& b, Context& c, PhiloxKey key, View y) { b.random_int(c, key, low, high, y); });
}

Tensor randperm(int64_t n, Generator* generator) {
  if (n < 0) throw ValueError(str("randperm: n is ", n));
  launch::checked_bytes("randperm", {n}, kFloat64);
  const std::vector<double> keys = rand({n}, {.dtype = kFloat64}, generator).to_vector<double>();
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), int64_t{0});
  std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    const double ka = keys[static_cast<size_t>(a)], kb = keys[static_cast<size_t>(b)];
    return ka != kb ? ka < kb : a < b;
  });
  return from_vector(order, {n});
}

}  // namespace weft
