// The checks of op_table_checks.h. Finite differences of gradients always run on the CPU.
#include "support/op_table_checks.h"
#include "support/op_table_special.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>

#include <weft/autograd/tape/engine.h>
#include <weft/autograd/tape/gradcheck.h>
#include <weft/kernels/cpu_settings.h>
#include "support/op_table_corners.h"

namespace weft::op_table {
namespace {

// The tolerance of a result of this dtype against the loops in double.
double tolerance(DType t) {
  switch (t) {
    case DType::kFloat64: return 1e-10;
    case DType::kFloat32: return 2e-5;
    case DType::kFloat16: return 6e-3;
    case DType::kBFloat16: return 5e-2;
    default: return 0;
  }
}

void expect_near(const Row& row, const Tensor& got, const Host& expected, DType compared_in,
                 const std::string& where) {
  ASSERT_EQ(to_string(got.sizes()), to_string(expected.sizes)) << where;
  const Host y = to_host(got);
  const double allowed =
      row.loose * (is_floating(got.dtype()) ? std::max(tolerance(got.dtype()), tolerance(compared_in)) : 0);
  for (size_t i = 0; i < y.v.size(); ++i) {
    if (std::isnan(expected.v[i]) && std::isnan(y.v[i])) continue;
    if (std::isinf(expected.v[i]) && expected.v[i] == y.v[i]) continue;
    // Integers wrap or saturate nowhere in the table, so they are exact.
    ASSERT_LE(std::abs(y.v[i] - expected.v[i]), allowed * (1 + std::abs(expected.v[i])))
        << where << ", element " << i << " of " << to_string(y.sizes) << ": got " << y.v[i] << ", expected "
        << expected.v[i];
    if (row.signed_zeros && is_floating(got.dtype()) && y.v[i] == 0 && expected.v[i] == 0) {
      ASSERT_EQ(std::signbit(y.v[i]), std::signbit(expected.v[i]))
          << where << ", element " << i << " of " << to_string(y.sizes) << ": the sign of a zero";
    }
  }
}

}  // namespace

void expect_reference(const Row& row, const Tensors& inputs, DType dtype, const std::string& where) {
  if (!row.reference) return;
  Hosts hosts;
  for (const Tensor& x : inputs) hosts.push_back(to_host(x));
  NoGrad quiet;
  const Tensors outputs = row.call(inputs);
  const Hosts expected = row.reference(hosts);
  ASSERT_EQ(outputs.size(), expected.size()) << where;
  for (size_t i = 0; i < outputs.size(); ++i)
    expect_near(row, outputs[i], expected[i], dtype, where + ", output " + std::to_string(i));
}

namespace {

void forward(const Row& row, Device device) {
  expect_reference(row, make_inputs(row, row.dtypes[0], Layout::kContiguous, device), row.dtypes[0],
                   row.name);
}

void dtypes(const Row& row, Device device) {
  for (const DType t : row.dtypes)
    expect_reference(row, make_inputs(row, t, Layout::kContiguous, device), t,
                     row.name + " in " + to_string(t));
}

void layouts(const Row& row, Device device) {
  for (const Layout layout : kLayouts)
    expect_reference(row, make_inputs(row, row.dtypes[0], layout, device), row.dtypes[0],
                     row.name + " " + to_string(layout));
}

void sizes(const Row& row, Device device) {
  for (const auto& shapes : row.sizes) {
    std::string where = row.name + " of";
    for (const Shape& s : shapes) where += " " + to_string(s);
    const Tensors inputs = make_inputs(row, row.dtypes[0], Layout::kContiguous, device, &shapes);
    expect_reference(row, inputs, row.dtypes[0], where);
    if (!row.differentiable) continue;
    // Backward runs and gives every gradient its input's sizes.
    Tensors leaves;
    for (size_t i = 0; i < inputs.size(); ++i)
      leaves.push_back(row.args[i].grad ? inputs[i].clone().requires_grad_() : inputs[i]);
    for (const Tensor& y : row.call(leaves))
      if (is_floating(y.dtype()) && y.requires_grad()) y.backward(ones_like(y.detach()), true);
    for (size_t i = 0; i < leaves.size(); ++i)
      if (row.args[i].grad && leaves[i].grad().defined()) {
        EXPECT_EQ(to_string(leaves[i].grad().sizes()), to_string(leaves[i].sizes())) << where;
      }
  }
}

using Check = GradcheckResult (*)(const TensorFunction&, const std::vector<Tensor>&, const GradcheckOptions&);

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

// One or two backward passes in place of finite differences, which would repeat them with other numbers.
void run_backward(const TensorFunction& f, const Tensors& inputs, bool twice) {
  Tensors leaves, roots, seeds;
  for (const Tensor& x : inputs)
    if (x.requires_grad()) leaves.push_back(x);
  for (const Tensor& y : f(inputs)) {
    if (!y.requires_grad()) continue;
    roots.push_back(y);
    seeds.push_back(ones_like(y.detach()).requires_grad_(twice));
  }
  if (roots.empty()) return;
  const GradOptions options{.retain_graph = twice, .create_graph = twice, .allow_unused = true};
  const Tensors first = grad(roots, leaves, seeds, options);
  if (!twice) return;
  leaves.insert(leaves.end(), seeds.begin(), seeds.end());
  roots.clear(), seeds.clear();
  for (const Tensor& g : first) {
    if (!g.defined() || !g.requires_grad()) continue;
    roots.push_back(g);
    seeds.push_back(ones_like(g.detach()));
  }
  if (!roots.empty()) grad(roots, leaves, seeds, {.allow_unused = true});
}

void gradients(const Row& row, Device device, Layout layout, Check check) {
  const Tensors inputs = make_inputs(row, kFloat64, layout, kCpu);
  Tensors leaves;
  for (size_t i = 0; i < inputs.size(); ++i)
    leaves.push_back(row.args[i].grad ? base_of(inputs[i], layout).requires_grad_() : inputs[i].clone());
  const auto f = [&](const std::vector<Tensor>& x) {
    Tensors placed;
    for (size_t i = 0; i < x.size(); ++i) {
      Tensor v = row.args[i].grad ? laid_out(x[i], layout) : x[i];
      if (row.args[i].grad && layout == Layout::kExpanded) v = v.expand(inputs[i].sizes());
      placed.push_back(v.to(device));
    }
    Tensors outputs;
    for (const Tensor& y : row.call(placed))
      if (is_floating(y.dtype())) outputs.push_back(y.to(kCpu));
    return outputs;
  };
  if (kSanitized && !device.is_cpu()) {  // emulated launches are slow, and differences repeat their accesses
    run_backward(f, leaves, check == gradgradcheck);
    return;
  }
  const GradcheckResult result = check(f, leaves, {});
  EXPECT_TRUE(result.ok) << row.name << " " << to_string(layout) << ": " << result.message;
}

void gradcheck_row(const Row& row, Device device) { gradients(row, device, Layout::kContiguous, gradcheck); }
void gradgradcheck_row(const Row& row, Device device) {
  gradients(row, device, Layout::kContiguous, gradgradcheck);
}
void gradcheck_of_views(const Row& row, Device device) {
  for (const Layout layout : {Layout::kTransposed, Layout::kStrided, Layout::kExpanded})
    gradients(row, device, layout, gradcheck);
}

void wrong_arguments(const Row& row, Device) {
  for (const Wrong& wrong : row.wrong) {
    std::string type = "no error", text;
    try {
      wrong.call();
    } catch (const ShapeError& e) {
      type = "ShapeError", text = e.what();
    } catch (const DTypeError& e) {
      type = "DTypeError", text = e.what();
    } catch (const IndexError& e) {
      type = "IndexError", text = e.what();
    } catch (const ValueError& e) {
      type = "ValueError", text = e.what();
    } catch (const Error& e) {
      type = "another error", text = e.what();
    }
    EXPECT_EQ(type, wrong.type) << row.name << ": " << text;
    const std::string op = text.substr(0, text.find(": "));
    EXPECT_TRUE(op.size() < text.size() && row.name.starts_with(op))
        << row.name << ": the text \"" << text << "\" does not begin with the name of the operation";
    if (op.find(wrong.text) != std::string::npos) {
      EXPECT_NE(text.find_first_of("0123456789", op.size()), std::string::npos)
          << row.name << ": the text \"" << text << "\" tells no value";
    }
    EXPECT_NE(text.find(wrong.text), std::string::npos)
        << row.name << ": the text \"" << text << "\" does not say \"" << wrong.text << "\"";
  }
}

// Outputs and gradients as bytes.
std::string bits_of(const Row& row, Device device) {
  const Tensors inputs =
      make_inputs(row, row.dtypes[0], Layout::kContiguous, device, row.large.empty() ? nullptr : &row.large);
  Tensors leaves;
  for (size_t i = 0; i < inputs.size(); ++i)
    leaves.push_back(row.args[i].grad && row.differentiable && is_floating(inputs[i].dtype())
                         ? inputs[i].clone().requires_grad_()
                         : inputs[i]);
  std::string bits;
  const auto add = [&](const Tensor& x) {
    const Tensor host = x.detach().contiguous().to(kCpu);
    bits.append(static_cast<const char*>(host.raw()),
                static_cast<size_t>(host.numel() * size_of(host.dtype())));
  };
  for (const Tensor& y : row.call(leaves)) {
    add(y);
    if (is_floating(y.dtype()) && y.requires_grad()) y.backward(ones_like(y.detach()), true);
  }
  for (const Tensor& x : leaves)
    if (x.requires_grad() && x.grad().defined()) add(x.grad());
  return bits;
}

void threads(const Row& row, Device device) {
  const int before = num_threads();
  set_num_threads(1);
  const std::string one = bits_of(row, device);
  set_num_threads(2);
  const std::string two = bits_of(row, device);
  set_num_threads(before);
  EXPECT_FALSE(one.empty() && two.empty()) << row.name;
  EXPECT_TRUE(one == two) << row.name << ": one and two threads differ";
}

void instruction_sets(const Row& row, Device device) {
  if (!device.is_cpu()) GTEST_SKIP() << "instruction sets belong to the CPU";
  const std::string before = cpu_isa();
  int tried = 0;
  for (const char* isa : {"baseline", "avx2", "avx512"}) {
    try {
      set_cpu_isa(isa);
    } catch (const ValueError&) {
      continue;  // this machine does not have it
    }
    ++tried;
    for (const DType t : row.dtypes)
      expect_reference(row, make_inputs(row, t, Layout::kContiguous, device), t, row.name + " under " + isa);
    expect_reference(row, make_inputs(row, row.dtypes[0], Layout::kStrided, device), row.dtypes[0],
                     row.name + " strided under " + isa);
    if (!row.large.empty())
      expect_reference(row, make_inputs(row, row.dtypes[0], Layout::kContiguous, device, &row.large),
                       row.dtypes[0], row.name + " large under " + isa);
    if (row.differentiable) gradients(row, device, Layout::kContiguous, gradcheck);
  }
  set_cpu_isa(before.c_str());
  EXPECT_GE(tried, 1);
}

class RowTest : public ::testing::Test {
 public:
  RowTest(const Row& row, Device device, void (*check)(const Row&, Device))
      : row_(row), device_(device), check_(check) {}
  void TestBody() override { check_(row_, device_); }

 private:
  const Row& row_;
  const Device device_;
  void (*check_)(const Row&, Device);
};

}  // namespace

void register_check(const char* suite, const char* check, const Row& row, Device device,
                    void (*run)(const Row&, Device)) {
  const std::string name = std::string(check) + "/" + row.name;
  ::testing::RegisterTest(suite, name.c_str(), nullptr, nullptr, __FILE__, __LINE__,
                          [&row, device, run] { return new RowTest(row, device, run); });
}

bool register_checks(const char* suite, Device device, const std::vector<Row>& rows) {
  const auto add = [&](const char* check, void (*run)(const Row&, Device), const Row& row) {
    register_check(suite, check, row, device, run);
  };
  for (const Row& row : rows) {
    register_corner_checks(suite, row, device);
    if (row.reference) {
      add("forward", forward, row);
      add("dtypes", dtypes, row);
      add("layouts", layouts, row);
    }
    if (row.reference && row.special && has_real(row)) add("special_values", special_values, row);
    if (!row.takes.empty()) add("numbers_beyond_the_type", numbers_beyond_the_type, row);
    if (!row.sizes.empty()) add("sizes", sizes, row);
    if (device.is_cpu()) {
      if (!row.wrong.empty()) add("wrong_arguments", wrong_arguments, row);
      add("threads", threads, row);
      add("instruction_sets", instruction_sets, row);
    }
    if (!row.differentiable) continue;
    add("gradcheck", gradcheck_row, row);
    add("gradcheck_of_views", gradcheck_of_views, row);
    if (row.twice) add("gradgradcheck", gradgradcheck_row, row);
  }
  return true;
}

}  // namespace weft::op_table
