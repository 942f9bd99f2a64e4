// Stream output of Shape, DType and Device; each prints its to_string. A separate file, so that the headers
// need only <iosfwd>.
#include <ostream>

#include <weft/kernels/device.h>
#include <weft/kernels/dtype.h>
#include <weft/kernels/shape.h>

namespace weft {

std::ostream& operator<<(std::ostream& out, DType t) { return out << to_string(t); }
std::ostream& operator<<(std::ostream& out, const Device& device) { return out << to_string(device); }
std::ostream& operator<<(std::ostream& out, const Shape& shape) { return out << to_string(shape); }

}  // namespace weft
