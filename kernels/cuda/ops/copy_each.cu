// copy(x, y) for many pairs in one launch (=), for the parts of a concatenation. Each element is read once
// and written once. A piece of the launch is a pair of one dtype whose elements form rows of runs, [rows,
// run] with any strides. Other pairs are copied one by one: different dtypes, dims that do not merge, a
// transposed operand, 2^31 elements. A block moves kUnits units of a piece; a unit is an element, or up to 16
// bytes of a run. A thread has kEach units in flight. A block finds its piece by bisection. Up to kGiven
// pieces are arguments of the launch; more are in a table in device memory.
#include <optional>
#include <vector>

#include <weft/kernels/cuda/host/list.h>
#include <weft/kernels/cuda/packs.h>

namespace weft::cuda {
namespace {

constexpr int kThreads = 256, kEach = 4;
constexpr int64_t kUnits = int64_t{kThreads} * kEach;
constexpr int kFew = 16, kGiven = 144;

struct Piece {
  const char* x;
  char* y;
  int64_t x_row, y_row, x_step, y_step;  // bytes from row to row, and from unit to unit
  int64_t first;                         // number of its first block
  Divider run;                           // units of a row
  uint32_t units;
  int32_t width;  // bytes of a unit
};

template <int N> struct Given {
  int count;
  Piece at[N];
};
struct Listed {
  int count;
  const Piece* at;
};

template <class Pieces> struct CopyEach {
  static constexpr bool kIndependent = true;
  static constexpr int kThreads = cuda::kThreads;
  Pieces pieces;

  WEFT_DEVICE void operator()(Thread t) const {
    int low = 0, high = pieces.count - 1;
    while (low < high) {  // finds the last piece that begins at or before this block
      const int middle = (low + high + 1) / 2;
      if (pieces.at[middle].first <= t.block()) low = middle;
      else high = middle - 1;
    }
    const Piece piece = pieces.at[low];
    const auto from =
        static_cast<uint32_t>((t.block() - piece.first) * kUnits) + static_cast<uint32_t>(t.id());
    switch (piece.width) {
      case 1: return move<uint8_t, 1>(piece, from);
      case 2: return move<uint16_t, 1>(piece, from);
      case 4: return move<uint32_t, 1>(piece, from);
      case 8: return move<uint32_t, 2>(piece, from);
      default: return move<uint32_t, 4>(piece, from);
    }
  }
  template <class U, int E> WEFT_DEVICE static void move(const Piece& p, uint32_t from) {
    Pack<U, E> loaded[kEach] = {};
    int64_t to[kEach];
    WEFT_UNROLL
    for (int a = 0; a < kEach; ++a) {
      const uint32_t at = from + static_cast<uint32_t>(a * kThreads), row = p.run.quotient(at),
                     column = at - row * p.run.divisor;
      to[a] = row * p.y_row + column * p.y_step;
      if (at < p.units) loaded[a] = load_pack<U, E>(p.x + (row * p.x_row + column * p.x_step), 0);
    }
    WEFT_UNROLL
    for (int a = 0; a < kEach; ++a)
      if (from + static_cast<uint32_t>(a * kThreads) < p.units) store_pack(p.y + to[a], 0, loaded[a]);
  }
};

std::optional<Piece> piece_of(const View& x, const View& y) {
  if (x.dtype != y.dtype) return {};
  const View* const views[] = {&y, &x};
  const Layout<2> l = layout_of(views);
  if (l.ndim > 2 || l.numel > INT32_MAX - kUnits || reads_across(l, 1, 256)) return {};
  const int64_t width = size_of(x.dtype);
  const int last = l.ndim - 1;
  int64_t run = last < 0 ? 1 : l.size[last];
  Piece p{x.as<char>(), y.as<char>(), 0, 0, width, width, 0, {}, 0, static_cast<int32_t>(width)};
  if (last > 0) p.x_row = l.stride[1][0] * width, p.y_row = l.stride[0][0] * width;
  if (last >= 0) p.x_step = l.stride[1][last] * width, p.y_step = l.stride[0][last] * width;
  if (p.x_step == width && p.y_step == width) {
    const auto all = 16 | reinterpret_cast<uintptr_t>(p.x) | reinterpret_cast<uintptr_t>(p.y) |
                     static_cast<uintptr_t>(run * width | p.x_row | p.y_row);
    // the lowest bit: the largest common power of two
    p.x_step = p.y_step = static_cast<int64_t>(all & (~all + 1));
    p.width = static_cast<int32_t>(p.x_step);
    run = run * width / p.width;
  }
  p.run = Divider(run);
  p.units = static_cast<uint32_t>(l.numel * width / p.width);
  return p;
}

}  // namespace

void CudaBackend::copy_each(Context& c, std::span<const View> xs, std::span<const View> ys) {
  enter();
  std::vector<Piece> pieces;
  int64_t blocks = 0;
  const View *x = nullptr, *y = nullptr;
  for (size_t i = 0; i < ys.size(); ++i) {
    if (ys[i].numel() == 0) continue;
    std::optional<Piece> piece = piece_of(xs[i], ys[i]);
    if (!piece) {
      copy(c, xs[i], ys[i]);
      continue;
    }
    piece->first = blocks;
    blocks += blocks_for(piece->units, kUnits);
    pieces.push_back(*piece);
    x = &xs[i], y = &ys[i];
  }
  if (pieces.size() == 1) return copy(c, *x, *y);
  const auto issue = [&]<class Pieces>(const Pieces& some) {
    launch(stream_of(c), "copy_each", {.blocks = blocks, .threads = kThreads}, CopyEach<Pieces>{some});
  };
  const int count = static_cast<int>(pieces.size());
  const auto give = [&]<int N>(Given<N> given) {
    std::copy(pieces.begin(), pieces.end(), given.at);
    issue(given);
  };
  if (count <= kFew) return give(Given<kFew>{count, {}});
  if (count <= kGiven) return give(Given<kGiven>{count, {}});
  Table table(*this, c, pieces.size() * sizeof(Piece));
  std::memcpy(table.host(), pieces.data(), pieces.size() * sizeof(Piece));
  table.send();
  issue(Listed{count, reinterpret_cast<const Piece*>(table.device())});
}

}  // namespace weft::cuda
