// The table of a context's passes on this worker: passes are found, opened and closed. Another thread may end
// a pass as soon as it stands in the table.
#include <weft/distributed/autograd/inner/dist_pass.h>

namespace weft::dist_autograd::detail {

namespace {

/// Every pass of a context is a PassState.
std::shared_ptr<PassState> state_of(const std::shared_ptr<ContextPass>& pass) {
  return std::static_pointer_cast<PassState>(pass);
}

}  // namespace

std::shared_ptr<PassState> find_pass(const ContextPtr& context, MadeId id) {
  MutexLock lock(context->mutex);
  const auto found = context->passes.find(id);
  return found == context->passes.end() ? nullptr : state_of(found->second);
}

std::shared_ptr<PassState> open_pass(const ContextPtr& context, MadeId id, const PassTerms& terms,
                                     bool* fresh) {
  *fresh = false;
  if (auto found = find_pass(context, id)) return found;
  context->table.watch(id.maker(), +1);  // before another thread can find the pass and end it
  std::shared_ptr<PassState> pass;
  std::exception_ptr refused;
  {
    MutexLock lock(context->mutex);
    if (context->released) {
      refused =
          std::make_exception_ptr(AutogradError(str("autograd context ", context->id.id, " was released")));
    } else if (const auto found = context->aborted.find(id); found != context->aborted.end()) {
      refused = found->second.why;
    } else {
      context->gradients.settle(id.maker(), terms.settled);
      std::erase_if(context->done, [&](const auto& pass) {
        return pass.first.maker() == id.maker() && pass.first.id < terms.settled;
      });
      auto& place = context->passes[id];
      *fresh = !place;
      if (!place) place = std::make_shared<PassState>(context, id, terms);
      pass = state_of(place);
    }
  }
  if (!*fresh) context->table.watch(id.maker(), -1);
  if (refused) std::rethrow_exception(refused);
  if (*fresh && terms.mode == Backward::kFast) pass->watch();
  return pass;
}

void throw_no_pass(ContextState& context, MadeId id) {
  std::exception_ptr why;
  {
    MutexLock lock(context.mutex);
    if (const auto found = context.aborted.find(id); found != context.aborted.end()) why = found->second.why;
  }
  if (why) std::rethrow_exception(why);
  throw AutogradError(
      str("backward pass ", id.id, " is not under way on worker ", context.table.self().value));
}

void check_sends(ContextTable& table, Incarnation maker) {
  if (maker.value == 0 || maker == table.life()) return;
  throw PeerLost(table.name_of(table.self()),
                 str("backward pass: ", table.worker_text(table.self()), " was restarted"));
}

void close_pass(PassState& pass) {
  std::shared_ptr<ContextPass> kept;  // freed after the lock
  MutexLock lock(pass.context->mutex);
  const auto found = pass.context->passes.find(pass.id);
  if (found == pass.context->passes.end() || found->second.get() != &pass) return;
  kept = std::move(found->second);
  pass.context->passes.erase(found);
  lock.unlock();
  pass.context->table.watch(pass.id.maker(), -1);
}

}  // namespace weft::dist_autograd::detail
