// The current call context of a thread or fiber, and the default endpoint of the process. The context is a
// fiber-local pointer to a scope on the stack; a mutex guards the default.
#include <weft/distributed/wire/call_context.h>

#include <utility>

#include <weft/distributed/runtime/sync.h>

namespace weft::rpc {

namespace {

const FiberLocal& scope_slot() {
  static const FiberLocal slot;
  return slot;
}

struct Default {
  Mutex mutex;
  std::shared_ptr<Endpoint> endpoint WEFT_GUARDED_BY(mutex);
  std::atomic<uint64_t> changes{1};  ///< of the endpoint, under the mutex
};
// Never destroyed: a program that ends without shutdown() must not tear down threads and connections from
// a static destructor.
Default& the_default() {
  static Default* d = new Default;
  return *d;
}

/// The default endpoint as this thread has seen it. Each call asks for it, and it seldom changes.
struct Seen {
  ~Seen();
  uint64_t change = 0;
  std::weak_ptr<Endpoint> endpoint{};
};
constinit thread_local bool seen_ended = false;
Seen::~Seen() { seen_ended = true; }
thread_local Seen seen;

}  // namespace

const CallContext* current_context() { return static_cast<const CallContext*>(scope_slot().get()); }

const CallContext& call_context() {
  static const CallContext* const none = new CallContext;  // never destroyed, as the default endpoint
  const CallContext* c = current_context();
  return c ? *c : *none;
}

CallContext capture_context() { return call_context(); }

bool CallContext::cancelled() const {
  if (given_up && given_up->load(std::memory_order_relaxed)) return true;
  return given_up && deadline != kNever && endpoint && endpoint->runtime()->now() >= deadline;
}

CallScope::CallScope(CallContext context) : context_(std::move(context)), before_(scope_slot().get()) {
  scope_slot().set(&context_);
}
CallScope::~CallScope() { scope_slot().set(before_); }

std::shared_ptr<Endpoint> default_endpoint() {
  Default& d = the_default();
  if (seen_ended) {  // a static object's destructor may still call
    MutexLock lock(d.mutex);
    return d.endpoint;
  }
  if (seen.change == d.changes.load(std::memory_order_acquire))
    if (std::shared_ptr<Endpoint> endpoint = seen.endpoint.lock()) return endpoint;
  const inner::KeepRunning whole;  // a second run in this process may find it without the lock
  MutexLock lock(d.mutex);
  seen.change = d.changes.load(std::memory_order_relaxed);
  seen.endpoint = d.endpoint;
  return d.endpoint;
}

void set_default_endpoint(std::shared_ptr<Endpoint> endpoint) {
  MutexLock lock(the_default().mutex);
  std::swap(the_default().endpoint, endpoint);
  the_default().changes.fetch_add(1, std::memory_order_release);
  lock.unlock();  // the old endpoint may be destroyed here, which may take long
}

std::shared_ptr<Endpoint> current_endpoint() {
  const CallContext* c = current_context();
  return c && c->endpoint ? c->endpoint : default_endpoint();
}

std::shared_ptr<Runtime> current_runtime() {
  if (const std::shared_ptr<Endpoint> endpoint = current_endpoint()) return endpoint->runtime();
  // for futures made without an agent, before init_rpc
  static const auto* own = new std::shared_ptr<Runtime>(make_threaded_runtime());
  return *own;
}

}  // namespace weft::rpc
