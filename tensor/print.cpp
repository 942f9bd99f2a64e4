// to_string of a tensor: nested brackets, with numbers padded to one width. In tensors of more than 1000
// elements, dims of more than six entries are abbreviated. Only the printed elements are copied from the
// device.
#include <weft/tensor/factories.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ostream>

namespace weft {
namespace {

constexpr int64_t kMaxShown = 1000;
constexpr int64_t kEdge = 3;
constexpr size_t kLine = 100;

std::string text_of(double value, DType dtype) {
  if (dtype == kBool) return value != 0 ? "true" : "false";
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char text[32];
  std::snprintf(text, sizeof text, "%.5g", value);
  return text;
}

struct Printer {
  const Tensor& x;
  bool elide;
  std::vector<std::string> cells = {};  // printed elements in order; "" is an ellipsis
  size_t width = 0;
  size_t next = 0;

  bool skips(int64_t size) const { return elide && size > 2 * kEdge; }

  void collect(int dim, int64_t offset) {
    const int64_t size = dim < x.dim() ? x.sizes()[dim] : 1;
    if (dim >= x.dim() - 1) {
      const int64_t stride = x.dim() ? x.strides()[dim] : 1;
      const auto take = [&](int64_t from, int64_t count) {
        const Tensor row = alias(x, {count}, {stride}, offset + from * stride);
        const bool integral = !is_floating(x.dtype()) && x.dtype() != kBool;
        const std::vector<double> values = integral ? std::vector<double>() : row.to_vector<double>();
        const std::vector<int64_t> integers = integral ? row.to_vector<int64_t>() : std::vector<int64_t>();
        for (int64_t i = 0; i < count; ++i)
          add(integral ? std::to_string(integers[static_cast<size_t>(i)])
                       : text_of(values[static_cast<size_t>(i)], x.dtype()));
      };
      if (!skips(size)) return take(0, size);
      take(0, kEdge);
      return take(size - kEdge, kEdge);
    }
    for (int64_t i = 0; i < size; ++i) {
      if (skips(size) && i == kEdge) i = size - kEdge;
      collect(dim + 1, offset + i * x.strides()[dim]);
    }
  }
  void add(std::string cell) {
    width = std::max(width, cell.size());
    cells.push_back(std::move(cell));
  }

  /// `gap` separates the entries of dims above the last.
  std::string write(int dim, bool lines) {
    if (x.dim() == 0) return cells[0];
    const int64_t size = x.sizes()[dim];
    const bool last = dim == x.dim() - 1;
    std::string gap = ", ";
    if (lines && !last) {
      gap.assign(",")
          .append(static_cast<size_t>(x.dim() - 1 - dim), '\n')
          .append(static_cast<size_t>(8 + dim), ' ');
    }
    std::string out = "[";
    for (int64_t i = 0; i < size; ++i) {
      if (i > 0) out += gap;
      if (skips(size) && i == kEdge) {
        out += "..." + gap;
        i = size - kEdge;
      }
      if (!last) {
        out += write(dim + 1, lines);
        continue;
      }
      const std::string& cell = cells[next++];
      if (lines) out += std::string(width - cell.size(), ' ');
      out += cell;
    }
    return out + "]";
  }
};

}  // namespace

std::ostream& operator<<(std::ostream& out, const Tensor& x) { return out << to_string(x); }

std::string to_string(const Tensor& x) {
  if (!x.defined()) return "tensor(undefined)";
  Printer printer{x, x.numel() > kMaxShown};
  std::string body;
  if (x.numel() == 0 && x.dim() > 1) {
    body = str("[], sizes=", x.sizes());
  } else {
    if (x.numel() > 0) printer.collect(0, x.storage_offset());
    body = printer.write(0, false);
    if (x.dim() > 1 && body.size() > kLine) {
      printer.next = 0;
      body = printer.write(0, true);
    }
  }
  std::string out = str("tensor(", body, ", ", x.dtype());
  if (!x.device().is_cpu()) out += str(", ", x.device());
  if (x.requires_grad())
    out += x.is_leaf() ? std::string(", requires_grad") : str(", from ", x.grad_fn_name());
  return out + ")";
}

}  // namespace weft
