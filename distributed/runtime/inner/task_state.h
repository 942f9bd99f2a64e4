// The state of a task that is switched with it: FiberLocal slots, the no-block mark, and the registered
// thread_locals of lower floors. Internal to the runtimes.
#pragma once

#include <array>
#include <cstdint>

#include <weft/distributed/runtime/runtime.h>

namespace weft::rpc::inner {

inline constexpr int kSlots = 16;

/// The state of one task, thread or fiber.
struct TaskState {
  std::array<void*, kSlots> slots{};
  const char* no_block = nullptr;
};

/// The state of the task that runs on this thread.
TaskState*& current_state();

/// Values of the registered ThreadStates, saved for one fiber.
struct SavedThreadStates {
  std::array<uint64_t, kSlots> values{};
};
void save_thread_states(SavedThreadStates& into);
void load_thread_states(const SavedThreadStates& from);
/// The values with which a new task begins.
SavedThreadStates initial_thread_states();

/// Throws Error if the running code is inside a NoBlockScope.
void check_may_block(const char* what);

/// Runs a task and destroys its closure. An exception of the task is dropped; `tracer` (may be
/// null) traces it.
void run_task(Task& task, Runtime* tracer = nullptr);

}  // namespace weft::rpc::inner
