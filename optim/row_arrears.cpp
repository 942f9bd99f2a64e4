// Rows behind (inner/row_arrears.h). Missed steps are kept as runs of equal maps, whose powers are computed
// by squaring. Rows catch up in the order of their last steps, the latest first. So the product of the maps
// is computed once for all rows.
#include <weft/optim/inner/row_arrears.h>

#include <algorithm>
#include <new>
#include <utility>

#include <weft/tensor/inner/launch.h>

namespace weft::optim {
namespace {

/// With more runs, as of a rate that changes with each step, the whole table is settled.
constexpr size_t kMostRuns = 1024;

/// The map of `first`, then `second`.
MissedStep in_turn(const MissedStep& first, const MissedStep& second) {
  return {second.pp * first.pp + second.ps * first.sp, second.pp * first.ps + second.ps * first.ss,
          second.sp * first.pp + second.ss * first.sp, second.sp * first.ps + second.ss * first.ss};
}

MissedStep repeated(MissedStep step, int64_t count) {
  MissedStep out;
  for (; count > 0; count /= 2) {
    if (count % 2 == 1) out = in_turn(step, out);
    if (count > 1) step = in_turn(step, step);
  }
  return out;
}

bool same_step(const MissedStep& a, const MissedStep& b) {
  return a.pp == b.pp && a.ps == b.ps && a.sp == b.sp && a.ss == b.ss;
}

template <class T> void map_row(const MissedStep& by, T* p, T* s, int64_t width) {
  for (int64_t j = 0; j < width; ++j) {
    const double a = static_cast<double>(p[j]), b = s ? static_cast<double>(s[j]) : 0;
    p[j] = static_cast<T>(by.pp * a + by.ps * b);
    if (s) s[j] = static_cast<T>(by.sp * a + by.ss * b);
  }
}

}  // namespace

RowArrears::RowArrears(const Tensor& table, const Tensor& state)
    : table_(table.body().storage.get()),
      state_(state.defined() ? state.body().storage.get() : nullptr),
      sizes_(table.sizes()),
      dtype_(table.dtype()),
      offset_(table.storage_offset()),
      last_(static_cast<size_t>(table.sizes()[0])) {}

bool RowArrears::is_of(const Tensor& table, const Tensor& state) const {
  return table.body().storage.get() == table_ && table.storage_offset() == offset_ &&
         table.sizes() == sizes_ && (state.defined() ? state.body().storage.get() : nullptr) == state_;
}

void RowArrears::add_if_behind(std::vector<Behind>& list, int64_t row) const {
  const int64_t from = std::max(last_[static_cast<size_t>(row)], floor_);
  if (from < now_) list.push_back({from, row});
}

void RowArrears::catch_up(std::vector<Behind> list) {
  std::sort(list.begin(), list.end(), [](const Behind& a, const Behind& b) {
    return a.from != b.from ? a.from > b.from : a.row < b.row;
  });
  const int64_t width = sizes_[1];
  const auto run_over = [&]<class T>(T*) {
    T* const p = static_cast<T*>(weft::detail::unsettled_data(*table_)) + offset_;
    T* const s = state_ ? static_cast<T*>(weft::detail::unsettled_data(*state_)) : nullptr;
    MissedStep by;
    int64_t at = now_, used = 0;  // of the run
    auto run = runs_.rbegin();
    for (const Behind& one : list) {
      while (at > one.from) {
        const int64_t count = std::min(run->count - used, at - one.from);
        by = in_turn(repeated(run->step, count), by);
        at -= count, used += count;
        if (used == run->count) ++run, used = 0;
      }
      if (std::exchange(last_[static_cast<size_t>(one.row)], now_) == now_) continue;  // listed twice
      map_row(by, p + one.row * width, s ? s + one.row * width : nullptr, width);
    }
  };
  if (dtype_ == kFloat64) run_over(static_cast<double*>(nullptr));
  else run_over(static_cast<float*>(nullptr));
}

void RowArrears::settle_held() {
  if (!owing_) return;
  if (table_) {
    std::vector<Behind> list;
    for (int64_t row = 0; row < sizes_[0]; ++row) add_if_behind(list, row);
    catch_up(std::move(list));
  }
  floor_ = now_;
  runs_.clear();
  owing_ = false;
  if (table_) table_->settled();
  if (state_) state_->settled();
}

void RowArrears::settle() {
  const std::lock_guard lock(mutex_);
  settle_held();
}

bool RowArrears::settle_rows(const Tensor& table, const Tensor& ids) {
  const Tensor at = launch::contiguous(launch::cast(ids, kInt64));
  const int64_t* const rows = at.data<const int64_t>();
  const std::lock_guard lock(mutex_);
  if (!owing_) return true;
  if (table.body().storage.get() != table_ || table.storage_offset() != offset_ || table.sizes() != sizes_ ||
      table.dtype() != dtype_ || !table.is_contiguous())
    return false;
  std::vector<Behind> list;
  for (int64_t i = 0; i < at.numel(); ++i)
    if (rows[i] >= 0 && rows[i] < sizes_[0]) add_if_behind(list, rows[i]);
  catch_up(std::move(list));
  return true;
}

void RowArrears::count_step(const Tensor& rows, const MissedStep& missed) {
  const std::lock_guard lock(mutex_);
  if (!runs_.empty() && same_step(runs_.back().step, missed)) ++runs_.back().count;
  else runs_.push_back({missed, 1});
  ++now_;
  const int64_t* const at = rows.data<const int64_t>();
  for (int64_t i = 0; i < rows.numel(); ++i) last_[static_cast<size_t>(at[i])] = now_;
  if (!std::exchange(owing_, true)) {
    table_->owe(shared_from_this());
    if (state_) state_->owe(shared_from_this());
  }
  if (runs_.size() > kMostRuns) settle_held();
}

void RowArrears::forget(const Storage* s) noexcept {
  const std::lock_guard lock(mutex_);
  try {
    settle_held();  // the other one needs the values of s
  } catch (const std::bad_alloc&) {
  }
  if (s == table_) table_ = nullptr;
  if (s == state_) state_ = nullptr;
}

}  // namespace weft::optim
