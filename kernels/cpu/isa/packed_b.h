// The right operand of a product as a pack: in memory of the product, or kept for later ones (cpu/packs.h).
// The pack has the same numbers either way.
#pragma once

#include <weft/kernels/cpu/isa/gemm.h>
#include <weft/kernels/cpu/isa/tasks.h>
#include <weft/kernels/cpu/packs.h>
#include <weft/kernels/error.h>

namespace weft::kernels::WEFT_ISA_NS {

/// The kept pack of b [k, n], whose columns are `parts` equal parts, each packed by pack_b one after the
/// other.
template <class T> class KeptB {
 public:
  KeptB() = default;
  KeptB(Operand<T> b, int64_t k, int64_t n) { open(b, k, n, 1); }
  void open(Operand<T> b, int64_t k, int64_t n, int parts) {
    const int64_t bytes = size(k, n, parts) * int64_t{sizeof(T)};
    if (bytes < packs::kLeastBytes || !packs::may_be_watched(b.data)) return;
    try {
      lease_ = packs::Lease({b.data, k, n, b.row, b.col, parts, int{sizeof(T)}, kLanes<T>},
                            static_cast<size_t>(bytes));
    } catch (const OutOfMemoryError&) {  // the product needs less without it
    }
  }
  /// Numbers of the pack.
  static int64_t size(int64_t k, int64_t n, int parts) { return packed_columns<T>(n / parts) * parts * k; }
  /// Null where nothing is kept.
  T* get() const { return static_cast<T*>(lease_.data()); }
  /// Whether the pack is there already.
  bool is_filled() const { return lease_.is_filled(); }
  /// After it has been filled.
  void keep() { lease_.keep(); }

 private:
  packs::Lease lease_;
};

/// The same in memory of its own where no pack is kept.
template <class T> class PackedB {
 public:
  PackedB() = default;
  PackedB(Operand<T> b, int64_t k, int64_t n) { open(b, k, n, 1); }
  void open(Operand<T> b, int64_t k, int64_t n, int parts) {
    kept_.open(b, k, n, parts);
    if (!kept_.get()) own_.resize(KeptB<T>::size(k, n, parts));
  }
  /// Null before open().
  T* get() const { return kept_.get() ? kept_.get() : own_.get(); }
  bool is_filled() const { return kept_.is_filled(); }
  void keep() { kept_.keep(); }

 private:
  KeptB<T> kept_;
  Scratch<T> own_;
};

}  // namespace weft::kernels::WEFT_ISA_NS
