// The recorded graph as text for Graphviz: `std::cout << to_dot({loss});`.
#pragma once

#include <string>
#include <vector>

#include <weft/tensor/tensor.h>

namespace weft {

/// A digraph in DOT: one box per node (name, sizes of its outputs), edges from results to inputs, leaves as
/// ellipses. Throws: AutogradError if no tensor has a history.
WEFT_API std::string to_dot(const std::vector<Tensor>& roots);

}  // namespace weft
