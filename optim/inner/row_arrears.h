// The rows of a parameter that the steps of a rule over row-wise gradients left behind. A missed step maps
// the elements of a row linearly. So a row catches up with any number of them in one pass, in double.
// Internal to the optimizer. Thread safety: as Arrears.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include <weft/optim/optimizer.h>
#include <weft/tensor/inner/arrears.h>

namespace weft::optim {

class RowArrears final : public Arrears, public std::enable_shared_from_this<RowArrears> {
 public:
  /// A table [V, H] and the state of its rule, undefined for a rule without one. Both are contiguous and on
  /// the CPU.
  RowArrears(const Tensor& table, const Tensor& state);
  /// Whether these are the tensors.
  bool is_of(const Tensor& table, const Tensor& state) const;
  /// After a step of these rows, which were current before: all others have missed it.
  void count_step(const Tensor& rows, const MissedStep& missed);

  void settle() override;
  bool settle_rows(const Tensor& table, const Tensor& ids) override;
  void forget(const Storage* s) noexcept override;

 private:
  struct Run {  ///< equal steps in a row
    MissedStep step;
    int64_t count;
  };
  /// A row that is current up to step `from`.
  struct Behind {
    int64_t from, row;
  };
  void add_if_behind(std::vector<Behind>& list, int64_t row) const;
  void catch_up(std::vector<Behind> list);
  void settle_held();

  std::mutex mutex_;
  Storage *table_, *state_;  ///< null: destroyed, or no state
  const Shape sizes_;
  const DType dtype_;
  const int64_t offset_;
  bool owing_ = false;
  int64_t now_ = 0, floor_ = 0;  ///< steps taken, and the step up to which all rows are current
  std::vector<int64_t> last_;    ///< by row: the step up to which it is current, if that is above floor_
  std::vector<Run> runs_;        ///< the steps from floor_ to now_
};

}  // namespace weft::optim
