// The mutex of the distributed layer, annotated for Clang's thread-safety analysis (-Wthread-safety):
// access to a member marked WEFT_GUARDED_BY(mutex_) needs the lock. There is no condition variable here.
// Code blocks on the Runtime's Event (runtime.h), so that the simulated runtime can replay it. Never hold a
// Mutex across Event::wait.
#pragma once

#include <mutex>

#include <weft/kernels/error.h>

#if defined(__clang__)
#define WEFT_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define WEFT_THREAD_ANNOTATION(x)
#endif

#define WEFT_CAPABILITY(x) WEFT_THREAD_ANNOTATION(capability(x))
#define WEFT_SCOPED_CAPABILITY WEFT_THREAD_ANNOTATION(scoped_lockable)
#define WEFT_GUARDED_BY(x) WEFT_THREAD_ANNOTATION(guarded_by(x))
#define WEFT_PT_GUARDED_BY(x) WEFT_THREAD_ANNOTATION(pt_guarded_by(x))
#define WEFT_REQUIRES(...) WEFT_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define WEFT_EXCLUDES(...) WEFT_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))
#define WEFT_ACQUIRE(...) WEFT_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define WEFT_RELEASE(...) WEFT_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
#define WEFT_TRY_ACQUIRE(...) WEFT_THREAD_ANNOTATION(try_acquire_capability(__VA_ARGS__))
#define WEFT_NO_THREAD_SAFETY_ANALYSIS WEFT_THREAD_ANNOTATION(no_thread_safety_analysis)

namespace weft::rpc {

namespace inner {
/// Simulation: the hook by which a task may be preempted between two of its critical sections.
struct LockWatch {
  int held = 0;                       ///< locks that the running task holds
  void (*released)(void*) = nullptr;  ///< called when the task has released its last lock
  void* scheduler = nullptr;
};
WEFT_API inline constinit thread_local LockWatch* lock_watch = nullptr;  ///< null outside simulated tasks

/// Forbids preemption of a simulated task while it holds a lock that is not a Mutex.
class KeepRunning {
 public:
  KeepRunning() {
    if (watch_) ++watch_->held;
  }
  ~KeepRunning() {
    if (watch_) --watch_->held;
  }
  KeepRunning(const KeepRunning&) = delete;
  KeepRunning& operator=(const KeepRunning&) = delete;

 private:
  LockWatch* const watch_ = lock_watch;
};
}  // namespace inner

/// A mutex known to Clang's analysis. lock() blocks without a deadline. Thread safety: any thread.
class WEFT_CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void lock() WEFT_ACQUIRE() {
    mutex_.lock();
    if (inner::lock_watch) ++inner::lock_watch->held;
  }
  void unlock() WEFT_RELEASE() {
    mutex_.unlock();
    if (inner::LockWatch* const watch = inner::lock_watch; watch && --watch->held == 0)
      watch->released(watch->scheduler);
  }

 private:
  std::mutex mutex_;
};

/// Holds a Mutex for a scope. `unlock` releases it early, `lock` takes it again. Thread safety: one thread.
class WEFT_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) WEFT_ACQUIRE(mutex) : mutex_(mutex), held_(true) { mutex_.lock(); }
  ~MutexLock() WEFT_RELEASE() {
    if (held_) mutex_.unlock();
  }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void unlock() WEFT_RELEASE() {
    held_ = false;
    mutex_.unlock();
  }
  void lock() WEFT_ACQUIRE() {
    mutex_.lock();
    held_ = true;
  }

 private:
  Mutex& mutex_;
  bool held_;
};

}  // namespace weft::rpc
