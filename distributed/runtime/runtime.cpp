// The common part of both runtimes: per-task slots, the no-block mark, registered thread_locals, and the
// handling of exceptions that leave a task.
#include <weft/distributed/runtime/runtime.h>

#include <atomic>
#include <new>

#include <weft/distributed/runtime/inner/task_state.h>
#include <weft/distributed/runtime/sync.h>
#include <weft/tensor/inner/tracer.h>

namespace weft::rpc {
namespace inner {
namespace {

std::atomic<int> slot_count{0};

struct StateTable {
  std::array<ThreadState, kSlots> states{};
  std::atomic<int> count{0};
  Mutex mutex;
};
StateTable& table() {
  static StateTable t;
  return t;
}

}  // namespace

TaskState*& current_state() {
  static thread_local TaskState own;
  static thread_local TaskState* current = &own;
  return current;
}

void save_thread_states(SavedThreadStates& into) {
  const int n = table().count.load(std::memory_order_acquire);
  for (int i = 0; i < n; ++i) into.values[i] = table().states[i].get();
}

void load_thread_states(const SavedThreadStates& from) {
  const int n = table().count.load(std::memory_order_acquire);
  for (int i = 0; i < n; ++i) table().states[i].set(from.values[i]);
}

SavedThreadStates initial_thread_states() {
  SavedThreadStates result;
  const int n = table().count.load(std::memory_order_acquire);
  for (int i = 0; i < n; ++i) result.values[i] = table().states[i].initial;
  return result;
}

void check_may_block(const char* what) {
  weft::detail::refuse_trace("waits for other threads or workers");
  const char* where = current_state()->no_block;
  if (where != nullptr) throw Error(str("wait for ", what, " inside ", where, ", which must not block"));
}

void run_task(Task& task, Runtime* tracer) {
  try {
    task();
  } catch (const RuntimeStopped&) {  // the runtime's stop ended the task's wait
  } catch (const std::exception& e) {
    if (tracer != nullptr && tracer->tracing()) tracer->trace(str("a task threw ", e.what()));
  } catch (...) {
    if (tracer != nullptr && tracer->tracing())
      tracer->trace("a task threw something that is no std::exception");
  }
  try {
    task.reset();
  } catch (...) {  // there is no receiver for an error of the closure's destructor
  }
}

}  // namespace inner

void Runtime::sleep_for(Duration d) {
  Event never(*this, "the end of a sleep");
  never.wait_until(now() + d);
}

std::unique_ptr<Service> Runtime::start_poller(std::string name, Poller& poller, bool) {
  return start_service(std::move(name), [&poller] {
    for (bool more = true; more;) {
      try {
        more = poller.poll(kNever);
      } catch (const std::bad_alloc&) {  // the next poll goes on
      }
    }
  });
}

FiberLocal::FiberLocal() : slot_(inner::slot_count.fetch_add(1)) {
  if (slot_ >= inner::kSlots) throw Error(str("FiberLocal: more than ", inner::kSlots, " were made"));
}
void* FiberLocal::get() const { return inner::current_state()->slots[static_cast<size_t>(slot_)]; }
void FiberLocal::set(void* value) const { inner::current_state()->slots[static_cast<size_t>(slot_)] = value; }

void register_thread_state(ThreadState state) {
  auto& table = inner::table();
  MutexLock lock(table.mutex);
  const int n = table.count.load();
  if (n >= inner::kSlots)
    throw Error(str("register_thread_state: more than ", inner::kSlots, " were registered"));
  for (int i = 0; i < n; ++i) {
    if (table.states[static_cast<size_t>(i)].get == state.get) return;
  }
  table.states[static_cast<size_t>(n)] = state;
  table.count.store(n + 1, std::memory_order_release);
}

NoBlockScope::NoBlockScope(const char* where) {
  auto* state = inner::current_state();
  old_ = const_cast<char*>(state->no_block);
  state->no_block = where;
}
NoBlockScope::~NoBlockScope() { inner::current_state()->no_block = static_cast<const char*>(old_); }

}  // namespace weft::rpc
