// Launches of copies, conversions, reductions and row kernels. A row kernel works on the last dim: another
// dim is moved to the end, and the result is moved back.
#include <weft/tensor/inner/launch.h>

#include <weft/kernels/accelerator.h>

namespace weft::launch {

Tensor cast(const Tensor& x, DType dtype) {
  if (x.dtype() == dtype) return x;
  Tensor y = empty(x.sizes(), {.dtype = dtype, .device = x.device()});
  if (y.numel() != 0) backend_of(x).copy(context(), x.view_of(), y.view_of());
  return y;
}

void Cast::convert(DType dtype) {
  own_ = cast(*t_, dtype);
  t_ = &own_;
}

Tensor clone(const Tensor& x) {
  Tensor y = empty(x.sizes(), {.dtype = x.dtype(), .device = x.device()});
  if (y.numel() != 0) backend_of(x).copy(context(), x.view_of(), y.view_of());
  return y;
}

Tensor contiguous(const Tensor& x) { return x.is_contiguous() ? x : clone(x); }

namespace {

/// Copies between two CUDA devices without waiting: events order the current streams of both.
void copy_between(const Tensor& from, const Tensor& to, size_t bytes) {
  Accelerator& a = accelerator(from.device());
  Accelerator& b = accelerator(to.device());
  a.enable_peer_access(to.device().index);
  b.enable_peer_access(from.device().index);
  struct Event {
    Accelerator& device;
    void* handle = device.new_event(false);
    ~Event() { device.delete_event(handle); }
  };
  const Event ready{a}, copied{b};
  a.record_event(ready.handle, a.current_stream());
  b.wait_event(b.current_stream(), ready.handle);
  Context context;
  b.copy_async(context, to.address(), from.address(), bytes);
  b.record_event(copied.handle, b.current_stream());
  a.wait_event(a.current_stream(), copied.handle);
}

}  // namespace

Tensor to_device(const Tensor& x, Device device, bool non_blocking) {
  if (x.device() == device) return x;
  Backend& target = backend(device);
  const Tensor src = contiguous(x);
  Tensor y =
      empty(x.sizes(), {.dtype = x.dtype(), .device = device, .pinned = non_blocking && device.is_cpu()});
  const auto bytes = static_cast<size_t>(x.numel() * size_of(x.dtype()));
  if (bytes == 0) return y;
  if (!x.device().is_cpu() && !device.is_cpu()) {
    copy_between(src, y, bytes);
  } else if (non_blocking) {
    accelerator(device.is_cpu() ? x.device() : device)
        .copy_async(context(), y.address(), src.address(), bytes);
  } else if (x.device().is_cpu()) {
    target.copy_from_host(context(), src.address(), y.address(), bytes);
  } else {
    backend_of(x).copy_to_host(context(), src.address(), y.address(), bytes);
  }
  return y;
}

Tensor zeros(const Shape& sizes, DType dtype, Device device) {
  Tensor y = empty(sizes, {.dtype = dtype, .device = device});
  fill_into(y, 0);
  return y;
}

int line_dim(const char* name, int64_t dim, const Tensor& x) {
  check_defined(name, x);
  return x.dim() == 0 && (dim == 0 || dim == -1) ? 0 : wrap_dim(name, dim, x.dim());
}

Dims reduced_dims(const char* name, const Tensor& x, const Shape& dims) {
  check_defined(name, x);
  Dims out;
  if (dims.empty()) {
    for (int d = 0; d < x.dim(); ++d) out.on[d] = true;
    out.count = x.dim();
    return out;
  }
  for (int64_t dim : dims) {
    const int d = line_dim(name, dim, x);
    if (x.dim() == 0) continue;
    if (out.on[d]) throw ShapeError(str(name, ": dim ", dim, " is named twice in ", dims));
    out.on[d] = true;
    ++out.count;
  }
  return out;
}

Shape reduced_sizes(const Tensor& x, const Dims& dims, bool keepdim) {
  Shape sizes;
  for (int d = 0; d < x.dim(); ++d) {
    if (!dims.on[d]) sizes.push_back(x.sizes()[d]);
    else if (keepdim) sizes.push_back(1);
  }
  return sizes;
}

int64_t reduced_count(const Tensor& x, const Dims& dims) {
  int64_t n = 1;
  for (int d = 0; d < x.dim(); ++d)
    if (dims.on[d]) n *= x.sizes()[d];
  return n;
}

Tensor reduce(const char* name, Reduce op, const Tensor& x, const Dims& dims, bool keepdim) {
  const bool test = op == Reduce::kAny || op == Reduce::kAll;
  const bool extreme = op == Reduce::kMax || op == Reduce::kMin;
  DType dtype = x.dtype();
  if (test) dtype = kBool;
  else if (!extreme && !is_floating(dtype)) dtype = kInt64;
  const Shape kept = reduced_sizes(x, dims, true);
  if (extreme && reduced_count(x, dims) == 0)
    throw ShapeError(str(name, ": no elements to choose from in ", x.sizes()));
  const Tensor in = test ? x : cast(x, dtype);
  Tensor y = empty(keepdim ? kept : reduced_sizes(x, dims, false), {.dtype = dtype, .device = x.device()});
  if (y.numel() == 0) return y;
  if (x.numel() == 0) {
    fill_into(y, op == Reduce::kProd || op == Reduce::kAll ? 1 : 0);
    return y;
  }
  backend_of(x).reduce(context(), op, in.view_of(), {y.address(), dtype, kept, contiguous_strides(kept)});
  return y;
}

Tensor reshaped(const Tensor& x, const Shape& sizes) {
  return alias(x, sizes, contiguous_strides(sizes), x.storage_offset());
}

Tensor transposed(const Tensor& x, int d0, int d1) {
  Shape sizes = x.sizes(), strides = x.strides();
  std::swap(sizes[d0], sizes[d1]);
  std::swap(strides[d0], strides[d1]);
  return alias(x, sizes, strides, x.storage_offset());
}

Rows rows(const char* name, const Tensor& x, int64_t dim) {
  check_defined(name, x);
  Rows r;
  r.sizes = x.sizes();
  r.dim = line_dim(name, dim, x);
  if (x.dim() == 0) {  // a tensor without dims is one row of one element
    r.count = r.width = 1;
    r.x = x;
    return r;
  }
  const int last = x.dim() - 1;
  r.width = x.sizes()[r.dim];
  r.count = 1;
  for (int d = 0; d <= last; ++d)
    if (d != r.dim) r.count *= x.sizes()[d];
  r.x = contiguous(r.dim == last ? x : transposed(x, r.dim, last));
  return r;
}

Tensor empty_rows(const Rows& r, int64_t width, DType dtype) {
  Shape sizes = r.x.sizes();
  if (!sizes.empty()) sizes[sizes.size() - 1] = width;
  return empty(sizes, {.dtype = dtype, .device = r.x.device()});
}

View rows_view(const Rows& r, const Tensor& y) {
  const int64_t width = y.dim() == 0 ? 1 : y.sizes().back();
  return {y.address(), y.dtype(), {r.count, width}, {width, 1}};
}

Tensor from_rows(const Rows& r, const Tensor& y) {
  const int last = r.sizes.size() - 1;
  return last < 0 || r.dim == last ? y : clone(transposed(y, r.dim, last));
}

Tensor from_row_values(const Rows& r, const Tensor& y, bool keepdim) {
  Shape sizes = r.x.sizes();
  if (sizes.empty()) return reshaped(y, {});
  sizes[sizes.size() - 1] = 1;
  Tensor out = from_rows(r, reshaped(y, sizes));
  if (keepdim) return out;
  sizes = r.sizes;
  sizes.erase(r.dim);
  return reshaped(out, sizes);
}

}  // namespace weft::launch
