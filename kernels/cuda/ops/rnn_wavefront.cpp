// A stack of recurrent layers as a wavefront (rnn_wavefront.h): a layer works on a chunk of time while the
// next one works on the chunk before. Backward does the same from the last layer and chunk on. The layers
// take turns on two streams, the caller's and a second one. A layer waits for an event behind each chunk
// that it reads; in a recorded graph these are its edges. A layer's steps, and its gradients of weights, are
// those of layers one by one. Only the products with W_ih for x and dx have the rows of a chunk. A chunk's
// dropout begins at its first element, so masks are those of one call per layer. Memory for both streams is
// allocated on the caller's, and freed there behind the join.
#include <weft/kernels/cuda/ops/rnn_wavefront.h>

#include <array>
#include <memory>
#include <numeric>
#include <vector>

#include <weft/kernels/cuda/ops/rnn.h>
#include <weft/kernels/cuda_settings.h>

namespace weft::cuda::wavefront {

namespace {

constexpr int64_t kDrawn = 4;  // elements of dropout per block of numbers (random.cu)

/// The sizes of a stack, and the places of its parts in the reserve, in elements. Between two layers are the
/// output of the first and, with dropout, the input of the second. Behind these are the cells' own reserves.
struct Layout {
  DType dtype;
  int64_t steps, batch, hidden, layers, width, chunk;
  bool drops;

  Layout(const RnnStack& stack, const RnnStackInputs& in, int64_t steps_of_chunk)
      : dtype(in.x.dtype),
        steps(in.x.size(0)),
        batch(in.x.size(1)),
        hidden(in.cells[0].w_hh.size(1)),
        layers(stack.layers),
        width(RnnLayer{stack.mode}.reserve_width() * hidden),
        chunk(steps_of_chunk),
        drops(stack.dropout > 0) {}

  int64_t chunks() const { return (steps + chunk - 1) / chunk; }
  std::pair<int64_t, int64_t> steps_of(int64_t c) const {
    return {c * chunk, std::min(steps, (c + 1) * chunk)};
  }
  // Each part begins at the alignment of an allocation, which products are chosen by.
  int64_t part(int64_t columns) const {
    const int64_t unit = 512 / size_of(dtype);
    return (steps * batch * columns + unit - 1) / unit * unit;
  }
  int64_t between() const { return (layers - 1) * (drops ? 2 : 1) * part(hidden); }
  int64_t whole() const { return between() + layers * part(width); }
  size_t bytes(int64_t elements) const { return static_cast<size_t>(elements * size_of(dtype)); }

  View at(void* room, int64_t place, int64_t columns) const {
    const Shape sizes{steps, batch, columns};
    return {static_cast<char*>(room) + place * size_of(dtype), dtype, sizes, contiguous_strides(sizes)};
  }
  View y(void* room, int64_t layer) const { return at(room, layer * part(hidden), hidden); }
  View x(void* room, int64_t layer) const { return y(room, drops ? layers - 1 + layer - 1 : layer - 1); }
  View kept(void* room, int64_t layer) const { return at(room, between() + layer * part(width), width); }
  /// The key for the elements of dropout's call from step `first` on.
  PhiloxKey key(const RnnStack& stack, int64_t layer, int64_t first) const {
    PhiloxKey key = stack.keys[static_cast<size_t>(layer)];
    key.offset += static_cast<uint64_t>(first * batch * hidden / kDrawn);
    return key;
  }
};

/// The caller's stream and a second one that begins behind it; joined again by join(), or on an error by the
/// destructor.
class Streams {
 public:
  Streams(CudaBackend& backend, const Context& context, int64_t layers)
      : backend_(backend),
        contexts_{Context{backend.stream_of(context)},
                  Context{backend.second_stream(backend.stream_of(context))}} {
    for (int64_t i = 0; i < layers; ++i) events_.emplace_back(backend.new_event(false), Delete{&backend});
    order(events_.size() - 1, 0, 1);
  }
  ~Streams() {
    try {
      join();
    } catch (const Error&) {  // the first error is told
    }
  }
  Streams(const Streams&) = delete;

  /// The stream of a layer, which is the `place`-th to begin.
  Context& of(int64_t place) { return contexts_[static_cast<size_t>(place % 2)]; }
  /// Marks the end of the work that the next place waits for.
  void passed(int64_t place) { backend_.record_event(event(place), of(place).stream); }
  void await(int64_t place) { backend_.wait_event(of(place).stream, event(place - 1)); }
  void join() {
    if (joined_) return;
    joined_ = true;
    order(events_.size() - 1, 1, 0);
  }

 private:
  struct Delete {
    CudaBackend* backend;
    void operator()(void* event) const { backend->delete_event(event); }
  };
  void* event(int64_t place) const { return events_[static_cast<size_t>(place)].get(); }
  void order(size_t event, size_t first, size_t second) {
    backend_.record_event(events_[event].get(), contexts_[first].stream);
    backend_.wait_event(contexts_[second].stream, events_[event].get());
  }
  CudaBackend& backend_;
  std::array<Context, 2> contexts_;
  std::vector<std::unique_ptr<void, Delete>> events_;  // one for each border of layers, one for fork and join
  bool joined_ = false;
};

/// Calls work(place, chunk) in the order in which the host issues it: by diagonals, and on each from the last
/// place to the first. So an event is waited for before it is recorded again.
template <class F> void sweep(Streams& streams, int64_t places, int64_t chunks, const F& work) {
  for (int64_t diagonal = 0; diagonal < places + chunks - 1; ++diagonal)
    for (int64_t place = std::min(diagonal, places - 1); place >= 0 && diagonal - place < chunks; --place) {
      if (place > 0) streams.await(place);
      work(place, diagonal - place);
      if (place + 1 < places) streams.passed(place);
    }
}

/// The part of a tensor [layers, N, H] that belongs to a layer.
View of_layer(const View& all, int64_t layer) {
  if (!all.defined()) return {};
  const View one = rows_of(all, layer, layer + 1);
  return {one.data, one.dtype, {one.size(1), one.size(2)}, {one.stride(1), one.stride(2)}};
}

/// A layer's inputs, and the outputs that its forward writes and its backward reads.
RnnInputs inputs_of(const Layout& at, const RnnStackInputs& in, void* room, int64_t layer) {
  const RnnWeights& w = in.cells[static_cast<size_t>(layer)];
  return {layer == 0 ? in.x : at.x(room, layer),
          of_layer(in.h0, layer),
          of_layer(in.c0, layer),
          w.w_ih,
          w.w_hh,
          w.b_ih,
          w.b_hh};
}
RnnOutputs outputs_of(const Layout& at, const RnnStackOutputs& out, void* room, int64_t layer) {
  return {layer + 1 == at.layers ? out.y : at.y(room, layer), of_layer(out.hn, layer),
          of_layer(out.cn, layer), out.reserve.defined() ? at.kept(room, layer) : View{}};
}

}  // namespace

std::optional<RnnStackRoom> takes(const RnnStack& stack, const RnnStackInputs& in) {
  const int64_t chunks = recurrent_wavefront();
  if (chunks < 2 || use_cudnn() || stack.layers < 2 || stack.both || !is_floating(in.x.dtype))
    return std::nullopt;
  Layout at(stack, in, 1);
  if (at.steps < 2 || at.batch < 1 || at.hidden < 1) return std::nullopt;
  at.chunk = (at.steps + chunks - 1) / chunks;
  if (at.drops) {  // a chunk begins with a block of dropout's numbers
    const int64_t unit = kDrawn / std::gcd(kDrawn, at.batch * at.hidden);
    at.chunk = (at.chunk + unit - 1) / unit * unit;
  }
  if (at.chunks() < 2) return std::nullopt;
  return RnnStackRoom{.reserve = at.whole(), .chunk = at.chunk};
}

void forward(CudaBackend& backend, Context& context, const RnnStack& stack, const RnnStackInputs& in,
             const RnnStackOutputs& out) {
  const Layout at(stack, in, stack.chunk);
  const Scratch unkept(backend, context, out.reserve.defined() ? 0 : at.bytes(at.between()));
  void* const room = out.reserve.defined() ? out.reserve.data : unkept.as<void>();
  Streams streams(backend, context, at.layers);
  std::vector<std::unique_ptr<CellPass>> passes;
  for (int64_t layer = 0; layer < at.layers; ++layer)
    passes.push_back(cell_forward(backend, streams.of(layer), {stack.mode}, inputs_of(at, in, room, layer),
                                  outputs_of(at, out, room, layer), at.chunk));
  sweep(streams, at.layers, at.chunks(), [&](int64_t layer, int64_t c) {
    const auto [first, last] = at.steps_of(c);
    if (layer > 0 && at.drops)
      backend.dropout(streams.of(layer), at.key(stack, layer - 1, first), stack.dropout,
                      rows_of(at.y(room, layer - 1), first, last), rows_of(at.x(room, layer), first, last));
    passes[static_cast<size_t>(layer)]->run(first, last);
  });
  for (const auto& pass : passes) pass->finish();
  streams.join();
}

void backward(CudaBackend& backend, Context& context, const RnnStack& stack, const RnnStackInputs& in,
              const RnnStackOutputs& out, const View& dy, const View& dhn, const View& dcn,
              const RnnStackGrads& grads) {
  const Layout at(stack, in, stack.chunk);
  // Layers below all that is wanted are left out.
  const auto wants = [&](int64_t layer) {
    const RnnWeights& w = grads.cells[static_cast<size_t>(layer)];
    return w.w_ih.defined() || w.w_hh.defined() || w.b_ih.defined() || w.b_hh.defined();
  };
  int64_t lowest = 0;
  if (!grads.dx.defined() && !grads.dh0.defined() && !grads.dc0.defined())
    while (lowest + 1 < at.layers && !wants(lowest)) ++lowest;
  const int64_t places = at.layers - lowest;
  const Scratch between(backend, context, at.bytes((at.layers - 1) * at.part(at.hidden)));
  const auto dy_of = [&](int64_t layer) {
    return layer + 1 == at.layers ? dy : at.y(between.as<void>(), layer);
  };
  Streams streams(backend, context, at.layers);
  std::vector<std::unique_ptr<CellPass>> passes;
  for (int64_t place = 0; place < places; ++place) {
    const int64_t layer = at.layers - 1 - place;
    const RnnWeights& w = grads.cells[static_cast<size_t>(layer)];
    const View dx = layer == 0 ? grads.dx : layer > lowest ? dy_of(layer - 1) : View{};
    passes.push_back(cell_backward(
        backend, streams.of(place), {stack.mode}, inputs_of(at, in, out.reserve.data, layer),
        outputs_of(at, out, out.reserve.data, layer), dy_of(layer), of_layer(dhn, layer),
        of_layer(dcn, layer),
        {dx, of_layer(grads.dh0, layer), of_layer(grads.dc0, layer), w.w_ih, w.w_hh, w.b_ih, w.b_hh},
        at.chunk));
  }
  sweep(streams, places, at.chunks(), [&](int64_t place, int64_t c) {
    const auto [first, last] = at.steps_of(at.chunks() - 1 - c);
    const int64_t layer = at.layers - 1 - place;
    if (place > 0 && at.drops) {
      const View part = rows_of(dy_of(layer), first, last);
      backend.dropout(streams.of(place), at.key(stack, layer, first), stack.dropout, part, part);
    }
    passes[static_cast<size_t>(place)]->run(first, last);
  });
  for (const auto& pass : passes) pass->finish();
  streams.join();
}

}  // namespace weft::cuda::wavefront
