// The models of the example `rnn` with parts on devices take the steps of the CPU model, to float rounding.
#include "devices.h"
#include "examples/rnn/split_model.h"

namespace {

using namespace weft;
using namespace weft::test;

rnn::Options options() {
  rnn::Options o;
  o.vocabulary = 23, o.emsize = 6, o.nhid = 6, o.nlayers = 2, o.batch_size = 3, o.bptt = 4;
  o.dropout = 0.25, o.lr = 0.5, o.clip = 0.25;
  return o;
}

/// Losses of a few steps, then the loss of an evaluation and a logit of the next word.
std::vector<double> trace_of(const rnn::Options& o, rnn::Model& model) {
  Generator draws(7);
  rnn::Hidden hidden = model.zero_hidden(o.batch_size);
  std::vector<double> out;
  const auto window = [&] {
    return examples::window(randint(0, o.vocabulary, {o.bptt + 1, o.batch_size}, {.dtype = kInt64}, &draws),
                            0, o.bptt);
  };
  for (int step = 0; step < 4; ++step) out.push_back(model.train_step(window(), hidden));
  model.set_lr(o.lr / 4);
  out.push_back(model.train_step(window(), hidden));
  const nn::StateDict state = model.snapshot();
  for (const auto& [name, tensor] : state) EXPECT_EQ(tensor.device(), kCpu) << name;
  model.train_step(window(), hidden);
  model.restore(state);
  model.train(false);
  rnn::Hidden fresh = model.zero_hidden(o.batch_size);
  out.push_back(model.eval_loss(window(), fresh));
  rnn::Hidden one = model.zero_hidden(1);
  out.push_back(model.next_word(3, one).to(kCpu).to_vector<double>().at(5));
  return out;
}

void expect_close(const std::vector<double>& a, const std::vector<double>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i)
    EXPECT_NEAR(a[i], b[i], 2e-5 * std::max(1.0, std::abs(b[i]))) << "figure " << i;
}

std::vector<double> on_cpu(const rnn::Options& o) { return trace_of(o, *rnn::make_local_model(o)); }

TEST(SimtRnnProgram, embedding_and_decoder_on_devices_with_the_recurrent_part_on_the_cpu) {
  open_devices();
  for (const char* decoder : {"remote-logits", "remote-loss"}) {
    rnn::Options o = options();
    o.decoder = decoder;
    const auto expected = on_cpu(o);
    for (const char* place : {"encoder=cuda,decoder=cuda", "encoder=cuda:1,decoder=cuda:0"}) {
      o.place = place;
      expect_close(on_cpu(o), expected);
    }
  }
}

TEST(SimtRnnProgram, the_whole_local_model_on_a_device) {
  open_devices();
  rnn::Options o = options();
  const auto expected = on_cpu(o);
  o.device = "cuda";
  expect_close(on_cpu(o), expected);
  o.tied = true, o.device = "cpu";
  const auto tied = on_cpu(o);
  o.device = "cuda";
  expect_close(on_cpu(o), tied);
}

TEST(SimtRnnProgram, the_server_works_on_its_device_and_the_trainer_on_the_cpu) {
  for (const char* decoder : {"remote-logits", "remote-loss"})
    for (const bool tied : {false, true})
      for (const char* backward : {"fast", "smart"}) {
        rnn::Options o = options();
        o.decoder = decoder, o.tied = tied, o.backward = backward;
        const auto expected = on_cpu(o);
        o.device = "cuda";
        ClusterOptions group = mapped({});
        group.each = [&](int rank, rpc::AgentOptions& a) {
          a.name = rank == 0 ? "trainer" : "ps";
          if (rank == 0) a.device_maps = rnn::split_device_maps(o);
        };
        Cluster c(group);
        c.run(0, [&] { expect_close(trace_of(o, *rnn::make_split_model(o)), expected); });
        c.shutdown();
      }
}

/// A state with a name missing, a name too many or other sizes anywhere is refused by that name. Every
/// parameter then keeps its value.
void expect_strict(const rnn::Options& o, rnn::Model& model) {
  const nn::StateDict before = model.snapshot();
  const auto expect_values = [&](const nn::StateDict& wanted) {
    const nn::StateDict now = model.snapshot();
    ASSERT_EQ(now.size(), wanted.size());
    for (size_t i = 0; i < now.size(); ++i)
      EXPECT_TRUE(now[i].first == wanted[i].first && equal(now[i].second, wanted[i].second))
          << wanted[i].first;
  };
  nn::StateDict other;
  for (const auto& [name, tensor] : before) other.emplace_back(name, tensor + 1);
  const auto expect_refused = [&](const nn::StateDict& state, const std::string& part) {
    EXPECT_TRUE(has(error_of<Error>([&] { model.restore(state); }), part)) << part;
    expect_values(before);
  };
  for (size_t i = 0; i < other.size(); ++i) {
    nn::StateDict state = other;
    state[i].second = ones({1});
    expect_refused(state, state[i].first);
    state[i].first += "_more";
    expect_refused(state, state[i].first);
    state.erase(state.begin() + static_cast<std::ptrdiff_t>(i));
    expect_refused(state, other[i].first);
  }
  for (const char* name : {"encoder.more", "rnn.more", "decoder.more", "more"}) {
    nn::StateDict state = other;
    state.emplace_back(name, ones({1}));
    expect_refused(state, name);
  }
  if (o.tied) {
    nn::StateDict state = other;
    for (auto& [name, tensor] : state)
      if (name == "decoder.weight") tensor = tensor + 1;
    expect_refused(state, "differ");
  }
  model.restore(other);
  expect_values(other);
}

TEST(SimtRnnProgram, a_state_of_another_model_is_refused_and_changes_nothing) {
  open_devices();
  for (const bool tied : {false, true})
    for (const char* device : {"cpu", "cuda"}) {
      rnn::Options o = options();
      o.tied = tied, o.device = device;
      expect_strict(o, *rnn::make_local_model(o));
      ClusterOptions group = mapped({});
      group.each = [&](int rank, rpc::AgentOptions& a) {
        a.name = rank == 0 ? "trainer" : "ps";
        if (rank == 0) a.device_maps = rnn::split_device_maps(o);
      };
      Cluster c(group);
      c.run(0, [&] { expect_strict(o, *rnn::make_split_model(o)); });
      c.shutdown();
    }
}

TEST(SimtRnnProgram, places_name_parts_and_devices) {
  rnn::Options o;
  o.place = "encoder=cuda:1,decoder=cuda";
  EXPECT_EQ(o.placed("encoder"), "cuda:1");
  EXPECT_EQ(o.placed("decoder"), "cuda");
  EXPECT_EQ(o.placed("rnn"), "cpu");
}

}  // namespace
