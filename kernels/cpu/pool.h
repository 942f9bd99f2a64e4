// The thread pool of the CPU kernels. parallel_for divides [0, n) into chunks of `grain` and runs them on the
// calling thread and on idle workers. The chunks depend on n and grain only, so a kernel that sums per chunk
// gives the same bits for any number of threads. Calls from inside a chunk run inline. Any number of threads
// may call at once. The pool does not use OpenMP.
#pragma once

#include <cstdint>
#include <type_traits>

#include <weft/kernels/error.h>

namespace weft::kernels {

/// A reference to a callable: no ownership, no heap.
template <class Signature> class FunctionRef;
template <class R, class... Args> class FunctionRef<R(Args...)> {
 public:
  template <class F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, FunctionRef>) FunctionRef(F&& f)
      : object_(const_cast<void*>(static_cast<const void*>(&f))), call_([](void* object, Args... args) -> R {
          return (*static_cast<std::remove_reference_t<F>*>(object))(args...);
        }) {}
  R operator()(Args... args) const { return call_(object_, args...); }

 private:
  void* object_;
  R (*call_)(void*, Args...);
};

namespace detail {
WEFT_API void run_chunks(int64_t n, int64_t grain, FunctionRef<void(int64_t, int64_t)> f);
}

/// Calls f(begin, end) for consecutive chunks of [0, n), of size `grain` except the last. After an exception,
/// no more chunks are started; when the running ones are done, the first exception in index order is
/// rethrown.
template <class F> void parallel_for(int64_t n, int64_t grain, F&& f) {
  if (n <= 0) return;
  if (n <= grain) f(int64_t{0}, n);
  else detail::run_chunks(n, grain, FunctionRef<void(int64_t, int64_t)>(f));
}

}  // namespace weft::kernels
