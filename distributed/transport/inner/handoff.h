// The order of threads that hand data to each other through gRPC. gRPC's own locks give it. The thread
// sanitizer cannot see into gRPC, so under it both sides also take a lock.
#pragma once

#include <weft/distributed/runtime/sync.h>

#if defined(__SANITIZE_THREAD__)
#define WEFT_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define WEFT_THREAD_SANITIZER 1
#endif
#endif

namespace weft::rpc::inner {

/// Each thread calls pass() before it gives data to gRPC, and after it has got data from gRPC. Thread safety:
/// any thread.
class Handoff {
 public:
#if defined(WEFT_THREAD_SANITIZER)
  void pass() { MutexLock lock(mutex_); }

 private:
  Mutex mutex_;
#else
  void pass() {}
#endif
};

}  // namespace weft::rpc::inner
