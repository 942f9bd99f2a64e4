// Radix sort of (key, position) pairs (blocks/radix.h). For up to kFew keys, one warp per key counts the
// smaller keys, in one launch. More keys are sorted by digits of 8 bits from the low end. Each pass has three
// launches over tiles of 2048 pairs:
//   1. Count the digits of every tile: reads n keys.
//   2. Compute cumulative sums of each digit's counts over the tiles of a row: 256 numbers per tile.
//   3. Order a tile in shared memory by ranks within its warps, and write it in runs of equal digits. So most
//      writes of a warp are adjacent; it reads and writes n pairs.
// Counts are integers and ranks follow positions, so the order is stable and the same in every run.
#include <bit>

#include <weft/kernels/cuda/blocks/radix.h>
#include <weft/kernels/cuda/blocks/scan.h>

namespace weft::cuda {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp, kDigits = 256;
constexpr int kPerThread = 8, kTile = kThreads * kPerThread;
constexpr int64_t kFew = 4096;
static_assert(kDigits == kThreads, "a thread looks after one digit");

template <class K> WEFT_DEVICE uint32_t digit_of(K key, int shift) {
  return static_cast<uint32_t>(key >> shift) & (kDigits - 1);
}

/// to[number of keys before this one] = key, for one row. One warp per key.
template <class K> struct RankKeys {
  Pairs<K> from, to;
  int64_t n;

  WEFT_DEVICE void operator()(Thread t) const {
    const int64_t warps = t.globals() / kWarp;
    for (int64_t i = t.global() / kWarp; i < n; i += warps) {
      const K key = from.keys[i];
      uint32_t before = 0;
      for (int64_t j = t.lane(); j < n; j += kWarp) {
        const K other = from.keys[j];
        before += other < key || (other == key && j < i) ? 1 : 0;
      }
      for (int mask = kWarp / 2; mask > 0; mask /= 2) before += t.shuffle_xor(before, mask);
      if (t.lane() == 0) to.keys[before] = key, to.at[before] = static_cast<int32_t>(i);
    }
  }
};

/// One digit of rows of n keys in `tiles` tiles each. counts: [rows, kDigits, tiles].
struct Digit {
  int64_t rows, n, tiles;
  int shift;
  uint32_t* counts;
  uint32_t* totals;  ///< [rows, kDigits]
};

template <class K> struct CountDigits {
  const K* keys;
  Digit d;

  WEFT_DEVICE void operator()(Thread t) const {
    uint32_t* const count = t.shared<uint32_t>();
    for (int64_t work = t.block(); work < d.rows * d.tiles; work += t.blocks()) {
      const int64_t row = work / d.tiles, tile = work - row * d.tiles;
      count[t.id()] = 0;
      K key[kPerThread] = {};
      for (int k = 0; k < kPerThread; ++k)
        if (const int64_t i = tile * kTile + k * kThreads + t.id(); i < d.n) key[k] = keys[row * d.n + i];
      t.sync();
      for (int k = 0; k < kPerThread; ++k) {
        const bool valid = tile * kTile + k * kThreads + t.id() < d.n;
        const uint32_t digit = digit_of(key[k], d.shift), peers = peers_of(t, valid, digit);
        if (valid && (peers & lanes_before(t)) == 0)
          t.atomic_add(&count[digit], static_cast<uint32_t>(std::popcount(peers)));
      }
      t.sync();
      // the digit's thread resets the count to 0 in the next turn
      d.counts[(row * kDigits + t.id()) * d.tiles + tile] = count[t.id()];
    }
  }
};

/// Cumulative sums of each digit's counts over the tiles of a row, and their totals. One warp per digit.
struct ScanDigits {
  Digit d;

  WEFT_DEVICE void operator()(Thread t) const {
    constexpr int kEach = 4;
    const int64_t warps = t.globals() / kWarp;
    for (int64_t line = t.global() / kWarp; line < d.rows * kDigits; line += warps) {
      uint32_t* const count = d.counts + line * d.tiles;
      uint32_t carry = 0;
      for (int64_t start = 0; start < d.tiles; start += kEach * kWarp) {
        const int64_t first = start + t.lane() * kEach;
        uint32_t v[kEach], sum = 0;
        for (int k = 0; k < kEach; ++k) {
          v[k] = first + k < d.tiles ? count[first + k] : 0;
          sum += v[k];
        }
        const uint32_t up_to = warp_scan(t, sum, Plus());
        uint32_t before = carry + up_to - sum;
        for (int k = 0; k < kEach; ++k) {
          if (first + k < d.tiles) count[first + k] = before;
          before += v[k];
        }
        carry += t.shuffle(up_to, kWarp - 1);
      }
      if (t.lane() == 0) d.totals[line] = carry;
    }
  }
};

template <class K> struct PlaceDigits {
  Pairs<K> from, to;
  Digit d;
  bool first;  ///< the first pass, before positions are stored
  static constexpr int kThreads = 256, kBlocks = sizeof(K) == 4 ? 4 : 3;

  struct Shared {
    K keys[kTile];
    int32_t at[kTile];
    uint32_t place[kWarps][kDigits];  ///< of the next pair of a warp with this digit, within the tile
    uint32_t base[kDigits];           ///< place in the row less place in the tile
    uint32_t room[kScanRoom];
  };

  WEFT_DEVICE void operator()(Thread t) const {
    Shared& s = *t.shared<Shared>();
    for (int64_t work = t.block(); work < d.rows * d.tiles; work += t.blocks()) {
      const int64_t row = work / d.tiles, tile = work - row * d.tiles, start = row * d.n + tile * kTile;
      const int count = static_cast<int>(d.n - tile * kTile < kTile ? d.n - tile * kTile : kTile);
      // pair k of this thread is number mine + k * kWarp of the tile
      const int mine = t.warp() * (kWarp * kPerThread) + t.lane();
      for (int w = 0; w < kWarps; ++w) s.place[w][t.id()] = 0;
      K key[kPerThread] = {};
      int32_t at[kPerThread] = {};
      for (int k = 0; k < kPerThread; ++k) {
        const int i = mine + k * kWarp;
        if (i >= count) continue;
        key[k] = from.keys[start + i];
        at[k] = first ? static_cast<int32_t>(tile * kTile + i) : from.at[start + i];
      }
      t.sync();
      uint32_t rank[kPerThread];  // among the pairs of the warp with this digit
      for (int k = 0; k < kPerThread; ++k) {
        const bool valid = mine + k * kWarp < count;
        const uint32_t digit = digit_of(key[k], d.shift), peers = peers_of(t, valid, digit);
        const int leader = valid ? first_lane(peers) : 0;
        uint32_t before = 0;
        if (valid && leader == t.lane())
          before = t.atomic_add(&s.place[t.warp()][digit], static_cast<uint32_t>(std::popcount(peers)));
        rank[k] = t.shuffle(before, leader) + static_cast<uint32_t>(std::popcount(peers & lanes_before(t)));
      }
      t.sync();
      // For this thread's digit: the start of each warp's pairs in the tile, and of the tile's pairs in the
      // row.
      uint32_t in_tile = 0;
      for (int w = 0; w < kWarps; ++w) {
        const uint32_t of_warp = s.place[w][t.id()];
        s.place[w][t.id()] = in_tile;
        in_tile += of_warp;
      }
      const uint32_t tile_start = block_scan(t, in_tile, uint32_t{0}, Plus(), s.room).before;
      const uint32_t row_start =
          block_scan(t, d.totals[row * kDigits + t.id()], uint32_t{0}, Plus(), s.room).before;
      for (int w = 0; w < kWarps; ++w) s.place[w][t.id()] += tile_start;
      s.base[t.id()] = row_start + d.counts[(row * kDigits + t.id()) * d.tiles + tile] - tile_start;
      t.sync();
      for (int k = 0; k < kPerThread; ++k) {
        if (mine + k * kWarp >= count) continue;
        const uint32_t place = s.place[t.warp()][digit_of(key[k], d.shift)] + rank[k];
        s.keys[place] = key[k], s.at[place] = at[k];
      }
      t.sync();
      for (int turn = 0; turn < kPerThread; ++turn) {
        const int i = turn * kThreads + t.id();
        if (i >= count) continue;
        const K k = s.keys[i];
        const int64_t place = row * d.n + (s.base[digit_of(k, d.shift)] + static_cast<uint32_t>(i));
        to.keys[place] = k, to.at[place] = s.at[i];
      }
      t.sync();
    }
  }
};

template <class K>
Pairs<K> sorted(CudaBackend& backend, Context& c, Pairs<K> from, Pairs<K> spare, int64_t rows, int64_t n,
                int bits) {
  void* const stream = backend.stream_of(c);
  if (rows == 1 && n <= kFew) {
    launch(stream, "rank_keys", backend.grid_for(n * kWarp), RankKeys<K>{from, spare, n});
    return spare;
  }
  Digit d{rows, n, blocks_for(n, kTile), 0, nullptr, nullptr};
  const auto lines = static_cast<size_t>(rows * kDigits);
  const Scratch counts(backend, c, lines * static_cast<size_t>(d.tiles) * sizeof(uint32_t)),
      totals(backend, c, lines * sizeof(uint32_t));
  d.counts = counts.as<uint32_t>(), d.totals = totals.as<uint32_t>();
  const auto start = [&]<class Body>(const char* name, size_t shared, const Body& body) {
    launch(stream, name,
           {.blocks = backend.blocks_at_once<Body>(name, rows * d.tiles, 256, shared), .shared = shared},
           body);
  };
  for (bool first = true; first || d.shift < bits; first = false, d.shift += 8) {
    start("count_digits", kDigits * sizeof(uint32_t), CountDigits<K>{from.keys, d});
    launch(stream, "scan_digits", backend.grid_for(rows * kDigits * kWarp), ScanDigits{d});
    start("place_digits", sizeof(typename PlaceDigits<K>::Shared), PlaceDigits<K>{from, spare, d, first});
    const Pairs<K> swap = from;
    from = spare, spare = swap;
  }
  return from;
}

}  // namespace

Pairs<uint32_t> sort_pairs(CudaBackend& backend, Context& c, Pairs<uint32_t> from, Pairs<uint32_t> spare,
                           int64_t rows, int64_t n, int bits) {
  return sorted(backend, c, from, spare, rows, n, bits);
}
Pairs<uint64_t> sort_pairs(CudaBackend& backend, Context& c, Pairs<uint64_t> from, Pairs<uint64_t> spare,
                           int64_t rows, int64_t n, int bits) {
  return sorted(backend, c, from, spare, rows, n, bits);
}

}  // namespace weft::cuda
