// Copies, conversions and rearrangements. Results are in new memory, except where ops_shape.h states "x
// itself".
#include <algorithm>

#include <weft/autograd/ops/inner/formula.h>
#include <weft/kernels/accelerator.h>

namespace weft {

Tensor contiguous(Viewed given) {
  launch::check_defined("contiguous", given);
  if (given->is_contiguous()) return given;
  const In x(given.get());
  return record("contiguous", launch::clone(x), {x}, [](const Tensor& g, Needs) -> GradList { return {g}; });
}

Tensor clone(In x) {
  launch::check_defined("clone", x);
  return record("clone", launch::clone(x), {x}, [](const Tensor& g, Needs) -> GradList { return {g}; });
}

Tensor to(Viewed given, DType dtype) {
  launch::check_defined("to", given);
  if (given->dtype() == dtype) return given;
  const In x(given.get());
  Tensor y = launch::cast(x, dtype);
  if (!is_floating(dtype)) return y;
  return record("to", y, {x},
                [from = x->dtype()](const Tensor& g, Needs) -> GradList { return {to(g, from)}; });
}

Tensor to(Viewed given, Device device, bool non_blocking) {
  launch::check_defined("to", given);
  if (given->device() == device) return given;
  const In x(given.get());
  return record("to", launch::to_device(x, device, non_blocking), {x},
                [from = x->device()](const Tensor& g, Needs) -> GradList { return {to(g, from)}; });
}

Tensor to(Viewed x, Device device, DType dtype, bool non_blocking) {
  launch::check_defined("to", x);
  if (size_of(dtype) < size_of(x->dtype())) return to(to(x.get(), dtype), device, non_blocking);
  return to(to(x.get(), device, non_blocking), dtype);
}

namespace {

void check_joined(const char* name, const std::vector<Tensor>& xs) {
  if (xs.empty()) throw ValueError(str(name, ": the list is empty"));
  for (size_t i = 0; i < xs.size(); ++i)
    if (!xs[i].defined()) launch::throw_undefined(name, i + 1);
}

}  // namespace

Tensor cat(const std::vector<Tensor>& xs, Whole dim) {
  check_joined("cat", xs);
  const Tensor& first = xs[0];
  if (first.dim() == 0)
    throw ShapeError(
        str("cat: the ", xs.size(), " tensors have no dims to be joined along; stack gives them one"));
  const int d = wrap_dim("cat", dim, first.dim());
  DType dtype = first.dtype();
  Shape sizes = first.sizes();
  std::vector<int64_t> lengths;
  sizes[d] = 0;
  for (const Tensor& x : xs) {
    launch::check_devices("cat", first, x);
    bool fits = x.dim() == first.dim();
    for (int k = 0; fits && k < x.dim(); ++k) fits = k == d || x.sizes()[k] == sizes[k];
    if (!fits) throw ShapeError(str("cat: ", x.sizes(), " does not join ", first.sizes(), " along dim ", d));
    dtype = promote(dtype, x.dtype());
    if (__builtin_add_overflow(sizes[d], x.sizes()[d], &sizes[d]))
      throw ShapeError(str("cat: dim ", d, " of ", x.sizes(), " and those before is too long"));
    lengths.push_back(x.sizes()[d]);
  }
  Tensor y = empty(sizes, {.dtype = dtype, .device = first.device()});
  // an accelerator copies all parts in one call
  Accelerator* const device = y.device().is_cpu() ? nullptr : open_accelerator(y.device().index);
  std::vector<Tensor> sources;
  std::vector<View> from, to;
  int64_t start = 0;
  for (const Tensor& raw : xs) {
    const In x(raw);
    const Tensor part = alias(y, x->sizes(), y.strides(), x->numel() == 0 ? 0 : start * y.strides()[d]);
    if (device) sources.push_back(x), from.push_back(x->view_of()), to.push_back(part.view_of());
    else launch::copy_into(part, x);
    start += x->sizes()[d];
  }
  if (device) device->copy_each(launch::context(), from, to);
  return record("cat", y, std::span<const Tensor>(xs),
                [d, lengths](const Tensor& g, Needs needs) -> GradList {
                  GradList parts(lengths.size());
                  int64_t at = 0;
                  for (size_t i = 0; i < lengths.size(); ++i) {
                    if (needs[static_cast<int>(i)]) parts[i] = narrow(g, d, at, lengths[i]);
                    at += lengths[i];
                  }
                  return parts;
                });
}

Tensor stack(const std::vector<Tensor>& xs, Whole dim) {
  check_joined("stack", xs);
  const int d = wrap_dim("stack", dim, xs[0].dim() + 1);
  std::vector<Tensor> parts;
  for (const Tensor& x : xs) {
    if (!(x.sizes() == xs[0].sizes()))
      throw ShapeError(str("stack: sizes differ: ", xs[0].sizes(), " and ", x.sizes()));
    parts.push_back(unsqueeze(x, d));
  }
  return cat(parts, d);
}

Tensor repeat(In x, const Shape& times) {
  launch::check_defined("repeat", x);
  const int lead = times.size() - x->dim();
  if (lead < 0) throw ShapeError(str("repeat: ", times, " names fewer dims than ", x->sizes(), " has"));
  if (2 * times.size() > kMaxDims)
    throw ShapeError(str("repeat: at most ", kMaxDims / 2, " dims, got ", times));
  Shape split, wide, out;  // each dim as (times, size)
  for (int d = 0; d < times.size(); ++d) {
    if (times[d] < 0) throw ShapeError(str("repeat: ", times, " must not be negative"));
    const int64_t size = d < lead ? 1 : x->sizes()[d - lead];
    split.push_back(1);
    split.push_back(size);
    wide.push_back(times[d]);
    wide.push_back(size);
    out.push_back(checked_numel("repeat", {times[d], size}));
  }
  launch::checked_bytes("repeat", out, x->dtype());
  return reshape(clone(expand(reshape(x.get(), split), wide)), out);
}

Tensor flip(In x, const Shape& dims) {
  launch::check_defined("flip", x);
  const launch::Dims on = dims.empty() ? launch::Dims{} : launch::reduced_dims("flip", x, dims);
  Tensor y;
  if (x->device().is_cpu()) {  // a copy with negative strides
    y = empty(x->sizes(), {.dtype = x->dtype()});
    View from = x->view_of();
    int64_t first = 0;
    for (int d = 0; d < x->dim() && y.numel() != 0; ++d) {
      if (!on.on[d] || from.sizes[d] < 2) continue;
      first += (from.sizes[d] - 1) * from.strides[d];
      from.strides[d] = -from.strides[d];
    }
    from.data = from.as<std::byte>() + first * size_of(x->dtype());
    if (y.numel() != 0) launch::backend_of(x).copy(launch::context(), from, y.view_of());
  } else {
    const NoGrad quiet;
    y = x;
    for (int d = 0; d < x->dim(); ++d)
      if (on.on[d])
        y = index_select(y, d, x->sizes()[d] - 1 - arange(x->sizes()[d], {.device = x->device()}));
    if (y.is_same(x)) y = clone(x.get());
  }
  return record("flip", y, {x}, [dims](const Tensor& g, Needs) -> GradList { return {flip(g, dims)}; });
}

Tensor roll(In x, Whole shift, Whole dim) {
  launch::check_defined("roll", x);
  const int d = wrap_dim("roll", dim, x->dim());
  const int64_t n = x->sizes()[d], by = n == 0 ? 0 : (shift % n + n) % n;
  Tensor y;
  {
    const NoGrad quiet;
    y = by == 0 ? clone(x.get()) : cat({narrow(x.get(), d, n - by, by), narrow(x.get(), d, 0, n - by)}, d);
  }
  return record("roll", y, {x}, [by, d](const Tensor& g, Needs) -> GradList { return {roll(g, -by, d)}; });
}

Tensor roll(In x, Whole shift) {
  launch::check_defined("roll", x);
  return reshape(roll(reshape(x.get(), -1), shift, 0), x->sizes());
}

namespace {

Tensor triangle(const char* name, bool upper, In x, int64_t k) {
  launch::check_defined(name, x);
  if (x->dim() < 2) throw ShapeError(str(name, ": takes at least two dims, got ", x->sizes()));
  Tensor y = empty(x->sizes(), {.dtype = x->dtype(), .device = x->device()});
  if (y.numel() != 0) launch::backend_of(x).triangle(launch::context(), upper, k, x->view_of(), y.view_of());
  return record(name, y, {x}, [name, upper, k](const Tensor& g, Needs) -> GradList {
    return {triangle(name, upper, g, k)};
  });
}

}  // namespace

Tensor tril(In x, Whole k) { return triangle("tril", false, x.get(), k); }
Tensor triu(In x, Whole k) { return triangle("triu", true, x.get(), k); }

Tensor pad(In x, const Shape& pads, Scalar value) {
  launch::check_defined("pad", x);
  if (pads.size() % 2 != 0 || pads.size() / 2 > x->dim())
    throw ShapeError(str("pad: pads ", pads, " do not fit ", x->sizes()));
  launch::check_scalar("pad", x->dtype(), value);
  Shape sizes = x->sizes(), starts(x->dim(), 0);
  for (int i = 0; i < pads.size() / 2; ++i) {
    const int d = x->dim() - 1 - i;
    if (pads[2 * i] < 0 || pads[2 * i + 1] < 0)
      throw ShapeError(str("pad: pads ", pads, " must not be negative"));
    starts[d] = pads[2 * i];
    if (__builtin_add_overflow(sizes[d], pads[2 * i], &sizes[d]) ||
        __builtin_add_overflow(sizes[d], pads[2 * i + 1], &sizes[d]))
      throw ShapeError(str("pad: pads ", pads, " make dim ", d, " of ", x->sizes(), " too long"));
  }
  launch::checked_bytes("pad", sizes, x->dtype());
  Tensor y = empty(sizes, {.dtype = x->dtype(), .device = x->device()});
  launch::fill_into(y, value);
  int64_t offset = 0;
  for (int d = 0; d < x->dim(); ++d) offset += starts[d] * y.strides()[d];
  launch::copy_into(alias(y, x->sizes(), y.strides(), x->numel() == 0 ? 0 : offset), x);
  return record("pad", y, {x}, [starts, inner = x->sizes()](const Tensor& g, Needs) -> GradList {
    Tensor part = g;
    for (int d = 0; d < inner.size(); ++d) part = narrow(part, d, starts[d], inner[d]);
    return {part};
  });
}

}  // namespace weft
