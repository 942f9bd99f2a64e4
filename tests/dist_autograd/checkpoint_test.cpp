// Checkpoints over all owners. Resumed runs have the same bits, and a failure or a kill at any write leaves
// one whole set. Torn or mixed sets are refused by name, without a change.
#include <gtest/gtest.h>

#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <set>
#include <sstream>

#include <weft/autograd/ops/ops.h>
#include <weft/distributed/optim/dist_checkpoint.h>
#include <weft/distributed/optim/inner/shard_file.h>
#include <weft/distributed/rpc/rpc.h>
#include <weft/tensor/factories.h>

#include "support/cluster.h"
#include "support/errors.h"
#include "support/folder.h"
#include "support/golden.h"
#include "support/process.h"

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace weft::test;
using dist_autograd::Context;
using dist_optim::CheckpointOptions;
using dist_optim::DistributedOptimizer;
using weft::testing::same_bits;

namespace fs = std::filesystem;

/// Two weights on one worker: y = tanh(x w) + v.
class Shelf {
 public:
  Shelf(int64_t n, double scale)
      : w_((arange(n * n).to(kFloat32) * scale - 0.3).reshape({n, n}).requires_grad_()),
        v_(full({n}, scale).requires_grad_()) {}
  Tensor forward(const Tensor& x) const { return tanh(x.matmul(w_)) + v_; }
  std::vector<RRef<Tensor>> params() const { return {RRef<Tensor>(w_), RRef<Tensor>(v_)}; }
  std::vector<Tensor> values() const { return {w_.detach().clone(), v_.detach().clone()}; }
  /// A number from the generator of the process.
  double draw() const { return rand({1}).item<double>(); }

 private:
  Tensor w_, v_;
};
WEFT_RPC_CONSTRUCTOR(Shelf, int64_t, double);
WEFT_RPC_CLASS(Shelf, forward, params, values, draw);

using Make = DistributedOptimizer (*)(const std::vector<RRef<Tensor>>& params);
DistributedOptimizer make_adam(const std::vector<RRef<Tensor>>& params) {
  return dist_optim::make<optim::AdamRule>(params, {.lr = 0.05, .amsgrad = true});
}
DistributedOptimizer make_momentum(const std::vector<RRef<Tensor>>& params) {
  return dist_optim::make<optim::SGDRule>(params, {.lr = 0.05, .momentum = 0.9, .nesterov = true});
}

std::vector<RRef<Tensor>> joined(const std::vector<RRef<Shelf>>& shelves) {
  std::vector<RRef<Tensor>> out;
  for (const auto& shelf : shelves)
    for (auto& p : shelf.rpc_sync<&Shelf::params>()) out.push_back(p);
  return out;
}

/// A model over two owners, with its optimizer and the caller's count of steps.
struct Training {
  explicit Training(Make make = make_adam, double scale = 0.1)
      : shelves{remote<Shelf>("worker1", int64_t{3}, scale), remote<Shelf>("worker2", int64_t{3}, -scale)},
        optimizer(make(joined(shelves))) {}
  void train(int steps) {
    for (int i = 0; i < steps; ++i, ++step) {
      Tensor x = full({2, 3}, 0.2 * static_cast<double>(step % 5 + 1));
      Context context;
      for (const auto& shelf : shelves) x = shelf.rpc_sync<&Shelf::forward>(x);
      context.backward({x.square().sum()});
      optimizer.step(context.id());
    }
  }
  std::vector<Tensor> values() const {
    std::vector<Tensor> out;
    for (const auto& shelf : shelves)
      for (const Tensor& v : shelf.rpc_sync<&Shelf::values>()) out.push_back(v);
    return out;
  }
  void save(const fs::path& folder, const CheckpointOptions& options = {}) {
    dist_optim::save_checkpoint(folder, optimizer, {{"step", step}}, options);
  }
  void load(const fs::path& folder, const CheckpointOptions& options = {}) {
    dist_optim::load_checkpoint(folder, optimizer, {{"step", step}}, options);
  }
  std::vector<RRef<Shelf>> shelves;
  DistributedOptimizer optimizer;
  int64_t step = 0;
};

bool same(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i)
    if (!same_bits(a[i], b[i])) return false;
  return true;
}

std::vector<fs::path> shards_of(const fs::path& folder) {
  std::vector<fs::path> out;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().filename().string().starts_with("shard-")) out.push_back(entry.path());
  std::sort(out.begin(), out.end());
  return out;
}

/// Calls `act` before the write number `at` of a save, counted from 0, while it lives.
struct AtWrite {
  AtWrite(int at, std::function<void()> act) {
    left() = at, action() = std::move(act), last().clear();
    dist_optim::detail::at_save_step = [](const char* step) {
      if (left()-- == 0) {
        last() = step;
        action()();
      }
    };
  }
  ~AtWrite() { dist_optim::detail::at_save_step = nullptr; }
  static int& left() {
    static int n;
    return n;
  }
  static std::function<void()>& action() {
    static std::function<void()> f;
    return f;
  }
  static std::string& last() {
    static std::string s;
    return s;
  }
};

TEST(DistCheckpoint, a_resumed_run_has_the_bits_of_one_that_went_through) {
  for (const Make make : {make_adam, make_momentum})
    for (const bool streamed : {false, true}) {
      const Folder folder;
      Cluster c({.size = 3});
      c.run(0, [&] {
        const CheckpointOptions options{.through_caller = streamed, .piece_bytes = 20};
        Training through(make);
        through.train(3);
        EXPECT_FALSE(dist_optim::has_checkpoint(folder / "run"));
        through.save(folder / "run", options);
        EXPECT_TRUE(dist_optim::has_checkpoint(folder / "run"));
        const double drawn = through.shelves[0].rpc_sync<&Shelf::draw>();
        through.train(4);
        const auto expected = through.values();

        Training resumed(make, 0.7);  // other values, and a state of its own
        resumed.train(1);
        resumed.optimizer.set_lr(1);
        resumed.load(folder / "run", {.through_caller = !streamed, .piece_bytes = 20});
        EXPECT_EQ(resumed.step, 3);
        EXPECT_EQ(resumed.optimizer.lr(), 0.05);
        EXPECT_EQ(resumed.shelves[0].rpc_sync<&Shelf::draw>(), drawn);
        resumed.train(4);
        EXPECT_TRUE(same(resumed.values(), expected));

        through.load(folder / "run", options);  // back in time
        EXPECT_FALSE(same(through.values(), expected));
        through.train(4);
        EXPECT_TRUE(same(through.values(), expected));
        through.save(folder / "run", options);
        EXPECT_EQ(shards_of(folder / "run").size(), 2U);
      });
    }
}

TEST(DistCheckpoint, a_graph_that_is_alive_keeps_its_values_when_a_set_is_loaded) {
  const Folder folder;
  Cluster c({.size = 3});
  c.run(0, [&] {
    Training run;
    run.save(folder / "run");
    run.train(2);
    Context context;
    const Tensor loss = run.shelves[0].rpc_sync<&Shelf::forward>(ones({2, 3})).sum();
    run.load(folder / "run");
    context.backward({loss});
  });
}

// a write that fails: the caller hears of it, and one of the two sets is there, whole
TEST(DistCheckpoint, a_failure_at_every_write_leaves_one_whole_set) {
  for (const bool streamed : {false, true}) {
    Cluster c({.size = 3});
    c.run(0, [&] {
      const CheckpointOptions options{.through_caller = streamed};
      std::set<std::string> steps;
      for (int at = 0; at < 100; ++at) {
        const Folder folder;
        Training run;
        run.train(1);
        run.save(folder / "run", options);
        const auto first = run.values();
        run.train(1);
        const auto second = run.values();
        bool failed = false;
        {
          AtWrite fail(at, [] { throw IoError("no room on purpose"); });
          try {
            run.save(folder / "run", options);
          } catch (const IoError& e) {
            failed = true;
            EXPECT_TRUE(has(e.what(), "no room on purpose"));
          }
        }
        Training resumed(make_adam, 0.9);
        resumed.load(folder / "run", options);
        const std::string step = AtWrite::last();
        const bool is_new = step == "sweep" || step == "done" || step.empty();
        EXPECT_EQ(resumed.step, is_new ? 2 : 1) << step;
        EXPECT_TRUE(same(resumed.values(), is_new ? second : first)) << step;
        run.save(folder / "run", options);  // the next save works, and leaves nothing of the failed one
        EXPECT_EQ(shards_of(folder / "run").size(), 2U);
        if (!failed) break;
        steps.insert(step);
      }
      EXPECT_EQ(steps, (std::set<std::string>{"shard", "told", "manifest", "sweep", "done"}));
    });
  }
}

TEST(DistCheckpoint, an_owner_killed_at_any_of_its_writes_leaves_the_set_before) {
  for (int at = 0; at < 4; ++at) {
    const Folder folder;
    std::vector<Tensor> first;
    {
      Cluster c({.size = 3});
      c.run(0, [&] {
        Training run;
        run.train(1);
        run.save(folder / "run");
        first = run.values();
        run.train(1);
        AtWrite die(at, [&] { c.kill(static_cast<int>(current_agent()->self().id.value)); });
        EXPECT_THROW(run.save(folder / "run"), PeerLost);
      });
    }
    Cluster c({.size = 3});
    c.run(0, [&] {
      Training resumed(make_adam, 0.9);
      resumed.load(folder / "run");
      EXPECT_EQ(resumed.step, 1);
      EXPECT_TRUE(same(resumed.values(), first));
    });
  }
}

void flip_byte(const fs::path& file) {
  std::fstream f(file, std::ios::in | std::ios::out | std::ios::binary);
  f.seekg(-3, std::ios::end);
  const int c = f.get();
  f.seekp(-3, std::ios::end);
  f.put(static_cast<char>(c ^ 1));
}

TEST(DistCheckpoint, torn_and_mixed_sets_are_refused_by_name_and_change_nothing) {
  const Folder folder;
  Cluster c({.size = 4});
  c.run(0, [&] {
    Training run;
    run.train(1);
    run.save(folder / "old");
    fs::copy(folder / "old", folder / "kept");
    run.train(1);
    run.save(folder / "old");
    fs::rename(folder / "old", folder / "new");
    const auto name = [&](const fs::path& in, size_t i) { return shards_of(in).at(i).filename(); };
    const auto replace = [](const fs::path& from, const fs::path& to) {
      fs::copy_file(from, to, fs::copy_options::overwrite_existing);
    };
    const fs::path now = folder / "now", zero = now / name(folder / "new", 0),
                   one = now / name(folder / "new", 1), manifest = now / "manifest.safetensors";
    const std::vector<std::pair<std::function<void()>, std::string>> cases{
        {[&] { fs::resize_file(zero, fs::file_size(zero) / 2); }, zero.filename()},
        {[&] { fs::resize_file(one, 0); }, one.filename()},
        {[&] { fs::remove(one); }, one.filename()},
        {[&] { flip_byte(one); }, one.filename()},
        {[&] { replace(shards_of(folder / "kept")[1], one); }, "damaged or of another save"},
        {[&] { fs::rename(zero, now / "x"), fs::rename(one, zero), fs::rename(now / "x", one); },
         "damaged or of another save"},
        {[&] { replace(folder / "kept" / "manifest.safetensors", manifest); },
         shards_of(folder / "kept")[0].filename()},
        {[&] { fs::resize_file(manifest, fs::file_size(manifest) / 2); }, "manifest.safetensors"},
        {[&] { flip_byte(manifest); }, "manifest.safetensors"},
        {[&] { fs::remove(manifest); }, "has no manifest.safetensors"}};
    const auto before = run.values();
    for (const bool streamed : {false, true})
      for (const auto& [harm, said] : cases) {
        fs::remove_all(now);
        fs::copy(folder / "new", now);
        harm();
        const std::string text = error_of<IoError>([&] { run.load(now, {.through_caller = streamed}); });
        EXPECT_TRUE(has(text, said));
        EXPECT_TRUE(same(run.values(), before)) << text;
        EXPECT_EQ(run.step, 2);
      }
    // files of a killed writer beside a whole set do not matter
    fs::remove_all(now);
    fs::copy(folder / "new", now);
    std::ofstream(now / ".weft-1-1.tmp") << "half a shard";
    replace(shards_of(folder / "kept")[0], now / name(folder / "kept", 0));
    run.load(now);
    EXPECT_TRUE(same(run.values(), before));
  });
}

TEST(DistCheckpoint, a_set_of_other_owners_parameters_or_parts_is_refused_and_all_go_back) {
  const Folder folder;
  Cluster c({.size = 4});
  c.run(0, [&] {
    Training run;
    run.train(1);
    run.save(folder / "run");
    const RRef<Shelf> small = remote<Shelf>("worker2", int64_t{2}, 0.5);
    DistributedOptimizer one = make_adam(joined({run.shelves[0]}));
    int64_t step = 0;
    EXPECT_TRUE(has(error_of<ValueError>([&] {
                      load_checkpoint(folder / "run", one, {{"step", step}});
                    }),
                    "2 shards, the optimizer 1 owners"));
    const RRef<Shelf> first = remote<Shelf>("worker1", int64_t{3}, 0.5);
    DistributedOptimizer other = make_adam(joined({first, small}));
    EXPECT_TRUE(has(error_of<ShapeError>([&] {
                      load_checkpoint(folder / "run", other, {{"step", step}});
                    }),
                    "parameter 0 is [2, 2] here, [3, 3] in the shard"));
    EXPECT_TRUE(same(first.rpc_sync<&Shelf::values>(), Shelf(3, 0.5).values()));
    Training momentum(make_momentum, 0.4);
    const auto before = momentum.values();
    EXPECT_TRUE(has(error_of<ValueError>([&] { momentum.load(folder / "run"); }), "the state is of Adam"));
    EXPECT_TRUE(same(momentum.values(), before));
    Training more(make_adam, 0.4);
    EXPECT_TRUE(has(error_of<ValueError>([&] {
                      load_checkpoint(folder / "run", more.optimizer, {{"step", step}, {"loss", step}});
                    }),
                    "missing parts: loss"));
    EXPECT_TRUE(same(more.values(), before));
    EXPECT_EQ(step, 0);
    EXPECT_THROW(save_checkpoint(folder / "run", run.optimizer, {{"set", step}}), ValueError);
    EXPECT_THROW(run.load(folder / "run", {.piece_bytes = 1}), ValueError);
  });
}

// ---- real processes

/// A job is "<save|resume> <rank to kill> <its write> <folder>".
int child(const std::string& job, int rank) {
  std::istringstream words(job);
  std::string what, folder;
  int victim = 0, at = 0;
  words >> what >> victim >> at >> folder;
  int status = 0;
  std::optional<AtWrite> die;
  // an owner counts two writes of the first save
  if (what == "save" && rank == victim && rank != 0) die.emplace(at + 2, [] { std::raise(SIGKILL); });
  init_rpc(str("worker", rank));
  if (rank == 0) {
    Training run;
    run.train(2);
    if (what == "save") run.save(folder);
    const auto first = run.values();
    run.train(2);
    const auto second = run.values();
    if (what == "save") {
      if (rank == victim) die.emplace(at, [] { std::raise(SIGKILL); });
      status = 1;
      try {
        run.save(folder);
      } catch (const PeerLost&) {
        status = 0;
      }
    } else {
      Training resumed(make_adam, 0.9);
      resumed.load(folder);
      const int64_t expected = victim == 0 && at == 1 ? 4 : 2;  // the manifest was written
      if (resumed.step != expected || !same(resumed.values(), expected == 4 ? second : first)) status = 2;
      resumed.train(8 - static_cast<int>(resumed.step));
      run.train(4);
      if (!same(resumed.values(), run.values())) status = 3;
    }
  }
  try {
    rpc::shutdown();
  } catch (const PeerLost&) {  // the victim
    if (what != "save") status = 4;
  }
  return status;
}

constexpr const char* kChild = "DistCheckpointProcess.a_process_started_by_these_tests_does_its_job";
TEST(DistCheckpointProcess, a_process_started_by_these_tests_does_its_job) { do_job(child); }

TEST(DistCheckpointProcess, an_owner_or_trainer_killed_within_a_save_leaves_a_set_that_resumes_bit_for_bit) {
  // an owner before and after its file, the trainer before the manifest and before the old files go
  for (const auto& [victim, at] : std::vector<std::pair<int, int>>{{1, 0}, {1, 1}, {0, 0}, {0, 1}}) {
    const Folder folder;
    const std::string how = str(victim, " ", at, " ", (folder / "run").string());
    expect_ended(start_job(kChild, "save " + how), {victim});
    expect_ended(start_job(kChild, "resume " + how));
  }
}

}  // namespace
