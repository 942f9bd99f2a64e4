// The table of operations: one Row per public op (and variant). All checks of an op come from its row:
// forward against plain loops, gradients, second derivatives, layouts, sizes, dtypes, wrong arguments. So do
// those of threads and instruction sets, and benchmarks. The table does not depend on a test framework or a
// device; a driver requests inputs on its device.
#pragma once

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include <weft/autograd/ops/ops.h>

namespace weft::op_table {

/// A tensor as plain numbers in row-major order, for the references.
struct Host {
  Shape sizes;
  std::vector<double> v;
  Host() = default;
  explicit Host(std::initializer_list<int64_t> s) : Host(Shape(s)) {}
  explicit Host(const Shape& s) : sizes(s), v(static_cast<size_t>(s.numel())) {}
  Host(const Shape& s, std::vector<double> values) : sizes(s), v(std::move(values)) {}
  int64_t numel() const { return sizes.numel(); }
  /// The element at a complete index.
  double& operator()(const Shape& at) { return v[static_cast<size_t>(offset(at))]; }
  double operator()(const Shape& at) const { return v[static_cast<size_t>(offset(at))]; }
  /// The same with dims broadcast: at may have more dims, and size-1 dims repeat.
  double broadcast_at(const Shape& at) const;

 private:
  int64_t offset(const Shape& at) const;
};
Host to_host(const Tensor& x);
/// Calls f for every index of `sizes` in row-major order.
void for_each(const Shape& sizes, const std::function<void(const Shape& at)>& f);
/// A Host whose elements are f(index).
Host build(const Shape& sizes, const std::function<double(const Shape& at)>& f);
/// `at` with one entry replaced.
Shape with(const Shape& at, int dim, int64_t value);

/// The description of one input.
struct Arg {
  enum class Kind { kReal, kIds, kFlags };
  Shape sizes;
  Kind kind = Kind::kReal;
  double low = -2, high = 2;  ///< kReal: uniform in [low, high), at least `apart` away from `gap`
  int64_t ids = 0;            ///< kIds: uniform in [0, ids)
  bool grad = true;           ///< kReal: gradients are checked
  double gap = 0, apart = 0;
};
Arg real(const Shape& sizes, double low = -2, double high = 2);
/// A real input that stays away from a kink.
Arg away(const Shape& sizes, double gap, double apart = 0.05, double low = -2, double high = 2);
/// A real input without a gradient.
Arg fixed(const Shape& sizes, double low = -2, double high = 2);
Arg ids(const Shape& sizes, int64_t n);
Arg flags(const Shape& sizes);

// Lists of dtypes; functions, since rows are made before main.
inline std::vector<DType> floats() { return {kFloat32, kFloat64, kFloat16, kBFloat16}; }
inline std::vector<DType> whole_types() { return {kInt64, kInt32, kUInt8}; }
inline std::vector<DType> numbers() { return {kFloat32, kFloat64, kFloat16, kBFloat16, kInt64, kInt32}; }
inline std::vector<DType> every_type() {
  return {kFloat32, kFloat64, kFloat16, kBFloat16, kInt64, kInt32, kUInt8, kBool};
}

using Tensors = std::vector<Tensor>;
using Hosts = std::vector<Host>;

/// A wrong call: the name of the error's type and a part of its text. The text must begin with the op's name.
/// If the part is only that name, the text must contain a number.
struct Wrong {
  std::string type;  ///< "ShapeError", "DTypeError", "IndexError", "ValueError"
  std::string text;
  std::function<void()> call;
};

/// A corner case that a row refuses: a dim of 0 for every dim of this size, or inputs without dims.
struct Refusal {
  int64_t size;
  std::string type;  ///< the error's, as in Wrong
};
inline constexpr int64_t kNoDims = -1;
/// A number argument of the op. A comparison accepts every number and uses its exact value.
struct Number {
  enum class Meets {
    kElement,
    kFactor,
    kReal,
    kPower
  };  ///< an element that is written, arithmetic (halves in float32), real numbers (integers in float32 too),
      ///< powers (real numbers unless both are integers)
  Meets meets;
  std::function<Tensor(const Tensor& x, Scalar s)> call;
  std::function<bool(long double x, long double s)> compares = {};
  std::vector<DType> dtypes = {kUInt8, kInt32, kInt64, kFloat16, kBFloat16, kFloat32, kFloat64};
};

struct Row {
  std::string name;  ///< the op, or op_variant; letters, digits, underscores
  std::vector<Arg> args;
  std::function<Tensors(const Tensors&)> call;
  std::function<Hosts(const Hosts&)> reference;  ///< expected outputs, in double
  bool differentiable = true;
  bool twice = true;                                 ///< gradients of gradients are checked
  std::vector<DType> dtypes = {kFloat32, kFloat64};  ///< dtypes of the kReal args
  std::vector<std::vector<Shape>> sizes = {};  ///< other sizes of the args: empty, one element, broadcast
  std::vector<Wrong> wrong = {};
  /// sizes large enough for several threads; empty: the usual ones
  std::vector<Shape> large = {};
  double loose = 1;                   ///< factor on the tolerance
  std::vector<Refusal> refuses = {};  ///< refused corner cases (op_table_corners.h)
  std::vector<Number> takes = {};     ///< tested with numbers inside and outside of each dtype
  bool masks = false;                 ///< its indices may be bool masks
  bool special = true;                ///< NaN, infinities and -0 among the inputs give the reference's result
  bool signed_zeros = true;           ///< a zero of the result has the sign of the reference's
};

/// Memory layouts of an input.
enum class Layout { kContiguous, kTransposed, kStrided, kExpanded };
inline constexpr Layout kLayouts[] = {Layout::kContiguous, Layout::kTransposed, Layout::kStrided,
                                      Layout::kExpanded};
const char* to_string(Layout layout);

/// The row's inputs, with the same numbers for every layout and device (except kExpanded, whose first dim
/// repeats one slice).
Tensors make_inputs(const Row& row, DType dtype, Layout layout, Device device,
                    const std::vector<Shape>* sizes = nullptr);
/// x in the given layout, by differentiable views of a contiguous tensor:
/// laid_out(base_of(x, layout), layout) equals x.
Tensor laid_out(const Tensor& base, Layout layout);
Tensor base_of(const Tensor& x, Layout layout);

/// Every row, in the order of ops.h.
const std::vector<Row>& all_rows();

/// f over broadcast inputs.
std::function<Hosts(const Hosts&)> elementwise(std::function<double(const std::vector<double>&)> f);

/// The order of sort and of the extremes: NaN comes last, as in PyTorch.
inline bool before(double a, double b) { return a < b || (!std::isnan(a) && std::isnan(b)); }

// The groups that all_rows() joins; one file each.
std::vector<Row> pointwise_rows();
std::vector<Row> binary_rows();
std::vector<Row> scalar_rows();
std::vector<Row> test_rows();
std::vector<Row> reduce_rows();
std::vector<Row> matmul_rows();
std::vector<Row> attention_rows();
std::vector<Row> softmax_rows();
std::vector<Row> loss_rows();
std::vector<Row> index_rows();
std::vector<Row> order_rows();
std::vector<Row> index_many_rows();
std::vector<Row> bit_rows();
std::vector<Row> shape_rows();
std::vector<Row> arrange_rows();
std::vector<Row> random_rows();
std::vector<Row> rnn_rows();
std::vector<Row> inplace_rows();
/// Sets the refused corner cases of the rows of these groups.
void add_refusals(std::vector<Row>& rows);

}  // namespace weft::op_table
