// The shared state of one worker's reference, on the owner and on a user. Internal to rref.h.
// Their destructors notify the tables of References, and so take the mutex of the tables.
#pragma once

#include <atomic>
#include <deque>

#include <weft/distributed/rref/rref_state.h>
#include <weft/distributed/runtime/sync.h>

namespace weft::rpc::detail {

/// Runs tasks on the pool, one after another, each by post_or_refuse. It is closed until the value is made.
class Gate {
 public:
  explicit Gate(bool open) : busy_(!open) {}
  void enter(Runtime& runtime, Task task);
  /// Starts the next task. Called when a task has ended, and when the value was made.
  void leave(Runtime& runtime);

 private:
  Mutex mutex_;
  bool busy_ WEFT_GUARDED_BY(mutex_);
  std::deque<Task> waiting_ WEFT_GUARDED_BY(mutex_);
};

/// The owner's reference state. `value` and `type` are written before `created` is done and read after.
class OwnedState final : public RRefState {
 public:
  OwnedState(std::shared_ptr<References> refs, RRefId rref, WorkerInfo self, Site from, bool made);
  ~OwnedState() override;
  void set(std::shared_ptr<void> made, const ValueType* of);
  void fail(std::exception_ptr error);

  std::shared_ptr<void> value;
  const ValueType* type = nullptr;
  Gate gate;
  std::atomic<bool> timed_out{false};  ///< a remote() to oneself exceeded its timeout
  std::string late;                    ///< text of that Timeout, written before timed_out
};

/// A user's reference state. The fields below `standing` are written before it changes and read after.
class UserState final : public RRefState {
 public:
  enum class Standing : uint8_t { kPending, kConfirmed, kTimedOut, kFailed, kDeleted };
  UserState(std::shared_ptr<References> refs, RRefId rref, ForkId f, WorkerInfo of, Life of_life,
            WorkerInfo from_worker, Site from, Future<void> made, Future<void> confirm)
      : RRefState(std::move(refs), rref, std::move(of), false, from, std::move(made)),
        fork(f),
        owner_life(of_life),
        parent(std::move(from_worker)),
        confirmed(std::move(confirm)) {}
  ~UserState() override;

  const ForkId fork;  ///< made by the life that sent the reference
  const Life owner_life;
  const WorkerInfo parent;  ///< worker that sent the reference; for remote(), this worker
  const Future<void> confirmed;
  std::atomic<Standing> standing{Standing::kPending};
  std::atomic<bool> known{false};  ///< the owner counts this fork and needs its DELETE
  std::exception_ptr error;        ///< error of every use: kTimedOut, kFailed, kDeleted
};

/// Throws: the error that makes the reference unusable.
void check_usable(const RRefState& state);
/// True on the owner, and for a reference that is confirmed and usable.
bool is_confirmed(const RRefState& state);

}  // namespace weft::rpc::detail
