// Checkpoints over all owners keep more than the optimizer has: random streams, buffers and frozen parameters
// of remote modules, and the errors that rounded gradients still owe. A resumed run has the same bits.
#include <gtest/gtest.h>

#include <unistd.h>

#include <filesystem>
#include <sstream>

#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/grad_mode.h>
#include <weft/distributed/autograd/edge_codec.h>
#include <weft/distributed/optim/dist_checkpoint.h>
#include <weft/distributed/optim/inner/shard_file.h>
#include <weft/distributed/rpc/rpc.h>
#include <weft/distributed/rref/remote_module.h>
#include <weft/nn/nn.h>
#include <weft/tensor/factories.h>
#include <weft/tensor/io/safetensors.h>

#include "support/cluster.h"
#include "support/errors.h"
#include "support/folder.h"
#include "support/golden.h"
#include "support/process.h"
#include "support/same_state.h"

namespace weft::test {

/// y = drop(tanh(W x + b)) * gain + seen. `gain` is frozen; in training `seen` follows the inputs.
struct Booth : nn::Module {
  Booth(double p, bool counts) : drop(p), follows(counts) {
    add("gain", &Booth::gain, full({8}, 1.5));
    gain.requires_grad_(false);
    add_buffer("seen", &Booth::seen, zeros({8}));
    add("fc", fc);
    add("drop", drop);
  }
  Tensor forward(const Tensor& x) {
    if (follows && is_training()) {
      const NoGrad guard;
      seen.copy_(seen * 0.5 + x.detach().mean(0) * 0.5);
    }
    return drop.forward(tanh(fc.forward(x))) * gain + seen.clone();
  }
  void set_gain(double to) {
    const NoGrad guard;
    gain.fill_(to);
  }
  nn::Linear fc{8, 8};
  nn::Dropout drop;
  Tensor gain, seen;
  bool follows;
};
WEFT_RPC_CLASS(Booth, forward, set_gain);

/// The gradient of an input in a context of this worker.
Tensor gradient_through_booth(const rpc::RemoteModule<Booth>& net) {
  const Tensor x = cos(arange(32).to(kFloat32).reshape({4, 8})).requires_grad_();
  dist_autograd::Context context;
  context.backward({net.forward(x * 1.0).square().sum()});
  return context.gradient(x);
}
WEFT_RPC(gradient_through_booth);

}  // namespace weft::test

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace weft::test;
using dist_autograd::Context;
using dist_autograd::set_edge_codec;
using dist_autograd::WireCodec;
using dist_optim::CheckpointOptions;
using dist_optim::DistributedOptimizer;
using weft::testing::same_bits;
using weft::testing::same_state;

namespace fs = std::filesystem;

/// The part of the state of a run that the optimizer does not have.
enum class Beside { kStreams, kBuffer, kFrozen, kEdges, kAll };
std::string name_of(Beside b) {
  constexpr const char* kNames[] = {"streams", "buffer", "frozen", "edges", "all"};
  return kNames[static_cast<int>(b)];
}
bool with(Beside what, Beside part) { return what == part || what == Beside::kAll; }

/// A model over two owners whose trainer is this worker.
struct SplitRun {
  explicit SplitRun(Beside what, uint64_t seed, const std::string& one = "worker1",
                    const std::string& two = "worker2")
      : first(one, with(what, Beside::kStreams) ? 0.5 : 0.0, with(what, Beside::kBuffer)),
        second(two, with(what, Beside::kStreams) ? 0.5 : 0.0, with(what, Beside::kBuffer)),
        optimizer(dist_optim::make<optim::SGDRule>(trained(), {.lr = 0.05, .momentum = 0.9})) {
    if (with(what, Beside::kStreams)) first.seed(seed, "first"), second.seed(seed, "second");
  }
  /// All parameters but the frozen ones, which come first.
  std::vector<RRef<Tensor>> trained() const {
    std::vector<RRef<Tensor>> out;
    for (const auto* net : {&first, &second}) {
      const auto all = net->remote_parameters();
      out.insert(out.end(), all.begin() + 1, all.end());
    }
    return out;
  }
  void train(int steps) {
    for (int i = 0; i < steps; ++i, ++step) {
      const Tensor x = cos(arange(32).to(kFloat32).reshape({4, 8}) + static_cast<double>(step));
      Context context;
      context.backward({second.forward(first.forward(x)).square().sum()});
      optimizer.step(context.id());
    }
  }
  nn::NamedTensors values() const {
    nn::NamedTensors out = first.state_dict();
    for (auto& entry : second.state_dict()) out.push_back(std::move(entry));
    return out;
  }
  CheckpointOptions whole(bool streamed) const {
    return {.through_caller = streamed, .piece_bytes = 64, .modules = {{"first", first}, {"second", second}}};
  }
  void save(const fs::path& folder, bool streamed) {
    dist_optim::save_checkpoint(folder, optimizer, {{"step", step}}, whole(streamed));
  }
  void load(const fs::path& folder, bool streamed) {
    dist_optim::load_checkpoint(folder, optimizer, {{"step", step}}, whole(streamed));
  }
  RemoteModule<Booth> first, second;
  DistributedOptimizer optimizer;
  int64_t step = 0;
};

/// Gradients travel as int8 between all workers of a run with such edges.
void round_gradients(Cluster& c, Beside what) {
  if (!with(what, Beside::kEdges)) return;
  for (int rank = 0; rank < c.size(); ++rank)
    c.run(rank, [&] {
      for (int to = 0; to < c.size(); ++to)
        if (to != rank) set_edge_codec(str("worker", to), {.gradients = WireCodec::kInt8, .min_bytes = 0});
    });
}

class CheckpointBeside : public ::testing::TestWithParam<Beside> {};
INSTANTIATE_TEST_SUITE_P(DistCheckpoint, CheckpointBeside,
                         ::testing::Values(Beside::kStreams, Beside::kBuffer, Beside::kFrozen, Beside::kEdges,
                                           Beside::kAll),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(CheckpointBeside, a_resumed_run_has_the_bits_of_the_undisturbed_one) {
  for (const bool streamed : {false, true}) {
    const Beside what = GetParam();
    const Folder folder;
    nn::NamedTensors expected;
    {
      Cluster c({.size = 3});
      round_gradients(c, what);
      c.run(0, [&] {
        SplitRun through(what, 7);
        through.train(2);
        if (with(what, Beside::kFrozen)) through.first.get_module_rref().rpc_sync<&Booth::set_gain>(0.25);
        through.train(1);
        through.save(folder / "run", streamed);
        through.train(4);
        expected = through.values();

        SplitRun resumed(what, 8);  // other values in the same processes
        resumed.train(1);
        resumed.load(folder / "run", !streamed);
        EXPECT_EQ(resumed.step, 3);
        resumed.train(4);
        EXPECT_TRUE(same_state(resumed.values(), expected)) << "in the same processes";

        through.load(folder / "run", streamed);  // back in time
        through.train(4);
        EXPECT_TRUE(same_state(through.values(), expected)) << "back in time";
      });
    }
    for (const bool swapped : {false, true}) {  // other lives, and other names of the owners
      Cluster c({.size = 3, .seed = 5});
      round_gradients(c, what);
      c.run(0, [&] {
        SplitRun resumed(what, 9, swapped ? "worker2" : "worker1", swapped ? "worker1" : "worker2");
        resumed.load(folder / "run", streamed);
        resumed.train(4);
        EXPECT_TRUE(same_state(resumed.values(), expected)) << "in other processes, swapped " << swapped;
      });
    }
  }
}

TEST(DistCheckpoint, successors_of_an_owner_and_of_all_workers_resume_from_a_set) {
  const Folder folder;
  Cluster c({.size = 3, .agent = {.lease = std::chrono::seconds(1)}});
  round_gradients(c, Beside::kAll);
  nn::NamedTensors expected;
  const auto resume = [&] {
    round_gradients(c, Beside::kAll);
    c.run(0, [&] {
      SplitRun resumed(Beside::kAll, 8);
      resumed.load(folder / "run", false);
      resumed.train(4);
      EXPECT_TRUE(same_state(resumed.values(), expected));
    });
  };
  c.run(0, [&] {
    SplitRun through(Beside::kAll, 7);
    through.train(3);
    through.save(folder / "run", false);
    through.train(4);
    expected = through.values();
  });
  c.restart(1);
  resume();
  for (const int rank : {2, 1, 0}) c.restart(rank);
  resume();
}

TEST(DistCheckpoint, a_set_whose_modules_are_not_those_of_the_call_is_refused_by_name) {
  const Folder folder;
  Cluster c({.size = 4});
  round_gradients(c, Beside::kAll);
  c.run(0, [&] {
    SplitRun run(Beside::kAll, 7);
    run.train(2);
    const auto save = [&](const std::string& name, const CheckpointOptions& options) {
      dist_optim::save_checkpoint(folder / name, run.optimizer, {}, options);
    };
    const auto load_error = [&](const std::string& name, const CheckpointOptions& options) {
      return error_of<ValueError>(
          [&] { dist_optim::load_checkpoint(folder / name, run.optimizer, {}, options); });
    };
    const auto state = [&] {
      nn::NamedTensors out = run.values();
      for (const auto* net : {&run.first, &run.second})
        for (auto& entry : net->generator_state()) out.push_back(std::move(entry));
      return out;
    };
    const CheckpointOptions whole = run.whole(false);
    const RemoteModule<Booth> alone("worker3", 0.5, true);
    save("without", {});
    save("whole", whole);
    save("half", {.modules = {{"first", run.first}}});
    save("swapped", {.modules = {{"first", run.second}, {"second", run.first}}});
    run.train(1);
    const auto before = state();
    EXPECT_TRUE(has(load_error("without", whole), "the shard has no module 'first'"));
    EXPECT_TRUE(has(load_error("half", whole), "the shard has no module 'second'"));
    EXPECT_TRUE(has(load_error("swapped", whole), "the shard has no module 'first'"));
    EXPECT_TRUE(has(load_error("whole", {}), "the shard has the module 'first', which the call does not"));
    EXPECT_TRUE(has(load_error("whole", {.modules = {{"first", run.first}, {"other", run.second}}}),
                    "the shard has no module 'other'"));
    EXPECT_TRUE(has(load_error("whole", {.modules = {{"first", run.first}, {"first", run.second}}}),
                    "two modules are named 'first'"));
    EXPECT_TRUE(has(load_error("whole", {.modules = {{"alone", alone}}}),
                    "the module 'alone' is on worker 'worker3', which has no parameters in the optimizer"));
    for (const char* name : {"", "a/b"})
      EXPECT_THROW(save("bad", {.modules = {{name, run.first}}}), ValueError) << name;
    EXPECT_FALSE(dist_optim::has_checkpoint(folder / "bad"));
    EXPECT_TRUE(same_state(state(), before));
  });
}

TEST(DistCheckpoint, a_load_that_fails_at_its_end_disturbs_no_module_and_no_edge) {
  for (const bool streamed : {false, true}) {
    const Folder folder;
    nn::NamedTensors undisturbed;
    for (const bool fails : {false, true}) {
      Cluster c({.size = 3});
      round_gradients(c, Beside::kAll);
      c.run(0, [&] {
        SplitRun run(Beside::kAll, 7);
        if (!fails) run.save(folder / "first", false);
        else run.load(folder / "first", false);  // the weights of the other run
        run.train(2);
        run.save(folder / "run", streamed);
        run.train(2);
        if (fails) {
          int64_t step = 0, loss = 0;
          EXPECT_TRUE(has(error_of<ValueError>([&] {
                            load_checkpoint(folder / "run", run.optimizer, {{"step", step}, {"loss", loss}},
                                            run.whole(streamed));
                          }),
                          "missing parts: loss"));
        }
        run.train(2);
        if (fails) EXPECT_TRUE(same_state(run.values(), undisturbed));
        else undisturbed = run.values();
      });
    }
  }
}

TEST(DistCheckpoint, errors_owed_to_another_trainer_are_kept_under_its_name) {
  const Folder folder;
  Tensor expected;
  for (const bool resumes : {false, true}) {
    Cluster c({.size = 4, .seed = resumes ? 3U : 2U});
    c.run(1, [] { set_edge_codec("worker3", {.gradients = WireCodec::kInt8, .min_bytes = 0}); });
    c.run(0, [&] {
      SplitRun run(Beside::kEdges, 7);
      const auto gradient = [&] { return rpc_sync<gradient_through_booth>("worker3", run.first); };
      if (resumes) {
        run.load(folder / "run", false);
        EXPECT_TRUE(same_bits(gradient(), expected));
        return;
      }
      gradient();
      run.save(folder / "run", false);
      expected = gradient();
      EXPECT_FALSE(same_bits(gradient(), expected));  // another error is owed each time
    });
  }
}

/// A part of a checkpoint's file as it is.
struct RawPart {
  optim::StateDict state;
  const optim::StateDict& state_dict() const { return state; }
  void load_state_dict(const optim::StateDict& s) { state = s; }
};

/// Writes a set as it was written before it had modules and errors.
void make_old(const fs::path& folder) {
  const std::string manifest = folder / "manifest.safetensors";
  RawPart step, shards;
  int64_t set = 0;
  const std::vector<CheckpointPart> parts{{"step", step}, {"set", set}, {"shards", shards}};
  load_checkpoint(manifest, parts, false);
  optim::StateDict files;
  for (const auto& [name, numbers] : shards.state) {
    if (!name.starts_with("shard-")) continue;
    RawPart of[3];
    const std::vector<CheckpointPart> old{
        {"set", set}, {"parameters", of[0]}, {"optimizer", of[1]}, {"generator", of[2]}};
    load_checkpoint(folder / name, old, false);
    save_checkpoint(folder / name, old);
    const dist_optim::ShardFile file = dist_optim::detail::describe_file(folder, name);
    files.emplace_back(name, from_vector(std::vector<int64_t>{file.bytes, file.crc}, {2}));
  }
  shards.state = files;
  save_checkpoint(manifest, parts);
}

TEST(DistCheckpoint, a_set_from_before_modules_and_errors_were_saved_still_loads) {
  const Folder folder;
  Cluster c({.size = 3});
  round_gradients(c, Beside::kEdges);
  c.run(0, [&] {
    SplitRun run(Beside::kEdges, 7);
    run.train(2);
    dist_optim::save_checkpoint(folder / "run", run.optimizer, {{"step", run.step}});
    const auto saved = run.values();
    make_old(folder / "run");
    const auto owed = [&](int rank) {
      return c.agent(rank)->debug_info().at("dist_autograd.feedback_bytes");
    };
    const int64_t here = owed(0), there = owed(2);
    EXPECT_GT(here, 0);
    EXPECT_GT(there, 0);
    run.train(2);
    dist_optim::load_checkpoint(folder / "run", run.optimizer, {{"step", run.step}});
    EXPECT_EQ(run.step, 2);
    EXPECT_TRUE(same_state(run.values(), saved));
    EXPECT_EQ(owed(0), here);  // it says nothing of them
    EXPECT_EQ(owed(2), there);
    EXPECT_TRUE(has(error_of<ValueError>([&] { run.load(folder / "run", false); }),
                    "the shard has no module 'first'"));
  });
}

TEST(DistCheckpoint, a_module_without_an_owner_of_parameters_is_a_part_of_the_caller) {
  const Folder folder;
  Cluster c({.size = 4});
  c.run(0, [&] {
    SplitRun run(Beside::kBuffer, 7);
    const RemoteModule<Booth> noise("worker3", 0.5, true);
    noise.seed(3, "noise");
    const Tensor x = arange(32).to(kFloat32).reshape({4, 8});
    const NoGrad guard;
    const auto values = [&] { return nn::NamedTensors{{"y", noise.forward(x)}, {"z", noise.forward(x)}}; };
    values();
    const std::vector<CheckpointPart> mine{{"step", run.step}, {"noise", noise}};
    EXPECT_TRUE(mine[1].remote);
    EXPECT_FALSE(mine[0].remote);
    dist_optim::save_checkpoint(folder / "run", run.optimizer, mine, run.whole(false));
    const auto expected = values();
    EXPECT_FALSE(same_state(values(), expected));
    dist_optim::load_checkpoint(folder / "run", run.optimizer, mine, run.whole(false));
    EXPECT_TRUE(same_state(values(), expected));
    noise.load_generator_state({});
    EXPECT_TRUE(noise.generator_state().empty());
  });
}

// ---- real processes

/// A job is "<save|resume> <folder>".
int state_child(const std::string& job, int rank) {
  std::istringstream words(job);
  std::string what, folder;
  words >> what >> folder;
  init_rpc(str("worker", rank));
  for (int to = 0; to < 3; ++to)
    if (to != rank) set_edge_codec(str("worker", to), {.gradients = WireCodec::kInt8, .min_bytes = 0});
  barrier();
  int status = 0;
  if (rank == 0) {
    const std::string expected = fs::path(folder) / "expected.safetensors";
    const bool resumes = what == "resume";
    SplitRun run(Beside::kAll, resumes ? 8 : 7);
    if (resumes) {
      run.load(fs::path(folder) / "run", false);
    } else {
      run.train(2);
      run.first.get_module_rref().rpc_sync<&Booth::set_gain>(0.25);
      run.train(1);
      run.save(fs::path(folder) / "run", false);
    }
    run.train(4);
    nn::NamedTensors values;
    for (const auto& [name, x] : run.values()) values.emplace_back(str(values.size(), ".", name), x);
    if (!resumes) save_safetensors(expected, values);
    else
      for (const auto& [name, x] : load_safetensors(expected).tensors)
        for (const auto& [own, value] : values)
          if (own == name && !same_bits(value, x)) status = 2;
  }
  rpc::shutdown();
  return status;
}

constexpr const char* kStateChild =
    "DistCheckpointStateProcess.a_process_started_by_these_tests_does_its_job";
TEST(DistCheckpointStateProcess, a_process_started_by_these_tests_does_its_job) { do_job(state_child); }

TEST(DistCheckpointStateProcess,
     other_processes_resume_streams_buffers_frozen_weights_and_edges_bit_for_bit) {
  const Folder folder;
  expect_ended(start_job(kStateChild, "save " + folder.path.string()));
  expect_ended(start_job(kStateChild, "resume " + folder.path.string()));
}

}  // namespace
