// The inputs of a row, and the small loops for references (op_table.h).
#include "support/op_table.h"

#include <cmath>

namespace weft::op_table {

int64_t Host::offset(const Shape& at) const {
  int64_t k = 0;
  for (int d = 0; d < sizes.size(); ++d) k = k * sizes[d] + at[d];
  return k;
}

double Host::broadcast_at(const Shape& at) const {
  const int lead = at.size() - sizes.size();
  int64_t k = 0;
  for (int d = 0; d < sizes.size(); ++d) k = k * sizes[d] + (sizes[d] == 1 ? 0 : at[lead + d]);
  return v[static_cast<size_t>(k)];
}

Host to_host(const Tensor& x) { return {x.sizes(), x.detach().to(kCpu).to_vector<double>()}; }

void for_each(const Shape& sizes, const std::function<void(const Shape&)>& f) {
  const int64_t n = sizes.numel();
  Shape at(sizes.size(), 0);
  for (int64_t i = 0; i < n; ++i) {
    f(at);
    for (int d = sizes.size() - 1; d >= 0; --d) {
      if (++at[d] < sizes[d]) break;
      at[d] = 0;
    }
  }
}

Host build(const Shape& sizes, const std::function<double(const Shape&)>& f) {
  Host h(sizes);
  size_t i = 0;
  for_each(sizes, [&](const Shape& at) { h.v[i++] = f(at); });
  return h;
}

Shape with(const Shape& at, int dim, int64_t value) {
  Shape out = at;
  out[dim] = value;
  return out;
}

Arg real(const Shape& sizes, double low, double high) { return {.sizes = sizes, .low = low, .high = high}; }
Arg away(const Shape& sizes, double gap, double apart, double low, double high) {
  return {.sizes = sizes, .low = low, .high = high, .gap = gap, .apart = apart};
}
Arg fixed(const Shape& sizes, double low, double high) {
  return {.sizes = sizes, .low = low, .high = high, .grad = false};
}
Arg ids(const Shape& sizes, int64_t n) {
  return {.sizes = sizes, .kind = Arg::Kind::kIds, .ids = n, .grad = false};
}
Arg flags(const Shape& sizes) { return {.sizes = sizes, .kind = Arg::Kind::kFlags, .grad = false}; }

const char* to_string(Layout layout) {
  constexpr const char* names[] = {"contiguous", "transposed", "strided", "expanded"};
  return names[static_cast<int>(layout)];
}

namespace {

// A separate small generator, so that inputs do not depend on code under test.
struct Numbers {
  uint64_t state;
  double next() {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<double>(state >> 11) * 0x1p-53;
  }
};

double draw(const Arg& arg, Numbers& numbers) {
  if (arg.kind == Arg::Kind::kIds) return std::floor(numbers.next() * static_cast<double>(arg.ids));
  if (arg.kind == Arg::Kind::kFlags) return numbers.next() < 0.5 ? 0 : 1;
  double x = arg.low + (arg.high - arg.low) * numbers.next();
  while (std::abs(x - arg.gap) < arg.apart) x = arg.low + (arg.high - arg.low) * numbers.next();
  return x;
}

DType dtype_for(const Arg& arg, DType dtype) {
  return arg.kind == Arg::Kind::kIds ? kInt64 : arg.kind == Arg::Kind::kFlags ? kBool : dtype;
}

}  // namespace

Tensor base_of(const Tensor& x, Layout layout) {
  NoGrad quiet;
  if (x.dim() == 0 || layout == Layout::kContiguous) return x.clone();
  const int last = x.dim() - 1;
  if (layout == Layout::kTransposed) return x.transpose(0, last).clone();
  if (layout == Layout::kExpanded) return x.size(0) == 0 ? x.clone() : x.narrow(0, 0, 1).clone();
  Shape sizes = x.sizes();  // every second element of the last dim, after an unused first row
  sizes[last] = 2 * sizes[last] + 1;
  Tensor wide = full(sizes, 1, {.dtype = x.dtype(), .device = x.device()});
  if (x.numel() != 0) wide.slice(last, 1, sizes[last], 2).copy_(x);
  return wide;
}

Tensor laid_out(const Tensor& base, Layout layout) {
  if (base.dim() == 0 || layout == Layout::kContiguous) return base;
  const int last = base.dim() - 1;
  if (layout == Layout::kTransposed) return base.transpose(0, last);
  if (layout == Layout::kStrided) return base.slice(last, 1, base.size(last), 2);
  return base;
}

Tensors make_inputs(const Row& row, DType dtype, Layout layout, Device device,
                    const std::vector<Shape>* sizes) {
  Tensors inputs;
  Numbers numbers{0x9E3779B97F4A7C15u};
  for (const char c : row.name) numbers.state = numbers.state * 31 + static_cast<unsigned char>(c);
  for (size_t i = 0; i < row.args.size(); ++i) {
    const Arg& arg = row.args[i];
    const Shape shape = sizes ? (*sizes)[i] : arg.sizes;
    std::vector<double> values(static_cast<size_t>(shape.numel()));
    for (double& x : values) x = draw(arg, numbers);
    const DType t = dtype_for(arg, dtype);
    if (t == kUInt8)
      for (double& x : values) x = std::abs(x);
    if (layout == Layout::kExpanded && shape.size() > 0 && shape[0] > 1) {
      const size_t slice = values.size() / static_cast<size_t>(shape[0]);
      for (size_t k = slice; k < values.size(); ++k) values[k] = values[k - slice];
    }
    const Tensor x = from_vector(values, shape).to(t).to(device);
    if (layout == Layout::kExpanded) inputs.push_back(base_of(x, layout).expand(shape));
    else inputs.push_back(laid_out(base_of(x, layout), layout).detach());
  }
  return inputs;
}

std::function<Hosts(const Hosts&)> elementwise(std::function<double(const std::vector<double>&)> f) {
  return [f = std::move(f)](const Hosts& in) -> Hosts {
    Shape sizes = in[0].sizes;
    for (const Host& h : in) sizes = broadcast("elementwise", sizes, h.sizes);
    std::vector<double> values(in.size());
    return {build(sizes, [&](const Shape& at) {
      for (size_t i = 0; i < in.size(); ++i) values[i] = in[i].broadcast_at(at);
      return f(values);
    })};
  };
}

}  // namespace weft::op_table
