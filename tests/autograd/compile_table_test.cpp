// Every row of the op table through compile(). The replays have the bits of ordinary runs, forward and with
// gradients, for the values of the recording and for others.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include <weft/autograd/tape/compile.h>
#include <weft/autograd/tape/engine.h>
#include <weft/autograd/tape/grad_mode.h>
#include <weft/kernels/cpu_settings.h>

#include "../support/golden.h"
#include "../support/op_table.h"

namespace weft::op_table {
namespace {

using testing::same_bits;

/// Rows that run the function at each call, since it reads values on the host or makes a generator. A row
/// that replays leaves its list.
const std::map<std::string, std::string> kOrdinary = {
    {"bernoulli", "reads values on the host"},
    {"bincount", "reads values on the host"},
    {"dropout", "makes or seeds a generator"},
    {"dropout_gradient", "makes or seeds a generator"},
    {"index_mask", "reads values on the host"},
    {"index_positions", "reads values on the host"},
    {"index_put", "reads values on the host"},
    {"index_put_accumulate", "reads values on the host"},
    {"index_put_mask", "reads values on the host"},
    {"index_put_through_a_view_", "reads values on the host"},
    {"masked_scatter", "reads values on the host"},
    {"masked_scatter_", "reads values on the host"},
    {"masked_select", "reads values on the host"},
    {"multinomial", "makes or seeds a generator"},
    {"nonzero", "reads values on the host"},
    {"remainder_number_integer", "reads values on the host"},
    {"repeat_interleave", "reads values on the host"},
    {"unique", "reads values on the host"},
};

/// Other values of the same kind: the order of each dim turned round.
Tensors turned(const Tensors& inputs) {
  Tensors out;
  for (const Tensor& x : inputs) {
    Shape dims;
    for (int d = 0; d < x.dim(); ++d) dims.push_back(d);
    out.push_back(x.dim() == 0 ? x.clone() : x.flip(dims));
  }
  return out;
}

Tensors forward_of(const Row& row, const Tensors& inputs) {
  const NoGrad quiet;
  Tensors out;
  for (const Tensor& y : row.call(inputs)) out.push_back(y.clone());
  return out;
}

/// The results, and the gradients of their sum by contiguous leaves, of which the operation gets views.
template <Layout layout = Layout::kContiguous> Tensors with_gradients(const Row& row, const Tensors& inputs) {
  const EnableGrad on;
  Tensors given, leaves, roots, seeds, out;
  for (size_t i = 0; i < inputs.size(); ++i) {
    Tensor leaf = base_of(inputs[i], layout);
    if (row.args[i].grad && leaf.is_floating_point()) leaves.push_back(leaf.requires_grad_());
    const Tensor x = laid_out(leaf, layout);
    given.push_back(layout == Layout::kExpanded ? x.expand(inputs[i].sizes()) : x);
  }
  for (const Tensor& y : row.call(given)) {
    if (y.requires_grad()) roots.push_back(y), seeds.push_back(ones_like(y.detach()));
    out.push_back(y.detach().clone());
  }
  if (roots.empty()) return out;
  for (const Tensor& g : grad(roots, leaves, seeds, {.allow_unused = true}))
    out.push_back(g.defined() ? g.detach() : g);
  return out;
}

/// The row between other pointwise operations.
Tensors chained(const Row& row, const Tensors& inputs) {
  const NoGrad quiet;
  Tensors given, out;
  for (const Tensor& x : inputs) given.push_back(x.is_floating_point() ? x * 1 : x.clone());
  for (const Tensor& y : row.call(given)) out.push_back(y.dtype() == kBool ? y.logical_not() : y * 2 + y);
  return out;
}

using Run = Tensors (*)(const Row&, const Tensors&);

/// Compares calls of a compiled row with ordinary ones. Returns the reason if the last one was no replay.
std::string replayed(const Row& row, Run run, DType dtype, Layout layout, const std::string& where) {
  auto compiled = compile([&](const Tensors& inputs) { return run(row, inputs); });
  for (int call = 0; call < 5; ++call) {
    Tensors inputs = make_inputs(row, dtype, layout, kCpu);
    if (call >= 3 && layout == Layout::kContiguous) inputs = turned(inputs);
    manual_seed(7);
    const Tensors expected = run(row, inputs);
    const uint64_t drawn = default_generator().offset();
    manual_seed(7);
    const Tensors got = compiled(inputs);
    EXPECT_EQ(default_generator().offset(), drawn) << where << ", call " << call;
    EXPECT_EQ(got.size(), expected.size()) << where;
    for (size_t i = 0; i < got.size() && i < expected.size(); ++i)
      EXPECT_TRUE(same_bits(got[i], expected[i])) << where << ", call " << call << ", result " << i;
  }
  return compiled.reason();
}

void expect_fallbacks(Run run, const std::map<std::string, std::string>& listed) {
  std::map<std::string, std::string> left = listed;
  for (const Row& row : all_rows()) {
    const std::string reason = replayed(row, run, row.dtypes[0], Layout::kContiguous, row.name);
    const auto known = left.find(row.name);
    if (known == left.end()) {
      EXPECT_EQ(reason, "") << row.name << " is not replayed";
      continue;
    }
    EXPECT_NE(reason.find(known->second), std::string::npos) << row.name << ": " << reason;
    left.erase(known);
  }
  for (const auto& [name, reason] : left) ADD_FAILURE() << name << " is listed and has no row";
}

TEST(CompileTable, forward_replays_have_the_bits_of_ordinary_runs) {
  expect_fallbacks(forward_of, kOrdinary);
}

TEST(CompileTable, replays_of_gradients_have_the_bits_of_ordinary_runs) {
  expect_fallbacks(with_gradients<>, kOrdinary);
}

TEST(CompileTable, replays_of_other_layouts_have_the_bits_of_ordinary_runs) {
  for (const Row& row : all_rows())
    for (const Layout layout : {Layout::kTransposed, Layout::kStrided, Layout::kExpanded})
      replayed(row, forward_of, row.dtypes[0], layout, row.name + " " + to_string(layout));
}

template <Layout layout> void expect_gradients_of_layout() {
  for (const Row& row : all_rows()) {
    const std::string where = row.name + " " + to_string(layout);
    const std::string reason = replayed(row, with_gradients<layout>, row.dtypes[0], layout, where);
    if (kOrdinary.contains(row.name)) continue;
    EXPECT_EQ(reason, "") << where;
  }
}

TEST(CompileTable, replays_of_gradients_by_other_layouts_have_the_bits_of_ordinary_runs) {
  expect_gradients_of_layout<Layout::kTransposed>();
  expect_gradients_of_layout<Layout::kStrided>();
  expect_gradients_of_layout<Layout::kExpanded>();
}

/// Rows that look for zeros among integers before they divide by them.
const std::set<std::string> kDivisions = {"floor_divide", "floor_divide_number", "fmod_number"};

void expect_other_dtypes(Run run) {
  for (const Row& row : all_rows())
    for (size_t i = 1; i < row.dtypes.size(); ++i) {
      const std::string where = str(row.name, " of ", row.dtypes[i]);
      const std::string reason = replayed(row, run, row.dtypes[i], Layout::kContiguous, where);
      if (kOrdinary.contains(row.name)) continue;
      const bool looks = kDivisions.contains(row.name) && !is_floating(row.dtypes[i]);
      EXPECT_EQ(reason, looks ? "f reads values on the host (item, to_vector)" : "") << where;
    }
}

TEST(CompileTable, replays_of_other_dtypes_have_the_bits_of_ordinary_runs) {
  expect_other_dtypes(forward_of);
}

TEST(CompileTable, replays_of_gradients_of_other_dtypes_have_the_bits_of_ordinary_runs) {
  expect_other_dtypes(with_gradients<>);
}

/// Calls a compiled row on its large sizes, with one thread and with several. Returns the reason if the last
/// call was no replay.
std::string replayed_large(const Row& row, Run run, DType dtype, CompileStats* stats = nullptr) {
  const Tensors inputs = make_inputs(row, dtype, Layout::kContiguous, kCpu, &row.large);
  auto compiled = compile([&](const Tensors& xs) { return run(row, xs); });
  const Tensors expected = run(row, inputs);
  for (const int threads : {1, 1, 1, 3}) {
    const ThreadScope scope(threads);
    const Tensors got = compiled(inputs);
    EXPECT_EQ(got.size(), expected.size()) << row.name;
    for (size_t i = 0; i < got.size() && i < expected.size(); ++i)
      EXPECT_TRUE(same_bits(got[i], expected[i]))
          << row.name << " of " << dtype << ", threads " << threads << ", result " << i;
  }
  if (stats) *stats = compiled.stats();
  return compiled.reason();
}

TEST(CompileTable, chains_over_large_tensors_have_the_bits_of_ordinary_runs) {
  int rows = 0, ordinary = 0;
  for (const auto& group : {pointwise_rows(), binary_rows(), scalar_rows(), test_rows(), bit_rows()})
    for (const Row& row : group) {
      if (row.large.empty()) continue;
      ++rows;
      for (const DType dtype : {row.dtypes.front(), row.dtypes.back()}) {
        CompileStats stats;
        const std::string reason = replayed_large(row, chained, dtype, &stats);
        if (reason.empty()) {
          EXPECT_GT(stats.fused, 0) << row.name << " of " << dtype;
          continue;
        }
        ++ordinary;  // a division of integers looks for zeros
        EXPECT_NE(reason.find("reads values on the host"), std::string::npos) << row.name << ": " << reason;
      }
      if (row.differentiable) replayed_large(row, with_gradients<>, row.dtypes.front());
    }
  EXPECT_GT(rows, 40);
  EXPECT_LE(ordinary, 5);
  for (const Row& row : inplace_rows())
    if (!row.large.empty()) replayed_large(row, chained, row.dtypes.front());
}

}  // namespace
}  // namespace weft::op_table
