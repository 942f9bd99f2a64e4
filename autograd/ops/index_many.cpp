// index, index_put and masked_scatter. Numbers, slices, None and Ellipsis are applied first and give a view.
// The other entries are tensors of positions for some dims of that view; a mask gives one tensor per dim that
// it covers. The indexed dims are moved to the front and joined, which turns the positions into one list of
// rows. Reading takes these rows and writing scatters to them; each is the backward of the other.
#include <algorithm>

#include <weft/autograd/ops/inner/formula.h>
#include <weft/tensor/index.h>

namespace weft {

namespace {

/// The view of an index list, and per dim of it the tensor of positions, undefined for a whole dim.
struct Resolved {
  Tensor view;
  std::vector<Tensor> at;
};

/// Positions with negative ones counted from the end. The kernel that uses them checks their range.
Tensor wrapped(const char* name, const Tensor& positions, const Tensor& x, int d) {
  launch::check_index(name, positions);
  launch::check_devices(name, x, positions);
  const int64_t size = x.sizes()[d];
  const Tensor at = launch::cast(positions, kInt64);
  if (at.numel() == 0 || (x.device().is_cpu() && min(at).item<int64_t>() >= 0)) return at;
  return where(lt(at, 0), at + size, at);
}

/// Throws: IndexError that names the first dim with a position out of range, and the position as given. CPU
/// only.
void check_range(const char* name, const Resolved& r) {
  for (int d = 0; d < r.view.dim(); ++d) {
    const Tensor& at = r.at[static_cast<size_t>(d)];
    if (!at.defined() || at.numel() == 0) continue;
    const int64_t size = r.view.sizes()[d], low = min(at).item<int64_t>(), high = max(at).item<int64_t>();
    if (low < 0 || high >= size)
      throw IndexError(
          str(name, ": index ", low < 0 ? low - size : high, " is outside dim ", d, " of ", r.view.sizes()));
  }
}

Resolved resolve(const char* name, const Tensor& x, const std::vector<TensorIndex>& list) {
  using Kind = TensorIndex::Kind;
  int used = 0, ellipses = 0;
  bool lines = false;  // beside positions with dims, or a mask, a position without dims is a number
  for (const TensorIndex& i : list) {
    if (i.kind == Kind::kTensor && !i.tensor.defined()) launch::throw_undefined(name, 2);
    const bool mask = i.kind == Kind::kTensor && i.tensor.dtype() == kBool;
    lines = lines || mask || (i.kind == Kind::kTensor && i.tensor.dim() > 0);
    used += mask ? i.tensor.dim() : i.kind == Kind::kNewDim || i.kind == Kind::kEllipsis ? 0 : 1;
    ellipses += i.kind == Kind::kEllipsis;
  }
  if (used > x.dim())
    throw IndexError(str(name, ": ", used, " indices for a tensor of ", x.dim(), " dims, ", x.sizes()));
  if (ellipses > 1) throw IndexError(str(name, ": ", ellipses, " times Ellipsis in one index"));
  Resolved r{x, {}};
  const auto d = [&] { return static_cast<int>(r.at.size()); };  // the dim that the next entry is about
  for (const TensorIndex& i : list) {
    switch (i.kind) {
      case Kind::kNumber: r.view = launch::named(name, [&] { return select(r.view, d(), i.number); }); break;
      case Kind::kSlice:
        if (i.slice.start || i.slice.stop || i.slice.step != 1)
          r.view = launch::named(name, [&] {
            return slice(r.view, d(), i.slice.start.value_or(0), i.slice.stop.value_or(INT64_MAX),
                         i.slice.step);
          });
        r.at.emplace_back();
        break;
      case Kind::kNewDim:
        r.view = unsqueeze(r.view, d());
        r.at.emplace_back();
        break;
      case Kind::kEllipsis: r.at.resize(r.at.size() + static_cast<size_t>(x.dim() - used)); break;
      case Kind::kTensor: {
        if (lines && i.tensor.dtype() != kBool && i.tensor.dim() == 0) {
          launch::check_index(name, i.tensor);
          launch::check_devices(name, r.view, i.tensor);
          r.view = launch::named(name, [&] { return select(r.view, d(), i.tensor.item<int64_t>()); });
          break;
        }
        if (i.tensor.dtype() != kBool) {
          r.at.push_back(wrapped(name, i.tensor, r.view, d()));
          break;
        }
        launch::check_devices(name, r.view, i.tensor);
        if (i.tensor.dim() == 0) r.view = unsqueeze(r.view, d());  // true or false for a dim of size 1
        const Tensor mask = formula::as_line(i.tensor);
        for (int k = 0; k < mask.dim(); ++k)
          if (mask.sizes()[k] != r.view.sizes()[d() + k])
            throw ShapeError(
                str(name, ": a mask ", mask.sizes(), " does not fit ", r.view.sizes(), " from dim ", d()));
        const Tensor found = nonzero(mask);
        for (int k = 0; k < mask.dim(); ++k) r.at.push_back(select(found, 1, k));
        break;
      }
    }
  }
  r.at.resize(static_cast<size_t>(r.view.dim()));
  return r;
}

/// The layout of an indexing by positions: the indexed dims and the rest, and the place of the positions'
/// dims in the result.
struct Plan {
  Shape order;        ///< a permutation: the indexed dims, then the rest
  int indexed = 0;    ///< how many dims are indexed
  int64_t count = 1;  ///< elements of the indexed dims
  Shape rest;         ///< sizes of the others
  Shape shared;       ///< sizes of the positions, broadcast
  int place = 0;      ///< the first of their dims in the result

  Shape rows(int64_t n) const {
    Shape sizes{n};
    for (int64_t s : rest) sizes.push_back(s);
    return sizes;
  }
  Shape result() const {
    Shape sizes = rest;
    for (int k = 0; k < shared.size(); ++k) sizes.insert(place + k, shared[k]);
    return sizes;
  }
  /// The permutation that brings the result's shared dims to the front, and its inverse.
  Shape to_front() const {
    Shape p;
    for (int k = 0; k < shared.size(); ++k) p.push_back(place + k);
    for (int k = 0; k < rest.size(); ++k) p.push_back(k < place ? k : k + shared.size());
    return p;
  }
  static Shape inverse(const Shape& p) {
    Shape q(p.size(), 0);
    for (int k = 0; k < p.size(); ++k) q[static_cast<int>(p[k])] = k;
    return q;
  }
};

bool has_positions(const Resolved& r) {
  return std::any_of(r.at.begin(), r.at.end(), [](const Tensor& t) { return t.defined(); });
}

Plan plan_of(const char* name, const Resolved& r) {
  Plan p;
  int last = -1;
  bool together = true;
  Shape others;
  for (int d = 0; d < r.view.dim(); ++d) {
    const Tensor& at = r.at[static_cast<size_t>(d)];
    if (!at.defined()) {
      p.rest.push_back(r.view.sizes()[d]);
      others.push_back(d);
      continue;
    }
    if (last < 0) p.place = d;
    else together = together && last == d - 1;
    last = d;
    p.shared = broadcast(name, p.shared, at.sizes());
    p.count *= r.view.sizes()[d];
    p.order.push_back(d);
  }
  if (!together) p.place = 0;
  p.indexed = p.order.size();
  for (int64_t d : others) p.order.push_back(d);
  return p;
}

/// The positions as one list over the joined indexed dims. Shape: [n].
Tensor row_list(const char* name, const Resolved& r, const Plan& p) {
  if (r.view.device().is_cpu() && (p.indexed > 1 || p.rest.numel() == 0)) check_range(name, r);
  Tensor list;
  int64_t stride = 1;
  for (int k = p.indexed - 1; k >= 0; --k) {
    const auto d = static_cast<int>(p.order[k]);
    Tensor at = r.at[static_cast<size_t>(d)];
    const int64_t size = r.view.sizes()[d];
    // On a device an index_select checks the range of each dim; for one dim the kernel of the rows does so.
    if ((p.indexed > 1 || p.rest.numel() == 0) && !at.device().is_cpu() && at.numel() != 0)
      at = reshape(
          index_select(arange(0, size, 1, {.dtype = kInt64, .device = at.device()}), 0, reshape(at, -1)),
          at.sizes());
    list = list.defined() ? list + at * stride : at;
    stride *= size;
  }
  return launch::contiguous(reshape(expand(list, p.shared), -1));
}

/// f(), which uses the positions of r. On the CPU an IndexError is replaced by one that names the dim.
template <class F> decltype(auto) located(const char* name, const Resolved& r, F&& f) {
  try {
    return f();
  } catch (const IndexError&) {
    if (r.view.device().is_cpu()) check_range(name, r);
    throw;
  }
}

Tensor read(const char* name, const Tensor& x, const Plan& p, const Tensor& list) {
  return launch::named(name, [&] {
    const Tensor rows =
        reshape(index_select(reshape(permute(x, p.order), p.rows(p.count)), 0, list), p.rows(list.numel()));
    Shape sizes = p.shared;
    for (int64_t s : p.rest) sizes.push_back(s);
    const Tensor y = reshape(rows, sizes);
    return p.place == 0 ? y : permute(y, Plan::inverse(p.to_front()));
  });
}

/// A view of x with the indexed dims joined. Returns false if the strides do not allow it.
bool joined(const Tensor& x, const Plan& p, View& out) {
  int64_t stride = 0, sizes = 1;
  for (int k = p.indexed - 1; k >= 0; --k) {
    const auto d = static_cast<int>(p.order[k]);
    if (x.sizes()[d] == 1) continue;
    if (sizes == 1) stride = x.strides()[d];
    else if (x.strides()[d] != stride * sizes) return false;
    sizes *= x.sizes()[d];
  }
  out = {x.address(), x.dtype(), p.rows(p.count), Shape{stride}};
  for (int k = p.indexed; k < x.dim(); ++k) out.strides.push_back(x.strides()[static_cast<int>(p.order[k])]);
  return true;
}

void scatter_rows(const Tensor& x, const Plan& p, const Tensor& list, const Tensor& values, bool add) {
  const int64_t n = list.numel();
  if (n == 0 || p.rest.numel() == 0) return;
  NoGrad quiet;
  const Tensor own = launch::share_memory(values, x) ? values.clone() : values;
  const Tensor rows = reshape(permute(expand(own, p.result()), p.to_front()), p.rows(n));
  Shape column(1 + p.rest.size(), 1);
  column[0] = n;
  const Tensor index =
      expand(reshape(launch::share_memory(list, x) ? list.clone() : list, column), p.rows(n));
  const auto write = [&](const View& to) {
    launch::backend_of(x).scatter(launch::context(), add ? ScatterRule::kAdd : ScatterRule::kAssign, 0,
                                  index.view_of(), rows.view_of(), to);
  };
  View whole;
  if (joined(x, p, whole)) return write(whole);
  // the indexed dims cannot be joined in place: write to a permuted copy
  const Tensor copy = permute(x, p.order).clone();
  write({copy.address(), copy.dtype(), p.rows(p.count), contiguous_strides(p.rows(p.count))});
  launch::copy_into(x, permute(copy, Plan::inverse(p.order)));
}

/// Writes into x and records the write.
void put(const char* name, const Tensor& x, const Plan& p, const Tensor& list, In values, bool add) {
  launch::check_writable(name, x);
  record_in_place(
      name, x, {values}, [&] { launch::named(name, [&] { scatter_rows(x, p, list, values, add); }); },
      [p, list = Saved(list), add](const Tensor& g, Needs needs) -> GradList {
        Tensor dx = g;
        if (needs[0] && !add)
          put("index_put_", dx = clone(g), p, list.get(), formula::number_like(g, 0), false);
        return {dx, needs[1] ? read("index", g, p, list.get()) : Tensor()};
      });
}

void check_values(const char* name, const Tensor& x, const Tensor& values, const Shape& wanted) {
  launch::check_devices(name, x, values);
  if (values.dtype() != x.dtype())
    throw DTypeError(str(name, ": x is ", x.dtype(), ", the values are ", values.dtype()));
  const Shape& sizes = values.sizes();
  bool fits = sizes.size() <= wanted.size();
  for (int k = 1; fits && k <= sizes.size(); ++k)
    fits = sizes[sizes.size() - k] == 1 || sizes[sizes.size() - k] == wanted[wanted.size() - k];
  if (!fits)
    throw ShapeError(str(name, ": values ", sizes, " do not broadcast to ", wanted,
                         ", the sizes of the indexed elements"));
}

void put_at(const char* name, const Tensor& x, const std::vector<TensorIndex>& at, const Tensor& values,
            bool accumulate) {
  launch::check_defined(name, x, values);
  Resolved r = resolve(name, x, at);
  if (!has_positions(r)) {
    check_values(name, r.view, values, r.view.sizes());
    accumulate ? r.view.add_(values) : r.view.copy_(values);
    return;
  }
  const Plan p = plan_of(name, r);
  check_values(name, r.view, values, p.result());
  located(name, r, [&] { put(name, r.view, p, row_list(name, r, p), values, accumulate); });
}

void put_masked(const char* name, const Tensor& x, const Tensor& mask, const Tensor& source) {
  launch::check_defined(name, x, mask, source);
  if (mask.dtype() != kBool) throw DTypeError(str(name, ": the mask must be bool, got ", mask.dtype()));
  launch::check_devices(name, x, mask);
  if (!(broadcast(name, x.sizes(), mask.sizes()) == x.sizes()))
    throw ShapeError(str(name, ": a mask ", mask.sizes(), " does not broadcast to ", x.sizes()));
  const Tensor whole = x.dim() == 0 ? reshape(x, 1) : x;
  const Resolved r{whole, resolve(name, whole, {expand(mask, whole.sizes())}).at};
  const Plan p = plan_of(name, r);
  const Tensor list = row_list(name, r, p);
  if (source.numel() < list.numel())
    throw ShapeError(
        str(name, ": ", list.numel(), " elements are to be written, the source has ", source.numel()));
  const Tensor first = narrow(reshape(source, -1), 0, 0, list.numel());
  check_values(name, whole, first, p.result());
  put(name, whole, p, list, first, false);
}

}  // namespace

Tensor index(In x, const std::vector<TensorIndex>& at) {
  launch::check_defined("index", x);
  const Resolved r = resolve("index", x, at);
  if (!has_positions(r)) return r.view.is_same(x) ? view(x.get(), x->sizes()) : r.view;
  const Plan p = plan_of("index", r);
  return located("index", r, [&] { return read("index", r.view, p, row_list("index", r, p)); });
}

Tensor index_put(In x, const std::vector<TensorIndex>& at, In values, bool accumulate) {
  launch::check_defined("index_put", x, values);
  const Tensor y = clone(x.get());
  put_at("index_put", y, at, values, accumulate);
  return y;
}

Tensor masked_scatter(In x, In mask, In source) {
  launch::check_defined("masked_scatter", x, mask, source);
  const Tensor y = clone(x.get());
  put_masked("masked_scatter", y, mask, source);
  return y;
}

Tensor& Tensor::index_put_(const std::vector<TensorIndex>& at, const Tensor& values, bool accumulate) {
  put_at("index_put_", *this, at, In(values), accumulate);
  return *this;
}

Tensor& Tensor::index_put_(const std::vector<TensorIndex>& at, Scalar value, bool accumulate) {
  launch::check_defined("index_put_", *this);
  launch::check_scalar("index_put_", dtype(), value);
  return index_put_(at, formula::number_like(*this, value), accumulate);
}

Tensor& Tensor::masked_scatter_(const Tensor& mask, const Tensor& source) {
  put_masked("masked_scatter_", *this, In(mask), In(source));
  return *this;
}

Indexed Tensor::index(std::vector<TensorIndex> at) const& { return Indexed(*this, std::move(at)); }
Indexed Tensor::index(std::vector<TensorIndex> at) && { return Indexed(std::move(*this), std::move(at)); }

Tensor Tensor::operator[](const Slice& s) const& { return index({s}); }
Indexed Tensor::operator[](const Tensor& at) const& { return index({at}); }

Tensor Tensor::operator[](int64_t index) && { return Tensor(std::move(*this)).select(0, index); }
Tensor Tensor::operator[](const Slice& s) && { return std::move(*this).index({s}); }
Indexed Tensor::operator[](const Tensor& at) && { return std::move(*this).index({at}); }

Indexed::Indexed(Tensor from, std::vector<TensorIndex> at) : Tensor(weft::index(from, at)) {
  if (shares_storage(from)) return;
  from_ = std::move(from);
  at_ = std::move(at);
}

void Indexed::check_kept(const char* write) const { (from_.defined() ? from_ : *this).check_seen(write); }

Indexed& Indexed::store() {
  if (from_.defined()) from_.index_put_(at_, *this);
  return *this;
}

Tensor Indexed::assign(const Tensor& values) {
  check_kept("operator=");
  from_.defined() ? from_.index_put_(at_, values) : Tensor::copy_(values);
  return *this;
}

Tensor Indexed::operator=(Scalar value) && {
  check_kept("operator=");
  if (!from_.defined()) {
    Tensor::fill_(value);
  } else if (at_.size() == 1 && at_[0].tensor.defined() && at_[0].tensor.dtype() == kBool) {
    Shape sizes = at_[0].tensor.sizes();  // a mask of the leading dims broadcasts over the others
    sizes.resize(from_.dim(), 1);
    from_.masked_fill_(weft::reshape(at_[0].tensor, sizes), value);
  } else {
    from_.index_put_(at_, value);
  }
  return *this;
}

}  // namespace weft
