// Generators: forks, the scopes that record and repeat draws, and the default generator. A recording scope
// inside another scope draws through it, so a repeat of the outer scope covers the inner scope. Source of the
// seed mixing: the finaliser of SplitMix64 (Steele, Lea, Flood 2014).
#include <weft/tensor/generator.h>

#include <atomic>
#include <mutex>

#include <weft/tensor/inner/tracer.h>

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

namespace {
uint64_t unused_epoch() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}
}  // namespace

uint64_t Generator::next_epoch() {
  detail::refuse_trace("makes or seeds a generator");
  return unused_epoch();
}

std::weak_ptr<const void> Generator::life() {
  static std::mutex making;
  const std::lock_guard lock(making);
  if (!life_) life_ = std::make_shared<const char>();
  return life_;
}

DrawScope*& draw_scope() {
  static constinit thread_local DrawScope* innermost = nullptr;
  return innermost;
}

uint64_t Generator::epoch() const {
  const DrawScope* const scope = draw_scope();
  return scope ? scope->epoch_ : epoch_.load(std::memory_order_relaxed);
}

PhiloxKey Generator::take(int64_t count) {
  DrawScope* const scope = draw_scope();
  return scope ? scope->draw(*this, count) : next(count);
}

DrawScope::DrawScope(Draws& draws, Mode mode, std::vector<DrawSource>* sources)
    : draws_(draws), sources_(sources), mode_(mode), epoch_(unused_epoch()), outer_(draw_scope()) {
  draw_scope() = this;
}

PhiloxKey DrawScope::draw(Generator& from, int64_t count) {
  if (mode_ == Mode::kRepeat) {
    const size_t at = used_++;
    return at < draws_.size() ? draws_[at] : from.next(count);
  }
  draws_.push_back(outer_ ? outer_->draw(from, count) : from.next(count));
  if (sources_) sources_->push_back({&from, count, from.life()});
  return draws_.back();
}

Generator& default_generator() {
  static Generator generator(0);
  return generator;
}

void manual_seed(uint64_t seed) { default_generator().manual_seed(seed); }

}  // namespace weft
