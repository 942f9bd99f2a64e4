// This worker as the parts of its References see it: the agent, the runtime, and the one mutex of all tables.
// Internal to rref.h; references.h lists the parts.
//
// The parts share one mutex, since several operations change several tables at once: a new share and the
// fork of its child, say. It is a leaf lock: no agent, runtime or user code runs under it. A reference's
// destructor takes it and may itself run under any lock.
#pragma once

#include <weft/distributed/rref/rref_state.h>
#include <weft/distributed/runtime/sync.h>

namespace weft::rpc::detail {

/// The name of the tables' mutex in annotations. Clang's analysis cannot see that the contexts of all parts
/// are one object, so no member can name it. A TablesLock holds the mutex itself, ReferenceContext::mutex_.
struct WEFT_CAPABILITY("mutex") Tables {};
inline constexpr Tables kTables{};

class ReferenceContext;

/// Holds the mutex of the tables for a scope. Thread safety: one thread.
class WEFT_SCOPED_CAPABILITY TablesLock {
 public:
  explicit TablesLock(ReferenceContext& context) WEFT_ACQUIRE(kTables);
  ~TablesLock() WEFT_RELEASE() {}
  TablesLock(const TablesLock&) = delete;
  TablesLock& operator=(const TablesLock&) = delete;

 private:
  MutexLock lock_;
};

/// See the head. Thread safety: any thread.
class ReferenceContext {
 public:
  /// `whole` owns this context and all parts.
  ReferenceContext(Agent& agent, References& whole)
      : runtime(agent.runtime()),
        self(agent.self()),
        agent_(agent.weak_from_this()),
        whole_(whole),
        change_(*runtime, "references to settle") {}

  const std::shared_ptr<Runtime> runtime;
  const WorkerInfo self;
  /// The agent has ended: the tables were emptied, and messages and deferred work change them no more.
  bool stopped WEFT_GUARDED_BY(kTables) = false;

  /// Null after the end of the agent.
  std::shared_ptr<Agent> agent() const { return agent_.lock(); }
  /// Keeps all parts alive.
  std::shared_ptr<References> references() const;
  /// Throws: RpcError after the end of the agent.
  void check_running() const WEFT_REQUIRES(kTables) {
    if (stopped) throw RpcError(str("worker '", self.name, "' has been shut down"));
  }

  /// Wakes wait_quiet: a table or the deferred work has changed.
  void changed() { change_.set(); }
  /// Blocks until `quiet()`, called under the mutex, is true. False: `deadline` came first.
  template <class Quiet> bool wait_quiet(TimePoint deadline, Quiet quiet) {
    for (;;) {
      change_.reset();
      {
        TablesLock lock(*this);
        if (quiet()) return true;
      }
      if (!change_.wait_until(deadline)) {
        TablesLock lock(*this);
        return quiet();
      }
    }
  }

  /// Adds a line to the event log of a simulation.
  template <class... Words> void trace(const Words&... words) const {
    if (runtime->tracing()) runtime->trace(str("worker ", self.id.value, " rref: ", words...));
  }

 private:
  friend class TablesLock;
  const std::weak_ptr<Agent> agent_;
  References& whole_;
  Mutex mutex_;
  Event change_;
};

inline TablesLock::TablesLock(ReferenceContext& context) : lock_(context.mutex_) {}

}  // namespace weft::rpc::detail
