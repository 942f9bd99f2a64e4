// The locks of mutexes that this program takes, counted by a pthread_mutex_lock of its own. A program has it
// if one of its files includes this header. The sanitizers have one of theirs, so nothing is counted there.
#pragma once

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cstdint>

#include "support/own_code.h"

namespace weft::test {

/// Locks of all threads so far, and those that code of the program took itself.
inline std::atomic<int64_t> locks_taken{0}, own_locks_taken{0};

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool kLocksAreCounted = false;
#else
inline constexpr bool kLocksAreCounted = true;
#endif

}  // namespace weft::test

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
extern "C" int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  using Lock = int (*)(pthread_mutex_t*);
  static constinit std::atomic<Lock> real{nullptr};
  Lock lock = real.load(std::memory_order_relaxed);
  if (lock == nullptr) {
    lock = reinterpret_cast<Lock>(dlsym(RTLD_NEXT, "pthread_mutex_lock"));
    real.store(lock, std::memory_order_relaxed);
  }
  weft::test::locks_taken.fetch_add(1, std::memory_order_relaxed);
  if (weft::test::is_own_code(__builtin_return_address(0)))
    weft::test::own_locks_taken.fetch_add(1, std::memory_order_relaxed);
  return lock(mutex);
}
#endif
