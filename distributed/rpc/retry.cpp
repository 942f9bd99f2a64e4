// Calls that are repeated by a RetryPolicy (with_retry): attempts, pauses and the outcome.
//
// An attempt is a separate call with its own message. It is repeated if it failed before the function began:
// the callee was lost or refused the request. All attempts share one deadline. During a pause the call counts
// as open, so that a graceful shutdown waits for it.
#include <cmath>

#include <weft/autograd/tape/grad_mode.h>
#include <weft/distributed/rpc/fenced.h>
#include <weft/distributed/rpc/inner/agent_impl.h>
#include <weft/distributed/rpc/rpc.h>

namespace weft::rpc {

namespace {

class Repeated final : public Canceller, public std::enable_shared_from_this<Repeated> {
 public:
  Repeated(std::shared_ptr<Agent> agent, const FunctionEntry& function, const To& to,
           detail::KeptArguments kept, std::unique_ptr<ReplySink> sink)
      : agent_(std::move(agent)),
        function_(function),
        to_(agent_->worker_info_id(to), to.incarnation()),
        timeout_(to.timeout()),
        policy_(*to.retry()),
        kept_(std::move(kept)),
        context_(capture_context()),
        grad_(grad_enabled()),
        random_(policy_.seed != 0 ? policy_.seed : agent_->runtime()->random()),
        sink_(std::move(sink)) {
    const TimePoint now = agent_->runtime()->now();
    const Duration limit = timeout_.value_or(agent_->rpc_timeout());
    if (limit.count() > 0 && limit < kNever - now) deadline_ = now + limit;
    if (!timeout_) deadline_ = std::min(deadline_, context_.deadline);
  }
  ~Repeated() override {
    if (sink_) sink_->on_error(detail::abandoned_error());  // the runtime has stopped during a pause
  }

  /// Throws, in the first attempt: as Agent::call.
  void attempt() {
    int number = 0;
    {
      MutexLock lock(mutex_);
      number = attempts_;
    }
    const Life to = to_.incarnation.value != 0 ? to_ : agent_->life_of(to_.id);
    const CallId call =
        agent_->call(to, Kind::kCall, written_for(to), {timeout_, function_.name.c_str(), deadline_},
                     std::make_unique<Attempt>(shared_from_this()));
    bool cancelled = false;
    {
      MutexLock lock(mutex_);
      if (attempts_ == number) open_ = call;
      cancelled = cancelled_;
    }
    if (cancelled) agent_->cancel_call(call);
  }

  bool cancel_call(const CallId&) override {
    CallId open;
    TimerId timer;
    {
      MutexLock lock(mutex_);
      if (!sink_ || cancelled_) return false;
      cancelled_ = true;
      open = open_;
      timer = timer_;
    }
    if (agent_->cancel_call(open)) return true;
    if (agent_->runtime()->cancel(timer)) {
      count(-1);
      fail(cancelled_error());
    }
    return true;
  }

 private:
  /// The sink of one attempt.
  class Attempt final : public ReplySink {
   public:
    explicit Attempt(std::shared_ptr<Repeated> call) : call_(std::move(call)) {}
    void on_reply(Agent& agent, WorkerId from, Message message) noexcept override {
      if (const auto sink = call_->take_sink()) sink->on_reply(agent, from, std::move(message));
    }
    void on_error(std::exception_ptr error) noexcept override { call_->repeat(std::move(error)); }
    void on_thrown(std::exception_ptr error) noexcept override {
      if (const auto sink = call_->take_sink()) sink->on_thrown(std::move(error));
    }

   private:
    std::shared_ptr<Repeated> call_;
  };

  Message written_for(Life to) const {
    Message message;
    {
      Encoder out(message, agent_.get(), to);
      put_function(out, function_);
      kept_.put(out, kept_.arguments.get());
    }
    return message;
  }
  std::unique_ptr<ReplySink> take_sink() {
    MutexLock lock(mutex_);
    return std::exchange(sink_, nullptr);
  }
  void fail(std::exception_ptr error) {
    if (const auto sink = take_sink()) sink->on_error(std::move(error));
  }
  std::exception_ptr cancelled_error() const {
    return std::make_exception_ptr(Cancelled(
        str("'", function_.name, "' on worker '", agent_->worker_info(to_.id).name, "' was cancelled")));
  }
  void count(int64_t open) { agent_->impl().core.counters.active_client.fetch_add(open); }

  static bool on_the_way(const std::exception_ptr& error) {
    try {
      std::rethrow_exception(error);
    } catch (const PeerLost&) {
      return true;
    } catch (const Overloaded&) {
      return true;
    } catch (const Fenced&) {
      return true;
    } catch (...) {
      return false;
    }
  }

  /// Begins the pause before the next attempt, if there is one.
  void repeat(std::exception_ptr error) noexcept {
    Runtime& runtime = *agent_->runtime();
    TimePoint next = kNever;
    if (on_the_way(error) && agent_->is_running() && !context_.cancelled()) {
      MutexLock lock(mutex_);
      if (!cancelled_ && ++attempts_ < policy_.attempts) next = runtime.now() + pause();
    }
    if (next >= deadline_) return fail(std::move(error));
    count(1);
    try {
      const TimerId timer = runtime.call_at(
          next, [self = shared_from_this()] { self->agent_->runtime()->post([self] { self->resume(); }); });
      MutexLock lock(mutex_);
      timer_ = timer;
    } catch (...) {
      count(-1);
      fail(std::move(error));
    }
  }

  /// Runs the next attempt, in the context of the call.
  void resume() {
    const CallScope scope(context_);
    const GradMode mode(grad_);
    bool cancelled = false;
    {
      MutexLock lock(mutex_);
      cancelled = cancelled_;
    }
    try {
      if (cancelled) fail(cancelled_error());
      else attempt();
    } catch (...) {
      fail(std::current_exception());
    }
    count(-1);
  }

  Duration pause() WEFT_REQUIRES(mutex_) {
    random_ = random_ * 6364136223846793005u + 1442695040888963407u;
    const double part = static_cast<double>(random_ >> 11) * 0x1p-53;
    const double longest = static_cast<double>(policy_.first_pause.count()) *
                           std::pow(policy_.factor, static_cast<double>(attempts_ - 1));
    return Duration(static_cast<int64_t>(std::min(longest, 1e15) * (1 - policy_.jitter * part)));
  }

  const std::shared_ptr<Agent> agent_;
  const FunctionEntry& function_;
  const Life to_;  ///< incarnation 0: the current life at each attempt
  const std::optional<Duration> timeout_;
  const RetryPolicy policy_;
  const detail::KeptArguments kept_;
  const CallContext context_;
  const bool grad_;
  TimePoint deadline_ = kNever;
  Mutex mutex_;
  uint64_t random_ WEFT_GUARDED_BY(mutex_);
  int attempts_ WEFT_GUARDED_BY(mutex_) = 0;  ///< that have failed
  bool cancelled_ WEFT_GUARDED_BY(mutex_) = false;
  CallId open_ WEFT_GUARDED_BY(mutex_);
  TimerId timer_ WEFT_GUARDED_BY(mutex_);
  std::unique_ptr<ReplySink> sink_ WEFT_GUARDED_BY(mutex_);  ///< null once the outcome is given
};

}  // namespace

namespace {

std::shared_ptr<Canceller> start_repeated(std::shared_ptr<Agent> agent, const FunctionEntry& function,
                                          const To& to, detail::KeptArguments kept,
                                          std::unique_ptr<ReplySink> sink) {
  const RetryPolicy& p = *to.retry();
  if (!function.idempotent)
    throw ValueError(str("with_retry: '", function.name,
                         "' is not idempotent: only functions of WEFT_RPC_IDEMPOTENT may run again"));
  if (p.attempts < 1 || p.first_pause.count() < 0 || !(p.factor >= 1) || !(p.jitter >= 0 && p.jitter <= 1))
    throw ValueError(str("with_retry: '", function.name,
                         "': attempts and factor are at least 1, jitter is 0 to 1, no pause is negative"));
  const auto call =
      std::make_shared<Repeated>(std::move(agent), function, to, std::move(kept), std::move(sink));
  call->attempt();
  return call;
}

}  // namespace

detail::OutgoingCall::OutgoingCall(const To& to, const FunctionEntry& function)
    : to_(to), function_(function), agent_(current_agent()) {
  if (repeated()) return;
  peer_ = destination_life(*agent_, to);
  out_.emplace(message_, agent_.get(), peer_);
  put_function(*out_, function);
}

void detail::OutgoingCall::throw_not_kept() const {
  throw ValueError(str("with_retry: '", function_.name, "': its arguments cannot be kept, only moved"));
}

void detail::OutgoingCall::send(FutureCore& state, std::unique_ptr<ReplySink> sink) {
  if (repeated()) {
    state.set_call(start_repeated(agent_, function_, to_, std::move(kept_), std::move(sink)), {});
    return;
  }
  out_.reset();
  state.set_call(agent_->weak_from_this(),
                 agent_->call(peer_, Kind::kCall, std::move(message_),
                              {to_.timeout(), function_.name.c_str()}, std::move(sink)));
}

}  // namespace weft::rpc
