// Draws from rows of weights: p [R, K] (any scale, floating) -> indices int64 [R, n] (=). A block per row
// stores the cumulative sums of its weights in double. A draw is the first class whose sum exceeds u times
// the total, with u from the same Philox numbers as on the CPU. The sums are added in a fixed order that
// differs from the CPU's. So choices agree unless u is within the rounding of double (about 1e-16 of the
// total) of a border between classes. Without replacement the drawn class loses its weight, and the sums
// after it are computed again. A row with a negative or non-finite weight, or with too few positive ones, is
// reported and not written.
#include <weft/kernels/cuda/blocks/number.h>
#include <weft/kernels/cuda/blocks/scan.h>
#include <weft/kernels/cuda/host/cuda_backend.h>
#include <weft/kernels/cuda/host/device_key.h>

namespace weft::cuda {

namespace {

constexpr int kThreads = 256, kEach = 4, kTile = kThreads * kEach;
constexpr int64_t kRoom = int64_t{1} << 24;  // cumulative sums and weights kept at a time

struct Multinomial {
  const void* p;
  DType dtype;
  int64_t p_row, p_step;
  int64_t first, rows, k, n;  ///< rows [first, first + rows)
  bool replacement;
  DeviceKey key;
  double* running;  ///< [rows, k]
  double* left;     ///< [rows, k]; without replacement
  int64_t* out;
  int64_t out_row, out_step;
  Fault* fault;
  static constexpr int kThreads = 256;

  struct Shared {
    double room[kScanRoom];
    uint64_t counts[kScanRoom];
    int64_t drawn;
  };

  WEFT_DEVICE double weight(int64_t row, int64_t j) const {
    return get_number<double>(p, dtype, row * p_row + j * p_step);
  }

  /// Cumulative sums from the tile of class `from` on; value(j) is a weight.
  template <class F>
  WEFT_DEVICE void add_up(Thread t, Shared& s, double* sums, int64_t from, const F& value) const {
    int64_t tile = from / kTile * kTile;
    double carry = tile > 0 ? sums[tile - 1] : 0;
    for (; tile < k; tile += kTile) {
      const int64_t at = tile + t.id() * kEach;
      double v[kEach];
      for (int i = 0; i < kEach; ++i) v[i] = (i > 0 ? v[i - 1] : 0) + (at + i < k ? value(at + i) : 0);
      const auto scanned = block_scan(t, v[kEach - 1], 0.0, Plus(), s.room);
      for (int i = 0; i < kEach && at + i < k; ++i) sums[at + i] = carry + scanned.before + v[i];
      carry += scanned.total;
    }
    t.sync();
  }

  WEFT_DEVICE int64_t draw(int64_t row, int64_t number, const double* sums, const double* weights) const {
    const auto element = static_cast<uint64_t>(row * n + number);
    const PhiloxBlock b = key.block(element / 2);
    const double u =
        (element % 2 != 0 ? unit_double(b.v[2], b.v[3]) : unit_double(b.v[0], b.v[1])) * sums[k - 1];
    int64_t low = 0, high = k - 1;  // the first class whose cumulative sum is above u
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (sums[middle] > u) high = middle;
      else low = middle + 1;
    }
    // u at the end of the range
    while (low > 0 && (weights ? weights[low] : weight(row, low)) == 0) --low;
    out[row * out_row + number * out_step] = low;
    return low;
  }

  WEFT_DEVICE void operator()(Thread t) const {
    Shared& s = *t.shared<Shared>();
    for (int64_t r = t.block(); r < rows; r += t.blocks()) {
      const int64_t row = first + r;
      double* const sums = running + r * k;
      double* const weights = replacement ? nullptr : left + r * k;
      uint64_t counts = 0;  // positive weights, and bad ones from bit 40 on
      for (int64_t j = t.id(); j < k; j += kThreads) {
        const double w = weight(row, j);
        const bool bad = !(w >= 0) || w > 1.7e308;
        if (bad) fault->report(t, Fault::kWeight, j, k, row, w);
        counts += (bad ? uint64_t{1} << 40 : 0) + (w > 0 ? 1 : 0);
        if (weights) weights[j] = w;
      }
      const uint64_t seen = block_scan(t, counts, uint64_t{0}, Plus(), s.counts).total;
      const auto positive = static_cast<int64_t>(seen & ((uint64_t{1} << 40) - 1));
      if (seen >> 40 != 0) continue;
      if (positive == 0 || (!replacement && positive < n)) {
        if (t.id() == 0 && positive == 0) fault->report(t, Fault::kNoWeight, 0, 0, row, 0);
        else if (t.id() == 0) fault->report(t, Fault::kFewWeights, positive, n, row);
        continue;
      }
      add_up(t, s, sums, 0, [&](int64_t j) { return weight(row, j); });
      if (replacement) {
        for (int64_t i = t.id(); i < n; i += kThreads) draw(row, i, sums, nullptr);
        continue;
      }
      for (int64_t i = 0; i < n; ++i) {
        if (t.id() == 0) {
          s.drawn = draw(row, i, sums, weights);
          weights[s.drawn] = 0;
        }
        t.sync();
        const int64_t drawn = s.drawn;
        t.sync();
        if (i + 1 < n) add_up(t, s, sums, drawn, [&](int64_t j) { return weights[j]; });
      }
    }
  }
};

}  // namespace

void CudaBackend::multinomial(Context& c, PhiloxKey key, bool replacement, View p, View indices) {
  const int64_t rows = p.size(0), k = p.size(1), n = indices.size(1);
  if (!is_floating(p.dtype)) throw DTypeError(str("multinomial: takes floating weights, got ", p.dtype));
  if (rows == 0 || k == 0) return;
  enter();
  const int64_t kept = replacement ? k : 2 * k;
  int64_t at_once = kRoom / kept > 0 ? kRoom / kept : 1;
  if (at_once > rows) at_once = rows;
  const Scratch room(*this, c, static_cast<size_t>(at_once * kept) * sizeof(double));
  double* const running = room.as<double>();
  constexpr size_t shared = sizeof(Multinomial::Shared);
  for (int64_t first = 0; first < rows; first += at_once) {
    const int64_t some = rows - first < at_once ? rows - first : at_once;
    launch(stream_of(c), "multinomial",
           {.blocks = blocks_at_once<Multinomial>("multinomial", some, kThreads, shared),
            .threads = kThreads,
            .shared = shared},
           Multinomial{p.data, p.dtype, p.stride(0), p.stride(1), first, some, k, n, replacement,
                       device_key(c, key), running, replacement ? nullptr : running + at_once * k,
                       indices.as<int64_t>(), indices.stride(0), indices.stride(1), fault()});
  }
  after_launch();
}

}  // namespace weft::cuda
