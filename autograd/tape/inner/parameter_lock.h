// The locks of parameters marked concurrent (autograd/tape/concurrent_parameter.h), for steps and for other
// code that replaces or reads the blocks of several parameters at once.
#pragma once

#include <mutex>
#include <span>
#include <vector>

#include <weft/autograd/tape/concurrent_parameter.h>

namespace weft {

/// Throws: as mark_concurrent, with a text that begins with `caller`.
WEFT_API void check_can_be_concurrent(const Tensor& parameter, const char* caller);
/// The lock of the parameter's storage, held; an empty lock if it is not marked.
WEFT_API std::unique_lock<std::mutex> lock_parameter(const Tensor& parameter);
/// The locks of all parameters, each taken once, in the same order for every caller.
WEFT_API std::vector<std::unique_lock<std::mutex>> lock_parameters(std::span<const Tensor> parameters);
/// Gives the storage of a marked parameter a new block, which all handles read from then on. A Saved and a
/// snapshot keep the old one. The caller holds the lock. Throws: ValueError for a parameter that is not
/// marked, ShapeError for a block of another size in bytes, DeviceError for one on another device.
WEFT_API void swap_block(const Tensor& parameter, Ref<Storage> fresh);

}  // namespace weft
