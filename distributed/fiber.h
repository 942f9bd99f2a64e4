// A fiber: a stack of its own that runs one task after another and can be left in the middle of one. Inner part of the simulated
// runtime. Switching carries along what the compiler and the sanitizers keep per thread: the exception state of the C++
// runtime, address sanitizer's fake stack, thread sanitizer's notion of a thread.
#pragma once

#include <cstddef>
#include <functional>

namespace weft::rpc::inner {

/// Thread safety: none; resumed and suspended on one thread. Destroy only while not inside its function.
class Fiber {
 public:
  /// `body` is called at each resume after the previous call has returned.
  Fiber(size_t stack_bytes, std::function<void()> body);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Goes on with the fiber until it suspends or its body returns. Called outside it.
  void resume();
  /// Leaves the fiber; resume() comes back here. Called inside it.
  void suspend();

 private:
  struct Impl;
  Impl* impl_;
};

}  // namespace weft::rpc::inner
