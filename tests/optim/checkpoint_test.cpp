// Checkpoints of a whole run: the same bits after resuming, and refusals that change nothing.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include <weft/weft.h>

#include "../support/errors.h"
#include "../support/golden.h"

namespace weft {
namespace {

using test::error_of;
using test::has;
using testing::same_bits;

namespace fs = std::filesystem;

struct DropNet : nn::Module {
  nn::Linear first, second{5, 1};
  nn::Dropout drop{0.5};
  explicit DropNet(int64_t in = 3) : first(in, 5) {
    add("first", first);
    add("second", second);
    add("drop", drop);
  }
  Tensor forward(const Tensor& x) { return second.forward(drop.forward(tanh(first.forward(x)))); }
};

/// A run with everything that has a state. `way` is the order in which its parts are built, and the changes
/// to them before they are loaded.
struct Training {
  std::unique_ptr<DropNet> net;
  std::unique_ptr<optim::Adam> adam;
  std::unique_ptr<optim::WarmupLR> schedule;
  std::unique_ptr<optim::ReduceOnPlateau> plateau;
  optim::GradScaler scaler{{.init_scale = 4, .growth_interval = 2}};
  Generator noise{11};
  Tensor order;
  int64_t step = 0;
  double best = 1e9;

  explicit Training(int way) {
    if (way == 2) net = std::make_unique<DropNet>(), net->seed(99);
    if (way != 0) randn({7});
    if (!net) net = std::make_unique<DropNet>();
    adam = std::make_unique<optim::Adam>(net->parameters(), optim::AdamOptions{.lr = 0.05});
    if (way == 3) take_a_step();  // states are there before they are loaded
    if (way == 1) add_plateau(), add_schedule();
    else add_schedule(), add_plateau();
  }
  void add_schedule() {
    schedule = std::make_unique<optim::WarmupLR>(
        optim::rates(*adam),
        optim::WarmupLROptions{.steps = 4, .start_factor = 0.25, .then = optim::exponential_factor(0.5)});
  }
  void add_plateau() {
    plateau = std::make_unique<optim::ReduceOnPlateau>(
        optim::rates(*adam),
        optim::PlateauOptions{.patience = 1, .threshold = 10, .threshold_absolute = true});
  }
  void take_a_step() {
    net->forward(ones({2, 3})).sum().backward();
    adam->step();
    adam->zero_grad();
  }
  std::vector<CheckpointPart> parts(bool turned = false) {
    std::vector<CheckpointPart> all{{"model", *net},       {"optimizer", *adam}, {"schedule", *schedule},
                                    {"plateau", *plateau}, {"scaler", scaler},   {"noise", noise},
                                    {"order", order},      {"step", step},       {"best", best}};
    if (turned) std::reverse(all.begin(), all.end());
    return all;
  }
  std::vector<double> train(int steps) {
    std::vector<double> losses;
    for (int i = 0; i < steps; ++i, ++step) {
      if (step % 3 == 0) order = randperm(5);
      const Tensor x = rand({5, 3}, {}, &noise).index_select(0, order);
      adam->zero_grad();
      const Tensor loss = mse_loss(net->forward(x), x.sum({1}, true));
      scaler.scale(loss).backward();
      scaler.step(*adam);
      scaler.update();
      schedule->step();
      losses.push_back(loss.item<double>());
      plateau->step(losses.back());
      best = std::min(best, losses.back());
    }
    return losses;
  }
};

class Checkpoint : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = fs::path(::testing::TempDir()) / ("weft_checkpoint_" + std::to_string(getpid()) +
                                             ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(dir_);
  }
  void TearDown() override { fs::remove_all(dir_); }
  std::string path(const std::string& name = "x") const { return (dir_ / name).string(); }
  static std::string read(const std::string& p) {
    std::ifstream in(p, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void write(const std::string& bytes) const { std::ofstream(path(), std::ios::binary) << bytes; }
  /// All the state there is, as bytes.
  std::string state_of(const std::vector<CheckpointPart>& parts) const {
    save_checkpoint(path("now"), parts);
    return read(path("now"));
  }
  fs::path dir_;
};

TEST_F(Checkpoint, a_resumed_run_has_the_bits_of_one_that_went_through) {
  for (const bool seeded : {false, true}) {
    manual_seed(5);
    Training whole(0);
    if (seeded) whole.net->seed(7);
    whole.train(5);
    save_checkpoint(path(), whole.parts());
    const std::vector<double> losses = whole.train(6);
    const Tensor next = randn({3});
    for (int way = 0; way < 4; ++way)
      for (const bool turned : {false, true}) {
        manual_seed(static_cast<uint64_t>(100 + way));
        Training resumed(way);
        load_checkpoint(path(), resumed.parts(turned));
        EXPECT_EQ(resumed.step, 5);
        EXPECT_EQ(resumed.train(6), losses) << way;
        EXPECT_EQ(resumed.best, whole.best);
        for (size_t i = 0; i < whole.net->parameters().size(); ++i)
          EXPECT_TRUE(same_bits(resumed.net->parameters()[i], whole.net->parameters()[i])) << way;
        EXPECT_TRUE(same_bits(randn({3}), next));
      }
  }
}

TEST_F(Checkpoint, parts_may_be_made_and_loaded_one_after_another) {
  manual_seed(5);
  Training whole(0);
  whole.train(5);
  save_checkpoint(path(), whole.parts());
  const std::vector<double> losses = whole.train(6);
  Training resumed(1);
  const std::vector<CheckpointPart> all = resumed.parts();
  for (const CheckpointPart& part : all) load_checkpoint(path(), {part}, false);
  load_checkpoint(path(), {{"default_generator", default_generator()}}, false);
  EXPECT_EQ(resumed.train(6), losses);
}

TEST_F(Checkpoint, damage_anywhere_is_found_and_changes_nothing) {
  manual_seed(5);
  Training saved(0), other(0);
  saved.train(2);
  other.net->seed(3);
  save_checkpoint(path("good"), saved.parts());
  const std::string good = read(path("good")), before = state_of(other.parts());
  for (size_t at = 0; at < good.size(); at += at < 8 ? 1 : 5) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 1);
    write(bad);
    EXPECT_THROW(load_checkpoint(path(), other.parts()), Error) << at;
  }
  for (size_t length = 0; length < good.size(); length += 101) {
    write(good.substr(0, length));
    EXPECT_TRUE(has(error_of<IoError>([&] { load_checkpoint(path(), other.parts()); }), path())) << length;
  }
  EXPECT_TRUE(state_of(other.parts()) == before);
  save_safetensors(path(), saved.net->state_dict());
  EXPECT_TRUE(has(error_of<IoError>([&] { load_checkpoint(path(), other.parts()); }), "is no checkpoint"));
  EXPECT_THROW(load_checkpoint(path("absent"), other.parts()), IoError);
}

TEST_F(Checkpoint, what_does_not_fit_is_named_and_changes_nothing) {
  manual_seed(5);
  Training saved(0), run(0);
  DropNet wide(4);
  optim::SGD sgd(run.net->parameters(), {.lr = 1});
  saved.train(2);
  save_checkpoint(path(), saved.parts());
  const std::string before = state_of(run.parts());
  const auto why = [&]<class E>(E*, std::vector<CheckpointPart> parts) {
    const std::string text = error_of<E>([&] { load_checkpoint(path(), parts); });
    EXPECT_TRUE(has(text, "load_checkpoint: " + path() + ": "));
    EXPECT_TRUE(state_of(run.parts()) == before);
    return text;
  };
  const auto with = [&](CheckpointPart part) {
    std::vector<CheckpointPart> parts = run.parts();
    for (CheckpointPart& p : parts)
      if (p.name == part.name) p = part;
    return parts;
  };
  float fraction = 0;
  EXPECT_TRUE(has(why((ShapeError*)nullptr, with({"model", wide})),
                  "part model: load_state_dict: first.weight is [5, 4] here"));
  EXPECT_TRUE(has(why((ValueError*)nullptr, with({"optimizer", sgd})), "part optimizer: "));
  EXPECT_TRUE(has(why((ValueError*)nullptr, with({"step", fraction})),
                  "part step: the file holds no floating number"));
  EXPECT_TRUE(has(why((ValueError*)nullptr, with({"order", run.noise})), "part order: "));
  EXPECT_TRUE(has(why((ValueError*)nullptr, with({"schedule", *run.plateau})), "part schedule: "));
  std::vector<CheckpointPart> more = run.parts(), fewer = run.parts();
  more.emplace_back("extra", fraction);
  fewer.erase(fewer.begin() + 1);
  EXPECT_TRUE(has(why((ValueError*)nullptr, more), "missing parts: extra"));
  EXPECT_TRUE(has(why((ValueError*)nullptr, fewer), "unexpected parts: optimizer"));
  load_checkpoint(path(), fewer, false);
  EXPECT_EQ(run.step, 2);
}

TEST_F(Checkpoint, a_part_that_throws_last_takes_all_others_back) {
  struct Refusing {
    Tensor large = zeros({1000});
    optim::StateDict state_dict() const { return {{"large", large}}; }
    void load_state_dict(const optim::StateDict&) { throw ValueError("not today"); }
  } refusing;
  manual_seed(5);
  Training saved(0), run(0);
  saved.net->seed(3);
  saved.train(2);
  run.train(1);
  std::vector<CheckpointPart> parts = saved.parts();
  parts.emplace_back("refusing", refusing);
  save_checkpoint(path(), parts);
  const std::string before = state_of(run.parts());
  const Tensor order = run.order;
  parts = run.parts();
  parts.emplace_back("refusing", refusing);
  EXPECT_TRUE(has(error_of<ValueError>([&] { load_checkpoint(path(), parts); }), "part refusing: not today"));
  EXPECT_TRUE(state_of(run.parts()) == before);
  EXPECT_TRUE(same_bits(run.order, order));
}

/// A part elsewhere: a load that throws may have been applied.
struct FarPart {
  static constexpr bool kLoadsRemotely = true;
  explicit FarPart(int64_t n, std::vector<int> bad = {}) : x(zeros({n})), throws_at(std::move(bad)) {}
  Tensor x;
  std::vector<int> throws_at;  ///< counted from 0
  int loads = 0;
  optim::StateDict state_dict() const { return {{"x", x}}; }
  void load_state_dict(const optim::StateDict& s) {
    x = s[0].second.clone();
    const int load = loads++;
    if (std::find(throws_at.begin(), throws_at.end(), load) != throws_at.end())
      throw ValueError(str("load ", load, " is late"));
  }
};

TEST_F(Checkpoint, a_part_that_cannot_go_back_keeps_no_other_from_going_back_and_the_error_is_the_first) {
  FarPart first(10), dying(20, {1}), last(30, {0});
  int64_t step = 3;
  const std::vector<CheckpointPart> parts{{"step", step}, {"first", first}, {"dying", dying}, {"last", last}};
  save_checkpoint(path(), parts);
  step = 4;
  for (FarPart* part : {&first, &dying, &last}) part->x = ones({part->x.numel()});
  EXPECT_TRUE(
      has(error_of<ValueError>([&] { load_checkpoint(path(), parts); }), "part last: load 0 is late"));
  EXPECT_EQ(step, 4);
  EXPECT_TRUE(same_bits(first.x, ones({10})));
}

TEST_F(Checkpoint, a_remote_part_that_was_loaded_before_it_threw_goes_back) {
  for (const int64_t n : {2, 2000}) {  // it is loaded in the middle, and last
    FarPart late(n, {0});
    int64_t step = 3;
    Tensor other = zeros({100});
    const std::vector<CheckpointPart> parts{{"step", step}, {"late", late}, {"other", other}};
    save_checkpoint(path(), parts);
    step = 4;
    late.x = ones({n});
    EXPECT_TRUE(has(error_of<ValueError>([&] { load_checkpoint(path(), parts); }), "load 0 is late"));
    EXPECT_EQ(step, 4);
    EXPECT_EQ(late.loads, 2);
    EXPECT_TRUE(same_bits(late.x, ones({n}))) << n;
  }
}

TEST_F(Checkpoint, numbers_and_tensors_of_all_kinds_come_back) {
  int epoch = -3;
  uint64_t seed = ~uint64_t{0};
  bool done = true;
  float loss = 0.1f;
  double infinite = -INFINITY;
  Tensor ids = tensor({{3, 1}, {4, 1}}, {.dtype = kInt32}), none, view = arange(6).view({2, 3}).t();
  const std::vector<CheckpointPart> parts{{"epoch", epoch},  {"seed", seed}, {"done", done}, {"loss", loss},
                                          {"inf", infinite}, {"ids", ids},   {"none", none}, {"view", view}};
  save_checkpoint(path(), parts);
  epoch = 0, seed = 0, done = false, loss = 0, infinite = 0, ids = Tensor(), none = ones({1}),
  view = Tensor();
  load_checkpoint(path(), parts);
  EXPECT_EQ(epoch, -3);
  EXPECT_EQ(seed, ~uint64_t{0});
  EXPECT_TRUE(done);
  EXPECT_EQ(loss, 0.1f);
  EXPECT_EQ(infinite, -INFINITY);
  EXPECT_EQ(ids.to_vector<int>(), (std::vector<int>{3, 1, 4, 1}));
  EXPECT_FALSE(none.defined());
  EXPECT_EQ(view.to_vector<int>(), (std::vector<int>{0, 3, 1, 4, 2, 5}));
  int8_t narrow = 0;
  epoch = 300;
  save_checkpoint(path(), {{"epoch", epoch}});
  EXPECT_TRUE(has(error_of<ValueError>([&] {
                    load_checkpoint(path(), {{"epoch", narrow}});
                  }),
                  "part epoch: the number 300 does not fit"));
}

TEST_F(Checkpoint, a_number_beyond_the_range_of_a_float_is_refused) {
  double wide = 1e300;
  float narrow = 2;
  const std::vector<CheckpointPart> from{{"loss", wide}}, into{{"loss", narrow}};
  for (const double beyond : {1e300, -1e39}) {
    wide = beyond;
    save_checkpoint(path(), from);
    EXPECT_TRUE(has(error_of<ValueError>([&] { load_checkpoint(path(), into); }),
                    str("part loss: the number ", beyond, " does not fit")));
    EXPECT_EQ(narrow, 2);
  }
  const double largest = std::numeric_limits<float>::max();
  for (const double fits : {-double{INFINITY}, 1e-300, largest}) {
    wide = fits;
    save_checkpoint(path(), from);
    load_checkpoint(path(), into);
    EXPECT_EQ(narrow, static_cast<float>(fits));
  }
  wide = std::nan("");
  save_checkpoint(path(), from);
  load_checkpoint(path(), into);
  EXPECT_TRUE(std::isnan(narrow));
}

TEST_F(Checkpoint, names_are_checked) {
  int n = 0;
  for (const std::string bad : {"", "a/b", "a:b"}) EXPECT_THROW(CheckpointPart(bad, n), ValueError) << bad;
  EXPECT_THROW(save_checkpoint(path(), {{"n", n}, {"n", n}}), ValueError);
  EXPECT_FALSE(fs::exists(path()));
}

TEST(ModuleStreams, are_saved_restored_and_checked) {
  DropNet a, b;
  a.seed(7);
  const Tensor x = ones({4, 3});
  b.load_state_dict(a.state_dict());
  a.forward(x);
  const nn::StateDict streams = a.generator_state();
  EXPECT_EQ(streams.size(), 4u);
  EXPECT_THROW(b.load_generator_state({{"third", streams[0].second}}), ValueError);
  EXPECT_THROW(b.load_generator_state({{"drop", ones({3})}}), ValueError);
  EXPECT_TRUE(b.generator_state().empty());
  b.load_generator_state(streams);
  EXPECT_TRUE(same_bits(a.forward(x), b.forward(x)));
  b.load_generator_state({});
  EXPECT_EQ(&b.drop.generator(), &default_generator());
}

TEST(GradScaler, its_state_travels_by_name) {
  optim::GradScaler a, b;
  a.load_state({8, 3});
  b.load_state_dict(a.state_dict());
  EXPECT_EQ(b.scale(), 8);
  EXPECT_EQ(b.state().good_steps, 3);
  EXPECT_THROW(b.load_state_dict({{"scale", ones({})}}), ValueError);
  EXPECT_EQ(b.scale(), 8);
}

TEST_F(Checkpoint, a_tensor_is_loaded_into_its_memory_and_stays_a_parameter) {
  Tensor w = full({2}, 3.0);
  save_checkpoint(path(), {{"w", w}});
  Tensor other = zeros({2}).requires_grad_();
  const Tensor alias = other;
  optim::SGD sgd({other}, {.lr = 1});
  load_checkpoint(path(), {{"w", other}});
  EXPECT_TRUE(other.requires_grad());
  EXPECT_TRUE(other.is_same(alias));
  EXPECT_TRUE(same_bits(alias.detach(), full({2}, 3.0)));
  Tensor wrong = zeros({3}).requires_grad_();
  EXPECT_THROW(load_checkpoint(path(), {{"w", wrong}}), ShapeError);
  EXPECT_TRUE(same_bits(wrong.detach(), zeros({3})));
  Tensor fresh = zeros({3}), undefined;
  load_checkpoint(path(), {{"w", fresh}});
  EXPECT_TRUE(same_bits(fresh, full({2}, 3.0)));
  load_checkpoint(path(), {{"w", undefined}});
  EXPECT_TRUE(same_bits(undefined, full({2}, 3.0)));
}

TEST_F(Checkpoint, a_module_that_refuses_one_tensor_takes_none) {
  struct Net : nn::Module {
    Tensor a, m;
    explicit Net(double value, bool expanded) {
      a = add("a", full({2}, value));
      m = expanded ? full({1}, value).expand({3}) : full({3}, value);
      add_buffer("m", m);
    }
  };
  Net good(7, false), net(1, true);
  save_checkpoint(path(), {{"net", good}});
  EXPECT_THROW(load_checkpoint(path(), {{"net", net}}), ShapeError);
  EXPECT_TRUE(same_bits(net.a.detach(), ones({2})));
}

TEST_F(Checkpoint, a_buffer_refuses_numbers_that_its_type_does_not_hold) {
  struct Counts : nn::Module {
    Counts() { add_buffer("n", zeros({2}, {.dtype = kInt64})); }
  } counts;
  EXPECT_THROW(counts.load_state_dict({{"n", full({2}, 1.5)}}), DTypeError);
  counts.load_state_dict({{"n", full({2}, 4.0)}});
  EXPECT_EQ(counts.state_dict()[0].second.to_vector<int64_t>(), (std::vector<int64_t>{4, 4}));
}

TEST_F(Checkpoint, an_optimizer_refuses_the_state_of_another) {
  const Tensor w = ones({2}).requires_grad_(), v = ones({2}).requires_grad_();
  const std::vector<Tensor> g{ones({2})};
  optim::SGD sgd({w}, {.lr = 0.1});
  sgd.step(g);
  optim::Adam adam({v}, {.lr = 0.1}), two({v, w}, {.lr = 0.1});
  EXPECT_TRUE(has(error_of<ValueError>([&] { adam.load_state_dict(sgd.state_dict()); }),
                  "the state is of SGD, this optimizer is Adam"));
  adam.step(g);
  EXPECT_TRUE(has(error_of<ValueError>([&] { two.load_state_dict(adam.state_dict()); }),
                  "of 1 parameters, this optimizer has 2"));
  optim::StateDict partly = adam.state_dict();
  std::erase_if(partly, [](const auto& entry) { return entry.first == "0.exp_avg_sq"; });
  EXPECT_TRUE(has(error_of<ValueError>([&] { adam.load_state_dict(partly); }),
                  "has taken 1 steps, and 1 of its 2 tensors"));
}

TEST_F(Checkpoint, one_part_alone_leaves_the_default_generator_as_it_is) {
  nn::Linear net(2, 2);
  save_checkpoint(path(), {{"net", net}});
  manual_seed(99);
  const Tensor expected = rand({3});
  manual_seed(99);
  load_checkpoint(path(), {{"net", net}}, false);
  EXPECT_TRUE(same_bits(rand({3}), expected));
}

}  // namespace
}  // namespace weft
