// Sectors and turns of the accesses of warps. The rules for shared memory are those of devices since compute
// capability 5.0: lanes with one word share its turn, and wide accesses go in parts of 128 bytes.
#include "support/simt/traffic.h"

#include <algorithm>
#include <array>
#include <bit>

#include <weft/kernels/error.h>

namespace weft::cuda::simt {

namespace {

constexpr uint64_t kSector = 32, kBankWord = 4, kBanks = 32;

TrafficCount*& counting() {
  static TrafficCount* count = nullptr;
  return count;
}

/// The number of different units of `width` bytes that some ranges of memory touch.
class Units {
 public:
  explicit Units(uint64_t width) : width_(width) {}
  void add(uint64_t at, uint32_t bytes) {
    for (uint64_t unit = at / width_; unit <= (at + bytes - 1) / width_; ++unit) units_.push_back(unit);
  }
  const std::vector<uint64_t>& all() {
    std::sort(units_.begin(), units_.end());
    units_.erase(std::unique(units_.begin(), units_.end()), units_.end());
    return units_;
  }

 private:
  uint64_t width_;
  std::vector<uint64_t> units_;
};

/// Calls f(lane) for those of `count` lanes from `first` on that take part in an access.
template <class F> void each_lane(uint32_t lanes, int first, int count, const F& f) {
  for (int lane = first; lane < first + count; ++lane)
    if ((lanes >> lane & 1) != 0) f(lane);
}
/// The lanes whose accesses to shared memory go together.
constexpr int together(uint32_t bytes) { return bytes <= 4 ? kWarp : bytes <= 8 ? kWarp / 2 : kWarp / 4; }

}  // namespace

TrafficCount::TrafficCount() {
  if (counting()) throw Error("simt: traffic is counted already");
  counting() = this;
}
TrafficCount::~TrafficCount() { counting() = nullptr; }
TrafficCount* TrafficCount::current() { return counting(); }
KernelTraffic TrafficCount::of(const std::string& kernel) const {
  const auto found = kernels_.find(kernel);
  return found == kernels_.end() ? KernelTraffic{} : found->second;
}

void WarpTraffic::access(int lane, const LaneAccess& a) {
  const uint64_t key = reinterpret_cast<uintptr_t>(a.site) * 4 + (a.shared ? 2u : 0u) + (a.write ? 1u : 0u);
  const auto [found, is_new] = sites_.try_emplace(key);
  Site& site = found->second;
  if (is_new) site.shared = a.shared, site.write = a.write;
  const uint32_t n = site.count[lane]++;
  if (n == site.accesses.size()) site.accesses.push_back({{}, 0, 0});
  Joined& joined = site.accesses[n];
  joined.at[lane] = a.at;
  joined.lanes |= 1u << lane;
  joined.bytes = std::max(joined.bytes, a.bytes);
}

void WarpTraffic::flush(KernelTraffic& to) {
  for (auto& [key, site] : sites_) {
    for (const Joined& access : site.accesses) {
      if (site.shared) add(site.write ? to.stored : to.loaded, access);
      else add(site.write ? to.written : to.read, access);
    }
    site.accesses.clear();
    std::fill_n(site.count, kWarp, 0u);
  }
}

void WarpTraffic::add(DeviceTraffic& to, const Joined& access) {
  Units sectors(kSector);
  each_lane(access.lanes, 0, kWarp, [&](int lane) { sectors.add(access.at[lane], access.bytes); });
  ++to.accesses;
  to.bytes += std::popcount(access.lanes) * int64_t{access.bytes};
  to.sectors += static_cast<int64_t>(sectors.all().size());
}

void WarpTraffic::add(SharedTraffic& to, const Joined& access) {
  ++to.accesses;
  to.bytes += std::popcount(access.lanes) * int64_t{access.bytes};
  const int count = together(access.bytes);
  for (int first = 0; first < kWarp; first += count) {
    Units words(kBankWord);
    each_lane(access.lanes, first, count, [&](int lane) { words.add(access.at[lane], access.bytes); });
    if (words.all().empty()) continue;
    std::array<int64_t, kBanks> in_bank{};
    for (const uint64_t word : words.all()) ++in_bank[word % kBanks];
    const int64_t turns = *std::max_element(in_bank.begin(), in_bank.end());
    to.turns += turns, to.conflicts += turns - 1;
  }
}

}  // namespace weft::cuda::simt
