// StateDict: the saved state of optimizers and schedules.
#pragma once

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include <weft/tensor/tensor.h>

namespace weft::optim {

/// Named tensors of a state; counts are int64 tensors, learning rates float64.
using StateDict = std::vector<std::pair<std::string, Tensor>>;

/// Internal: the tensors of `state` in the order of `names`.
/// Throws: ValueError that names an entry that is missing or unknown.
std::vector<Tensor> state_entries(const char* who, const StateDict& state,
                                  std::initializer_list<const char*> names);

}  // namespace weft::optim
