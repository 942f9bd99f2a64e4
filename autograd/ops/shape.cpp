// Views: other sizes and strides over the same storage. Backward is the inverse view. The backward of a slice
// is unslice, whose backward is the slice. The backward of as_strided, the general case, adds into a flat
// image of x's memory.
#include <algorithm>
#include <limits>

#include <weft/autograd/ops/inner/formula.h>

namespace weft {

namespace {

// Sizes with -1 replaced by the size that the number of elements implies.
Shape resolve_sizes(const char* name, const Tensor& x, const Shape& sizes) {
  Shape out = sizes;
  int hole = -1;
  for (int d = 0; d < sizes.size(); ++d) {
    if (sizes[d] >= 0) continue;
    if (sizes[d] != -1 || hole >= 0) throw ShapeError(str(name, ": sizes ", sizes, " are not possible"));
    out[hole = d] = 1;
  }
  const int64_t n = x.numel(), known = checked_numel(name, out);
  if (hole >= 0 && known != 0 && n % known == 0) out[hole] = n / known;
  else if (hole >= 0 || known != n)
    throw ShapeError(str(name, ": ", n, " elements of ", x.sizes(), " do not fit ", sizes));
  return out;
}

// Strides with which `sizes` has x's elements in the same order; false if there are none. Each run of dims
// that could be joined in memory is matched with the new dims of the same total size.
bool view_strides(const Tensor& x, const Shape& sizes, Shape& strides) {
  strides = contiguous_strides(sizes);
  if (x.numel() == 0 || x.is_contiguous()) return true;
  int to = sizes.size() - 1;
  int64_t run = 1, base = x.dim() > 0 ? x.strides()[x.dim() - 1] : 1, filled = 1;
  for (int from = x.dim() - 1; from >= 0; --from) {
    run *= x.sizes()[from];
    const bool run_ends = from == 0 || (x.sizes()[from - 1] != 1 && x.strides()[from - 1] != run * base);
    if (!run_ends) continue;
    while (to >= 0 && (filled < run || sizes[to] == 1)) {
      strides[to] = filled * base;
      filled *= sizes[to--];
    }
    if (filled != run) return false;
    if (from > 0) base = x.strides()[from - 1];
    run = filled = 1;
  }
  return to < 0;
}

Tensor view_as(const char* name, const Tensor& x, const Shape& sizes, const Shape& strides) {
  return record_view(
      name, alias(x, sizes, strides, x.storage_offset()), x,
      [before = x.sizes()](const Tensor& g, Needs) -> GradList { return {reshape(g, before)}; });
}

}  // namespace

Tensor view(Viewed x, const Shape& wanted) {
  launch::check_defined("view", x);
  const Shape sizes = resolve_sizes("view", x, wanted);
  Shape strides;
  if (!view_strides(x, sizes, strides))
    throw ShapeError(str("view: ", x->sizes(), " with strides ", x->strides(), " cannot be seen as ", sizes,
                         " without a copy; use reshape"));
  return view_as("view", x, sizes, strides);
}

Tensor reshape(Viewed x, const Shape& wanted) {
  launch::check_defined("reshape", x);
  const Shape sizes = resolve_sizes("reshape", x, wanted);
  if (sizes == x->sizes()) return x;
  Shape strides;
  if (view_strides(x, sizes, strides)) return view_as("reshape", x, sizes, strides);
  const Tensor copy = contiguous(x.get());
  return view_as("reshape", copy, sizes, contiguous_strides(sizes));
}

Tensor flatten(Viewed x, Whole start, Whole end) {
  const int first = launch::line_dim("flatten", start, x), last = launch::line_dim("flatten", end, x);
  if (x->dim() == 0) return reshape(x.get(), {1});
  if (first > last)
    throw ShapeError(str("flatten: start ", start, " is behind end ", end, " in ", x->sizes()));
  Shape sizes;
  int64_t joined = 1;
  for (int d = 0; d < x->dim(); ++d) {
    if (d < first || d > last) sizes.push_back(x->sizes()[d]);
    else joined *= x->sizes()[d];
    if (d == last) sizes.push_back(joined);
  }
  return reshape(x.get(), sizes);
}

Tensor transpose(Viewed x, int64_t d0, int64_t d1) {
  const int a = launch::line_dim("transpose", d0, x), b = launch::line_dim("transpose", d1, x);
  return record_view("transpose", launch::transposed(x, a, b), x,
                     [a, b](const Tensor& g, Needs) -> GradList { return {transpose(g, a, b)}; });
}

Tensor permute(Viewed x, const Shape& dims) {
  launch::check_defined("permute", x);
  if (dims.size() != x->dim())
    throw ShapeError(str("permute: ", dims, " does not name the dims of ", x->sizes()));
  Shape sizes, strides, back(x->dim(), -1);
  for (int d = 0; d < dims.size(); ++d) {
    const int from = wrap_dim("permute", dims[d], x->dim());
    if (back[from] >= 0) throw ShapeError(str("permute: dim ", dims[d], " is named twice in ", dims));
    back[from] = d;
    sizes.push_back(x->sizes()[from]);
    strides.push_back(x->strides()[from]);
  }
  return record_view("permute", alias(x, sizes, strides, x->storage_offset()), x,
                     [back](const Tensor& g, Needs) -> GradList { return {permute(g, back)}; });
}

Tensor expand(Viewed x, const Shape& wanted) {
  launch::check_defined("expand", x);
  const int lead = wanted.size() - x->dim();
  Shape sizes = wanted, strides(wanted.size(), 0);
  bool fits = lead >= 0;
  for (int d = 0; fits && d < wanted.size(); ++d) {
    const int64_t have = d < lead ? 1 : x->sizes()[d - lead];
    if (wanted[d] == -1 && d >= lead) sizes[d] = have;
    fits = sizes[d] >= 0 && (have == 1 || have == sizes[d]);
    if (d >= lead && have == sizes[d]) strides[d] = x->strides()[d - lead];
  }
  if (!fits) throw ShapeError(str("expand: ", x->sizes(), " does not expand to ", wanted));
  checked_numel("expand", sizes);
  if (sizes == x->sizes()) return x;
  return record_view(
      "expand", alias(x, sizes, strides, x->storage_offset()), x,
      [before = x->sizes()](const Tensor& g, Needs) -> GradList { return {sum_to(g, before)}; });
}

Tensor squeeze(Viewed x) {
  launch::check_defined("squeeze", x);
  Shape sizes, strides;
  for (int d = 0; d < x->dim(); ++d) {
    if (x->sizes()[d] == 1) continue;
    sizes.push_back(x->sizes()[d]);
    strides.push_back(x->strides()[d]);
  }
  return view_as("squeeze", x, sizes, strides);
}

Tensor squeeze(Viewed x, Whole dim) {
  const int d = launch::line_dim("squeeze", dim, x);
  Shape sizes = x->sizes(), strides = x->strides();
  if (x->dim() != 0 && sizes[d] == 1) {
    sizes.erase(d);
    strides.erase(d);
  }
  return view_as("squeeze", x, sizes, strides);
}

Tensor unsqueeze(Viewed x, Whole dim) {
  launch::check_defined("unsqueeze", x);
  const int d = wrap_dim("unsqueeze", dim, x->dim() + 1);
  Shape sizes = x->sizes(), strides = x->strides();
  const int64_t stride = d < x->dim() ? sizes[d] * strides[d] : 1;
  sizes.insert(d, 1);
  strides.insert(d, stride);
  return view_as("unsqueeze", x, sizes, strides);
}

namespace {

Tensor sliced(const char* name, const Tensor& x, int d, int64_t start, int64_t length, int64_t step) {
  Shape sizes = x.sizes(), strides = x.strides();
  const int64_t offset = x.storage_offset() + (length > 0 ? start * strides[d] : 0);
  sizes[d] = length;
  strides[d] *= step;
  return record_view(name, alias(x, sizes, strides, offset), x,
                     [before = x.sizes(), d, start, step](const Tensor& g, Needs) -> GradList {
                       return {formula::unslice(g, before, d, start, step)};
                     });
}

}  // namespace

Tensor narrow(Viewed x, Whole dim, Whole start, Whole length) {
  launch::check_defined("narrow", x);
  const int d = wrap_dim("narrow", dim, x->dim());
  const int64_t size = x->sizes()[d];
  if (start < 0 || length < 0 || start > size - length)
    throw IndexError(
        str("narrow: ", length, " elements from ", start, " are outside dim ", d, " of ", x->sizes()));
  return sliced("narrow", x, d, start, length, 1);
}

Tensor select(Viewed x, Whole dim, Whole place) {
  const int64_t index = place;
  launch::check_defined("select", x);
  const int d = wrap_dim("select", dim, x->dim());
  const int64_t size = x->sizes()[d], at = index < 0 ? index + size : index;
  if (at < 0 || at >= size)
    throw IndexError(str("select: index ", index, " is outside dim ", d, " of ", x->sizes()));
  Shape sizes = x->sizes(), strides = x->strides();
  const int64_t offset = x->storage_offset() + at * strides[d];
  sizes.erase(d);
  strides.erase(d);
  return record_view("select", alias(x, sizes, strides, offset), x,
                     [before = x->sizes(), d, at](const Tensor& g, Needs) -> GradList {
                       return {formula::unslice(unsqueeze(g, d), before, d, at, 1)};
                     });
}

Tensor slice(Viewed x, Whole dim, Whole from, Whole to, Whole by) {
  const int64_t start = from, end = to, step = by;
  launch::check_defined("slice", x);
  const int d = wrap_dim("slice", dim, x->dim());
  if (step <= 0) throw ValueError(str("slice: step must be positive, got ", step));
  const int64_t size = x->sizes()[d];
  const int64_t first = std::clamp<int64_t>(start < 0 ? start + size : start, 0, size);
  const int64_t last = std::clamp<int64_t>(end < 0 ? end + size : end, first, size);
  const int64_t length = last > first ? (last - first - 1) / step + 1 : 0;
  return sliced("slice", x, d, first, length, length > 1 ? step : 1);
}

namespace {

// Each part is a handle in memory, also where the tensor has no elements or shows one many times.
void check_parts(const char* name, int64_t parts) {
  constexpr int64_t most = 1 << 24;
  if (parts > most) throw ValueError(str(name, ": gives at most ", most, " parts, not ", parts));
}

}  // namespace

std::vector<Tensor> split(Viewed x, const Shape& lengths, Whole dim) {
  launch::check_defined("split", x);
  const int d = wrap_dim("split", dim, x->dim());
  int64_t left = x->sizes()[d];
  bool fits = true;
  for (int64_t n : lengths) {
    fits = fits && n >= 0 && n <= left;
    left -= fits ? n : 0;
  }
  if (!fits || left != 0)
    throw ShapeError(str("split: lengths ", lengths, " do not add up to dim ", d, " of ", x->sizes()));
  std::vector<Tensor> parts;
  int64_t start = 0;
  for (int64_t n : lengths) {
    parts.push_back(sliced("split", x, d, start, n, 1));
    start += n;
  }
  return parts;
}

std::vector<Tensor> split(Viewed x, int64_t length, Whole dim) {
  launch::check_defined("split", x);
  const int d = wrap_dim("split", dim, x->dim());
  const int64_t size = x->sizes()[d];
  if (length < 0 || (length == 0 && size != 0))
    throw ValueError(str("split: length must be positive, got ", length));
  if (size == 0) return {sliced("split", x, d, 0, 0, 1)};
  check_parts("split", (size - 1) / length + 1);
  std::vector<Tensor> parts;
  for (int64_t start = 0; start < size; start += length)
    parts.push_back(sliced("split", x, d, start, std::min(length, size - start), 1));
  return parts;
}

std::vector<Tensor> chunk(Viewed x, Whole parts, Whole dim) {
  launch::check_defined("chunk", x);
  const int d = wrap_dim("chunk", dim, x->dim());
  if (parts <= 0) throw ValueError(str("chunk: parts must be positive, got ", parts));
  const int64_t size = x->sizes()[d];
  const int64_t most = parts;
  check_parts("chunk", size == 0 ? most : std::min(most, size));
  if (size == 0) return std::vector<Tensor>(static_cast<size_t>(parts), sliced("chunk", x, d, 0, 0, 1));
  return split(x.get(), (size - 1) / parts + 1, d);
}

std::vector<Tensor> unbind(Viewed x, Whole dim) {
  launch::check_defined("unbind", x);
  const int d = wrap_dim("unbind", dim, x->dim());
  check_parts("unbind", x->sizes()[d]);
  std::vector<Tensor> parts;
  for (int64_t i = 0; i < x->sizes()[d]; ++i) parts.push_back(select(x.get(), d, i));
  return parts;
}

namespace {

// The number of elements from the first to the last one of a view, clamped to int64's maximum.
int64_t span_of(const Shape& sizes, const Shape& strides) {
  int64_t span = 1;
  bool beyond = false;
  for (int d = 0; d < sizes.size(); ++d) {
    int64_t reach;
    if (sizes[d] == 0) return 0;
    beyond = beyond || __builtin_mul_overflow(sizes[d] - 1, strides[d], &reach) ||
             __builtin_add_overflow(span, reach, &span);
  }
  return beyond ? std::numeric_limits<int64_t>::max() : span;
}

// Gathers the elements of a view from a flat image of memory; scatter_image is the inverse.
Tensor gather_image(const Tensor& flat, const Shape& sizes, const Shape& strides, int64_t offset) {
  const Tensor every = arange(0, flat.numel(), 1, {.dtype = kInt64, .device = flat.device()});
  const Tensor at = launch::contiguous(alias(every, sizes, strides, offset));
  return reshape(index_select(flat, 0, launch::reshaped(at, {at.numel()})), sizes);
}

Tensor scatter_image(const Tensor& g, int64_t span, const Shape& sizes, const Shape& strides,
                     int64_t offset) {
  const Tensor every = arange(0, span, 1, {.dtype = kInt64, .device = g.device()});
  const Tensor at = launch::contiguous(alias(every, sizes, strides, offset));
  return index_add(launch::zeros({span}, g.dtype(), g.device()), 0, launch::reshaped(at, {at.numel()}),
                   reshape(g, {-1}));
}

}  // namespace

Tensor as_strided(Viewed x, const Shape& sizes, const Shape& strides, int64_t offset) {
  launch::check_defined("as_strided", x);
  if (sizes.size() != strides.size())
    throw ShapeError(str("as_strided: sizes ", sizes, " and strides ", strides, " differ in length"));
  for (int d = 0; d < sizes.size(); ++d)
    if (sizes[d] < 0 || strides[d] < 0)
      throw ShapeError(str("as_strided: sizes ", sizes, ", strides ", strides, " must not be negative"));
  checked_numel("as_strided", sizes);
  const int64_t span = span_of(x->sizes(), x->strides()), needed = span_of(sizes, strides);
  if (offset < 0 || needed > span || offset > span - needed)
    throw ShapeError(str("as_strided: sizes ", sizes, ", strides ", strides, ", offset ", offset,
                         " leave the ", span, " elements of ", x->sizes()));
  for (int d = 0; x->requires_grad() && grad_enabled() && d < x->dim(); ++d)
    if (x->strides()[d] == 0 && x->sizes()[d] > 1)
      throw AutogradError(str("as_strided: x of sizes ", x->sizes(),
                              " is expanded, its gradient has no single place; clone it first"));
  return record_view("as_strided", alias(x, sizes, strides, x->storage_offset() + offset), x,
                     [before = x->sizes(), lay = x->strides(), span, sizes, strides, offset](
                         const Tensor& g, Needs) -> GradList {
                       if (span == 0 || g.numel() == 0)
                         return {zeros(before, {.dtype = g.dtype(), .device = g.device()})};
                       return {gather_image(scatter_image(g, span, sizes, strides, offset), before, lay, 0)};
                     });
}

namespace {

struct Diagonal {
  Shape sizes, strides;
  int64_t first = 0;  // in elements from x's first

  Diagonal(const Shape& of, const Shape& lay, int64_t offset, int a, int b) : sizes(of), strides(lay) {
    const int64_t length =
        std::max<int64_t>(0, offset >= 0 ? std::min(of[a], of[b] - offset) : std::min(of[a] + offset, of[b]));
    first = length == 0 ? 0 : offset >= 0 ? offset * lay[b] : -offset * lay[a];
    sizes.push_back(length);
    strides.push_back(lay[a] + lay[b]);
    for (int d : {std::max(a, b), std::min(a, b)}) {
      sizes.erase(d);
      strides.erase(d);
    }
  }
};

// Zeros of `sizes` with g on the diagonal.
Tensor diagonal_backward(In g, const Shape& sizes, int64_t offset, int a, int b) {
  Tensor y = launch::zeros(sizes, g->dtype(), g->device());
  const Diagonal d(sizes, y.strides(), offset, a, b);
  launch::copy_into(alias(y, d.sizes, d.strides, d.first), g);
  return record("diagonal_backward", y, {g},
                [offset, a, b](const Tensor& gg, Needs) -> GradList { return {diagonal(gg, offset, a, b)}; });
}

}  // namespace

Tensor diagonal(Viewed x, Whole offset, int64_t d0, int64_t d1) {
  launch::check_defined("diagonal", x);
  const int a = wrap_dim("diagonal", d0, x->dim()), b = wrap_dim("diagonal", d1, x->dim());
  if (a == b) throw ShapeError(str("diagonal: dims ", d0, " and ", d1, " of ", x->sizes(), " are the same"));
  const Diagonal d(x->sizes(), x->strides(), offset, a, b);
  return record_view("diagonal", alias(x, d.sizes, d.strides, x->storage_offset() + d.first), x,
                     [before = x->sizes(), offset, a, b](const Tensor& g, Needs) -> GradList {
                       return {diagonal_backward(g, before, offset, a, b)};
                     });
}

Tensor diag(In x, Whole which) {
  const int64_t k = which;
  launch::check_defined("diag", x);
  if (x->dim() == 2) return clone(diagonal(x.get(), k));
  if (x->dim() != 1) throw ShapeError(str("diag: x must have 1 or 2 dims, is ", x->sizes()));
  int64_t size = 0;
  if (k < 0 ? __builtin_sub_overflow(x->numel(), k, &size) : __builtin_add_overflow(x->numel(), k, &size))
    throw ShapeError(str("diag: diagonal ", k, " of ", x->numel(), " elements is too far away"));
  launch::checked_bytes("diag", {size, size}, x->dtype());
  return diagonal_backward(x.get(), {size, size}, k, 0, 1);
}

}  // namespace weft
