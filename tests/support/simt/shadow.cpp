// The cells of the shadow. A cell keeps the last write, and two marks each for reads and for atomics. Two are
// enough: a later write that races with any of them races with one of these two. An access to a whole word
// has one cell; the bytes of a word have cells of their own, for accesses to less.
#include "support/simt/shadow.h"

#include <sys/mman.h>

#include <algorithm>

#include <weft/kernels/error.h>

namespace weft::cuda::simt {

namespace {

constexpr size_t kWord = 4;

/// Whether neither of two accesses comes before the other.
bool apart(const Mark& before, const Mark& now, const Epochs& epochs) {
  if (before.epoch != now.epoch) return epochs.side_by_side(before.epoch, now.epoch);
  return before.thread() != now.thread() && (before.warp() != now.warp() || before.turn() == now.turn());
}

/// Accesses of one kind since the last barrier of the grid. Those of two blocks stand for all others, since
/// any thread is apart from one of them. If one block made all, those of two warps since its last barrier do.
/// If one warp made these, two threads of its last turn do.
struct Two {
  Mark first, second;

  const Mark* apart_from(const Mark& now, const Epochs& epochs) const {
    return apart(first, now, epochs) ? &first : apart(second, now, epochs) ? &second : nullptr;
  }
  void add(const Mark& now, const Epochs& epochs) {
    if (epochs.side_by_side(first.epoch, second.epoch)) return;
    if (epochs.side_by_side(first.epoch, now.epoch)) second = now;
    else if (first.epoch != now.epoch) *this = {now, {}};
    else if (second.epoch == now.epoch && second.warp() != first.warp()) return;
    else if (first.warp() != now.warp()) second = now;
    else if (first.turn() != now.turn()) *this = {now, {}};
    else if (first.thread() != now.thread()) second = now;
  }
};

template <class T> T* reserve(size_t count) {
  void* const p = mmap(nullptr, count * sizeof(T), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw Error("simt: no address range for the shadow of a memory");
  return static_cast<T*>(p);
}

}  // namespace

struct Shadow::Cell {
  Mark written;
  Two read, changed;  // changed: by atomics

  /// An earlier access that races with this one.
  std::optional<Race> race(size_t at, Access kind, const Mark& now, const Epochs& epochs) const {
    const auto with = [&](const Mark& mark, Access did) {
      return Race{at,  mark.thread(), now.thread(), epochs.block_of(mark.epoch), epochs.block_of(now.epoch),
                  did, kind};
    };
    if (apart(written, now, epochs)) return with(written, Access::kWrite);
    if (kind != Access::kAtomic)
      if (const Mark* const m = changed.apart_from(now, epochs)) return with(*m, Access::kAtomic);
    if (kind != Access::kRead)
      if (const Mark* const m = read.apart_from(now, epochs)) return with(*m, Access::kRead);
    return {};
  }
  void note(Access kind, const Mark& now, const Epochs& epochs) {
    switch (kind) {
      case Access::kRead: return read.add(now, epochs);
      case Access::kWrite: written = now; return;
      case Access::kAtomic: return changed.add(now, epochs);
    }
  }
};

struct Shadow::Word {
  Cell whole;
  uint32_t parts;  // the epoch of the last access to a part
};

Shadow::Shadow(size_t bytes) {
  const size_t words = (bytes + kWord - 1) / kWord;
  words_ = reserve<Word>(words), bytes_ = reserve<Cell>(words * kWord);
}

std::optional<Race> Shadow::access(size_t at, size_t bytes, Access kind, const Mark& now,
                                   const Epochs& epochs) {
  std::optional<Race> found;
  const auto compare = [&](const Cell& cell, size_t byte) {
    if (!found) found = cell.race(byte, kind, now, epochs);
  };
  for (const size_t end = at + bytes; at < end;) {
    Word& word = words_[at / kWord];
    const size_t begin = at, next = (at / kWord + 1) * kWord;
    at = std::min(next, end);
    compare(word.whole, begin);
    if (at - begin == kWord) {
      for (size_t i = begin; i < at && epochs.is_behind_fence(word.parts); ++i) compare(bytes_[i], i);
      word.whole.note(kind, now, epochs);
      continue;
    }
    word.parts = now.epoch;
    for (size_t i = begin; i < at; ++i) {
      compare(bytes_[i], i);
      bytes_[i].note(kind, now, epochs);
    }
  }
  return found;
}

}  // namespace weft::cuda::simt
