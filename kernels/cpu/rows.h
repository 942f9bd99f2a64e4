// Errors of the row kernels. They are outside the namespaces of the instruction sets, since they use
// std::string.
#pragma once

#include <cstdint>

namespace weft::kernels {

/// Throws: IndexError that names the class, its row and the number of classes.
[[noreturn]] void throw_bad_target(int64_t target, int64_t row, int64_t classes);

}  // namespace weft::kernels
