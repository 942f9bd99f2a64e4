// Which blocks keep packs of operands (kernels/cpu/packs.h), and frozen ones. A pack is found by the number
// of writes to its block. So a block has packs only while each write counts: its address has not left the
// library, the memory is the allocator's own, and no step replaces it. The program's promise for a frozen
// block counts as much.
#include <weft/kernels/cpu/packs.h>

#include <weft/kernels/error.h>
#include <weft/tensor/inner/launch.h>
#include <weft/tensor/storage.h>

namespace weft {

const char* Storage::read_only_reason() const {
  return has(kFrozen)
             ? "is frozen"
             : "lies in memory that from_blob was given as const, or is the dense copy of a row-wise "
               "gradient (row_grad() has its values), or the rows of one";
}

bool Storage::may_keep_packs() const {
  return device_.is_cpu() && !lock() && !has(kMadeInTrace) && (has(kFrozen) || (!release_ && !has(kExposed)));
}

void Storage::expose_now() {
  if (has(kFrozen))
    throw ValueError(
        "raw: the tensor is frozen; const_raw() and data<const T>() read it, and clone() is a copy that "
        "takes "
        "writes");
  mark(kExposed);
  forget_packs();
}

void Storage::freeze() {
  if (lock())
    throw ValueError("freeze: the parameter is marked concurrent, and optimizer steps replace its memory");
  mark(kFrozen);
}

void Storage::watch_packs(const void* operand) {
  if (!may_keep_packs() || (has(kWatched) && kernels::packs::may_be_watched(operand))) return;
  kernels::packs::watch(operand, version_);
  mark(kWatched);
  if (!may_keep_packs()) end_packs();  // another thread took the address meanwhile
}

void Storage::end_packs() noexcept {
  marks_.fetch_and(static_cast<uint8_t>(~kWatched), std::memory_order_relaxed);
  kernels::packs::forget(version_);
}

void Storage::pause_packs() const { kernels::packs::pause(version_); }
void Storage::resume_packs() const noexcept { kernels::packs::resume(version_); }

void launch::watch_large_weight(const Tensor& w) {
  if (w.device().is_cpu() && (w.dtype() == kFloat32 || w.dtype() == kFloat64))
    w.body().storage->watch_packs(w.address());
}

}  // namespace weft
