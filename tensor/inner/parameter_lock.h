// The memory of a parameter marked concurrent. All its handles, views and results of detach() included, share
// one Storage, which points at a replaceable block. autograd/tape/concurrent_parameter.h has the protocol.
#pragma once

#include <mutex>
#include <vector>

#include <weft/tensor/tensor.h>

namespace weft {

struct ParameterLock {
  std::mutex mutex;
  /// guarded by the mutex; its saves() count the holders that need the bytes unchanged
  Ref<Storage> block;
  /// earlier blocks, which holders from before share() may still read
  std::vector<Ref<Storage>> earlier;
};

namespace detail {
/// An alias of x's current block without history, to which no step writes while the alias or a view of it
/// lives. If x is not marked concurrent, x itself.
WEFT_API Tensor held(const Tensor& x);
}  // namespace detail

}  // namespace weft
