// Future<T>: a value that another thread or worker will set. A Future is also the promise: set_result
// completes it. Copies share one state.
//
//   Future<Tensor> f = rpc_async<my_add>("ps", a, b);
//   auto s = f.then([](const Tensor& y) { return y.sum().item<double>(); });   // an error passes on
//   f.then([](Future<Tensor> done) { ... done.wait() may throw ... });         // or look at the error
//   double v = s.wait();
//
// Continuations run on the handler pool, never on the thread that called then(); they may block. They see the
// agent, autograd context and grad mode that were current when then() was called. A continuation that returns
// a Future is flattened. Every wait on a failed future throws its error. CUDA streams: a waiter's or
// continuation's streams wait for the work queued on the completing thread's current streams. A future
// destroyed before its completion fails the futures chained to it with an RpcError. If all threads of the
// pool are blocked and no further thread can be made, a continuation does not run: its future fails with
// Overloaded.
// Thread safety: every member may be called from any thread. A wait blocks through the Runtime, whose pool
// starts another thread for a blocked handler.
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <weft/distributed/runtime/runtime.h>
#include <weft/distributed/wire/endpoint.h>

namespace weft::rpc {

template <class T> class Future;
class StreamMark;

namespace detail {

/// The part of a future's state that does not depend on T.
class WEFT_API FutureCore : public std::enable_shared_from_this<FutureCore> {
 public:
  explicit FutureCore(std::shared_ptr<Runtime> runtime);
  virtual ~FutureCore();
  FutureCore(const FutureCore&) = delete;

  const std::shared_ptr<Runtime>& runtime() const { return runtime_; }
  bool done() const { return phase_.load(std::memory_order_acquire) == kDone; }
  bool failed() const { return done() && error_ != nullptr; }
  const std::exception_ptr& error() const { return error_; }
  /// Blocks until done or `deadline`. False: `deadline` came first.
  bool wait_until(TimePoint deadline);
  /// Runs `task` when done: on the pool, or on the completing thread (at once when done already).
  /// This state owns the task, so the task holds a plain pointer to the state, never a shared pointer. The
  /// state is alive while the task runs.
  /// `may_refuse`: a pooled task that is refused is destroyed (Runtime::post_or_refuse).
  void on_done(Task task, bool pooled, bool may_refuse = false);
  bool try_set_error(std::exception_ptr error);
  /// Claims the right to set the outcome. True: this caller has the right and must call finish().
  bool claim() {
    int pending = kPending;
    return phase_.compare_exchange_strong(pending, kClaimed);
  }
  void finish();
  void fail_claimed(std::exception_ptr error);
  /// Sets the call whose outcome this is, before other threads see the state.
  void set_call(std::weak_ptr<Canceller> canceller, const CallId& call) {
    canceller_ = std::move(canceller);
    call_ = call;
  }
  bool cancel_call();
  [[noreturn]] static void throw_set_twice();
  [[noreturn]] static void throw_not_done(const char* what);
  [[noreturn]] void rethrow() const { std::rethrow_exception(error_); }
  /// Once done: makes the calling thread's streams wait for the work queued on the
  /// completing thread's streams.
  void join_streams() const;

 private:
  enum { kPending, kClaimed, kDone };
  struct Callback {
    Task task;
    bool pooled;
    bool may_refuse;
    Callback* next = nullptr;
  };
  static Callback* closed();
  static void end_all(Callback* first);
  void start(Callback& callback);
  std::atomic<int> phase_{kPending};
  std::shared_ptr<Runtime> runtime_;
  std::exception_ptr error_;
  std::unique_ptr<const StreamMark> streams_;  ///< of the completing thread
  std::weak_ptr<Canceller> canceller_;
  CallId call_;
  std::atomic<EventImpl*> event_{nullptr};     ///< of the waiters; the first waiter makes it
  std::atomic<Callback*> callbacks_{nullptr};  ///< the newest first; closed() once they have been taken
};

struct Nothing {};
template <class T> using Stored = std::conditional_t<std::is_void_v<T>, Nothing, T>;

template <class T> struct FutureState : FutureCore {
  using FutureCore::FutureCore;
  template <class... V> bool try_set(V&&... v) {
    if (!claim()) return false;
    try {
      value.emplace(std::forward<V>(v)...);
    } catch (...) {
      fail_claimed(std::current_exception());
      return true;
    }
    finish();
    return true;
  }
  std::optional<Stored<T>> value;
};

/// Wraps a continuation: captures agent, autograd context and grad mode now and restores them while it runs.
WEFT_API Task with_context(Task task);
/// The error of a future that can no longer get an outcome; in a refused task, the refusal.
WEFT_API std::exception_ptr abandoned_error();

/// Sets the outcome of a future once. Its destructor fails a future without an outcome.
template <class T> class Completer {
 public:
  explicit Completer(std::shared_ptr<FutureState<T>> s) : state_(std::move(s)) {}
  Completer(Completer&&) noexcept = default;
  ~Completer() {
    if (state_ && !state_->done()) state_->try_set_error(abandoned_error());
  }
  template <class... V> void value(V&&... v) {
    std::exchange(state_, nullptr)->try_set(std::forward<V>(v)...);
  }
  void error(std::exception_ptr e) { std::exchange(state_, nullptr)->try_set_error(std::move(e)); }
  /// Calls f and sets its result or error; a future that f returns sets the outcome when done.
  template <class F, class... A> void run(F&& f, A&&... args);

 private:
  std::shared_ptr<FutureState<T>> state_;
};

template <class R> struct Flat {
  using type = std::decay_t<R>;
  static constexpr bool nested = false;
};
template <> struct Flat<void> {
  using type = void;
  static constexpr bool nested = false;
};
template <class R> struct Flat<Future<R>> {
  using type = R;
  static constexpr bool nested = true;
};

/// The argument of f in then(f): the future, the value, or nothing for Future<void>.
template <class F, class T> inline constexpr bool takes_future = std::is_invocable_v<F&, Future<T>>;
template <class F, class T> struct ThenResult { using type = std::invoke_result_t<F&, const T&>; };
template <class F, class T>
requires takes_future<F, T>
struct ThenResult<F, T> {
  using type = std::invoke_result_t<F&, Future<T>>;
};
template <class F>
requires(!takes_future<F, void>) struct ThenResult<F, void> {
  using type = std::invoke_result_t<F&>;
};

}  // namespace detail

/// A value of type T, or an error, that another thread or worker will set.
template <class T> class Future {
 public:
  using value_type = T;
  static_assert(!std::is_reference_v<T>);

  /// A new, incomplete future of the current agent's runtime.
  Future();
  explicit Future(std::shared_ptr<Runtime> runtime)
      : state_(std::make_shared<detail::FutureState<T>>(std::move(runtime))) {}
  explicit Future(std::shared_ptr<detail::FutureState<T>> state) : state_(std::move(state)) {}

  /// A completed future, with a value or an error.
  template <class... V> static Future ready(V&&... value) {
    Future f;
    f.set_result(std::forward<V>(value)...);
    return f;
  }
  static Future failed(std::exception_ptr error) {
    Future f;
    f.set_error(std::move(error));
    return f;
  }

  bool done() const { return state_->done(); }
  bool has_error() const { return state_->failed(); }
  /// The error; null while incomplete or with a value.
  std::exception_ptr error() const { return state_->done() ? state_->error() : nullptr; }

  /// Blocks without a deadline until done and returns a copy of the value. Throws: the future's error,
  /// each time; RuntimeStopped.
  T wait() const {
    state_->wait_until(kNever);
    return get();
  }
  /// The same for at most `limit`. Throws: Timeout when it is not done by then; the future is unchanged.
  T wait_for(Duration limit) const {
    if (!state_->wait_until(state_->runtime()->now() + limit)) detail::FutureCore::throw_not_done("wait_for");
    return get();
  }
  /// Blocks until done and moves the value out, for large values and values that cannot be copied. Call it
  /// once. Throws: as wait.
  T take() {
    state_->wait_until(kNever);
    state_->join_streams();
    if (state_->failed()) state_->rethrow();
    if constexpr (!std::is_void_v<T>) return std::move(*state_->value);
  }
  /// A copy of the value, without blocking. Throws: RpcError while incomplete; the future's error.
  T value() const {
    if (!state_->done()) detail::FutureCore::throw_not_done("value");
    return get();
  }

  /// Ends the call that made this future: it fails with Cancelled, and the callee is notified at once. There
  /// call_context().cancelled() becomes true. False: the call has ended, or this future belongs to no call,
  /// such as a future from then(). Does not block.
  bool cancel() const { return state_->cancel_call(); }

  /// Sets the outcome, a value or an error. Throws: RpcError if it was set before.
  template <class... V> void set_result(V&&... value) const {
    if (!state_->try_set(std::forward<V>(value)...)) detail::FutureCore::throw_set_twice();
  }
  void set_error(std::exception_ptr error) const {
    if (!state_->try_set_error(std::move(error))) detail::FutureCore::throw_set_twice();
  }
  template <class E>
  requires std::is_base_of_v<std::exception, E>
  void set_error(const E& error) const { set_error(std::make_exception_ptr(error)); }

  /// Runs f(value) or f(future) on the pool when done; returns the future of its result. An error of this
  /// future skips f(value) and passes on.
  template <class F> auto then(F f) const { return chain(std::move(f), true); }
  /// The same on the thread that completes this future, or at once when it is done. f must be short and
  /// must not block.
  template <class F> auto then_inline(F f) const { return chain(std::move(f), false); }
  /// Runs f(future) on the pool when done. Exceptions of f are dropped.
  template <class F> void add_done_callback(F f) const {
    state_->on_done(detail::with_context([state = state_.get(), f = std::move(f)]() mutable {
                      try {
                        f(of(*state));
                      } catch (...) {
                      }
                    }),
                    true);
  }

  const std::shared_ptr<detail::FutureState<T>>& state() const { return state_; }

 private:
  T get() const {
    state_->join_streams();
    if (state_->failed()) state_->rethrow();
    if constexpr (!std::is_void_v<T>) return *state_->value;
  }
  template <class F> auto chain(F f, bool pooled) const;
  static Future of(detail::FutureState<T>& state) {
    return Future(std::static_pointer_cast<detail::FutureState<T>>(state.shared_from_this()));
  }

  std::shared_ptr<detail::FutureState<T>> state_;
};

/// A future of all values in order; it fails as soon as one fails.
template <class T> Future<std::vector<T>> collect(const std::vector<Future<T>>& futures);
WEFT_API Future<void> collect(const std::vector<Future<void>>& futures);
/// The same for futures of different types, as a tuple.
template <class A, class B, class... More>
Future<std::tuple<A, B, More...>> collect(Future<A> a, Future<B> b, Future<More>... more);
/// Blocks without a deadline until all are done and returns the values. Throws: the first error, at once.
template <class T> auto wait_all(const std::vector<Future<T>>& futures) { return collect(futures).take(); }

}  // namespace weft::rpc

#include <weft/distributed/wire/future_inl.h>
