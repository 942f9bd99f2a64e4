// The op table on the CPU: OpTable.<check>/<row>.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "support/errors.h"
#include "support/op_table_checks.h"

namespace weft::op_table {
namespace {

const bool registered = register_checks("OpTable", kCpu, all_rows());

TEST(OpTableRows, have_names_of_their_own) {
  ASSERT_TRUE(registered);
  std::vector<std::string> names;
  for (const Row& row : all_rows()) names.push_back(row.name);
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
  EXPECT_GT(names.size(), 150u);
}

TEST(OpTableRows, name_an_undefined_tensor_and_the_method_in_place_that_got_it) {
  const Tensor none, x = zeros({2}), mask = x > 0, whole = zeros({2}, {.dtype = kInt64});
  const auto refused = [](const std::string& name, int argument, const std::function<void()>& call) {
    const std::string text = test::error_of<ValueError>(call);
    EXPECT_TRUE(test::has(text, str(name, ": tensor argument ", argument, " is undefined")));
  };
  const std::vector<std::pair<const char*, std::function<void(Tensor, const Tensor&)>>> methods = {
      {"copy_", [](Tensor y, const Tensor& b) { y.copy_(b); }},
      {"add_", [](Tensor y, const Tensor& b) { y += b; }},
      {"sub_", [](Tensor y, const Tensor& b) { y -= b; }},
      {"mul_", [](Tensor y, const Tensor& b) { y *= b; }},
      {"div_", [](Tensor y, const Tensor& b) { y /= b; }},
      {"bitwise_and_", [](Tensor y, const Tensor& b) { y &= b; }},
      {"bitwise_or_", [](Tensor y, const Tensor& b) { y |= b; }},
      {"bitwise_xor_", [](Tensor y, const Tensor& b) { y ^= b; }},
      {"masked_fill_", [](Tensor y, const Tensor& b) { y.masked_fill_(b, 1); }},
      {"masked_scatter_", [&](Tensor y, const Tensor& b) { y.masked_scatter_(b, x); }},
      {"index_put_", [](Tensor y, const Tensor& b) { y.index_put_({b}, 1); }},
  };
  for (const auto& [name, call] : methods) {
    refused(name, 2, [&] { call(x, none); });
    refused(name, 1, [&] { call(none, mask); });
  }
  refused("index", 2, [&] { x[none]; });
  refused("masked_scatter_", 3, [&] { Tensor(x).masked_scatter_(mask, none); });
  const std::vector<std::pair<const char*, std::function<void(Tensor)>>> alone = {
      {"zero_", [](Tensor y) { y.zero_(); }},
      {"fill_", [](Tensor y) { y.fill_(1); }},
      {"add_", [](Tensor y) { y += 1; }},
      {"sub_", [](Tensor y) { y -= 1; }},
      {"mul_", [](Tensor y) { y *= 2; }},
      {"div_", [](Tensor y) { y /= 2; }},
      {"clamp_", [](Tensor y) { y.clamp_(0, 1); }},
      {"relu_", [](Tensor y) { y.relu_(); }},
      {"uniform_", [](Tensor y) { y.uniform_(); }},
      {"normal_", [](Tensor y) { y.normal_(); }},
      {"bernoulli_", [](Tensor y) { y.bernoulli_(); }},
  };
  for (const auto& [name, call] : alone) refused(name, 1, [&] { call(none); });
  refused("cat", 2, [&] { cat({x, none}); });
  refused("stack", 1, [&] { stack({none, x}); });
  refused("einsum", 2, [&] { einsum("i,i->", {x, none}); });
  refused("mul", 1, [&] { x.grad() * 2; });
  refused("view", 1, [&] { none.view(2); });
  refused("as_strided", 1, [&] { none.as_strided({1}, {1}); });
  refused("diagonal", 1, [&] { none.diagonal(); });
  refused("isinf", 1, [&] { none.isinf(); });
  refused("remainder", 1, [&] { none % 2; });
  refused("index_put", 2, [&] { index_put(x, {mask}, none); });
  refused("scatter", 3, [&] { scatter(x, 0, whole, none); });
  refused("multinomial", 1, [&] { multinomial(none, 1); });
  refused("bernoulli", 1, [&] { bernoulli(none); });
  refused("dropout", 1, [&] { dropout(none); });
}

// Inputs that an op does without, or calls by their names; and rows that prepare their inputs by other
// operations.
bool passed_over(const Row& row, size_t i) {
  static const std::set<std::string> prepare = {
      "view",      "as_strided",           "diagonal", "isinf",       "remainder_number_integer",
      "index_put", "index_put_accumulate", "scatter",  "multinomial", "bernoulli",
      "dropout"};
  const auto is = [&](const char* op) { return row.name.starts_with(op); };
  if (is("scaled_dot_product_attention") && i == 3) return true;  // the mask
  if (is("feed_forward") && (i == 2 || i == 4)) return true;      // the biases
  if (is("linear") || is("cross_entropy") || is("nll_loss")) return i == 2;
  return (is("layer_norm") && i > 0) || (is("bincount") && i == 1) || is("lstm") || is("gru") || is("rnn_") ||
         row.name.ends_with('_') || prepare.contains(row.name);
}

TEST(OpTableRows, name_an_undefined_tensor_and_the_op_that_got_it) {
  for (const Row& row : all_rows())
    for (size_t i = 0; i < row.args.size(); ++i) {
      if (passed_over(row, i)) continue;
      Tensors inputs = make_inputs(row, row.dtypes[0], Layout::kContiguous, kCpu);
      inputs[i] = Tensor();
      const std::string text = test::error_of<ValueError>([&] { row.call(inputs); });
      const std::string op = text.substr(0, text.find(": "));  // that of rsub_number is sub
      EXPECT_TRUE(row.name.starts_with(op) || row.name.substr(1).starts_with(op))
          << row.name << ", input " << i << ": " << text;
      EXPECT_TRUE(test::has(text, ": tensor argument ")) << row.name;
      EXPECT_TRUE(test::has(text,
                            " is undefined: it was never assigned, or it is a grad() that is not there: call "
                            "backward() first"));
    }
}

TEST(OpTableRows, name_the_called_op_not_one_that_it_is_composed_of) {
  const Tensor x = ones({2, 3}), flags = x > 0, whole = ones({3}, {.dtype = kInt64});
  const Tensor bytes = ones({3}, {.dtype = kUInt8}), at = zeros({3, 1}, {.dtype = kInt64});
  const std::vector<std::pair<const char*, std::function<void()>>> calls = {
      {"take_along", [&] { take_along(x, at, 1); }},
      {"normalize", [&] { normalize(x, -1); }},
      {"normalize", [&] { normalize(x, 2, 1, 1e300); }},
      {"smooth_l1_loss", [&] { smooth_l1_loss(x, x, 1e300); }},
      {"remainder_", [&] { whole.clone().remainder_(0); }},
      {"remainder_", [&] { whole.clone().remainder_(0.5); }},
      {"remainder_", [&] { whole.clone().remainder_(zeros({3}, {.dtype = kInt64})); }},
      {"pow_", [&] { whole.clone().pow_(-1); }},
      {"pow_", [&] { bytes.clone().pow_(300); }},
      {"pow", [&] { pow(300, bytes); }},
      {"div", [&] { div(1e300, x); }},
      {"sub", [&] { sub(300, bytes); }},
      {"sub_", [&] { flags.clone().sub_(flags, 2); }},
      {"sub_", [&] { flags.clone().sub_(flags); }},
      {"index", [&] { x.index({Slice(0, 2, 0)}); }},
      {"index", [&] { x.index({5}); }},
      {"matmul", [&] { matmul(flags[0], flags[0]); }},
      {"matmul", [&] { matmul(flags, flags.t()); }},
      {"matmul", [&] { matmul(x, x); }},
      {"mm", [&] { mm(x, x); }},
      {"mm", [&] { mm(flags, flags.t()); }},
      {"dot", [&] { dot(flags[0], flags[0]); }},
      {"einsum",
       [&] {
         einsum("ij,jk->ik", {flags, flags.t()});
       }},
      {"argsort", [&] { argsort(x, 2); }},
  };
  for (const auto& [name, call] : calls) {
    const std::string text = test::error_of<Error>(call);
    EXPECT_TRUE(text.starts_with(str(name, ": "))) << name << ": " << text;
  }
}

/// x in other sizes and of other dtypes.
Tensors changed(const Tensor& x) {
  Tensors all = {x.reshape({-1}), x.reshape({-1}).slice(0, 0, 1).reshape({}), x.unsqueeze(0), x.unsqueeze(-1),
                 stack({x, x}, 0)};
  for (int d = 0; d < x.dim(); ++d) {
    all.push_back(cat({x, x}, d));
    all.push_back(x.slice(d, 0, 0));
  }
  for (const DType t : every_type()) all.push_back(x.to(t));
  return all;
}

void expect_named(const Row& row, const std::string& call, const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    const std::string text = e.what(), op = text.substr(0, text.find(": "));
    EXPECT_TRUE(row.name.starts_with(op) || row.name.substr(1).starts_with(op))
        << row.name << ", " << call << ": " << text;
  }
}

TEST(OpTableRows, name_the_op_in_each_error_of_other_sizes_and_dtypes) {
  const std::set<std::string> prepare = {
      // rows that call other operations before theirs
      "transpose",        "multinomial",          "masked_scatter",
      "index_put",        "index_put_accumulate", "index_mask",
      "add_overlapping_", "mul_through_a_view_",  "index_put_through_a_view_",
      "masked_scatter_"};
  for (const Row& row : all_rows())
    for (size_t i = 0; i < row.args.size() && !prepare.contains(row.name); ++i) {
      const Tensors given = make_inputs(row, row.dtypes[0], Layout::kContiguous, kCpu);
      for (const Tensor& x : changed(given[i])) {
        Tensors inputs = given;
        inputs[i] = x;
        expect_named(row, str("input ", i, " as ", x.dtype(), " ", x.sizes()), [&] { row.call(inputs); });
      }
    }
}

TEST(OpTableRows, name_the_op_in_each_error_of_a_number) {
  for (const Row& row : all_rows())
    for (const Number& number : row.takes)
      for (const DType t : every_type())
        for (const Scalar s : {Scalar(-1), Scalar(300), Scalar(0.5), Scalar(1e300), Scalar(NAN)})
          expect_named(row, str("the number ", s, " for ", t), [&] { number.call(ones({2, 2}, t), s); });
}

}  // namespace
}  // namespace weft::op_table
