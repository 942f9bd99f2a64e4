// The steps of an owner: at once, in their turn, and in two phases. owner_optimizer.cpp has the
// registration and the checkpoints.
#include <algorithm>
#include <map>

#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/grad_mode.h>
#include <weft/autograd/tape/inner/parameter_lock.h>
#include <weft/distributed/autograd/inner/dist_context.h>
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
      .copy(context, {values.address(), kUInt8, bytes, one},
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
  for (const Tensor& p : params) out.push_back(dist_autograd::detail::kept_gradient(context_id, p));
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
    ledger->check_fence();
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

void OwnerState::prepare(int64_t context_id, int64_t number, std::string decision) {
  const auto store = decision.empty() ? nullptr : decision_store(*rpc::current_agent());
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
    made->decision = std::move(decision);
    made->store = store;
    made->since = runtime->now();
    prepared = std::move(made);
  } catch (...) {
    ledger->end(stepped, context, false);
    throw;
  }
  step_seam("prepared");
  if (store) await_decision(number);
}

void OwnerState::decide(int64_t number, bool commit) {
  if (resolve(number, commit)) return;
  rpc::MutexLock lock(mutex);
  decided.push_back(number);
  if (decided.size() > 64) decided.pop_front();
}

bool OwnerState::resolve(int64_t number, bool commit) {
  step_seam(commit ? "commit" : "abort");
  if (commit) ledger->check_fence();  // the step stays undecided
  std::unique_ptr<Prepared> step;
  bool mine = false;
  {
    const NoGrad guard;
    rpc::MutexLock lock(mutex);
    if (!prepared || prepared->number != number) return false;
    mine = ledger->claim(prepared->stepped, prepared->context);
    if (mine && commit) {
      try {
        optimizer->load_state_dict(prepared->optimizer->state_dict());
        // others may have stepped the parameters that this step leaves alone
        std::vector<Tensor> changed, values;
        for (const size_t i : prepared->at) {
          changed.push_back(params[i]);
          values.push_back(prepared->values[i]);
        }
        const auto guards = lock_parameters(changed);
        replace_values(changed, values, true);
      } catch (...) {  // no memory: the step stays undecided
        ledger->unclaim(prepared->stepped);
        throw;
      }
    }
    step = std::move(prepared);
  }
  if (step->timer.value != 0) runtime->cancel(step->timer);
  if (!mine && commit)
    throw rpc::StepInDoubt("step: end_doubt has dropped it before its decision; an owner keeps its values");
  if (mine) ledger->end(step->stepped, step->context, commit);
  step_seam(commit ? "committed" : "aborted");
  return true;
}

/// Lets this owner ask the store when a lease has passed without a decision.
void OwnerState::await_decision(int64_t number) {
  const rpc::TimePoint late = runtime->now() + std::chrono::milliseconds(how.lease_ms);
  const rpc::TimerId timer = runtime->call_at(late, [weak = weak_from_this(), number] {
    if (const auto self = weak.lock()) self->doubt(number);
  });
  {
    rpc::MutexLock lock(mutex);
    if (prepared && prepared->number == number) {
      prepared->timer = timer;
      return;
    }
  }
  runtime->cancel(timer);
}

void OwnerState::doubt(int64_t number) {
  {
    rpc::MutexLock lock(mutex);
    if (!prepared || prepared->number != number || !prepared->store || prepared->asked) return;
    prepared->asked = true;
  }
  runtime->post([self = shared_from_this(), number] { self->ask(number); });
}

/// Asks the store for the decision, and aborts where there is none yet. Without an answer in time the step
/// stays undecided: the old values stay, and newer steps are refused.
void OwnerState::ask(int64_t number) {
  const rpc::Duration lease = std::chrono::milliseconds(how.lease_ms);
  std::shared_ptr<rpc::Store> store;
  std::string key;
  rpc::TimePoint until;
  {
    rpc::MutexLock lock(mutex);
    if (!prepared || prepared->number != number) return;
    store = prepared->store;
    key = prepared->decision;
    until = std::min(runtime->now() + lease, prepared->since + 2 * lease);
  }
  while (runtime->now() < until) {
    try {
      const bool commit = decide_at_store(*store, key, false, lease, until);
      if (runtime->now() > until) break;  // the decision may have ended meanwhile
      resolve(number, commit);
      return;
    } catch (const rpc::RuntimeStopped&) {
      return;
    } catch (const std::exception&) {  // no answer, none yet, no memory, or this worker is fenced
      if (runtime->now() < until) runtime->sleep_for(lease / 16);
    }
  }
  std::vector<VersionsPtr> left;
  {
    rpc::MutexLock lock(mutex);
    if (!prepared || prepared->number != number) return;
    prepared->unanswered = true;
    if (abandoned) left = prepared->stepped;
  }
  if (!left.empty()) ledger->keep_doubt(params, left);
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
  int64_t number = 0;
  std::vector<VersionsPtr> left;
  {
    rpc::MutexLock lock(mutex);
    abandoned = true;
    if (!prepared) return;
    number = prepared->number;
    // without its caller the step stays undecided, for every later optimizer of its parameters
    if (!prepared->store || prepared->unanswered) left = prepared->stepped;
  }
  if (left.empty()) doubt(number);
  else ledger->keep_doubt(params, left);
}

}  // namespace weft::dist_optim::detail
