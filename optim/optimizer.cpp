// The step, told once for all rules:
//   1. check every gradient before anything changes;
//   2. put the counts of skipped steps right, make missing state (zeros) and the functors, count the step;
//   3. take the locks of concurrent parameters in address order; where a storage is still saved by a graph, give the new value a fresh
//      block (copy on write), else write in place;
//   4. one backend call per dtype; swap the fresh blocks in, bump versions, drop the locks.
// While a graph is recorded, the state must be there and nothing is counted or swapped: next_of counts and makes the functors of each replay.
#include <weft/optim/optimizer.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>

#include <weft/autograd/parameter_lock.h>
#include <weft/kernels/backend.h>
#include <weft/tensor/factories.h>

namespace weft::optim {
namespace {

// The functors of one step, aligned for any of them.
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
  if (params.empty()) throw ValueError("optimizer: the parameter list is empty");
  for (const Tensor& p : params) {
    if (!p.is_leaf() || !p.is_floating_point())
      throw ValueError(str("optimizer: parameter ", params_.size(), " of sizes ", p.sizes(),
                           " is not a floating-point leaf"));
    if (p.dtype() != kFloat32 && p.dtype() != kFloat64)
      throw DTypeError(str("optimizer: parameters are float32 or float64, got ", p.dtype()));
    if (!p.is_contiguous())
      throw ShapeError(
          str("optimizer: parameter ", params_.size(), " of sizes ", p.sizes(), " is not contiguous"));
  }
  std::vector<Tensor> all = params_;
  for (const Tensor& p : params) {
    if (std::any_of(all.begin(), all.end(), [&](const Tensor& q) { return q.is_same(p); }))
      throw ValueError(str("optimizer: a parameter of sizes ", p.sizes(), " is given twice"));
    all.push_back(p);
  }
  params_ = std::move(all);
  slots_.resize(params_.size());
  for (size_t i = params_.size() - params.size(); i < params_.size(); ++i) slots_[i].group = group;
}

void Optimizer::zero_grad() const {
  for (const Tensor& p : params_) p.zero_grad();
}

void Optimizer::step() {
  std::vector<Tensor> grads;
  grads.reserve(params_.size());
  for (const Tensor& p : params_) grads.push_back(p.grad());
  step(grads);
}

void Optimizer::check(std::span<const Tensor> grads) const {
  if (grads.size() != params_.size())
    throw ValueError(str(name(), ": ", params_.size(), " parameters, but ", grads.size(), " gradients"));
  for (size_t i = 0; i < grads.size(); ++i) {
    if (!grads[i].defined()) continue;
    if (grads[i].sizes() != params_[i].sizes())
      throw ShapeError(
          str(name(), ": parameter ", i, " is ", params_[i].sizes(), ", its gradient ", grads[i].sizes()));
    if (grads[i].dtype() != params_[i].dtype())
      throw DTypeError(
          str(name(), ": parameter ", i, " is ", params_[i].dtype(), ", its gradient ", grads[i].dtype()));
    if (grads[i].device() != params_[i].device())
      throw DeviceError(str(name(), ": parameter ", i, " lies on ", params_[i].device(), ", its gradient on ",
                            grads[i].device()));
  }
}

void Optimizer::check_recorded(size_t i) const {
  const Slot& slot = slots_[i];
  bool ready = slot.state.size() == variant(slot.group).state_names.size();
  for (const Tensor& s : slot.state) ready = ready && s.device() == params_[i].device();
  if (!ready)
    throw ValueError(str(name(), ": take a step before one is recorded: parameter ", i,
                         " has no state on its device yet, and each replay would begin with zeros"));
  if (params_[i].body().storage->saves() != 0)
    throw ValueError(str(name(), ": parameter ", i,
                         " is still saved for a backward pass; a recorded step can only write in place"));
}

void Optimizer::settle(uint64_t replay) const {
  for (size_t i = 0; i < unsettled_.size();) {
    const Unsettled& step = unsettled_[i];
    if (replay != 0 && step.replay == replay) {
      ++i;
      continue;
    }
    if (step.known) step.known->synchronize();
    else if (replay == 0)
      backend(step.skip.device()).synchronize();  // it may have been replayed on any stream
    if (step.skip.item<double>() != 0)
      for (const size_t k : step.params) --slots_[k].steps;
    unsettled_.erase(unsettled_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

NextStep Optimizer::next_of(std::vector<size_t> recorded, const Tensor& skip) {
  std::vector<Variant> variants;
  std::vector<Tensor> params;  // and their state: the graph's kernels go on writing there
  std::vector<std::vector<Tensor>> states;
  for (const size_t i : recorded) {
    variants.push_back(variant(slots_[i].group));
    params.push_back(params_[i].detach());
    states.push_back(slots_[i].state);
  }
  return [this, alive = std::weak_ptr<bool>(alive_), skip, recorded = std::move(recorded),
          variants = std::move(variants), params = std::move(params),
          states = std::move(states)](std::span<void* const> functors, uint64_t replay) {
    if (alive.expired()) throw ValueError("Graph: the optimizer of a recorded step is gone");
    const std::lock_guard<std::mutex> own(mutex_);
    for (size_t k = 0; k < recorded.size(); ++k) {
      const Slot& slot = slots_[recorded[k]];
      bool same = params_[recorded[k]].raw() == params[k].raw() &&
                  variant(slot.group).kernel.run_f32 == variants[k].kernel.run_f32;
      for (size_t s = 0; s < states[k].size(); ++s)
        same = same && s < slot.state.size() && slot.state[s].raw() == states[k][s].raw();
      if (!same)
        throw ValueError(str("Graph: ", name(), " has changed since its step was recorded: parameter ",
                             recorded[k], " or its state lies elsewhere, or its rule is another one"));
    }
    settle(replay);
    for (size_t k = 0; k < recorded.size(); ++k) {
      Slot& slot = slots_[recorded[k]];
      construct(functors[k], slot.group, ++slot.steps);
    }
    if (skip.defined()) unsettled_.push_back({skip, nullptr, recorded, replay});
  };
}

void Optimizer::step(std::span<const Tensor> grads, const Tensor& skip) {
  check(grads);
  if (skip.defined() && (skip.numel() != 1 || skip.dtype() != kFloat64))
    throw ValueError(
        str(name(), ": skip must be one float64 number, is ", skip.sizes(), " of ", skip.dtype()));
  std::lock_guard<std::mutex> own(mutex_);
  Context context;

  std::vector<Variant> variants;
  for (size_t g = 0; g < groups(); ++g) variants.push_back(variant(g));
  for (size_t i = 0; i < grads.size(); ++i)
    if (grads[i].defined() && !params_[i].device().is_cpu())
      step_cuda_form(variants[slots_[i].group].kernel);  // throws before anything changes
  size_t bytes = 0;
  std::vector<Tensor> held;  // contiguous gradients, alive until the pass is over
  for (size_t i = 0; i < grads.size(); ++i)
    if (grads[i].defined()) bytes += FunctorBuffer::round(variants[slots_[i].group].functor_bytes);
  FunctorBuffer functors(bytes);

  std::vector<size_t> active;
  for (size_t i = 0; i < grads.size(); ++i)
    if (grads[i].defined()) active.push_back(i);
  bool waits = true;
  for (const size_t i : active) {
    if (!backend(params_[i].device()).recording(context)) continue;
    check_recorded(i);
    waits = false;  // nothing may wait meanwhile; the replay settles
  }
  if (waits) settle();
  std::vector<size_t> by_address = active;
  std::sort(by_address.begin(), by_address.end(),
            [&](size_t a, size_t b) { return params_[a].body_ptr() < params_[b].body_ptr(); });
  std::vector<std::unique_lock<std::mutex>> guards;
  for (const size_t i : by_address) guards.push_back(lock_parameter(params_[i]));

  struct Fresh {
    size_t param;
    Ref<Storage> storage;
  };
  std::vector<Fresh> fresh;
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
    for (Tensor& s : slot.state)
      if (!(s.device() == p.device())) s = s.to(p.device());  // the parameter moved meanwhile
    construct(functors.at(offset), slot.group, slot.steps + 1);
    if (!backend(p.device()).recording(context)) ++slot.steps;
    held.push_back(grads[i].is_contiguous() ? grads[i] : grads[i].detach().contiguous());

    StepTensor t;
    t.param = p.raw();
    t.grad = held.back().raw();
    for (size_t s = 0; s < v.state_names.size(); ++s) t.state[s] = slot.state[s].raw();
    t.numel = p.numel();
    t.hyper = functors.at(offset);
    offset += FunctorBuffer::round(v.functor_bytes);
    if (p.body().storage->saves() != 0) {
      const size_t block = static_cast<size_t>(p.numel() * size_of(p.dtype()));
      fresh.push_back({i, Storage::allocate(p.device(), block)});
      t.out = fresh.back().storage->data();
    }
    auto batch = std::find_if(batches.begin(), batches.end(), [&](const Batch& b) {
      return b.dtype == p.dtype() && b.device == p.device() && b.kernel->run_f32 == v.kernel.run_f32;
    });
    if (batch == batches.end()) batch = batches.insert(batch, {{}, {}, &v.kernel, p.dtype(), p.device()});
    batch->tensors.push_back(t);
    batch->params.push_back(i);
  }

  for (const Batch& b : batches) {
    Backend& device = backend(b.device);
    const bool recording = device.recording(context);
    const Tensor there = skip.defined() ? recording ? skip.to(b.device).clone() : skip.to(b.device)
                                        : Tensor();  // a replay's is read after the next began
    device.step(context, *b.kernel, b.dtype, b.tensors, recording ? next_of(b.params, there) : nullptr,
                there.defined() ? static_cast<const double*>(there.raw()) : nullptr);
    ++kernel_calls_;
    if (skip.defined() && !recording) unsettled_.push_back(unsettled(there, b.params));
  }
  for (Fresh& f : fresh) swap_storage(params_[f.param], std::move(f.storage));
  for (const size_t i : active) params_[i].body().storage->bump_version();
}

StateDict Optimizer::state_dict() const {
  settle();
  StateDict out;
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].steps == 0) continue;
    const std::string prefix = std::to_string(i) + ".";
    out.emplace_back(prefix + "step", scalar_tensor(slots_[i].steps, {.dtype = kInt64}));
    const Variant v = variant(slots_[i].group);
    for (size_t s = 0; s < slots_[i].state.size(); ++s)
      out.emplace_back(prefix + v.state_names[s], slots_[i].state[s]);
  }
  for (size_t g = 0; g < groups(); ++g)
    out.emplace_back("group" + std::to_string(g) + ".lr", scalar_tensor(lr(g), {.dtype = kFloat64}));
  return out;
}

void Optimizer::load_state_dict(const StateDict& state) {
  settle();
  std::vector<Slot> loaded = slots_;
  std::vector<std::pair<size_t, double>> rates;
  for (Slot& slot : loaded) {
    slot.steps = 0;
    slot.state.clear();
  }
  for (const auto& [name, tensor] : state) {
    bool known = false;
    for (size_t g = 0; g < groups() && !known; ++g)
      if (name == "group" + std::to_string(g) + ".lr") {
        rates.emplace_back(g, tensor.item<double>());
        known = true;
      }
    for (size_t i = 0; i < loaded.size() && !known; ++i) {
      const std::string prefix = std::to_string(i) + ".";
      if (name.compare(0, prefix.size(), prefix) != 0) continue;
      const std::string key = name.substr(prefix.size());
      if (key == "step") {
        loaded[i].steps = tensor.item<int64_t>();
        known = true;
        continue;
      }
      const Variant v = variant(loaded[i].group);
      for (size_t s = 0; s < v.state_names.size(); ++s) {
        if (key != v.state_names[s]) continue;
        if (tensor.sizes() != params_[i].sizes())
          throw ShapeError(
              str("load_state_dict: ", name, " is ", tensor.sizes(), ", the parameter ", params_[i].sizes()));
        while (loaded[i].state.size() < v.state_names.size())
          loaded[i].state.push_back(
              zeros(params_[i].sizes(), {.dtype = params_[i].dtype(), .device = params_[i].device()}));
        loaded[i].state[s] = tensor.to(params_[i].dtype()).to(params_[i].device()).clone();
        known = true;
      }
    }
    if (!known) throw ValueError(str("load_state_dict: ", this->name(), " has no state called '", name, "'"));
  }
  std::vector<std::pair<size_t, double>>
      before;  // the rule may refuse a rate: then the groups that took theirs get the old one back
  try {
    for (const auto& [group, rate] : rates) {
      before.emplace_back(group, lr(group));
      set_lr(group, rate);
    }
  } catch (...) {
    for (auto old = before.rbegin(); old != before.rend(); ++old) set_lr(old->first, old->second);
    throw;
  }
  slots_ = std::move(loaded);
}

}  // namespace weft::optim
