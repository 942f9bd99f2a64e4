// Steps that are counted later: steps whose skip is known only on the device, and steps that a graph or a
// program of compile() repeats. A recorded step keeps the memory that its kernels write, and refuses a replay
// when the optimizer's state lies elsewhere.
#include <weft/optim/optimizer.h>

#include <weft/autograd/tape/inner/packed_rows.h>
#include <weft/autograd/tape/inner/parameter_lock.h>
#include <weft/kernels/backend.h>
#include <weft/tensor/inner/parameter_lock.h>
#include <weft/tensor/inner/tracer.h>

namespace weft::optim {

Optimizer::Unsettled Optimizer::unsettled(const Tensor& skip, std::vector<size_t> params) {
  if (skip.device().is_cpu()) return {skip.clone(), nullptr, std::move(params)};
  auto known = std::make_shared<cuda::Event>(skip.device());
  const Tensor told = skip.to(kCpu, true);
  known->record();
  return {told, std::move(known), std::move(params)};
}

void Optimizer::check_recorded(size_t i, const Tensor& grad) const {
  const Slot& slot = slots_[i];
  if (weft::detail::is_row_wise(grad))
    throw ValueError(str(name(), ": parameter ", i,
                         " has a row-wise gradient, whose step cannot be recorded: each replay would write "
                         "the rows of the recording"));
  const Tensor& p = params_[i];
  bool ready = slot.state.size() == variant(slot.group).state_names.size() &&
               (!is_half(p.dtype()) || (slot.master.defined() && slot.master.device() == p.device()));
  for (const Tensor& s : slot.state) ready = ready && s.device() == p.device() && s.dtype() == state_type(p);
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
  std::vector<Tensor> masters;
  Tensor skip;
};

std::shared_ptr<const Optimizer::RecordedStep> Optimizer::recorded_step(std::vector<size_t> params,
                                                                        const Tensor& skip) const {
  auto step = std::make_shared<RecordedStep>();
  for (const size_t i : params) {
    step->variants.push_back(variant(slots_[i].group));
    const Ref<Storage>& storage = params_[i].body().storage;
    step->memory.push_back({params_[i].address(), storage->lock() ? storage->lock()->block : storage});
    step->states.push_back(slots_[i].state);
    step->masters.push_back(slots_[i].master);
  }
  step->params = std::move(params);
  step->skip = skip;
  return step;
}

void Optimizer::check_step(const RecordedStep& step) const {
  for (size_t k = 0; k < step.params.size(); ++k) {
    const size_t i = step.params[k];
    const Slot& slot = slots_[i];
    bool same = params_[i].address() == step.memory[k].at &&
                variant(slot.group).kernel.run_f32 == step.variants[k].kernel.run_f32;
    for (size_t s = 0; s < step.states[k].size(); ++s)
      same = same && s < slot.state.size() && slot.state[s].address() == step.states[k][s].address();
    if (const Tensor& master = step.masters[k]; master.defined())
      same = same && slot.master.defined() && slot.master.address() == master.address();
    if (!same)
      throw ValueError(str("Graph: ", name(), " has changed since its step was recorded: parameter ", i,
                           " or its state lies elsewhere, or its rule is another one"));
    check_writable(i);
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

}  // namespace weft::optim
