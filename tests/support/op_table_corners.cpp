// The checks of op_table_corners.h. Row::refuses lists the corner cases that a row refuses; it must accept
// all others, forward and backward.
#include "support/op_table_corners.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "support/op_table_checks.h"

namespace weft::op_table {
namespace {

/// The type of the Error that f throws and its text; "no error" without one.
std::pair<std::string, std::string> refusal(const std::function<void()>& f) {
  try {
    f();
  } catch (const ShapeError& e) {
    return {"ShapeError", e.what()};
  } catch (const DTypeError& e) {
    return {"DTypeError", e.what()};
  } catch (const IndexError& e) {
    return {"IndexError", e.what()};
  } catch (const ValueError& e) {
    return {"ValueError", e.what()};
  } catch (const Error& e) {
    return {"another error", e.what()};
  }
  return {"no error", ""};
}

std::vector<std::vector<double>> values_of(const Tensors& xs) {
  std::vector<std::vector<double>> all;
  for (const Tensor& x : xs) all.push_back(x.defined() ? to_host(x).v : std::vector<double>());
  return all;
}

bool same(double a, double b, double allowed) {
  return a == b || (std::isnan(a) && std::isnan(b)) || std::abs(a - b) <= allowed * (1 + std::abs(b));
}

void expect_same(const std::vector<std::vector<double>>& got,
                 const std::vector<std::vector<double>>& expected, double allowed, const std::string& where) {
  ASSERT_EQ(got.size(), expected.size()) << where;
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].size(), expected[i].size()) << where << ", tensor " << i;
    for (size_t k = 0; k < got[i].size(); ++k)
      ASSERT_TRUE(same(got[i][k], expected[i][k], allowed))
          << where << ", tensor " << i << ", element " << k << ": got " << got[i][k] << ", expected "
          << expected[i][k];
  }
}

bool has_gradient(const Row& row, size_t i, const Tensor& x) {
  return row.differentiable && row.args[i].grad && is_floating(x.dtype());
}

struct Outcome {
  Tensors outputs, gradients;  ///< one gradient per input; undefined: none
};

/// Calls the row and runs its backward from ones. If `first` and `second` differ, these two inputs
/// are one tensor.
Outcome run(const Row& row, const Tensors& inputs, size_t first = 0, size_t second = 0) {
  Tensors leaves;
  for (size_t i = 0; i < inputs.size(); ++i)
    leaves.push_back(i == second && first != second    ? leaves[first]
                     : has_gradient(row, i, inputs[i]) ? inputs[i].clone().requires_grad_()
                                                       : inputs[i]);
  Outcome o{row.call(leaves), {}};
  for (const Tensor& y : o.outputs)
    if (row.differentiable && is_floating(y.dtype()) && y.requires_grad())
      y.backward(ones_like(y.detach()), true);
  for (const Tensor& x : leaves) o.gradients.push_back(x.requires_grad() ? x.grad() : Tensor());
  return o;
}

bool takes_ids(const Row& row) {
  return std::any_of(row.args.begin(), row.args.end(),
                     [](const Arg& a) { return a.kind == Arg::Kind::kIds; });
}

Tensors with_ids_as(const Row& row, Tensors inputs, DType t) {
  for (size_t i = 0; i < inputs.size(); ++i)
    if (row.args[i].kind == Arg::Kind::kIds) inputs[i] = inputs[i].to(t);
  return inputs;
}

// int32 indices work like int64; other dtypes are refused by name.
void index_types(const Row& row, Device device) {
  const Tensors wide = make_inputs(row, row.dtypes[0], Layout::kContiguous, device);
  const Outcome expected = run(row, wide);
  for (const bool strided : {false, true}) {
    Tensors narrow = with_ids_as(row, wide, kInt32);
    if (strided)
      for (size_t i = 0; i < narrow.size(); ++i)
        if (row.args[i].kind == Arg::Kind::kIds)
          narrow[i] = laid_out(base_of(narrow[i], Layout::kStrided), Layout::kStrided);
    const Outcome got = run(row, narrow);
    const std::string where = row.name + (strided ? " with strided int32" : " with int32");
    expect_same(values_of(got.outputs), values_of(expected.outputs), 0, where);
    expect_same(values_of(got.gradients), values_of(expected.gradients), 0, where + ", gradients");
  }
  for (const DType t : {kUInt8, kBool, kFloat32}) {
    if (t == kBool && row.masks) continue;
    const auto [type, text] = refusal([&] { row.call(with_ids_as(row, wide, t)); });
    EXPECT_EQ(type, "DTypeError") << row.name << " with indices of " << to_string(t) << ": " << text;
    EXPECT_TRUE(row.name.starts_with(text.substr(0, text.find(": "))))
        << row.name << ": the text \"" << text << "\" does not begin with the name of the operation";
    EXPECT_NE(text.find(to_string(t)), std::string::npos)
        << row.name << ": the text \"" << text << "\" does not name the type";
  }
}

const std::string* refused(const Row& row, int64_t size) {
  for (const Refusal& r : row.refuses)
    if (r.size == size) return &r.type;
  return nullptr;
}

/// Runs the row with inputs of these sizes. It is refused as Row::refuses says, or has gradients of
/// the inputs' sizes.
void corner(const Row& row, Device device, const std::vector<Shape>& shapes, int64_t size) {
  std::string where = row.name + " of";
  for (const Shape& s : shapes) where += " " + to_string(s);
  const Tensors inputs = make_inputs(row, row.dtypes[0], Layout::kContiguous, device, &shapes);
  Outcome o;
  const auto [type, text] = refusal([&] { values_of((o = run(row, inputs)).outputs); });
  const std::string* const expected = refused(row, size);
  ASSERT_EQ(type, expected ? *expected : "no error")
      << where << ": \"" << text << "\"; a row that refuses this has {" << size << ", type} in its `refuses`";
  if (expected) return;
  for (size_t i = 0; i < o.gradients.size(); ++i)
    if (o.gradients[i].defined()) {
      EXPECT_EQ(to_string(o.gradients[i].sizes()), to_string(inputs[i].sizes()))
          << where << ", gradient " << i;
    }
  // the reference of a row with one size may not work for another
  if (size == kNoDims || !row.reference || row.sizes.empty()) return;
  Hosts hosts;
  for (const Tensor& x : inputs) hosts.push_back(to_host(x));
  std::vector<std::vector<double>> values;
  for (const Host& h : row.reference(hosts)) values.push_back(h.v);
  expect_same(values_of(o.outputs), values, 2e-5 * row.loose, where);
}

// A tensor without dims works like one with a single element, if the row accepts that one.
void no_dims(const Row& row, Device device) {
  const std::vector<Shape> none(row.args.size()), lines(row.args.size(), Shape{1});
  corner(row, device, none, kNoDims);
  if (refused(row, kNoDims) || row.name == "nonzero") return;  // nonzero has a coordinate per dim
  const auto call = [&](const std::vector<Shape>& shapes) {
    return values_of(row.call(make_inputs(row, row.dtypes[0], Layout::kContiguous, device, &shapes)));
  };
  std::vector<std::vector<double>> expected;
  if (refusal([&] { expected = call(lines); }).first == "no error")
    expect_same(call(none), expected, 0, row.name + " without dims");
}

// Equal sizes in a row mean the same dim. Each size in turn is replaced by 0 in all its places.
void empty_dims(const Row& row, Device device) {
  std::set<int64_t> every;
  for (const Arg& a : row.args)
    for (const int64_t n : a.sizes)
      if (n > 1) every.insert(n);
  for (const int64_t n : every) {
    std::vector<Shape> shapes;
    for (const Arg& a : row.args) {
      shapes.push_back(a.sizes);
      std::replace(shapes.back().begin(), shapes.back().end(), n, int64_t{0});
    }
    corner(row, device, shapes, n);
  }
}

// One tensor for two arguments gives the values of two copies, and the sum of their gradients.
void aliases(const Row& row, Device device) {
  for (size_t i = 0; i < row.args.size(); ++i)
    for (size_t j = i + 1; j < row.args.size(); ++j) {
      Tensors inputs = make_inputs(row, row.dtypes[0], Layout::kContiguous, device);
      if (row.args[i].kind != row.args[j].kind || !(row.args[i].sizes == row.args[j].sizes)) continue;
      inputs[j] = inputs[i].clone();
      const std::string where =
          row.name + " with one tensor for arguments " + std::to_string(i) + " and " + std::to_string(j);
      const Outcome two = run(row, inputs), one = run(row, inputs, i, j);
      expect_same(values_of(one.outputs), values_of(two.outputs), 0, where);
      if (!has_gradient(row, i, inputs[i]) || !has_gradient(row, j, inputs[j]) || !one.gradients[i].defined())
        continue;
      const auto total = values_of({two.gradients[i] + two.gradients[j]});
      expect_same(values_of({one.gradients[i]}), total, 2e-5 * row.loose, where + ", gradient");
    }
}

/// The gradients of the inputs from output k, which `write` changes by a constant before backward.
Tensors gradients_of(const Row& row, const Tensors& inputs, size_t k, bool write) {
  Tensors leaves, placed;
  for (size_t i = 0; i < inputs.size(); ++i) {
    leaves.push_back(has_gradient(row, i, inputs[i]) ? inputs[i].clone().requires_grad_() : inputs[i]);
    placed.push_back(leaves[i].requires_grad() ? leaves[i] * 1 : leaves[i]);  // a leaf's view refuses a write
  }
  Tensor y = row.call(placed)[k];
  if (write) y.add_(1);
  if (is_floating(y.dtype()) && y.requires_grad()) y.backward(ones_like(y.detach()));
  Tensors gradients;
  for (const Tensor& x : leaves) gradients.push_back(x.requires_grad() ? x.grad() : Tensor());
  return gradients;
}

// An in-place write to an output, unless an error refuses it, keeps the history of the output.
void writes(const Row& row, Device device) {
  std::vector<const std::vector<Shape>*> all = {nullptr};
  for (const auto& sizes : row.sizes) all.push_back(&sizes);
  for (const auto* sizes : all) {
    const Tensors inputs = make_inputs(row, row.dtypes[0], Layout::kContiguous, device, sizes);
    const size_t count = row.call(inputs).size();
    for (size_t k = 0; k < count; ++k) {
      Tensors got;
      if (refusal([&] { got = gradients_of(row, inputs, k, true); }).first != "no error") continue;
      expect_same(values_of(got), values_of(gradients_of(row, inputs, k, false)), 2e-5 * row.loose,
                  str(row.name, ", gradients after a write to output ", k));
    }
  }
}

}  // namespace

// The integers of unique are values of any dtype, not indices.
void register_corner_checks(const char* suite, const Row& row, Device device) {
  if (takes_ids(row) && row.name != "unique") register_check(suite, "index_types", row, device, index_types);
  register_check(suite, "no_dims", row, device, no_dims);
  register_check(suite, "empty_dims", row, device, empty_dims);
  if (row.args.size() > 1) register_check(suite, "aliases", row, device, aliases);
  if (row.differentiable) register_check(suite, "writes", row, device, writes);
}

}  // namespace weft::op_table
