// The mutex of one parameter that several threads use at once; a body owns it once it is marked concurrent. Who takes it, and why, is
// told in autograd/parameter_lock.h.
#pragma once

#include <mutex>

namespace weft {

struct ParameterLock {
  std::mutex mutex;
};

}  // namespace weft
