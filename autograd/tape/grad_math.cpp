// The engine's arithmetic on gradients (inner/grad_math.h). It calls the backend and its launches: the public
// operations depend on the engine, not the reverse.
#include <weft/autograd/tape/inner/grad_math.h>

#include <algorithm>

#include <weft/autograd/tape/inner/packed_rows.h>
#include <weft/kernels/backend.h>
#include <weft/tensor/factories.h>
#include <weft/tensor/inner/launch.h>

namespace weft::detail {
namespace {

Tensor like(const Tensor& x) { return empty(x.sizes(), {.dtype = x.dtype(), .device = x.device()}); }

void copy_into(const Tensor& from, const Tensor& to) {
  Context context;
  if (to.numel() > 0) backend(to.device()).copy(context, from.view_of(), to.view_of());
}

}  // namespace

Tensor add_gradients(const Tensor& a, const Tensor& b) {
  if (is_row_wise(a) && is_row_wise(b)) return add_packed(a, b);
  if (is_row_wise(a)) return add_gradients(b, a);
  if (is_row_wise(b)) {
    Tensor y = copy_of(a);
    add_packed_into(y, b);
    return y;
  }
  Tensor y = like(a);
  launch::run(Binary::kAdd, a, b, y);
  return record("AddGradients", y, {a, b}, [](const Tensor& g, Needs) -> GradList { return {g, g}; });
}

void add_into(const Tensor& a, const Tensor& b) {
  if (is_row_wise(b)) add_packed_into(a, b);
  else launch::run(Binary::kAdd, a, b, a);
  a.body().storage->bump_version();
}

Tensor expand_to(const Tensor& g, const Shape& sizes) {
  if (g.sizes() == sizes) return g;
  Shape strides(sizes.size(), 0);
  const int added = sizes.size() - g.dim();
  for (int d = added; d < sizes.size(); ++d)
    strides[d] = g.sizes()[d - added] == 1 ? 0 : g.strides()[d - added];
  return record_view("ExpandGradient", alias(g, sizes, strides, g.storage_offset()), g,
                     [](const Tensor& h, Needs) -> GradList { return {h}; });
}

Tensor sum_to(const Tensor& g, const Shape& sizes) {
  if (g.sizes() == sizes) return g;
  const int added = g.dim() - sizes.size();
  bool fits = added >= 0;
  Shape kept = g.sizes();
  for (int d = 0; fits && d < g.dim(); ++d) {
    if (d < added) kept[d] = 1;
    else if (sizes[d - added] == 1) kept[d] = 1;
    else fits = sizes[d - added] == g.sizes()[d];
  }
  if (!fits) throw AutogradError(str("a gradient of sizes ", g.sizes(), " cannot be summed to ", sizes));
  Tensor y = empty(kept, {.dtype = g.dtype(), .device = g.device()});
  Context context;
  if (y.numel() > 0) backend(g.device()).reduce(context, Reduce::kSum, g.view_of(), y.view_of());
  y = alias(y, sizes, contiguous_strides(sizes), 0);
  return record("SumGradient", y, {g},
                [wide = g.sizes()](const Tensor& h, Needs) -> GradList { return {expand_to(h, wide)}; });
}

Tensor cast_to(const Tensor& g, DType dtype) {
  if (g.dtype() == dtype) return g;
  Tensor y = empty(g.sizes(), {.dtype = dtype, .device = g.device()});
  copy_into(g, y);
  return record("CastGradient", y, {g}, [](const Tensor& h, Needs) -> GradList { return {h}; });
}

Tensor copy_of(const Tensor& g) {
  Tensor y = like(g);
  copy_into(g, y);
  return record("CopyGradient", y, {g}, [](const Tensor& h, Needs) -> GradList { return {h}; });
}

bool has_nan(const Tensor& g) {
  if (!is_floating(g.dtype()) || g.numel() == 0) return false;
  Tensor test = empty(g.sizes(), {.dtype = kBool, .device = g.device()});
  Tensor any = empty(Shape(g.dim(), 1), {.dtype = kBool, .device = g.device()});
  Context context;
  backend(g.device()).unary(context, Unary::kIsNan, 0, 0, g.view_of(), test.view_of());
  backend(g.device()).reduce(context, Reduce::kAny, test.view_of(), any.view_of());
  return any.item<bool>();
}

bool overlaps_itself(const Shape& sizes, const Shape& strides) {
  // In order of stride, each dim must step beyond the extent of the smaller ones. Interleaved layouts without
  // a common element are reported as overlapping too; no view operation makes one.
  int order[kMaxDims];
  int n = 0;
  const auto step = [&](int d) { return strides[d] < 0 ? -strides[d] : strides[d]; };
  for (int d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 0) return false;
    if (sizes[d] == 1) continue;
    int at = n++;
    for (; at > 0 && step(order[at - 1]) > step(d); --at) order[at] = order[at - 1];
    order[at] = d;
  }
  int64_t reach = 0;
  for (int i = 0; i < n; ++i) {
    if (step(order[i]) <= reach) return true;
    reach += step(order[i]) * (sizes[order[i]] - 1);
  }
  return false;
}

namespace {

/// Offsets of the first and last element.
std::pair<int64_t, int64_t> range_of(const Geometry& g) {
  int64_t low = g.offset, high = g.offset;
  for (int d = 0; d < g.sizes.size(); ++d)
    if (g.sizes[d] > 0) (g.strides[d] < 0 ? low : high) += (g.sizes[d] - 1) * g.strides[d];
  return {low, high};
}

/// A zeroed block that covers both layouts: elements of the view outside the base have no gradient.
struct Block {
  Tensor all;
  int64_t shift;  ///< to subtract from an offset
  Tensor at(const Geometry& g) const { return alias(all, g.sizes, g.strides, g.offset - shift); }
};
Block block_for(const Geometry& base, const Geometry& view, DType dtype, Device device) {
  const auto [bl, bh] = range_of(base);
  const auto [vl, vh] = range_of(view);
  const int64_t low = std::min(bl, vl), high = std::max(bh, vh);
  Block block{empty({high - low + 1}, {.dtype = dtype, .device = device}), low};
  Context context;
  backend(device).fill(context, 0, block.all.view_of());
  return block;
}

}  // namespace

Tensor strided_view(const Tensor& x, const Geometry& base, const Geometry& view) {
  Tensor y = empty(view.sizes, {.dtype = x.dtype(), .device = x.device()});
  if (y.numel() > 0) {
    if (x.strides() == base.strides && x.storage_offset() == base.offset && x.sizes() == base.sizes) {
      copy_into(alias(x, view.sizes, view.strides, view.offset), y);
    } else {
      const Block block = block_for(base, view, x.dtype(), x.device());
      copy_into(x, block.at(base));
      copy_into(block.at(view), y);
    }
  }
  return record("StridedView", y, {x}, [base, view](const Tensor& g, Needs) -> GradList {
    return {strided_place(Tensor(), g, base, view)};
  });
}

Edge strided_view_edge(Edge from, const SlotMeta& meta, const Geometry& base, const Geometry& view) {
  auto backward = [base, view](const Tensor& g, Needs) -> GradList {
    return {strided_place(Tensor(), g, base, view)};
  };
  Ref<Node> node = Ref<Node>::adopt(new OpNode<decltype(backward)>("StridedView", std::move(backward)));
  node->edges().push_back(std::move(from));
  node->slots().push_back(meta);
  return {std::move(node), 0};
}

Tensor strided_place(const Tensor& x, const Tensor& g, const Geometry& base, const Geometry& view) {
  Geometry to = view;
  for (int d = 0; d < to.sizes.size(); ++d)
    if (to.strides[d] == 0 && to.sizes[d] > 1) to.sizes[d] = 1;
  if (overlaps_itself(to.sizes, to.strides))
    throw AutogradError(str("a view of sizes ", view.sizes, " and strides ", view.strides,
                            " shows elements twice; its history cannot follow its base"));
  const Tensor summed = sum_to(g, to.sizes);
  const Block block = block_for(base, view, g.dtype(), g.device());
  if (x.defined()) copy_into(x, block.at(base));
  if (summed.numel() > 0) copy_into(summed, block.at(to));
  Tensor y = empty(base.sizes, {.dtype = g.dtype(), .device = g.device()});
  copy_into(block.at(base), y);
  const auto backward = [base, to](const Tensor& h, Needs needs) -> GradList {
    GradList grads(2);
    if (needs[0])
      grads[0] = strided_place(h, zeros(to.sizes, {.dtype = h.dtype(), .device = h.device()}), base, to);
    if (needs[1]) grads[1] = strided_view(h, base, to);
    return grads;
  };
  return record("StridedPlace", y, {x, summed}, backward);
}

}  // namespace weft::detail
