// A fiber: a separate stack that runs one function after another and can be suspended inside one. A switch
// also moves the per-thread state of the C++ runtime and the sanitizers: the exception state, address
// sanitizer's fake stack, thread sanitizer's thread. Internal to the simulated runtime.
#pragma once

#include <cstddef>
#include <functional>

namespace weft::rpc::inner {

/// One fiber. Thread safety: none; resume and suspend on one thread. Destroy it only while its body
/// does not run.
class Fiber {
 public:
  /// `body` is called at each resume after the previous call has returned.
  Fiber(size_t stack_bytes, std::function<void()> body);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Continues the fiber until it suspends or its body returns. Called outside the fiber.
  void resume();
  /// Suspends the fiber; resume() continues here. Called inside the fiber.
  void suspend();

 private:
  struct Impl;
  Impl* impl_;
};

}  // namespace weft::rpc::inner
