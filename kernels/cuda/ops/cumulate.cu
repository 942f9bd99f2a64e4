// Cumulative sums and products along a dim: y (=), of x's sizes. Floating numbers accumulate in double as on
// the CPU, integers wrap around in 64 bits. If there are too few lines to fill the device, lines are cut into
// chunks. The totals of the chunks are combined first, and each chunk starts with the total before it. The
// partition depends on sizes only, so results are the same in every run and on every device. There are two
// forms:
//   lines by blocks   for a contiguous dim, or few lines: one tile of a line at a time, four neighbours per
//                     thread, and one scan over the block per tile
//   lines by threads  for lines that are neighbours in memory: each thread iterates along its line
// Reads x.numel elements (twice with chunks) and writes y.numel, with one or two operations each.
#include <type_traits>

#include <weft/kernels/cuda/blocks/scan.h>
#include <weft/kernels/cuda/host/cuda_backend.h>
#include <weft/kernels/cuda/layout.h>
#include <weft/kernels/inner/convert.h>

namespace weft::cuda {

namespace {

constexpr int kEach = 4;
constexpr int64_t kEnough = 1024;  // blocks that keep every device busy

struct Combine {
  bool product;
  template <class A> WEFT_DEVICE A operator()(A a, A b) const { return product ? a * b : a + b; }
  template <class A> WEFT_DEVICE A identity() const { return product ? A(1) : A(0); }
};

/// Elements of one type, four at a time if they are adjacent.
template <class T> struct Typed {
  using Total = std::conditional_t<std::is_same_v<T, int64_t>, uint64_t, double>;
  static constexpr size_t kAlign = sizeof(T) * kEach < 16 ? sizeof(T) * kEach : 16;
  struct alignas(kAlign) Four {
    T v[kEach];
  };
  T* p;

  explicit Typed(const View& v) : p(v.as<T>()) {}
  bool aligned() const { return reinterpret_cast<uintptr_t>(p) % kAlign == 0; }
  WEFT_DEVICE Total load(int64_t i) const { return static_cast<Total>(p[i]); }
  WEFT_DEVICE void store(int64_t i, Total v) const { p[i] = narrow(v); }
  WEFT_DEVICE void load(int64_t i, Total (&v)[kEach]) const {
    const Four four = *reinterpret_cast<const Four*>(p + i);
    for (int k = 0; k < kEach; ++k) v[k] = static_cast<Total>(four.v[k]);
  }
  WEFT_DEVICE void store(int64_t i, const Total (&v)[kEach]) const {
    Four four;
    for (int k = 0; k < kEach; ++k) four.v[k] = narrow(v[k]);
    *reinterpret_cast<Four*>(p + i) = four;
  }
  static WEFT_DEVICE T narrow(Total v) {
    if constexpr (std::is_same_v<T, int64_t>) return static_cast<T>(v);
    else return kernels::convert<T>(v);
  }
};

/// The lines of a call and their partition. Operands of the layout: y, x.
struct ScanPlan {
  Layout<2> lines;
  int64_t n, x_step, y_step;
  int64_t chunk, chunks;  ///< elements of a chunk, chunks of a line
  bool packed;            ///< four elements at a time

  WEFT_DEVICE int64_t end_of(int64_t begin) const { return begin + chunk < n ? begin + chunk : n; }
};

/// totals[chunk, line] of whole chunks, a block per chunk (by_block) or a thread.
template <class X, bool by_block> struct ChunkTotals {
  using Total = typename X::Total;
  ScanPlan plan;
  Combine op;
  X x;
  Total* totals;
  static constexpr bool kIndependent = !by_block;

  WEFT_DEVICE void operator()(Thread t) const {
    const int64_t work = plan.lines.numel * plan.chunks;
    for (int64_t w = by_block ? t.block() : t.global(); w < work; w += by_block ? t.blocks() : t.globals()) {
      const int64_t c = w / plan.lines.numel, line = w - c * plan.lines.numel, begin = c * plan.chunk,
                    end = plan.end_of(begin);
      int64_t offset[2];
      plan.lines.locate(line, offset);
      Total total = op.template identity<Total>();
      if constexpr (by_block) {
        for (int64_t i = begin + t.id(); i < end; i += t.count())
          total = op(total, x.load(offset[1] + i * plan.x_step));
        total = block_scan(t, total, op.template identity<Total>(), op, t.shared<Total>()).total;
        if (t.id() == 0) totals[w] = total;
      } else {
        for (int64_t i = begin; i < end; ++i) total = op(total, x.load(offset[1] + i * plan.x_step));
        totals[w] = total;
      }
    }
  }
};

/// totals[chunk, line] = the total before the chunk. A block per line.
template <class Total> struct ChunkStarts {
  int64_t lines, chunks;
  Combine op;
  Total* totals;

  WEFT_DEVICE void operator()(Thread t) const {
    const Total identity = op.template identity<Total>();
    for (int64_t line = t.block(); line < lines; line += t.blocks()) {
      Total carry = identity;
      for (int64_t start = 0; start < chunks; start += t.count()) {
        const int64_t c = start + t.id();
        const auto scanned =
            block_scan(t, c < chunks ? totals[c * lines + line] : identity, identity, op, t.shared<Total>());
        if (c < chunks) totals[c * lines + line] = op(carry, scanned.before);
        carry = op(carry, scanned.total);
      }
    }
  }
};

/// y from x and the total before each chunk; `starts` may be null.
template <class X, bool by_block> struct Cumulate {
  using Total = typename X::Total;
  ScanPlan plan;
  Combine op;
  X x, y;
  const Total* starts;
  static constexpr bool kIndependent = !by_block;

  WEFT_DEVICE void operator()(Thread t) const {
    const Total identity = op.template identity<Total>();
    const int64_t work = plan.lines.numel * plan.chunks;
    for (int64_t w = by_block ? t.block() : t.global(); w < work; w += by_block ? t.blocks() : t.globals()) {
      const int64_t c = w / plan.lines.numel, line = w - c * plan.lines.numel, begin = c * plan.chunk,
                    end = plan.end_of(begin);
      int64_t offset[2];
      plan.lines.locate(line, offset);
      Total carry = starts ? starts[w] : identity;
      if constexpr (by_block) {
        for (int64_t tile = begin; tile < end; tile += int64_t{kEach} * t.count())
          carry = scan_tile(t, tile + kEach * t.id(), end, offset, carry);
      } else {
        for (int64_t i = begin; i < end; ++i) {
          carry = op(carry, x.load(offset[1] + i * plan.x_step));
          y.store(offset[0] + i * plan.y_step, carry);
        }
      }
    }
  }

  /// Scans a tile of a line: this thread has elements [first, first + kEach) below `end`, the block the rest.
  /// Returns the total so far.
  WEFT_DEVICE Total scan_tile(Thread t, int64_t first, int64_t end, const int64_t (&offset)[2],
                              Total carry) const {
    const Total identity = op.template identity<Total>();
    Total v[kEach];
    const bool whole = plan.packed && first + kEach <= end;
    if (whole) x.load(offset[1] + first, v);
    else
      for (int k = 0; k < kEach; ++k)
        v[k] = first + k < end ? x.load(offset[1] + (first + k) * plan.x_step) : identity;
    for (int k = 1; k < kEach; ++k) v[k] = op(v[k - 1], v[k]);
    const auto scanned = block_scan(t, v[kEach - 1], identity, op, t.shared<Total>());
    const Total before = op(carry, scanned.before);
    for (int k = 0; k < kEach; ++k) v[k] = op(before, v[k]);
    if (whole) y.store(offset[0] + first, v);
    else
      for (int k = 0; k < kEach; ++k)
        if (first + k < end) y.store(offset[0] + (first + k) * plan.y_step, v[k]);
    return op(carry, scanned.total);
  }
};

template <class X, bool by_block>
void run(CudaBackend& backend, Context& c, Combine op, ScanPlan plan, int threads, const View& in,
         const View& out) {
  using Total = typename X::Total;
  void* const stream = backend.stream_of(c);
  const X x(in), y(out);
  plan.packed = plan.packed && x.aligned() && y.aligned();
  const int64_t work = plan.lines.numel * plan.chunks;
  const int64_t needed = by_block ? work : blocks_for(work, threads);
  const auto start = [&]<class Body>(const char* name, const Body& body) {
    const size_t shared = by_block ? kScanRoom * sizeof(Total) : 0;
    launch(stream, name,
           {.blocks = backend.blocks_at_once<Body>(name, needed, threads, shared),
            .threads = threads,
            .shared = shared},
           body);
  };
  const Scratch totals(backend, c, plan.chunks > 1 ? static_cast<size_t>(work) * sizeof(Total) : 0);
  if (plan.chunks > 1) {
    start("chunk_totals", ChunkTotals<X, by_block>{plan, op, x, totals.as<Total>()});
    const char* const name = "chunk_starts";
    const size_t shared = kScanRoom * sizeof(Total);
    launch(stream, name,
           {.blocks = backend.blocks_at_once<ChunkStarts<Total>>(name, plan.lines.numel, 256, shared),
            .shared = shared},
           ChunkStarts<Total>{plan.lines.numel, plan.chunks, op, totals.as<Total>()});
  }
  start("cumulate", Cumulate<X, by_block>{plan, op, x, y, totals.as<Total>()});
}

}  // namespace

void CudaBackend::cumulate(Context& c, Reduce reduction, int dim, View x, View y) {
  if (x.numel() == 0) return;
  enter();
  const Combine op{reduction == Reduce::kProd};
  View xs = x, ys = y;
  for (View* v : {&xs, &ys}) v->sizes[dim] = 1;
  const View* const views[] = {&ys, &xs};
  ScanPlan plan{layout_of(views, false), x.size(dim), x.stride(dim), y.stride(dim), x.size(dim), 1, false};
  const int64_t lines = plan.lines.numel;
  const bool by_block = plan.n >= 64 && ((plan.x_step == 1 && plan.y_step == 1) || lines < kWarp);
  int threads = 256;
  while (by_block && threads > kWarp && kEach * threads / 2 >= plan.n) threads /= 2;
  const int64_t tile = by_block ? int64_t{kEach} * threads : 64;  // a chunk is worth a few tiles
  const int64_t wanted = by_block ? kEnough : 256 * kEnough;
  if (const int64_t most = blocks_for(plan.n, 4 * tile); lines < wanted / 4 && most > 1) {
    const int64_t chunks = wanted / lines < most ? wanted / lines : most;
    plan.chunk = blocks_for(blocks_for(plan.n, chunks), tile) * tile;
    plan.chunks = blocks_for(plan.n, plan.chunk);
  }
  plan.packed = by_block && plan.x_step == 1 && plan.y_step == 1;
  for (int d = 0; d < plan.lines.ndim; ++d)
    plan.packed = plan.packed && plan.lines.stride[0][d] % kEach == 0 && plan.lines.stride[1][d] % kEach == 0;
  const auto go = [&]<class X>(TypeTag<X>) {
    if (by_block) run<X, true>(*this, c, op, plan, threads, x, y);
    else run<X, false>(*this, c, op, plan, threads, x, y);
  };
  switch (x.dtype) {
    case kFloat16: return go(TypeTag<Typed<Half>>{});
    case kBFloat16: return go(TypeTag<Typed<BFloat16>>{});
    case kFloat32: return go(TypeTag<Typed<float>>{});
    case kFloat64: return go(TypeTag<Typed<double>>{});
    default: return go(TypeTag<Typed<int64_t>>{});
  }
}

}  // namespace weft::cuda
