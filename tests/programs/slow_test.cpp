// Runs of the size that the programs are made for; each takes seconds, so the sanitizers leave them out
// (their label has `slow`).
#include "program.h"

namespace {

using namespace programs;

TEST(ProgramsSlow, parameter_server_runs_ten_thousand_overlapping_steps) {
  const Output out = run("parameter_server --trainers 3 --steps 10000");
  EXPECT_EQ(out.code, 0) << out.text;
  EXPECT_EQ(out.last().find("parameter_server: trainers=3 steps=10000 loss_first="), 0) << out.last();
}

TEST(ProgramsSlow, rnn_of_the_default_sizes_prints_the_same_losses_locally_and_split_on_one_and_two_threads) {
  const Corpus corpus(10000, 10000, 30);
  const std::string base = "rnn " + corpus.flag() + " --max-steps 3 --dropout 0 --print-losses ";
  const Output local = run(base + "--mode local --threads 1");
  ASSERT_EQ(local.code, 0) << local.text;
  EXPECT_TRUE(local.has("corpus: 10000 words")) << local.text;
  const std::string losses = local.lines("step ");
  EXPECT_EQ(std::count(losses.begin(), losses.end(), '\n'), 3) << local.text;
  for (const char* other :
       {"--mode local --threads 2", "--mode distributed --threads 1", "--mode distributed --threads 2"})
    EXPECT_EQ(run(base + other).lines("step "), losses) << other;
}

}  // namespace
