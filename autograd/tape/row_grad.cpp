// Row-wise gradients: packing for the engine, sums, and the dense form. The rows are merged on the host.
// Their values are added by the kernel of the dense gradient (add_rows) in the same order, so that both forms
// have the same bits.
#include <weft/autograd/tape/row_grad.h>

#include <algorithm>
#include <utility>

#include <weft/autograd/tape/inner/grad_math.h>
#include <weft/autograd/tape/inner/packed_rows.h>
#include <weft/kernels/backend.h>
#include <weft/tensor/factories.h>
#include <weft/tensor/inner/free_list.h>
#include <weft/tensor/inner/launch.h>

namespace weft {

void* RowSlot::operator new(size_t bytes) { return pool_allocate(bytes); }
void RowSlot::operator delete(void* p) noexcept { pool_free(p, sizeof(RowSlot)); }

Tensor RowGrad::to_dense() const {
  if (!defined()) throw ValueError("RowGrad::to_dense: there is no gradient");
  return detail::made_dense(detail::pack_rows(*this));
}

namespace detail {
namespace {

RowSlot& row_slot(const Tensor& g) { return static_cast<RowSlot&>(*g.body().slot); }

/// dx[index[i]] += dy[i]; dx is contiguous, and index lies on the CPU.
void add_at(const Tensor& dx, const Tensor& index, const Tensor& dy) {
  if (dy.numel() == 0) return;
  const Tensor there = launch::to_device(index, dx.device());
  launch::backend_of(dx).add_rows(launch::context(), there.view_of(), dy.view_of(), INT64_MIN, dx.view_of());
}

Tensor index_tensor(const std::vector<int64_t>& values) {
  Tensor t = empty({static_cast<int64_t>(values.size())}, {.dtype = kInt64});
  std::copy(values.begin(), values.end(), t.data<int64_t>());
  return t;
}

}  // namespace

void check_rows(const char* name, const RowGrad& g) {
  const auto refuse = [&](const auto&... why) { return str(name, ": a row-wise gradient ", why...); };
  if (!g.rows.defined() || !g.values.defined()) throw ValueError(refuse("without rows or values"));
  if (g.sizes.size() != 2 || g.sizes[0] < 0 || g.sizes[1] < 0)
    throw ShapeError(refuse("is of a matrix, not of sizes ", g.sizes));
  if (g.rows.dtype() != kInt64) throw DTypeError(refuse("has rows of ", g.rows.dtype(), ", not int64"));
  if (!g.rows.device().is_cpu()) throw DeviceError(refuse("has its rows on ", g.rows.device()));
  if (!is_floating(g.values.dtype())) throw DTypeError(refuse("has values of ", g.values.dtype()));
  if (g.rows.dim() != 1 || g.values.dim() != 2 || g.values.sizes()[0] != g.rows.numel() ||
      g.values.sizes()[1] != g.sizes[1])
    throw ShapeError(refuse("of sizes ", g.sizes, " has rows of sizes ", g.rows.sizes(),
                            " and values of sizes ", g.values.sizes()));
  const Tensor rows = launch::contiguous(g.rows);
  const int64_t* const at = rows.data<const int64_t>();
  for (int64_t i = 0; i < rows.numel(); ++i) {
    if (at[i] < 0 || at[i] >= g.sizes[0])
      throw IndexError(refuse("has row ", at[i], ", outside [0, ", g.sizes[0], ")"));
    if (i > 0 && at[i] <= at[i - 1])
      throw ValueError(refuse("has row ", at[i], " after row ", at[i - 1], "; rows must rise"));
  }
}

Tensor pack_rows(const RowGrad& g) {
  const Tensor values = g.values.is_contiguous() ? g.values : launch::contiguous(g.values.detach());
  const TensorBody& b = values.body();
  auto packed = Ref<TensorBody>::adopt(new TensorBody(b.storage, b.offset, {values.numel()}, {1}, b.dtype));
  auto* const slot = new RowSlot;
  packed->slot = slot;
  packed->row_wise = true;
  slot->whole = g.sizes;
  slot->rows = launch::contiguous(g.rows);
  return Tensor(std::move(packed));
}

RowGrad unpack_rows(const Tensor& g) {
  const RowSlot& slot = row_slot(g);
  const int64_t width = slot.whole[1];
  return {slot.whole, slot.rows, alias(g, {slot.rows.numel(), width}, {width, 1}, g.storage_offset())};
}

Tensor made_dense(const Tensor& g) {
  Tensor y = launch::zeros(row_slot(g).whole, g.dtype(), g.device());
  add_packed_into(y, g);
  return y;
}

Tensor read_only(const Tensor& x) {
  Ref<Storage> memory = x.body().storage;
  Storage* const kept = memory.get();
  const auto release = [](void* p) { Ref<Storage>::adopt(static_cast<Storage*>(p)).reset(); };
  Ref<Storage> guarded =
      Storage::borrow(kept->device(), kept->data(), kept->bytes(), release, memory.detach(), true);
  const TensorBody& b = x.body();
  return Tensor(
      Ref<TensorBody>::adopt(new TensorBody(std::move(guarded), b.offset, b.sizes, b.strides, b.dtype)));
}

RowGrad shown_rows(const Tensor& g) {
  if (!is_row_wise(g)) return {};
  RowGrad shown = unpack_rows(g);
  shown.rows = read_only(shown.rows);
  return shown;
}

void add_packed_into(const Tensor& a, const Tensor& b) {
  const RowGrad g = unpack_rows(b);
  add_at(a, g.rows, g.values);
}

Tensor add_packed(const Tensor& a, const Tensor& b) {
  const RowGrad x = unpack_rows(a), y = unpack_rows(b);
  const int64_t *const left = x.rows.data<const int64_t>(), *const right = y.rows.data<const int64_t>();
  const int64_t n = x.rows.numel(), m = y.rows.numel();
  std::vector<int64_t> rows, at_left, at_right;
  rows.reserve(static_cast<size_t>(n + m));
  for (int64_t i = 0, j = 0; i < n || j < m;) {
    const int64_t row = j == m || (i < n && left[i] <= right[j]) ? left[i] : right[j];
    if (i < n && left[i] == row) at_left.push_back(static_cast<int64_t>(rows.size())), ++i;
    if (j < m && right[j] == row) at_right.push_back(static_cast<int64_t>(rows.size())), ++j;
    rows.push_back(row);
  }
  RowGrad sum{x.sizes, index_tensor(rows), {}};
  sum.values = launch::zeros({sum.rows.numel(), x.sizes[1]}, a.dtype(), a.device());
  add_at(sum.values, index_tensor(at_left), x.values);
  add_at(sum.values, index_tensor(at_right), y.values);
  return pack_rows(sum);
}

Lookups lookups_of(const Tensor& ids, int64_t skip) {
  const Tensor here = launch::contiguous(launch::to_device(ids, kCpu));
  const int64_t n = here.numel();
  const int64_t* const id = here.data<const int64_t>();
  std::vector<std::pair<int64_t, int64_t>> order;  // id, position
  order.reserve(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i)
    if (id[i] != skip) order.emplace_back(id[i], i);
  std::sort(order.begin(), order.end());
  std::vector<int64_t> rows;
  Tensor at = empty({n}, {.dtype = kInt64});
  int64_t* const to = at.data<int64_t>();
  std::fill(to, to + n, int64_t{-1});
  for (const auto& [row, position] : order) {
    if (rows.empty() || rows.back() != row) rows.push_back(row);
    to[position] = static_cast<int64_t>(rows.size()) - 1;
  }
  return {index_tensor(rows), at};
}

}  // namespace detail
}  // namespace weft
