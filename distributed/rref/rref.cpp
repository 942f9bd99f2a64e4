// The type-erased functions behind the templates of rref.h: requests through a reference (Use), creations
// (Creation), and the owner's values. references.cpp has the protocol.
#include <weft/distributed/rref/rref.h>

#include <weft/distributed/rref/inner/reference_messages.h>
#include <weft/distributed/rref/inner/references.h>

namespace weft::rpc::detail {

std::string to_string(const Site& site) {
  if (site.file == nullptr) return str("'", site.what, "'");
  return str("'", site.what, "' at ", site.file, ":", site.line);
}

StatePtr own(std::shared_ptr<void> value, const ValueType* type, Site site) {
  if (!value) throw ValueError("RRef: the value is null");
  const auto agent = current_agent();
  const auto references = References::of(*agent);
  auto state = references->owners().make(references->next<RRefId>(*agent), site, true);
  state->set(std::move(value), type);
  return state;
}

std::shared_ptr<void> owned_value(const RRefState& state, const ValueType* type,
                                  std::optional<Duration> limit) {
  if (!state.is_owner)
    throw RpcError(str("cannot call local_value() on ", describe(&state), ": worker '",
                       state.references->self().name, "' (", state.references->self().id.value,
                       ") is a user of it, not the owner"));
  check_usable(state);
  const auto& owned = static_cast<const OwnedState&>(state);
  if (!owned.created.done()) {
    const auto agent = state.references->agent(state);
    const Duration wait = limit.value_or(agent->rpc_timeout());
    TimePoint deadline = wait.count() > 0 ? state.references->runtime()->now() + wait : kNever;
    if (const CallContext* context = current_context(); context && !limit)
      deadline = std::min(deadline, context->deadline);
    if (!owned.created.state()->wait_until(deadline)) {
      check_usable(state);
      throw Timeout(str(describe(&state), ": its value was not made in time"));
    }
    check_usable(state);
  }
  owned.created.state()->join_streams();
  if (owned.created.has_error()) std::rethrow_exception(owned.created.error());
  if (owned.type != type && owned.type->name() != type->name())
    throw ValueError(str(state.id, " refers to a ", owned.type->name(), ", not to a ", type->name()));
  return owned.value;
}

bool confirmed_by_owner(const RRefState& state) {
  if (state.is_owner) return true;
  const auto& confirmed = static_cast<const UserState&>(state).confirmed;
  return confirmed.done() && !confirmed.has_error();
}

ForkId fork_of(const RRefState& state) {
  return state.is_owner ? ForkId{} : static_cast<const UserState&>(state).fork;
}

std::string describe(const RRefState* state) {
  if (state == nullptr) return "RRef()";
  if (state->is_owner) return str("OwnerRRef(", state->id, ")");
  return str("UserRRef(", state->id, ", ", static_cast<const UserState*>(state)->fork, ", owner ",
             state->owner, ")");
}

void throw_empty() { throw RpcError("an empty RRef was used: it refers to nothing"); }

void encode_reference(Encoder& out, const StatePtr& state) {
  out.number(static_cast<uint8_t>(state != nullptr));
  if (state) state->references->encode(out, state);
}

StatePtr decode_reference(Decoder& in, const ValueType* type) {
  const auto present = in.number<uint8_t>();
  if (present == 0) return nullptr;
  if (present != 1) malformed("a reference that is neither there nor empty");
  if (!in.endpoint()) throw RpcError("a reference travels only in a call or its reply");
  return References::of(*agent_of(in.endpoint()))->decode(in, type);
}

// ---- Use

Use::Use(const StatePtr& state, Kind kind, const FunctionEntry* function)
    : state_(state),
      agent_(state->references->agent(*state)),
      kind_(kind),
      what_(function ? function->name.c_str() : "to_here") {
  check_usable(*state);
  out_.emplace(message_, agent_.get(), owner_life(*state));
  put_target(*out_, *state);
  if (function) put_function(*out_, *function);
}

CallId Use::send(std::optional<Duration> timeout, std::unique_ptr<ReplySink> sink) {
  out_.reset();
  return agent_->call(owner_life(*state_), kind_, std::move(message_), {timeout, what_}, std::move(sink));
}

std::exception_ptr Use::translate(const RRefState& state, std::exception_ptr error) {
  try {
    std::rethrow_exception(error);
  } catch (const OwnerLost&) {
  } catch (const PeerLost& lost) {
    if (lost.peer == state.owner.name)
      return std::make_exception_ptr(
          OwnerLost(lost.peer, str(describe(&state), ": the owner is lost: ", lost.what())));
  } catch (const Timeout&) {
  } catch (const RpcError&) {
    const auto* const user = state.is_owner ? nullptr : static_cast<const UserState*>(&state);
    if (user && user->standing.load() == UserState::Standing::kFailed) return user->error;
  } catch (...) {
  }
  return error;
}

// ---- Creation

Creation::Creation(const To& to, const FunctionEntry& function, Site site)
    : agent_(current_agent()), timeout_(to.timeout()) {
  if (to.retry())
    throw ValueError(str("remote of '", function.name, "': a creation cannot be repeated (with_retry)"));
  open(destination_life(*agent_, to), function, site);
}

Creation::Creation(const StatePtr& target, const FunctionEntry& function, std::optional<Duration> timeout,
                   Site site)
    : agent_(target->references->agent(*target)), target_(target), timeout_(timeout) {
  check_usable(*target);
  open(owner_life(*target), function, site);
}

/// Ends a creation that was not started, because an argument could not be encoded.
Creation::~Creation() {
  if (state_)
    references_->abandon_creation(*state_, std::make_exception_ptr(RpcError("the creation was not sent")));
}

void Creation::open(Life owner, const FunctionEntry& function, Site site) {
  if (timeout_ && timeout_->count() < 0)
    throw ValueError(str("timeout is negative: ", timeout_->count(), " ns"));
  references_ = References::of(*agent_);
  what_ = function.name.c_str();
  const auto id = references_->next<RRefId>(*agent_);
  if (owner.id == references_->self().id) {
    state_ = references_->owners().begin_creation(id, site);
  } else {
    state_ = references_->users().begin_creation(id, references_->next<ForkId>(*agent_),
                                                 agent_->worker_info(owner.id), owner, site);
  }
  out_.emplace(message_, agent_.get(), owner);
  put(*out_, id);
  put(*out_, fork_of(*state_));
  out_->number(static_cast<uint8_t>(target_ != nullptr));
  if (target_) put_target(*out_, *target_);
  put_function(*out_, function);
}

StatePtr Creation::start() {
  out_.reset();
  Duration limit = timeout_.value_or(agent_->rpc_timeout());
  const TimePoint now = agent_->runtime()->now();
  if (const CallContext* context = current_context(); context && !timeout_ && context->deadline != kNever)
    limit = limit.count() > 0 ? std::min(limit, context->deadline - now) : context->deadline - now;
  TimerId timer;
  if (limit.count() != 0 && limit < kNever - now)
    timer = agent_->runtime()->call_at(now + limit,
                                       [weak = std::weak_ptr<RRefState>(state_), what = what_, limit] {
                                         if (const auto state = weak.lock())
                                           state->references->creation_timed_out(*state, what, limit);
                                       });
  const bool mine = state_->is_owner;
  auto done = [state = state_, target = target_, timer, runtime = agent_->runtime(), mine](
                  std::exception_ptr error, const Message* answer) {
    if (timer.value != 0) runtime->cancel(timer);
    if (mine) {
      if (error) state->references->abandon_creation(*state, error);
      return;
    }
    const auto user = std::static_pointer_cast<UserState>(state);
    bool known = false;
    if (answer) {
      Decoder in(*answer);
      known = true;
      if (in.number<uint8_t>() != 0) error = get_error(in, state->owner.name);
    } else {
      error = Use::translate(*state, error);
    }
    auto& users = state->references->users();
    users.creation_answered(user, error, known);
    if (!known) users.creation_refused(*user);
  };
  const StatePtr state = std::exchange(state_, nullptr);
  try {
    agent_->call(owner_life(*state), Kind::kRemote, std::move(message_), {Duration(0), what_},
                 std::make_unique<DoneSink>(std::move(done)));
  } catch (...) {
    if (timer.value != 0) agent_->runtime()->cancel(timer);
    references_->abandon_creation(*state, std::current_exception());
    throw;
  }
  return state;
}

}  // namespace weft::rpc::detail
