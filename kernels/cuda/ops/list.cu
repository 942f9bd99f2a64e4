// Lists of tensors in one pass: sums of powers, scaling, and clipping by the total norm. Tensors are
// contiguous, of any floating types.
//   powers     4 bytes per float. A block sums a chunk in double, and a second launch adds the chunks of each
//              tensor in order. So a tensor's result does not depend on the rest of the list.
//   scale      8 bytes per float, in place (=), one launch.
//   unscale    8 bytes per float, in place, one launch; marks the state on the device if a result is not
//              finite.
//   clip_norm  powers, norm and factor on the device, then scale: three launches. Nothing is written if the
//              factor is 1.
#include <cmath>
#include <vector>

#include <weft/kernels/cuda/blocks/rows.h>
#include <weft/kernels/cuda/host/list.h>
#include <weft/kernels/inner/loss_scale.h>
#include <weft/kernels/inner/norm.h>

namespace weft::cuda {
namespace {

constexpr int64_t kLength = 1 << 14;
constexpr double kInf = std::numeric_limits<double>::infinity();

struct Entry {
  void* data;
  int64_t numel;
  int64_t first;  // number of its first chunk among all
  DType dtype;
};
/// The list of tensors for kernels.
struct List {
  const Entry* tensors;
  const Chunk* chunks;
  int64_t count, chunk_count;
};

class ListTable {
 public:
  ListTable(CudaBackend& b, Context& c, std::span<const View> xs)
      : list_{nullptr, nullptr, static_cast<int64_t>(xs.size()), chunks_of(xs)}, table_(b, c, bytes()) {
    Entry* const tensors = reinterpret_cast<Entry*>(table_.host());
    Chunk* chunks = reinterpret_cast<Chunk*>(tensors + list_.count);
    int64_t first = 0;
    for (size_t i = 0; i < xs.size(); ++i) {
      const int64_t n = blocks_for(xs[i].numel(), kLength);
      tensors[i] = {xs[i].data, xs[i].numel(), first, xs[i].dtype};
      for (int64_t k = 0; k < n; ++k) *chunks++ = {static_cast<int32_t>(i), static_cast<int32_t>(k)};
      first += n;
    }
    table_.send();
    list_.tensors = reinterpret_cast<const Entry*>(table_.device());
    list_.chunks = reinterpret_cast<const Chunk*>(list_.tensors + list_.count);
  }
  const List& list() const { return list_; }

 private:
  static int64_t chunks_of(std::span<const View> xs) {
    int64_t n = 0;
    for (const View& x : xs) n += blocks_for(x.numel(), kLength);
    return n;
  }
  size_t bytes() const {
    return static_cast<size_t>(list_.count) * sizeof(Entry) +
           static_cast<size_t>(list_.chunk_count) * sizeof(Chunk);
  }
  List list_;
  Table table_;
};

struct Powers {
  List list;
  double p;
  double* partial;  // per chunk
  WEFT_DEVICE void operator()(Thread t) const {
    const Chunk chunk = list.chunks[t.block()];
    const Entry x = list.tensors[chunk.tensor];
    const int64_t begin = chunk.number * kLength, n = x.numel - begin < kLength ? x.numel - begin : kLength;
    double total = 0;
    if (p == kInf || p == 2 || p == 1 || p == 0) {
      with_type<double>(x.dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        const Line<const T> line{static_cast<const T*>(x.data) + begin, 1};
        stride_loop<T, 4>(
            t.id(), t.count(), packed_range(n, line), n,
            [&](int64_t k, auto many) { return fetch<many.value>(line, k); },
            [&](int64_t, auto many, const auto& loaded) {
              const auto v = numbers<double>(loaded);
              WEFT_UNROLL
              for (int i = 0; i < many.value; ++i) {
                if (p == kInf) total = larger(total, std::fabs(v.v[i]));
                else total += p == 2 ? v.v[i] * v.v[i] : p == 1 ? std::fabs(v.v[i]) : v.v[i] != 0;
              }
            });
      });
    } else {
      for (int64_t k = t.id(); k < n; k += t.count())
        total += std::pow(std::fabs(get_number<double>(x.data, x.dtype, begin + k)), p);
    }
    total = fold_block(t, total, t.shared<char>(),
                       [&](double a, double b) { return p == kInf ? larger(a, b) : a + b; });
    if (t.id() == 0) partial[t.block()] = total;
  }
  WEFT_DEVICE static double larger(double a, double b) { return a > b || a != a ? a : b; }
};

/// Adds the chunks of each tensor: of those with many, a block takes one after another, and of the others a
/// warp does. A thread reads four of them before it adds the first, so a step costs the latency of one.
struct FoldPowers {
  List list;
  double p;
  const double* partial;
  double* powers;  // per tensor
  static constexpr int64_t kMany = 256;
  WEFT_DEVICE void operator()(Thread t) const { fold(t, t.block(), t.blocks()); }
  /// Needs fold_bytes<double>() of shared memory.
  WEFT_DEVICE void fold(Thread t, int64_t block, int64_t blocks) const {
    const auto both = [&](double a, double b) { return combine(a, b); };
    const int warps = t.count() / kWarp;
    for (int64_t i = block; i < list.count; i += blocks) {
      const auto [begin, end] = chunks_of(i);
      if (end - begin < kMany) continue;
      const double total = fold_block(t, part(begin + t.id(), end, t.count()), t.shared<char>(), both);
      if (t.id() == 0) powers[i] = total;
    }
    for (int64_t i = block * warps + t.warp(); i < list.count; i += blocks * warps) {
      const auto [begin, end] = chunks_of(i);
      if (end - begin >= kMany) continue;
      const double total = fold_lanes(t, part(begin + t.lane(), end, kWarp), kWarp, both);
      if (t.lane() == 0) powers[i] = total;
    }
  }
  struct Range {
    int64_t begin, end;
  };
  WEFT_DEVICE Range chunks_of(int64_t i) const {
    return {list.tensors[i].first, i + 1 < list.count ? list.tensors[i + 1].first : list.chunk_count};
  }
  /// Every `step`-th of the chunks [first, end).
  WEFT_DEVICE double part(int64_t first, int64_t end, int64_t step) const {
    constexpr int kAhead = 4;
    double total = 0;
    for (; first < end; first += kAhead * step) {
      double some[kAhead];
      WEFT_UNROLL
      for (int a = 0; a < kAhead; ++a) some[a] = first + a * step < end ? partial[first + a * step] : 0;
      WEFT_UNROLL
      for (int a = 0; a < kAhead; ++a) total = combine(total, some[a]);
    }
    return total;
  }
  WEFT_DEVICE double combine(double a, double b) const { return p == kInf ? Powers::larger(a, b) : a + b; }
};

/// The total norm, from the powers added in order, and the clip factor. One block.
struct ClipFactor {
  FoldPowers of;
  double max_norm;
  double* norm;
  double* factor;
  WEFT_DEVICE void operator()(Thread t) const {
    double* const some = t.shared<double>();
    of.fold(t, 0, 1);
    NormSum sum(of.p);
    for (int64_t first = 0; first < of.list.count; first += t.count()) {
      t.sync();
      const int64_t n = of.list.count - first < t.count() ? of.list.count - first : t.count();
      if (t.id() < n) some[t.id()] = of.powers[first + t.id()];
      t.sync();
      for (int64_t i = 0; t.id() == 0 && i < n; ++i) sum.add(some[i]);
    }
    if (t.id() != 0) return;
    *norm = sum.norm();
    *factor = clip_factor(sum.norm(), max_norm);
  }
};

struct Scaled {
  List list;
  double value;
  const double* factor;  // from an earlier kernel; null: `value`
  static constexpr bool kIndependent = true;
  WEFT_DEVICE void operator()(Thread t) const {
    const double by = factor ? *factor : value;
    if (factor && by == 1) return;
    const Chunk chunk = list.chunks[t.block()];
    const Entry x = list.tensors[chunk.tensor];
    const int64_t begin = chunk.number * kLength, n = x.numel - begin < kLength ? x.numel - begin : kLength;
    with_type<double>(x.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      using C = Compute<T>;
      const C f = static_cast<C>(by);
      const Line<T> line{static_cast<T*>(x.data) + begin, 1};
      stride_loop<T, kTogether<T>>(
          t.id(), t.count(), packed_range(n, line), n,
          [&](int64_t k, auto many) { return fetch<many.value>(line, k); },
          [&](int64_t k, auto many, const auto& loaded) {
            auto v = numbers<C>(loaded);
            WEFT_UNROLL
            for (int i = 0; i < many.value; ++i) v.v[i] *= f;
            write(line, k, v);
          });
    });
  }
};

struct Unscale {
  List list;
  LossScale* state;
  static constexpr bool kIndependent = true;
  WEFT_DEVICE void operator()(Thread t) const {
    const Chunk chunk = list.chunks[t.block()];
    const Entry x = list.tensors[chunk.tensor];
    const int64_t begin = chunk.number * kLength, n = x.numel - begin < kLength ? x.numel - begin : kLength;
    bool nonfinite = false;
    with_type<double>(x.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      using C = Compute<T>;
      const C f = static_cast<C>(state->inverse);
      const Line<T> line{static_cast<T*>(x.data) + begin, 1};
      stride_loop<T, 4>(
          t.id(), t.count(), packed_range(n, line), n,
          [&](int64_t k, auto many) { return fetch<many.value>(line, k); },
          [&](int64_t k, auto many, const auto& loaded) {
            auto v = numbers<C>(loaded);
            WEFT_UNROLL
            for (int i = 0; i < many.value; ++i) {
              v.v[i] *= f;
              nonfinite =
                  nonfinite || !(std::fabs(convert<C>(convert<T>(v.v[i]))) <= std::numeric_limits<C>::max());
            }
            write(line, k, v);
          });
    });
    // several threads may write, all of them the same value
    if (nonfinite) *const_cast<volatile double*>(&state->nonfinite) = 1;
  }
};

struct UpdateScale {
  LossScale* state;
  double growth, backoff;
  int64_t interval;
  static constexpr bool kIndependent = true;
  WEFT_DEVICE void operator()(Thread t) const {
    if (t.id() == 0) state->update(growth, backoff, interval);
  }
};

void launch_powers(void* stream, const List& list, double p, double* partial) {
  launch(stream, "powers", {.blocks = list.chunk_count, .threads = 256, .shared = fold_bytes<double>()},
         Powers{list, p, partial});
}

}  // namespace

void CudaBackend::powers(Context& c, double p, std::span<const View> xs, double* out) {
  enter();
  if (xs.empty()) return;
  const ListTable table(*this, c, xs);
  const List& list = table.list();
  const Scratch room(*this, c, static_cast<size_t>(list.chunk_count + list.count) * sizeof(double));
  double *const partial = room.as<double>(), *const found = partial + list.chunk_count;
  launch_powers(stream_of(c), list, p, partial);
  launch(stream_of(c), "fold_powers",
         {.blocks =
              blocks_at_once<FoldPowers>("fold_powers", blocks_for(list.count, 8), 256, fold_bytes<double>()),
          .shared = fold_bytes<double>()},
         FoldPowers{list, p, partial, found});
  copy_to_host(c, found, out, xs.size() * sizeof(double));
}

void CudaBackend::scale(Context& c, double factor, std::span<const View> xs) {
  enter();
  if (xs.empty()) return;
  const ListTable table(*this, c, xs);
  launch(stream_of(c), "scale", {.blocks = table.list().chunk_count}, Scaled{table.list(), factor, nullptr});
}

void CudaBackend::clip_norm(Context& c, double max_norm, double p, std::span<const View> xs, View norm,
                            View given) {
  enter();
  const ListTable table(*this, c, xs);
  const List& list = table.list();
  const Scratch room(*this, c, static_cast<size_t>(list.chunk_count + list.count + 1) * sizeof(double));
  double *const partial = room.as<double>(), *const found = partial + list.chunk_count,
                *const factor = given.defined() ? given.as<double>() : found + list.count;
  launch_powers(stream_of(c), list, p, partial);
  launch(stream_of(c), "clip_factor", {.threads = 256, .shared = 256 * sizeof(double)},
         ClipFactor{{list, p, partial, found}, max_norm, norm.as<double>(), factor});
  if (given.defined()) return;
  launch(stream_of(c), "clip", {.blocks = list.chunk_count}, Scaled{list, 1, factor});
}

void CudaBackend::unscale(Context& c, std::span<const View> xs, View state) {
  enter();
  if (xs.empty()) return;
  const ListTable table(*this, c, xs);
  launch(stream_of(c), "unscale", {.blocks = table.list().chunk_count},
         Unscale{table.list(), state.as<LossScale>()});
}

void CudaBackend::update_scale(Context& c, double growth, double backoff, int64_t interval, View state) {
  enter();
  launch(stream_of(c), "update_scale", {.threads = kWarp},
         UpdateScale{state.as<LossScale>(), growth, backoff, interval});
}

}  // namespace weft::cuda
