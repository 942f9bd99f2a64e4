// The state of futures, without a lock. One atomic word has the phase: pending, claimed or done. The thread
// that makes a future done sets that word, then looks for the event of waiters and takes the callbacks. A
// waiter publishes the event, then looks at the word. So at least one of the two sees the other.
#include <weft/distributed/wire/future.h>

#include <weft/autograd/tape/grad_mode.h>
#include <weft/distributed/wire/call_context.h>
#include <weft/distributed/wire/inner/streams.h>

namespace weft::rpc {

namespace detail {

FutureCore::FutureCore(std::shared_ptr<Runtime> runtime) : runtime_(std::move(runtime)) {}
FutureCore::~FutureCore() {
  delete event_.load();
  end_all(callbacks_.load());
}

void FutureCore::end_all(Callback* first) {
  while (first != nullptr && first != closed()) delete std::exchange(first, first->next);
}

FutureCore::Callback* FutureCore::closed() {
  static Callback mark;
  return &mark;
}

bool FutureCore::wait_until(TimePoint deadline) {
  if (done()) return true;
  EventImpl* event = event_.load();
  if (event == nullptr) {
    std::unique_ptr<EventImpl> made = runtime_->make_event("a future");
    if (event_.compare_exchange_strong(event, made.get())) event = made.release();
  }
  return phase_.load() == kDone || event->wait_until(deadline) || done();
}

void FutureCore::start(Callback& callback) {
  if (!callback.pooled) {
    join_streams();
    return callback.task();
  }
  auto held = std::make_unique<Task>(std::move(callback.task));
  Task run = [self = shared_from_this(), task = std::move(held)] {
    if (refusal()) return task->reset();
    self->join_streams();
    (*task)();
  };
  if (callback.may_refuse) runtime_->post_or_refuse(std::move(run));
  else runtime_->post(std::move(run));
}

void FutureCore::on_done(Task task, bool pooled, bool may_refuse) {
  Callback callback{std::move(task), pooled, may_refuse};
  if (done()) return start(callback);
  auto kept = std::make_unique<Callback>(std::move(callback));
  Callback* newest = callbacks_.load();
  do {
    if (newest == closed()) return start(*kept);
    kept->next = newest;
  } while (!callbacks_.compare_exchange_weak(newest, kept.get()));
  static_cast<void>(kept.release());
}

bool FutureCore::try_set_error(std::exception_ptr error) {
  if (!claim()) return false;
  fail_claimed(std::move(error));
  return true;
}

void FutureCore::fail_claimed(std::exception_ptr error) {
  error_ = std::move(error);
  finish();
}

bool FutureCore::cancel_call() {
  if (done()) return false;
  const std::shared_ptr<Canceller> canceller = canceller_.lock();
  return canceller && canceller->cancel_call(call_);
}

void FutureCore::join_streams() const {
  if (open_accelerators() > 0) rpc::join_streams(streams_.get());
}

void FutureCore::finish() {
  if (open_accelerators() > 0) {
    try {
      streams_ = StreamMark::now();
    } catch (const Error&) {  // the device's error also fails the use of the value
    }
  }
  phase_.store(kDone);
  if (EventImpl* const event = event_.load()) event->set();
  struct Rest {  // ends those that are left when one throws
    Callback* first = nullptr;
    ~Rest() { end_all(first); }
  } rest;
  for (Callback* c = callbacks_.exchange(closed()); c != nullptr;) {  // the oldest comes first
    Callback* const older = std::exchange(c->next, rest.first);
    rest.first = std::exchange(c, older);
  }
  while (rest.first != nullptr) {
    const std::unique_ptr<Callback> callback(std::exchange(rest.first, rest.first->next));
    start(*callback);
  }
}

void FutureCore::throw_set_twice() { throw RpcError("future: its outcome was already given"); }
void FutureCore::throw_not_done(const char* what) {
  if (std::string_view(what) == "value") throw RpcError("future: value() before it is done");
  throw Timeout(str("future: ", what, " ended before it was done"));
}

std::exception_ptr abandoned_error() {
  if (const char* why = refusal()) return std::make_exception_ptr(Overloaded(str("a continuation ", why)));
  return std::make_exception_ptr(RpcError("future: abandoned, nobody is left to give its outcome"));
}

Task with_context(Task task) {
  return [context = capture_context(), grad = grad_enabled(), task = std::move(task)]() mutable {
    const CallScope scope(std::move(context));
    const GradMode mode(grad);
    task();
    task.reset();
  };
}

}  // namespace detail

Future<void> collect(const std::vector<Future<void>>& futures) {
  auto out = std::make_shared<detail::FutureState<void>>(futures.empty() ? current_runtime()
                                                                         : futures[0].state()->runtime());
  auto open = std::make_shared<std::atomic<size_t>>(futures.size());
  if (futures.empty()) out->try_set();
  for (const Future<void>& f : futures) {
    f.state()->on_done(
        [open, out, state = f.state().get()] {
          if (state->failed()) out->try_set_error(state->error());
          else if (open->fetch_sub(1) == 1) out->try_set();
        },
        false);
  }
  return Future<void>(std::move(out));
}

}  // namespace weft::rpc
