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
//   4. Create missing state (zeros) and the functors.
//   5. Make one backend call per dtype, device and kernel; then count steps and versions, install the new
//      blocks and release the locks.
// A row-wise gradient makes an entry for each run of neighbouring rows, over these rows of the parameter and
// of the state. Of a rule whose rows catch up later, the entries' rows do so before the step, and all others
// are behind after it (inner/row_arrears.h).
// While a graph is recorded, the state must exist, and nothing is counted or replaced: next_of counts, and
// creates the functors, for each replay.

namespace weft::optim {
namespace {

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

bool is_stepped(DType dtype) { return dtype == kFloat32 || dtype == kFloat64; }

/// Adds to `list` the part of t, the step of a whole table, that the rows of g take part in.
void add_row_steps(std::vector<StepTensor>& list, const StepTensor& t, const RowGrad& g) {
  const int64_t width = g.sizes[1], size = size_of(g.values.dtype()), n = g.rows.numel();
  const int64_t* const rows = g.rows.data<const int64_t>();
  const auto moved = [&](void* p, int64_t row) {
    return p ? static_cast<char*>(p) + row * width * size : nullptr;
  };
  for (int64_t i = 0, end; i < n; i = end) {
    for (end = i + 1; end < n && rows[end] == rows[end - 1] + 1;) ++end;
    StepTensor part = t;
    part.param = moved(t.param, rows[i]);
    for (void*& s : part.state) s = moved(s, rows[i]);
    part.grad = static_cast<const char*>(g.values.raw()) + i * width * size;
    part.numel = (end - i) * width;
    list.push_back(part);
  }
}

}  // namespace

Optimizer::~Optimizer() = default;

Optimizer::Unsettled Optimizer::unsettled(const Tensor& skip, std::vector<size_t> params) {
  if (skip.device().is_cpu()) return {skip.clone(), nullptr, std::move(params)};
  auto known = std::make_shared<cuda::Event>(skip.device());
  const Tensor told = skip.to(kCpu, true);
  known->record();
  return {told, std::move(known), std::move(params)};
}

void Optimizer::add_params(const std::vector<Tensor>& params, size_t group) {
  if (params.empty()) throw ValueError(str(name(), ": the parameter list is empty"));
  for (size_t i = 0; i < params.size(); ++i) {
    const Tensor& p = params[i];
    const auto about = [&] { return str(name(), ": parameter ", params_.size() + i); };
    if (!p.defined()) throw ValueError(about() + " is undefined");
    if (!p.is_leaf() || !p.is_floating_point())
      throw ValueError(str(about(), " of sizes ", p.sizes(), " is not a floating-point leaf"));
    if (!is_stepped(p.dtype())) throw DTypeError(str(about(), " must be float32 or float64, is ", p.dtype()));
    if (p.body().storage->is_read_only())
      throw ValueError(
          str(about(), " of sizes ", p.sizes(), " lies in memory that from_blob was given as const"));
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
    if (const Shape& sizes = weft::detail::grad_sizes(grads[i]); sizes != params_[i].sizes())
      throw ShapeError(str(name(), ": parameter ", i, " is ", params_[i].sizes(), ", its gradient ", sizes));
    if (weft::detail::is_row_wise(grads[i])) check_rows(i);
    if (!is_stepped(params_[i].dtype()))  // the module was moved to it
      throw DTypeError(str(name(), ": parameter ", i, " is ", params_[i].dtype(),
                           "; a step takes float32 and float64. For half types train in float32 under "
                           "Autocast"));
    if (grads[i].dtype() != params_[i].dtype())
      throw DTypeError(
          str(name(), ": parameter ", i, " is ", params_[i].dtype(), ", its gradient ", grads[i].dtype()));
    if (grads[i].device() != params_[i].device())
      throw DeviceError(str(name(), ": parameter ", i, " lies on ", params_[i].device(), ", its gradient on ",
                            grads[i].device()));
  }
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
  const char* where = !p.device().is_cpu()              ? "on a device"
                      : p.body().storage->lock()        ? "that several threads use"
                      : p.body().storage->is_borrowed() ? "in memory of from_blob()"
                                                        : nullptr;
  if (where)
    refuse(
        "with momentum or weight_decay the rows without a gradient catch up when the weight is read, which "
        "a parameter ",
        where, " does not allow");
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

void Optimizer::check_recorded(size_t i, const Tensor& grad) const {
  const Slot& slot = slots_[i];
  if (weft::detail::is_row_wise(grad))
    throw ValueError(str(name(), ": parameter ", i,
                         " has a row-wise gradient, whose step cannot be recorded: each replay would write "
                         "the rows of the recording"));
  bool ready = slot.state.size() == variant(slot.group).state_names.size();
  for (const Tensor& s : slot.state)
    ready = ready && s.device() == params_[i].device() && s.dtype() == params_[i].dtype();
  if (!ready)
    throw ValueError(str(name(), ": take a step before one is recorded: parameter ", i,
                         " has no state on its device and of its dtype yet, and each replay would begin with "
                         "zeros"));
  check_unheld(i);
}

void Optimizer::check_unheld(size_t i) const {
  const auto guard = lock_parameter(params_[i]);
  if (guard && params_[i].body().storage->is_held())
    throw ValueError(str(name(), ": parameter ", i,
                         ", which several threads use, is still saved for a backward pass; a recorded step "
                         "can only write in place"));
}

void Optimizer::settle(uint64_t replay) const {
  for (size_t i = 0; i < unsettled_.size();) {
    const Unsettled& step = unsettled_[i];
    if (replay != 0 && step.replay == replay) {
      ++i;
      continue;
    }
    if (step.known) step.known->synchronize();
    // the replay may have run on any stream
    else if (replay == 0) backend(step.skip.device()).synchronize();
    if (step.skip.item<double>() != 0)
      for (const size_t k : step.params) --slots_[k].steps;
    unsettled_.erase(unsettled_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

/// A step that a graph or a program repeats.
struct Optimizer::RecordedStep {
  struct Memory {
    const void* at;
    Ref<Storage> kept;  // with the state: the kernels write there
  };
  std::vector<size_t> params;
  std::vector<Variant> variants;
  std::vector<Memory> memory;
  std::vector<std::vector<Tensor>> states;
  Tensor skip;
};

std::shared_ptr<const Optimizer::RecordedStep> Optimizer::recorded_step(std::vector<size_t> params,
                                                                        const Tensor& skip) const {
  auto step = std::make_shared<RecordedStep>();
  for (const size_t i : params) {
    step->variants.push_back(variant(slots_[i].group));
    const Ref<Storage>& storage = params_[i].body().storage;
    step->memory.push_back({params_[i].raw(), storage->lock() ? storage->lock()->block : storage});
    step->states.push_back(slots_[i].state);
  }
  step->params = std::move(params);
  step->skip = skip;
  return step;
}

void Optimizer::check_step(const RecordedStep& step) const {
  for (size_t k = 0; k < step.params.size(); ++k) {
    const size_t i = step.params[k];
    const Slot& slot = slots_[i];
    bool same = params_[i].raw() == step.memory[k].at &&
                variant(slot.group).kernel.run_f32 == step.variants[k].kernel.run_f32;
    for (size_t s = 0; s < step.states[k].size(); ++s)
      same = same && s < slot.state.size() && slot.state[s].raw() == step.states[k][s].raw();
    if (!same)
      throw ValueError(str("Graph: ", name(), " has changed since its step was recorded: parameter ", i,
                           " or its state lies elsewhere, or its rule is another one"));
    check_unheld(i);
  }
}

/// Counts the step of a replay and makes its functors. `replay` 0 repeats the last one.
void Optimizer::count_step(const RecordedStep& step, std::span<void* const> functors, uint64_t replay) {
  const bool again = replay == 0;
  if (!again) settle(replay);
  for (size_t k = 0; k < step.params.size(); ++k) {
    Slot& slot = slots_[step.params[k]];
    construct(functors[k], slot.group, again ? slot.steps : ++slot.steps);
    if (!again) params_[step.params[k]].body().storage->count_write();
  }
  if (step.skip.defined()) unsettled_.push_back({step.skip, nullptr, step.params, replay});
}

NextStep Optimizer::next_of(std::vector<size_t> recorded, const Tensor& skip) {
  return [this, alive = std::weak_ptr<bool>(alive_), step = recorded_step(std::move(recorded), skip)](
             std::span<void* const> functors, uint64_t replay) {
    if (alive.expired()) throw ValueError("Graph: the optimizer of a recorded step is gone");
    const std::lock_guard<std::mutex> own(mutex_);
    check_step(*step);
    count_step(*step, functors, replay);
  };
}

/// Tells a recording of compile() of the step that comes next.
void Optimizer::tell_step(const std::vector<size_t>& recorded, size_t functor_bytes) {
  Tracer* const t = weft::detail::tracer();
  if (!t) return;
  std::vector<size_t> bytes(recorded.size(), functor_bytes);
  t->stepping(std::move(bytes),
              [this, alive = std::weak_ptr<bool>(alive_), count = params_.size(),
               step = recorded_step(recorded, Tensor())](std::span<void* const> functors, uint64_t replay) {
                if (alive.expired()) throw ValueError("compile: the optimizer of a recorded step is gone");
                std::unique_lock<std::mutex> own(mutex_);
                if (params_.size() != count)
                  throw ValueError("compile: the optimizer of a recorded step has more parameters now");
                check_step(*step);
                if (!functors.empty()) count_step(*step, functors, replay);
                return own;
              });
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
  size_t bytes = 0;
  std::vector<Tensor> held;  // contiguous gradients, kept until the pass is done
  for (size_t i = 0; i < grads.size(); ++i)
    if (grads[i].defined()) bytes += FunctorBuffer::round(variants[slots_[i].group].functor_bytes);
  FunctorBuffer functors(bytes);

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
  shared.reserve(active.size());
  held.reserve(active.size());
  for (const size_t i : active) shared.push_back(params_[i]);
  const std::vector<std::unique_lock<std::mutex>> guards = lock_parameters(shared);

  std::map<const Storage*, Fresh> fresh;
  struct Batch {
    std::vector<StepTensor> tensors;
    std::vector<size_t> params;
    const StepKernel* kernel;
    DType dtype;
    Device device;
  };
  std::vector<Batch> batches;
  size_t offset = 0;
  for (const size_t i : active) {
    Slot& slot = slots_[i];
    const Variant& v = variants[slot.group];
    const Tensor& p = params_[i];
    while (slot.state.size() < v.state_names.size())
      slot.state.push_back(zeros(p.sizes(), {.dtype = p.dtype(), .device = p.device()}));
    for (Tensor& s : slot.state)  // the parameter may have moved to another device or dtype
      if (!(s.device() == p.device()) || s.dtype() != p.dtype()) s = s.to(p.device(), p.dtype());
    construct(functors.at(offset), slot.group, slot.steps + 1);
    const bool rows = weft::detail::is_row_wise(grads[i]);
    held.push_back(grads[i].is_contiguous() ? grads[i] : grads[i].detach().contiguous());

    const bool leaves_rows = rows && v.catches_up;
    if (leaves_rows) bring_up(i, weft::detail::unpack_rows(grads[i]).rows);
    const auto address = [&](const Tensor& x) {
      if (!leaves_rows) return x.raw();
      char* const first = static_cast<char*>(weft::detail::unsettled_data(*x.body().storage));
      return static_cast<void*>(first + x.storage_offset() * size_of(x.dtype()));
    };
    StepTensor t;
    t.param = address(p);
    t.grad = held.back().raw();
    for (size_t s = 0; s < v.state_names.size(); ++s) t.state[s] = address(slot.state[s]);
    t.numel = p.numel();
    t.hyper = functors.at(offset);
    offset += FunctorBuffer::round(v.functor_bytes);
    if (Storage& storage = *p.body().storage; storage.lock() && storage.is_held())
      fresh.try_emplace(&storage, p).first->second.place(p, t, rows);
    auto batch = std::find_if(batches.begin(), batches.end(), [&](const Batch& b) {
      return b.dtype == p.dtype() && b.device == p.device() && b.kernel->run_f32 == v.kernel.run_f32;
    });
    if (batch == batches.end()) batch = batches.insert(batch, {{}, {}, &v.kernel, p.dtype(), p.device()});
    if (rows) weft::detail::refuse_trace("steps by a row-wise gradient");
    if (rows) add_row_steps(batch->tensors, t, weft::detail::unpack_rows(grads[i]));
    else batch->tensors.push_back(t);
    batch->params.push_back(i);
  }

  for (Batch& b : batches) {
    const Tensor times = factor.defined() ? factor.to(b.device) : Tensor();
    if (times.defined())
      for (StepTensor& t : b.tensors) t.factor = static_cast<const double*>(times.raw());
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
                  there.defined() ? static_cast<const double*>(there.raw()) : nullptr);
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
