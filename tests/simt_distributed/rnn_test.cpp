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
  const auto window = [&] { return examples::window(randint(0, o.vocabulary, {o.bptt + 1, o.batch_size}, {.dtype = kInt64}, &draws), 0, o.bptt); };
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
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 2e-5 * std::max(1.0, std::abs(b[i]))) << "figure " << i;
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

TEST(SimtRnnProgram, places_name_parts_and_devices) {
  rnn::Options o;
  o.place = "encoder=cuda:1,decoder=cuda";
  EXPECT_EQ(o.placed("encoder"), "cuda:1");
  EXPECT_EQ(o.placed("decoder"), "cuda");
  EXPECT_EQ(o.placed("rnn"), "cpu");
}

}  // namespace
