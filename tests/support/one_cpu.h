// The calling thread on a single processor, as long as the object lives.
#pragma once

#include <sched.h>

namespace weft::test {

class OneCpu {
 public:
  OneCpu() {
    if (sched_getaffinity(0, sizeof before_, &before_) != 0) return;
    int first = 0;
    while (!CPU_ISSET(first, &before_)) ++first;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    bound_ = sched_setaffinity(0, sizeof one, &one) == 0;
  }
  ~OneCpu() {
    if (bound_) sched_setaffinity(0, sizeof before_, &before_);
  }
  OneCpu(const OneCpu&) = delete;
  OneCpu& operator=(const OneCpu&) = delete;
  bool bound() const { return bound_; }

 private:
  cpu_set_t before_{};
  bool bound_ = false;
};

}  // namespace weft::test
