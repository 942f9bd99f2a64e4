// The states of references (reference_states.h). They are the value or error on the owner, the status of a
// user's reference, and the gate that orders the methods of serialized classes.
#include <weft/distributed/rref/inner/reference_states.h>

#include <weft/distributed/rref/inner/references.h>

namespace weft::rpc::detail {

void Gate::enter(Runtime& runtime, Task task) {
  {
    MutexLock lock(mutex_);
    if (busy_) {
      waiting_.push_back(std::move(task));
      return;
    }
    busy_ = true;
  }
  runtime.post_or_refuse(std::move(task));
}

void Gate::leave(Runtime& runtime) {
  Task next;
  {
    MutexLock lock(mutex_);
    if (waiting_.empty()) {
      busy_ = false;
      return;
    }
    next = std::move(waiting_.front());
    waiting_.pop_front();
  }
  runtime.post_or_refuse(std::move(next));
}

OwnedState::OwnedState(std::shared_ptr<References> refs, RRefId rref, WorkerInfo self, Site from, bool made)
    : RRefState(refs, rref, std::move(self), true, from, Future<void>(refs->runtime())), gate(made) {}

OwnedState::~OwnedState() { references->owners().state_gone(id); }

void OwnedState::set(std::shared_ptr<void> made, const ValueType* of) {
  value = std::move(made);
  type = of;
  if (!created.state()->try_set()) return;
  gate.leave(*references->runtime());
}

void OwnedState::fail(std::exception_ptr error) {
  if (created.state()->try_set_error(std::move(error))) gate.leave(*references->runtime());
}

UserState::~UserState() { references->users().release(*this); }

Life owner_life(const RRefState& state) {
  return state.is_owner ? Life(state.owner.id) : static_cast<const UserState&>(state).owner_life;
}

void check_usable(const RRefState& state) {
  if (state.is_owner) {
    const auto& owned = static_cast<const OwnedState&>(state);
    if (owned.timed_out) throw Timeout(owned.late);
    return;
  }
  const auto& user = static_cast<const UserState&>(state);
  if (user.standing.load() > UserState::Standing::kConfirmed) std::rethrow_exception(user.error);
}

bool is_confirmed(const RRefState& state) {
  return state.is_owner ||
         static_cast<const UserState&>(state).standing.load() == UserState::Standing::kConfirmed;
}

}  // namespace weft::rpc::detail
