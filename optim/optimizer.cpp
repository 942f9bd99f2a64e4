// Optimizer: the step, for all rules. It writes parameters in place, or to new blocks that it installs at the
// end. The steps follow the includes.
#include <weft/optim/optimizer.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>

#include <weft/autograd/tape/inner/packed_rows.h>
#include <weft/autograd/tape/inner/parameter_lock.h>
#include <weft/kernels/backend.h>
#include <weft/optim/clip.h>
#include <weft/optim/inner/row_arrears.h>
#include <weft/tensor/factories.h>
#include <weft/tensor/inner/parameter_lock.h>
#include <weft/tensor/inner/tracer.h>

// The steps:
//   1. Check every gradient before anything changes.
//   2. Correct the step counts for skipped steps.
//   3. Take the locks of concurrent parameters. A block of theirs with holders is not written: the new values
//      go to a new block (copy on write). All other parameters are written in place.
//   4. Create missing state (zeros), missing masters (the parameters' values) and the functors.
//   5. Make one backend call per dtype, device and kernel; then count steps and versions, install the new
//      blocks and release the locks.
// A row-wise gradient makes an entry for each run of neighbouring rows, over these rows of the parameter and
// of the state. Of a rule whose rows catch up later, the entries' rows do so before the step, and all others
// are behind after it (inner/row_arrears.h).
// While a graph is recorded, the state must exist, and nothing is counted or replaced: next_of counts, and
// creates the functors, for each replay.

namespace weft::optim {
namespace {

constexpr const char* kStepped =
    "; a step takes float32 and float64, and half types with the option master_weights. Or train in float32 "
    "under Autocast";

// Memory for the functors of one step, each aligned to 64 bytes.
class FunctorBuffer {
 public:
  explicit FunctorBuffer(size_t bytes) : memory_(bytes / sizeof(Chunk) + 1) {}
  std::byte* at(size_t offset) { return reinterpret_cast<std::byte*>(memory_.data()) + offset; }
  static size_t round(size_t n) { return (n + sizeof(Chunk) - 1) / sizeof(Chunk) * sizeof(Chunk); }

 private:
  struct alignas(64) Chunk {
    std::byte bytes[64];
  };
  std::vector<Chunk> memory_;
};

/// A new block that will replace a block with holders.
struct Fresh {
  explicit Fresh(const Tensor& p) : block(Storage::allocate(p.device(), p.body().storage->bytes())) {}
  /// Sets the block as destination of the step of p, which writes all of p or some `rows`.
  void place(const Tensor& p, StepTensor& t, bool rows) {
    char* const to = static_cast<char*>(block->data()) + p.storage_offset() * size_of(p.dtype());
    if (!rows && static_cast<size_t>(p.numel() * size_of(p.dtype())) == block->bytes()) {
      t.out = to;
      return;
    }
    if (!std::exchange(whole, true)) {  // the step writes a part of the storage: copy the rest too
      const Shape bytes{static_cast<int64_t>(block->bytes())}, one{1};
      Context context;
      backend(p.device())
          .copy(context, {p.body().storage->data(), kUInt8, bytes, one}, {block->data(), kUInt8, bytes, one});
    }
    t.param = to;
  }
  Ref<Storage> block;
  bool whole = false;
};

/// Adds to `list` the part of t, the step of a whole table, that the rows of g take part in.
void add_row_steps(std::vector<StepTensor>& list, const StepTensor& t, const RowGrad& g) {
  const DType dtype = g.values.dtype();
  const int64_t width = g.sizes[1], own = width * size_of(dtype), n = g.rows.numel();
  const int64_t wide = width * size_of(accumulate_type(dtype));  // a row of the state
  const int64_t* const rows = g.rows.data<const int64_t>();
  const auto moved = [](void* p, int64_t bytes) { return p ? static_cast<char*>(p) + bytes : nullptr; };
  for (int64_t i = 0, end; i < n; i = end) {
    for (end = i + 1; end < n && rows[end] == rows[end - 1] + 1;) ++end;
    StepTensor part = t;
    part.param = moved(t.param, rows[i] * own);
    part.master = moved(t.master, rows[i] * wide);
    for (void*& s : part.state) s = moved(s, rows[i] * wide);
    part.grad = static_cast<const char*>(g.values.address()) + i * own;
    part.numel = (end - i) * width;
    list.push_back(part);
  }
}

}  // namespace

Optimizer::~Optimizer() = default;

void Optimizer::add_params(const std::vector<Tensor>& params, size_t group, bool masters) {
  if (params.empty()) throw ValueError(str(name(), ": the parameter list is empty"));
  for (size_t i = 0; i < params.size(); ++i) {
    const Tensor& p = params[i];
    const auto about = [&] { return str(name(), ": parameter ", params_.size() + i); };
    if (!p.defined()) throw ValueError(about() + " is undefined");
    if (!p.is_leaf() || !p.is_floating_point())
      throw ValueError(str(about(), " of sizes ", p.sizes(), " is not a floating-point leaf"));
    if (is_half(p.dtype()) && !masters) throw DTypeError(str(about(), " is ", p.dtype(), kStepped));
    if (p.body().storage->is_read_only())
      throw ValueError(str(about(), " of sizes ", p.sizes(), " ", p.body().storage->read_only_reason()));
    if (!p.is_contiguous()) throw ShapeError(str(about(), " of sizes ", p.sizes(), " is not contiguous"));
  }
  std::vector<Tensor> all = params_;
  for (const Tensor& p : params) {
    if (std::any_of(all.begin(), all.end(), [&](const Tensor& q) { return q.is_same(p); }))
      throw ValueError(str(name(), ": a parameter of sizes ", p.sizes(), " is given twice"));
    all.push_back(p);
  }
  params_ = std::move(all);
  slots_.resize(params_.size());
  for (size_t i = params_.size() - params.size(); i < params_.size(); ++i) slots_[i].group = group;
}

void Optimizer::check_group(size_t group) const {
  if (group >= groups())
    throw IndexError(
        str(name(), ": there is no group ", static_cast<int64_t>(group), "; it has ", groups(), " of them"));
}

void Optimizer::check_rate(double lr) const {
  weft::detail::refuse_trace("changes the options of an optimizer");
  if (!std::isfinite(lr)) throw ValueError(str(name(), ": lr must be finite, got ", lr));
  if (lr < 0) throw ValueError(str(name(), ": lr must not be negative, got ", lr));
}

int64_t Optimizer::steps(size_t i) const {
  if (i >= slots_.size())
    throw IndexError(str(name(), ": there is no parameter ", static_cast<int64_t>(i), "; it has ",
                         slots_.size(), " of them"));
  settle();
  return slots_[i].steps;
}

void Optimizer::zero_grad() const {
  for (const Tensor& p : params_) p.zero_grad();
}

std::vector<Tensor> Optimizer::gradients() const {
  std::vector<Tensor> grads;
  grads.reserve(params_.size());
  for (const Tensor& p : params_) grads.push_back(weft::detail::kept_grad(p));
  return grads;
}

void Optimizer::step() { step(gradients()); }

Tensor Optimizer::step_clipped(double max_norm, double p) {
  const std::vector<Tensor> grads = gradients();
  check(grads);
  const GradNorm norm = grad_norm(grads, max_norm, p);
  step(grads, Tensor(), norm.factor);
  return norm.total;
}

void Optimizer::check(std::span<const Tensor> grads) const {
  if (grads.size() != params_.size())
    throw ValueError(str(name(), ": ", params_.size(), " parameters, but ", grads.size(), " gradients"));
  for (size_t i = 0; i < grads.size(); ++i) {
    if (!grads[i].defined()) continue;
    check_writable(i);
    if (const Shape& sizes = weft::detail::grad_sizes(grads[i]); sizes != params_[i].sizes())
      throw ShapeError(str(name(), ": parameter ", i, " is ", params_[i].sizes(), ", its gradient ", sizes));
    if (weft::detail::is_row_wise(grads[i])) check_rows(i);
    if (is_half(params_[i].dtype()) && !needs_master(i))  // the module was moved to it
      throw DTypeError(str(name(), ": parameter ", i, " is ", params_[i].dtype(), kStepped));
    if (grads[i].dtype() != params_[i].dtype())
      throw DTypeError(
          str(name(), ": parameter ", i, " is ", params_[i].dtype(), ", its gradient ", grads[i].dtype()));
    if (grads[i].device() != params_[i].device())
      throw DeviceError(str(name(), ": parameter ", i, " lies on ", params_[i].device(), ", its gradient on ",
                            grads[i].device()));
  }
}

/// Throws: ValueError if parameter i or its state has been frozen.
void Optimizer::check_writable(size_t i) const {
  const auto refuse = [&](const char* what) {
    throw ValueError(
        str(name(), ": ", what, "parameter ", i, " of sizes ", params_[i].sizes(), " is frozen"));
  };
  if (params_[i].is_frozen()) refuse("");
  for (const Tensor& s : slots_[i].state)
    if (s.is_frozen()) refuse("the state of ");
  if (slots_[i].master.defined() && slots_[i].master.is_frozen()) refuse("the master of ");
}

void Optimizer::check_rows(size_t i) const {
  const Variant v = variant(slots_[i].group);
  if (v.over_rows) return;
  const Tensor& p = params_[i];
  const auto refuse = [&](const auto&... why) {
    throw ValueError(str(name(), ": parameter ", i, " of sizes ", p.sizes(), " has a row-wise gradient, and ",
                         why..., "; set_grad(row_grad().to_dense()) makes it dense"));
  };
  if (!v.catches_up)
    refuse(
        "with these options the rule has no exact form over rows: it changes rows without a gradient too. "
        "SparseAdam, SGD and Adagrad without weight_decay take one");
  const char* where = is_half(p.dtype())                ? "of a half type"
                      : !p.device().is_cpu()            ? "on a device"
                      : p.body().storage->lock()        ? "that several threads use"
                      : p.body().storage->is_borrowed() ? "in memory of from_blob()"
                                                        : nullptr;
  if (where)
    refuse(
        "with momentum or weight_decay the rows without a gradient catch up when the weight is read, which "
        "a parameter ",
        where, " does not allow");
}

bool Optimizer::needs_master(size_t i) const {
  return is_half(params_[i].dtype()) && has_masters(slots_[i].group);
}

/// Makes `count` tensors of state, and the master, where they are missing.
void Optimizer::make_state(size_t i, size_t count) {
  Slot& slot = slots_[i];
  const Tensor& p = params_[i];
  const DType wide = state_type(p);
  const Device device = p.device();
  const auto fits = [&](const Tensor& t) { return t.dtype() == wide && t.device() == device; };
  if (!is_half(p.dtype()) && !slot.master.defined() && slot.state.size() >= count &&
      std::all_of(slot.state.begin(), slot.state.end(), fits))
    return;  // as in most steps
  const TensorOptions like{.dtype = wide, .device = device};
  while (slot.state.size() < count) slot.state.push_back(zeros(p.sizes(), like));
  for (Tensor& s : slot.state)  // the parameter may have moved to another device or dtype
    if (!fits(s)) s = s.to(device, wide);
  if (!is_half(p.dtype())) {
    slot.master = Tensor();
  } else if (!slot.master.defined()) {
    slot.master = empty(p.sizes(), like);
    Context context;
    backend(device).copy(context, p.view_of(), slot.master.view_of());
  } else if (!(slot.master.device() == device)) {
    slot.master = slot.master.to(device);
  }
}

/// Prepares a step of these rows of a rule whose other rows stay behind.
void Optimizer::bring_up(size_t i, const Tensor& rows) {
  Slot& slot = slots_[i];
  const Tensor &p = params_[i], state = slot.state.empty() ? Tensor() : slot.state[0];
  if (!slot.behind || !slot.behind->is_of(p, state)) {
    if (slot.behind) slot.behind->settle();
    slot.behind = std::make_shared<RowArrears>(p, state);
  }
  for (const Tensor& t : {p, state})  // those of another optimizer
    if (t.defined())
      if (const auto owed = weft::detail::arrears_of(*t.body().storage); owed && owed != slot.behind)
        owed->settle();
  slot.behind->settle_rows(p, rows);
}

void Optimizer::step(std::span<const Tensor> grads, const Tensor& skip, const Tensor& factor) {
  check(grads);
  const auto check_number = [this](const char* what, const Tensor& t) {
    if (t.defined() && (t.numel() != 1 || t.dtype() != kFloat64))
      throw ValueError(
          str(name(), ": ", what, " must be one float64 number, is ", t.sizes(), " of ", t.dtype()));
  };
  check_number("skip", skip);
  check_number("factor", factor);
  std::lock_guard<std::mutex> own(mutex_);
  Context context;

  std::vector<Variant> variants;
  for (size_t g = 0; g < groups(); ++g) variants.push_back(variant(g));
  for (size_t i = 0; i < grads.size(); ++i)
    // throws, before any change, if the rule has no CUDA form
    if (grads[i].defined() && !params_[i].device().is_cpu()) step_cuda_form(variants[slots_[i].group].kernel);
  std::vector<Tensor> held;  // contiguous forms of gradients, kept until the pass is done

  std::vector<size_t> active;
  active.reserve(grads.size());
  for (size_t i = 0; i < grads.size(); ++i)
    if (grads[i].defined()) active.push_back(i);
  bool waits = true;
  for (const size_t i : active) {
    if (!backend(params_[i].device()).recording(context)) continue;
    check_recorded(i, grads[i]);
    waits = false;  // no waiting during a recording; the replay settles
  }
  if (waits) settle();
  std::vector<Tensor> shared;
  for (const size_t i : active)
    if (params_[i].body().storage->lock()) shared.push_back(params_[i]);
  const std::vector<std::unique_lock<std::mutex>> guards = lock_parameters(shared);

  const auto as_before = [&](size_t at) {  // neighbours of one group and step count have one functor
    const Slot &slot = slots_[active[at]], &before = slots_[active[at == 0 ? 0 : at - 1]];
    return at != 0 && slot.group == before.group && slot.steps == before.steps;
  };
  size_t bytes = 0;
  for (size_t k = 0; k < active.size(); ++k)
    if (!as_before(k)) bytes += FunctorBuffer::round(variants[slots_[active[k]].group].functor_bytes);
  FunctorBuffer functors(bytes);

  std::map<const Storage*, Fresh> fresh;
  struct Batch {
    std::vector<StepTensor> tensors;
    std::vector<size_t> params;
    const StepKernel* kernel;
    DType dtype;
    Device device;
  };
  std::vector<Batch> batches;
  size_t next = 0;  // offset of the next functor
  const void* functor = nullptr;
  for (size_t k = 0; k < active.size(); ++k) {
    const size_t i = active[k];
    Slot& slot = slots_[i];
    const Variant& v = variants[slot.group];
    const Tensor& p = params_[i];
    make_state(i, v.state_names.size());
    if (!as_before(k)) {
      functor = functors.at(next);
      construct(functors.at(next), slot.group, slot.steps + 1);
      next += FunctorBuffer::round(v.functor_bytes);
    }
    const bool rows = weft::detail::is_row_wise(grads[i]);
    if (!grads[i].is_contiguous()) held.push_back(grads[i].detach().contiguous());

    const bool leaves_rows = rows && v.catches_up;
    if (leaves_rows) bring_up(i, weft::detail::unpack_rows(grads[i]).rows);
    const auto address = [&](const Tensor& x) {
      if (!leaves_rows) return x.address();
      char* const first = static_cast<char*>(weft::detail::unsettled_data(*x.body().storage));
      return static_cast<void*>(first + x.storage_offset() * size_of(x.dtype()));
    };
    StepTensor t;
    t.param = address(p);
    t.grad = (grads[i].is_contiguous() ? grads[i] : held.back()).address();
    if (slot.master.defined()) t.master = slot.master.address();
    for (size_t s = 0; s < v.state_names.size(); ++s) t.state[s] = address(slot.state[s]);
    t.numel = p.numel();
    t.hyper = functor;
    if (Storage& storage = *p.body().storage; storage.lock() && storage.is_held())
      fresh.try_emplace(&storage, p).first->second.place(p, t, rows);
    auto batch = std::find_if(batches.begin(), batches.end(), [&](const Batch& b) {
      return b.dtype == p.dtype() && b.device == p.device() && b.kernel->run_f32 == v.kernel.run_f32;
    });
    if (batch == batches.end()) {
      batch = batches.insert(batch, {{}, {}, &v.kernel, p.dtype(), p.device()});
      batch->tensors.reserve(active.size()), batch->params.reserve(active.size());
    }
    if (rows) weft::detail::refuse_trace("steps by a row-wise gradient");
    if (rows) add_row_steps(batch->tensors, t, weft::detail::unpack_rows(grads[i]));
    else batch->tensors.push_back(t);
    batch->params.push_back(i);
  }

  for (Batch& b : batches) {
    const Tensor times = factor.defined() ? factor.to(b.device) : Tensor();
    if (times.defined())
      for (StepTensor& t : b.tensors) t.factor = static_cast<const double*>(times.address());
    Backend& device = backend(b.device);
    const bool recording = device.recording(context);
    // cloned for a recording: a replay's number is read after the next replay has begun
    const Tensor there =
        skip.defined() ? recording ? skip.to(b.device).clone() : skip.to(b.device) : Tensor();
    if (there.defined() && !recording) unsettled_.reserve(unsettled_.size() + 1);
    std::optional<Unsettled> open;
    if (there.defined() && !recording) open = unsettled(there, b.params);
    if (b.device.is_cpu() && !there.defined())
      tell_step(b.params, variants[slots_[b.params[0]].group].functor_bytes);
    if (!b.tensors.empty())  // as of a gradient without rows
      device.step(context, *b.kernel, b.dtype, b.tensors, recording ? next_of(b.params, there) : nullptr,
                  there.defined() ? static_cast<const double*>(there.address()) : nullptr);
    ++kernel_calls_;
    if (open) unsettled_.push_back(std::move(*open));
    const bool skipped = there.defined() && b.device.is_cpu() && there.item<double>() != 0;
    for (const size_t i : b.params) {
      Slot& slot = slots_[i];
      if (!recording) ++slot.steps;
      if (!skipped && variants[slot.group].catches_up && weft::detail::is_row_wise(grads[i]))
        slot.behind->count_step(weft::detail::unpack_rows(grads[i]).rows, missed(slot.group, slot.steps));
      Storage& storage = *params_[i].body().storage;
      if (const auto at = fresh.find(&storage); at != fresh.end() && at->second.block)
        storage.replace_block(std::exchange(at->second.block, nullptr));
      else storage.count_write();
    }
  }
}

}  // namespace weft::optim
