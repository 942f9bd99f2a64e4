// rnn_stack (inner/rnn_stack.h). The node keeps its inputs, its outputs and the backend's reserve. It also
// keeps packed weights, unless they are larger than the reserve: then backward packs them again. Weights that
// are parts of one memory (Storage::part) in the backend's layout need no packing. Gradients of all weights
// are made as such parts. So each has a storage of its own, and a leaf takes it over without a copy.
#include <weft/autograd/ops/inner/rnn_stack.h>

#include <algorithm>

#include <weft/autograd/ops/inner/formula.h>

namespace weft {

namespace {

using formula::lowered;
using formula::optional_view;

constexpr size_t kBefore = 3, kEach = 4;  // x, h0, c0; then the weights of each cell

using StackArgs = std::vector<Tensor>;

/// The memory of which all defined weights are parts, else the absent View.
View space_of(std::span<const Tensor> weights) {
  const Storage* whole = nullptr;
  const Tensor* first = nullptr;
  for (const Tensor& w : weights) {
    if (!w.defined()) continue;
    const Storage* const of = w.body().storage->whole();
    if (!of || (first && of != whole)) return {};
    whole = of, first = &w;
  }
  if (!first) return {};
  return {
      whole->data(), first->dtype(), {static_cast<int64_t>(whole->bytes()) / size_of(first->dtype())}, {1}};
}

/// Whether the layout has a place for every weight, and a weight for every place.
bool fits(const RnnStackLayout& layout, std::span<const Tensor> weights) {
  for (size_t i = 0; i < layout.cells.size(); ++i) {
    const RnnPlaces& p = layout.cells[i];
    const Tensor* const w = &weights[kEach * i];
    if (!w[2].defined() != (p.b_ih < 0) || !w[3].defined() != (p.b_hh < 0)) return false;
  }
  return true;
}

/// Tensors like the weights, uninitialised, as parts of one memory.
std::vector<Tensor> laid_out(const RnnStackLayout& layout, std::span<const Tensor> weights) {
  const DType dtype = weights[0].dtype();
  const auto element = static_cast<size_t>(size_of(dtype));
  const Ref<Storage> whole =
      Storage::allocate(weights[0].device(), static_cast<size_t>(layout.elements) * element);
  std::vector<Tensor> out(weights.size());
  for (size_t i = 0; i < weights.size(); ++i) {
    if (!weights[i].defined()) continue;
    const RnnPlaces& cell = layout.cells[i / kEach];
    const int64_t places[kEach] = {cell.w_ih, cell.w_hh, cell.b_ih, cell.b_hh};
    const Shape& sizes = weights[i].sizes();
    out[i] = Tensor(Ref<TensorBody>::adopt(
        new TensorBody(Storage::part(whole, static_cast<size_t>(places[i % kEach]) * element,
                                     static_cast<size_t>(sizes.numel()) * element),
                       0, sizes, contiguous_strides(sizes), dtype)));
  }
  return out;
}

/// Views of a list of arguments, or of their gradients.
std::vector<RnnWeights> cells_of(const StackArgs& a) {
  std::vector<RnnWeights> cells;
  for (size_t i = kBefore; i < a.size(); i += kEach)
    cells.push_back(
        {optional_view(a[i]), optional_view(a[i + 1]), optional_view(a[i + 2]), optional_view(a[i + 3])});
  return cells;
}

RnnStackInputs inputs_of(const StackArgs& a, std::span<const RnnWeights> cells) {
  return {optional_view(a[0]), optional_view(a[1]), optional_view(a[2]), cells,
          space_of({a.begin() + kBefore, a.end()})};
}

/// {y, hn, cn} by plain ops.
std::vector<Tensor> composed_stack(const RnnStack& s, const StackArgs& a) {
  const bool lstm = s.mode == RnnMode::kLstm;
  Tensor x = a[0];
  std::vector<Tensor> h, c;
  for (int64_t layer = 0; layer < s.layers; ++layer) {
    std::vector<Tensor> ys;
    for (int64_t d = 0; d < s.directions(); ++d) {
      const int64_t cell = layer * s.directions() + d;
      const Tensor* const w = &a[kBefore + kEach * static_cast<size_t>(cell)];
      std::vector<Tensor> out = formula::composed_rnn_layer(
          s.mode, d == 1,
          {x, select(a[1], 0, cell), lstm ? select(a[2], 0, cell) : Tensor(), w[0], w[1], w[2], w[3]});
      ys.push_back(out[0]), h.push_back(out[1]);
      if (lstm) c.push_back(out[2]);
    }
    x = ys.size() == 1 ? ys[0] : cat(ys, 2);
    if (static_cast<size_t>(layer) < s.keys.size())
      x = formula::dropout_of(x, s.dropout, s.keys[static_cast<size_t>(layer)]);
  }
  return {x, stack(h, 0), lstm ? stack(c, 0) : Tensor()};
}

GradList stack_backward(const RnnStack& s, const RnnStackLayout* layout, const StackArgs& saved,
                        const Tensor outputs[], const Tensor kept[], const GradList& gs, Needs needs) {
  const StackArgs a = formula::contiguous_all(saved),
                  g = formula::contiguous_all({gs[0], gs[1], gs.size() > 2 ? gs[2] : Tensor()});
  StackArgs d(a.size());
  bool all = true;
  for (size_t i = kBefore; i < a.size(); ++i) all = all && (needs[static_cast<int>(i)] || !a[i].defined());
  const std::span<const Tensor> weights(a.begin() + kBefore, a.end());
  if (layout && all && fits(*layout, weights))
    std::ranges::move(laid_out(*layout, weights), d.begin() + kBefore);
  for (size_t i = 0; i < a.size(); ++i)
    if (a[i].defined() && !d[i].defined() && needs[static_cast<int>(i)]) d[i] = empty_like(a[i]);
  const std::vector<RnnWeights> cells = cells_of(a), wanted = cells_of(d);
  launch::backend_of(a[0]).rnn_stack_backward(
      launch::context(), s, inputs_of(a, cells),
      {optional_view(outputs[0]), optional_view(outputs[1]), optional_view(outputs[2]),
       optional_view(kept[0]), optional_view(kept[1])},
      optional_view(g[0]), optional_view(g[1]), optional_view(g[2]),
      {optional_view(d[0]), optional_view(d[1]), optional_view(d[2]), wanted,
       space_of({d.begin() + kBefore, d.end()})});
  GradList result(d.size());
  for (size_t i = 0; i < d.size(); ++i) result[i] = std::move(d[i]);
  return result;
}

}  // namespace

std::optional<RnnResult> rnn_stack(RnnStack stack, const Tensor& x, const Tensor& h0, const Tensor& c0,
                                   std::span<const Tensor> weights, Generator& generator) {
  if (x.device().is_cpu()) return std::nullopt;
  const bool lstm = stack.mode == RnnMode::kLstm;
  StackArgs args = {x, h0, c0};
  args.insert(args.end(), weights.begin(), weights.end());
  for (Tensor& t : args) t = In(t).get();  // a snapshot: a step on another thread may replace the memory
  for (const Tensor& t : args)
    if (t.defined() && (lowered(t) != lowered(x) || t.device() != x.device())) return std::nullopt;
  // The backend decides by sizes and x's dtype, so nothing is cast or copied before.
  Backend& device = launch::backend_of(x);
  std::vector<RnnWeights> cells = cells_of(args);
  RnnStackInputs before = inputs_of(args, cells);
  before.x.dtype = lowered(x);
  const auto room = device.rnn_stack(launch::context(), stack, before);
  if (!room) return std::nullopt;

  for (Tensor& t : args) t = DeviceAutocastArg(t).get();
  const StackArgs a = formula::contiguous_all(args);
  cells = cells_of(a);
  const RnnStackInputs in = inputs_of(a, cells);
  const bool wanted = detail::wants_record(std::span<const Tensor>(args));
  const int64_t steps = x.size(0), n = x.size(1), width = weights[1].size(1);
  const bool own_masks = stack.dropout > 0 && room->chunk == 0;
  stack.chunk = room->chunk;
  if (own_masks) stack.key = generator.take(1), stack.key_epoch = generator.epoch();
  else if (stack.dropout > 0)  // as dropout() between the layers takes them
    for (int64_t layer = 0; layer + 1 < stack.layers; ++layer)
      stack.keys.push_back(generator.take(steps * n * width));

  const TensorOptions like{.dtype = args[0].dtype(), .device = x.device()};
  Tensor outputs[3] = {empty({steps, n, stack.directions() * width}, like),
                       empty({stack.cells(), n, width}, like),
                       lstm ? empty({stack.cells(), n, width}, like) : Tensor()};
  // cuDNN's dropout needs a forward in training mode, which has a reserve even if no gradient is wanted.
  const bool keeps = wanted || own_masks;
  // Weights larger than the reserve are packed again for backward. A program may make many calls of one step
  // each, and every node would keep them.
  const bool packs = wanted && !room->in_place && room->weights > 0 && room->weights <= room->reserve;
  const Tensor packed = packs ? empty({room->weights}, like) : Tensor(),
               reserve = keeps ? empty({room->reserve}, like) : Tensor();
  device.rnn_stack_forward(launch::context(), stack, in,
                           {optional_view(outputs[0]), optional_view(outputs[1]), optional_view(outputs[2]),
                            optional_view(packed), optional_view(reserve)});
  if (!wanted) return RnnResult{outputs[0], outputs[1], outputs[2]};

  const char* const name = formula::rnn_name(stack.mode);
  std::vector<Saved> saved;
  for (const Tensor& t : args) saved.push_back(t.defined() ? Saved(t) : Saved());
  record(name, std::span<Tensor>(outputs, lstm ? 3 : 2), std::span<const Tensor>(args),
         [stack, saved = std::move(saved), y = SavedOutput(outputs[0], 0), hn = SavedOutput(outputs[1], 1),
          cn = lstm ? SavedOutput(outputs[2], 2) : SavedOutput(outputs[1], 1),
          packed = packs ? Saved(packed) : Saved(), reserve = Saved(reserve),
          layout = room->layout](const GradList& gs, Needs needs) -> GradList {
           const bool two = stack.mode == RnnMode::kLstm;
           StackArgs inputs;
           for (const Saved& s : saved) inputs.push_back(s.defined() ? s.get() : Tensor());
           if (grad_enabled()) {
             if (stack.dropout > 0 && stack.keys.empty())
               throw AutogradError(str(formula::rnn_name(stack.mode),
                                       ": create_graph needs the masks of dropout ", stack.dropout,
                                       ", which cuDNN keeps to itself; see cuda::set_cudnn_dropout"));
             return formula::composed_backward(
                 [&](const StackArgs& all) { return composed_stack(stack, all); }, inputs,
                 {gs[0], gs[1], two ? gs[2] : Tensor()}, needs);
           }
           const StackArgs given = formula::contiguous_all({y.get(), hn.get(), two ? cn.get() : Tensor()}),
                           kept = formula::contiguous_all(
                               {packed.defined() ? packed.get() : Tensor(), reserve.get()});
           return stack_backward(stack, layout.get(), inputs, given.data(), kept.data(), gs, needs);
         });
  return RnnResult{outputs[0], outputs[1], outputs[2]};
}

std::vector<Tensor> rnn_stack_weights(const RnnStack& stack, std::span<const Tensor> weights) {
  const Tensor& w_ih = weights[0];
  if (w_ih.device().is_cpu()) return {};
  // Layouts do not depend on the sequences, so one of a single step will do.
  const int64_t width = weights[1].size(1);
  const auto stands_for = [&](const Shape& sizes) {
    return View{w_ih.address(), w_ih.dtype(), sizes, contiguous_strides(sizes)};
  };
  StackArgs args(kBefore);
  args.insert(args.end(), weights.begin(), weights.end());
  const std::vector<RnnWeights> cells = cells_of(args);
  RnnStackInputs in = inputs_of(args, cells);
  in.x = stands_for({1, 1, w_ih.size(1)});
  in.h0 = in.c0 = stands_for({stack.cells(), 1, width});
  const auto room = launch::backend_of(w_ih).rnn_stack(launch::context(), stack, in);
  if (!room || !room->layout || room->in_place || !fits(*room->layout, weights)) return {};
  std::vector<Tensor> out = laid_out(*room->layout, weights);
  const NoGrad off;
  launch::backend_of(w_ih).fill(launch::context(), 0, space_of(out));  // gaps between weights are zeros
  for (size_t i = 0; i < out.size(); ++i)
    if (out[i].defined()) out[i].copy_(weights[i]);
  return out;
}

}  // namespace weft
