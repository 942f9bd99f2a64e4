// Forking and the process-wide generator.
#include <weft/tensor/generator.h>

#include <atomic>

namespace weft {
namespace {

/// The finaliser of SplitMix64: a bijection that spreads every input bit over the word.
uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

}  // namespace

Generator Generator::fork(uint64_t key) const { return Generator(mix(seed_ ^ mix(key))); }

uint64_t Generator::next_epoch() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

Generator& default_generator() {
  static Generator generator(0);
  return generator;
}

void manual_seed(uint64_t seed) { default_generator().manual_seed(seed); }

}  // namespace weft
