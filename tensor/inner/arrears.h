// Arrears: changes of a block of memory that wait until it is read. A lazy optimizer leaves rows of a table
// behind and brings them up to date by a closed form. While a storage is in arrears, its data() is hidden:
// the first call settles it. So no reader sees an old row. Look-ups by rows settle those alone (rows_of). An
// address taken before a step of the optimizer shows old rows after it.
// Thread safety: readers may settle from several threads at once; steps are apart from reads, as all writes.
#pragma once

#include <memory>

#include <weft/tensor/tensor.h>

namespace weft {

class WEFT_API Arrears {
 public:
  virtual ~Arrears() = default;
  /// Brings the storages up to date, and calls settled() of each.
  virtual void settle() = 0;
  /// Brings the rows `ids` (int64 or int32, any sizes; others are passed over) of a table up to date.
  /// Returns false if `table` is not the tensor whose rows are behind.
  virtual bool settle_rows(const Tensor& table, const Tensor& ids) = 0;
  /// The storage is destroyed.
  virtual void forget(const Storage* s) noexcept = 0;
};

namespace detail {

/// The arrears of a storage; null if it has none.
WEFT_API std::shared_ptr<Arrears> arrears_of(const Storage& s);
/// The address of the first byte, also of a storage in arrears.
WEFT_API void* unsettled_data(const Storage& s);
/// x [V, K] for a kernel that reads the rows `ids` alone.
WEFT_API View rows_view(const Tensor& x, const Tensor& ids);

}  // namespace detail
}  // namespace weft
