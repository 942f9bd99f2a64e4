// The steps of an owner: at once, in their turn, and in two phases. owner_optimizer.cpp has the
// registration and the checkpoints.
#include <algorithm>
#include <map>

#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/grad_mode.h>
#include <weft/autograd/tape/inner/parameter_lock.h>
#include <weft/distributed/optim/inner/owner_state.h>
#include <weft/distributed/optim/inner/step_ledger.h>
#include <weft/distributed/optim/inner/step_seam.h>
#include <weft/distributed/rpc/step_errors.h>
#include <weft/kernels/backend.h>
#include <weft/tensor/factories.h>
#include <weft/tensor/inner/parameter_lock.h>

namespace weft::dist_optim::detail {
namespace {

/// Copies contiguous values to an offset of a block of the same device.
void copy_into(Storage& block, int64_t offset, const Tensor& values) {
  const Shape bytes{values.numel() * size_of(values.dtype())}, one{1};
  Context context;
  backend(values.device())
      .copy(context, {values.raw(), kUInt8, bytes, one},
            {static_cast<char*>(block.data()) + offset, kUInt8, bytes, one});
}

}  // namespace

std::atomic<void (*)(const char*)> at_step_point{nullptr};

void replace_values(const std::vector<Tensor>& params, const std::vector<Tensor>& values, bool take) {
  std::map<Storage*, Ref<Storage>> fresh;
  for (size_t i = 0; i < params.size(); ++i) {
    const Tensor& p = params[i];
    Storage& storage = *p.body().storage;
    Ref<Storage>& block = fresh[&storage];
    if (take && static_cast<size_t>(p.numel() * size_of(p.dtype())) == storage.bytes() &&
        values[i].body().storage->bytes() == storage.bytes()) {
      block = values[i].body().storage;
      continue;
    }
    if (!block) {
      block = Storage::allocate(p.device(), storage.bytes());
      if (static_cast<size_t>(p.numel() * size_of(p.dtype())) != storage.bytes()) {  // keep the rest of it
        const Shape bytes{static_cast<int64_t>(storage.bytes())}, one{1};
        Context context;
        backend(p.device())
            .copy(context, {storage.data(), kUInt8, bytes, one}, {block->data(), kUInt8, bytes, one});
      }
    }
    copy_into(*block, p.storage_offset() * size_of(p.dtype()), values[i]);
  }
  for (auto& [storage, block] : fresh) storage->replace_block(std::move(block));
}

std::vector<Tensor> OwnerState::gradients(int64_t context_id) const {
  std::vector<Tensor> out;
  for (const Tensor& p : params) out.push_back(dist_autograd::get_gradient(context_id, p));
  return out;
}

std::vector<VersionsPtr> OwnerState::with_gradient(const std::vector<Tensor>& grads) const {
  std::vector<VersionsPtr> out;
  for (size_t i = 0; i < grads.size(); ++i)
    if (grads[i].defined()) out.push_back(versions[i]);
  return out;
}

/// Takes a step that was begun.
void OwnerState::take_step(const std::vector<Tensor>& grads, const std::vector<VersionsPtr>& stepped,
                           MadeId context) {
  try {
    rpc::MutexLock lock(mutex);
    optimizer->step(grads);
  } catch (...) {
    ledger->end(stepped, context, false);
    throw;
  }
  ledger->end(stepped, context, true);
}

void OwnerState::step(int64_t context_id) {
  const std::vector<Tensor> grads = gradients(context_id);
  const std::vector<VersionsPtr> stepped = with_gradient(grads);
  take_step(grads, stepped, ledger->begin(stepped, context_id, how.max_staleness));
}

rpc::Future<void> OwnerState::step_in_turn(int64_t context_id) {
  const rpc::Future<void> done;
  const std::vector<VersionsPtr> stepped = with_gradient(gradients(context_id));
  ledger->begin_in_turn(
      stepped, context_id, how.max_staleness,
      [self = shared_from_this(), done, stepped, context_id](MadeId context, std::exception_ptr error) {
        try {
          if (error) std::rethrow_exception(error);
          std::vector<Tensor> grads;
          try {
            grads = self->gradients(context_id);
          } catch (...) {
            self->ledger->end(stepped, context, false);
            throw;
          }
          self->take_step(grads, stepped, context);
        } catch (...) {
          return done.set_error(std::current_exception());
        }
        done.set_result();
      });
  return done;
}

// ---- two phases

OwnerState::Prepared OwnerState::shadow(const std::vector<Tensor>& grads) const {
  Prepared out;
  {
    const NoGrad guard;
    for (const Tensor& p : params) out.values.push_back(snapshot(p).detach().clone());
  }
  out.optimizer = make_optimizer(rule, out.values, group_sizes, options);
  out.optimizer->load_state_dict(optimizer->state_dict());  // with the rates
  out.optimizer->step(grads);
  for (size_t i = 0; i < grads.size(); ++i)
    if (grads[i].defined()) out.at.push_back(i);
  return out;
}

void OwnerState::prepare(int64_t context_id, int64_t number) {
  const std::vector<Tensor> grads = gradients(context_id);
  const std::vector<VersionsPtr> stepped = with_gradient(grads);
  step_seam("prepare");
  const MadeId context = ledger->begin(stepped, context_id, how.max_staleness, true);
  try {
    rpc::MutexLock lock(mutex);
    if (std::find(decided.begin(), decided.end(), number) != decided.end())
      throw ValueError(str("step: number ", number, " has been decided before its preparation"));
    if (prepared) throw rpc::StepInDoubt("step: another step of this optimizer awaits its decision");
    auto made = std::make_unique<Prepared>(shadow(grads));
    made->number = number;
    made->stepped = stepped;
    made->context = context;
    prepared = std::move(made);
  } catch (...) {
    ledger->end(stepped, context, false);
    throw;
  }
  step_seam("prepared");
}

void OwnerState::decide(int64_t number, bool commit) {
  step_seam(commit ? "commit" : "abort");
  std::unique_ptr<Prepared> step;
  {
    const NoGrad guard;
    rpc::MutexLock lock(mutex);
    if (!prepared || prepared->number != number) {
      decided.push_back(number);
      if (decided.size() > 64) decided.pop_front();
      return;
    }
    if (commit) {
      optimizer->load_state_dict(prepared->optimizer->state_dict());
      // others may have stepped the parameters that this step leaves alone
      std::vector<Tensor> changed, values;
      for (const size_t i : prepared->at) {
        changed.push_back(params[i]);
        values.push_back(prepared->values[i]);
      }
      const auto guards = lock_parameters(changed);
      replace_values(changed, values, true);
    }
    step = std::move(prepared);
  }
  ledger->end(step->stepped, step->context, commit);
  step_seam(commit ? "committed" : "aborted");
}

void OwnerState::end_doubt() {
  std::unique_ptr<Prepared> dropped;
  {
    rpc::MutexLock lock(mutex);
    dropped = std::move(prepared);
  }
  ledger->forget_prepared(versions);
}

void OwnerState::abandon() {
  // without its caller the step stays undecided, for every later optimizer of its parameters
  rpc::MutexLock lock(mutex);
  if (prepared) ledger->keep_doubt(params, prepared->stepped);
}

}  // namespace weft::dist_optim::detail
