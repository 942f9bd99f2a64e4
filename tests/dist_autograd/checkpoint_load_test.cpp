// An owner that loads a shard takes all of it or nothing. That holds without memory at any moment, and with
// modules of other types, shapes and streams. It holds after an earlier load whose end the owner missed.
#include <gtest/gtest.h>

#include <unistd.h>

#include <filesystem>

#include <weft/autograd/ops/ops.h>
#include <weft/distributed/optim/dist_checkpoint.h>
#include <weft/distributed/optim/inner/edge_errors.h>
#include <weft/distributed/rpc/rpc.h>
#include <weft/distributed/rref/remote_module.h>
#include <weft/nn/nn.h>
#include <weft/tensor/factories.h>
#include <weft/tensor/random_state.h>

#include "support/cluster.h"
#include "support/errors.h"
#include "support/folder.h"
#include "support/golden.h"
#include "support/replaced_new.h"

namespace weft::test {

/// y = dropout(W x + b), with a buffer and a frozen parameter beside.
struct Stall : nn::Module {
  Stall(int64_t dtype, int64_t n, std::string stream) {
    const DType type = static_cast<DType>(dtype);
    add("gain", &Stall::gain, full({n}, 1.5, {.dtype = is_floating(type) ? type : kFloat32}));
    gain.requires_grad_(false);
    add_buffer("seen", &Stall::seen, zeros({n}, {.dtype = type}));
    add("fc", fc);
    add(std::move(stream), drop);
  }
  Tensor forward(const Tensor& x) { return drop.forward(fc.forward(x)); }
  nn::Linear fc{4, 4};
  nn::Dropout drop{0.5};
  Tensor gain, seen;
};
WEFT_RPC_CLASS(Stall, forward);

}  // namespace weft::test

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace weft::test;
using dist_autograd::Context;
using dist_optim::OwnerOptimizer;
using dist_optim::ShardFile;
using dist_optim::ShardTerms;
using weft::testing::same_bits;

namespace fs = std::filesystem;

/// An owner on this worker, with one module.
struct OwnerRun {
  explicit OwnerRun(DType dtype = kFloat32, int64_t n = 4, const std::string& stream = "drop")
      : net(current_agent()->self().name, static_cast<int64_t>(dtype), n, stream),
        owner(optim::SGDRule::kName,
              {dist_optim::detail::encoded({}, optim::SGDRule::Options{.lr = 0.1, .momentum = 0.9}).options},
              {trained()}, {}) {
    owner.mark();
    net.seed(7, "net");
    const Life self = current_agent()->life();
    terms = {{"net"}, {dist_optim::ModulePart("net", net).module}, {self.id.value}, {self.incarnation.value}};
  }
  std::vector<RRef<Tensor>> trained() const {
    const auto all = net.remote_parameters();
    return {all.begin() + 1, all.end()};
  }
  Stall& module() const { return net.get_module_rref().local_value(); }
  /// Changes everything that a shard has.
  void train(double by) {
    Context context;
    context.backward({net.forward(full({2, 4}, by)).square().sum()});
    owner.step(context.id());
    const NoGrad guard;
    module().gain.fill_(by);
    module().seen.fill_(-by);
    rand({1});
    const Life self = current_agent()->life(), other = current_agent()->life_of(WorkerId{1});
    dist_optim::detail::set_edge_errors(
        {{.key = {.to = other, .maker = self, .ordinal = 1, .slot = 0}, .error = full({3}, by)}});
  }
  optim::StateDict state() const {
    optim::StateDict out = owner.state();
    for (const auto& part : {net.state_dict(), net.generator_state(),
                             dist_optim::detail::edge_errors(dist_optim::detail::members_of(terms)),
                             optim::StateDict{{"generator", generator_state(default_generator())}}})
      for (const auto& [name, value] : part) out.emplace_back(name, value.clone());
    return out;
  }
  RemoteModule<Stall> net;
  OwnerOptimizer owner;
  ShardTerms terms;
};

/// The names that differ; empty if all is the same.
std::string different(const optim::StateDict& a, const optim::StateDict& b) {
  std::string names = a.size() == b.size() ? "" : " size";
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    if (a[i].first != b[i].first || !same_bits(a[i].second, b[i].second)) names += " " + a[i].first;
  return names;
}

class CheckpointNoMemory : public ScarceMemory {};

TEST_F(CheckpointNoMemory, a_load_that_any_allocation_fails_changes_nothing) {
  const Folder folder;
  Cluster c({.size = 2});
  c.run(0, [&] {
    OwnerRun run;
    run.train(1);
    const ShardFile file = run.owner.save_shard(folder.path, "shard-1.safetensors", 5, run.terms);
    run.train(2);
    const optim::StateDict before = run.state();
    int failed = 0;
    for (int after = 0;; ++after) {
      ASSERT_LT(after, 5000) << "a load needs a limited number of allocations";
      run.owner.read_shard(folder.path, file, 5);
      ShardTerms terms = run.terms;
      bool threw = false, was_short = false;
      {
        const NoMemory scarce(after, 1);
        try {
          run.owner.load_shard(std::move(terms));
        } catch (const std::exception&) {
          threw = true;
        }
        was_short = scarce.was_short();
      }
      failed += threw;
      if (!threw) run.owner.end_shard(true);
      ASSERT_EQ(different(run.state(), before), "") << "after " << after << " allocations, threw " << threw;
      if (!was_short) break;
    }
    EXPECT_GT(failed, 20);
  });
}

TEST(CheckpointLoad, module_state_of_another_type_or_shape_is_refused_by_name) {
  const Folder folder;
  Cluster c({.size = 2});
  c.run(0, [&] {
    OwnerRun run, wide(kFloat64), integers(kInt64), longer(kFloat32, 5);
    run.train(1);
    const auto refusal = [&]<class E>(E*, OwnerRun& from) {
      from.train(2);
      const ShardFile file = from.owner.save_shard(folder.path, "shard-1.safetensors", 5, from.terms);
      const optim::StateDict before = run.state();
      run.owner.read_shard(folder.path, file, 5);
      const std::string text = error_of<E>([&] { run.owner.load_shard(run.terms); });
      EXPECT_EQ(different(run.state(), before), "");
      return text;
    };
    EXPECT_TRUE(
        has(refusal((DTypeError*)nullptr, wide), "the module 'net': gain is float32 here, float64 in"));
    EXPECT_TRUE(has(refusal((DTypeError*)nullptr, integers), "seen is float32 here, int64 in the shard"));
    EXPECT_TRUE(has(refusal((ShapeError*)nullptr, longer), "gain is [4] here and [5] in the state"));
  });
}

TEST(CheckpointLoad, streams_of_other_submodules_are_refused_by_name_and_missing_ones_are_made) {
  const Folder folder;
  Cluster c({.size = 2});
  c.run(0, [&] {
    OwnerRun run, other(kFloat32, 4, "noise"), fewer;
    const optim::StateDict before = run.state();
    other.net.load_generator_state({{"noise", other.net.generator_state().back().second}});
    const auto load = [&](OwnerRun& from) {
      const ShardFile file = from.owner.save_shard(folder.path, "shard-1.safetensors", 5, from.terms);
      run.owner.read_shard(folder.path, file, 5);
      run.owner.load_shard(run.terms);
    };
    EXPECT_TRUE(has(error_of<ValueError>([&] { load(other); }), "the module 'net': "));
    EXPECT_EQ(different(run.state(), before), "");
    const auto streams = run.net.generator_state();
    fewer.net.load_generator_state({{"drop", streams.back().second}});
    EXPECT_TRUE(has(error_of<ValueError>([&] { load(fewer); }), "streams"));
    EXPECT_EQ(different(run.state(), before), "");
    fewer.net.load_generator_state({});
    load(fewer);
    EXPECT_TRUE(run.net.generator_state().empty());
    fewer.net.load_generator_state(streams);
    load(fewer);
    EXPECT_EQ(run.net.generator_state().size(), streams.size());
  });
}

TEST(CheckpointLoad, an_end_that_was_not_heard_takes_no_later_load_back_to_before_it) {
  const Folder folder;
  Cluster c({.size = 2});
  c.run(0, [&] {
    OwnerRun run;
    run.train(1);
    const ShardFile file = run.owner.save_shard(folder.path, "shard-1.safetensors", 5, run.terms);
    for (const bool streamed : {false, true}) {
      run.owner.read_shard(folder.path, file, 5);
      run.owner.load_shard(run.terms);  // no end_shard
      run.train(2);
      const optim::StateDict before = run.state();
      if (streamed) run.owner.expect_shard({});
      else EXPECT_THROW(run.owner.read_shard(folder.path, {"shard-2.safetensors", 1, 1}, 5), IoError);
      run.owner.end_shard(true);
      EXPECT_EQ(different(run.state(), before), "") << streamed;
    }
  });
}

}  // namespace
