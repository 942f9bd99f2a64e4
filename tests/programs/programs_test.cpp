// The example programs as a user runs them: real processes, exit codes, last lines. A split run computes the
// numbers of a local one.
#include <gtest/gtest.h>

#include <cstdlib>

#include "program.h"

namespace {

using namespace programs;

const char kSmall[] =
    " --emsize 16 --nhid 16 --batch-size 4 --bptt 7 --epochs 1 --max-steps 12 --dropout 0 --print-losses ";

TEST(Programs, my_add_matches_local_on_both_transports) {
  for (const char* transport : {"sim", "grpc"}) {
    const Output out = run(std::string("my_add --transport ") + transport);
    EXPECT_EQ(out.code, 0) << out.text;
    EXPECT_EQ(out.last(), "my_add: t1.grad=[5, 6] t2.grad=[5, 6] t4.grad=[4, 6] matches local: yes");
  }
}

TEST(Programs, custom_optimizer_matches_its_reference_locally_and_split) {
  const Output local = run("custom_optimizer --mode local"),
               split = run("custom_optimizer --mode distributed");
  EXPECT_EQ(local.code, 0) << local.text;
  EXPECT_EQ(split.code, 0) << split.text;
  EXPECT_NE(local.last().find("matches reference: yes"), std::string::npos) << local.text;
  EXPECT_EQ(local.last(), split.last());
}

TEST(Programs, rnn_prints_the_same_losses_locally_and_split_for_both_decoders_and_thread_counts) {
  const Corpus corpus;
  for (const char* decoder : {"remote-logits", "remote-loss"}) {
    const std::string base = "rnn " + corpus.flag() + kSmall + "--decoder " + decoder + " ";
    const Output local = run(base + "--mode local --threads 1");
    ASSERT_EQ(local.code, 0) << local.text;
    const std::string losses = local.lines("step ");
    EXPECT_FALSE(losses.empty());
    EXPECT_EQ(run(base + "--mode local --threads 2").lines("step "), losses);
    EXPECT_EQ(run(base + "--mode distributed --threads 1").lines("step "), losses);
    EXPECT_EQ(run(base + "--mode distributed --threads 2").lines("step "), losses);
    EXPECT_EQ(run(base + "--mode distributed --backward fast").lines("step "), losses);
  }
}

TEST(Programs, rnn_of_every_model_and_optimizer_splits_without_changing_a_loss) {
  const Corpus corpus;
  for (const char* flags : {"--model GRU", "--model RNN_TANH", "--model RNN_RELU --lr 0.5", "--tied",
                            "--optimizer qhm --lr 2", "--optimizer adam --lr 0.01"}) {
    const std::string base = "rnn " + corpus.flag() + kSmall + flags + " --mode ";
    const Output local = run(base + "local"), split = run(base + "distributed");
    EXPECT_EQ(local.code, 0) << local.text;
    EXPECT_FALSE(local.lines("step ").empty());
    EXPECT_EQ(local.lines("step "), split.lines("step ")) << flags << "\n" << split.text;
  }
}

TEST(Programs, rnn_prints_the_same_losses_by_replays) {
  const Corpus corpus;
  for (const char* flags :
       {"", "--model GRU", "--tied", "--optimizer adam --lr 0.01", "--decoder remote-loss"}) {
    const std::string base = "rnn " + corpus.flag() + kSmall + "--mode local --dropout 0.3 " + flags;
    const Output eager = run(base), replayed = run(base + " --compile");
    EXPECT_EQ(replayed.code, 0) << replayed.text;
    EXPECT_FALSE(eager.lines("step ").empty());
    EXPECT_EQ(replayed.lines("step "), eager.lines("step ")) << flags;
    EXPECT_EQ(replayed.last(), eager.last().substr(0, eager.last().find("tokens_per_s")) +
                                   replayed.last().substr(replayed.last().find("tokens_per_s")));
    EXPECT_TRUE(replayed.has("10 of 12 steps were replays\n") || replayed.has("9 of 12 steps were replays\n"))
        << flags << "\n"
        << replayed.text;
  }
  EXPECT_TRUE(run("rnn --compile").has("--compile needs --mode local"));
}

TEST(Programs, rnn_tutorial_prints_its_epochs) {
  const Output out = run("rnn --tutorial");
  EXPECT_EQ(out.code, 0) << out.text;
  EXPECT_NE(out.text.find("Training epoch 10\n"), std::string::npos) << out.text;
  EXPECT_EQ(out.last().compare(0, 22, "rnn: epochs=10 steps=5"), 0) << out.last();
}

TEST(Programs, rnn_without_a_corpus_names_the_script_and_a_bad_flag_exits_2) {
  const Output missing = run("rnn --mode local --data no/such/folder");
  EXPECT_EQ(missing.code, 1);
  EXPECT_NE(missing.text.find("fetch_corpus.sh"), std::string::npos) << missing.text;
  EXPECT_EQ(run("rnn --no-such-flag").code, 2);
  EXPECT_EQ(run("rnn --epochs many").code, 2);
  EXPECT_EQ(run("rnn --tied --nhid 3").code, 2);
  EXPECT_EQ(run("cartpole --world-size 1").code, 2);
  EXPECT_EQ(run("rnn --help").code, 0);
}

TEST(Programs, rnn_on_a_device_that_is_not_there_ends_with_one_line_and_bad_places_exit_2) {
  const Corpus corpus;
  const bool has_gpu = std::system("nvidia-smi >/dev/null 2>&1") == 0;
  for (const char* flags : {"--mode local --device cuda", "--mode local --place encoder=cuda,decoder=cuda",
                            "--mode distributed --device cuda"}) {
    if (has_gpu) break;
    const Output out = run("rnn " + corpus.flag() + kSmall + flags);
    EXPECT_EQ(out.code, 1) << out.text;
    const std::string said = out.lines("rnn: ");
    EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << out.text;
    EXPECT_NE(said.find("cuda"), std::string::npos) << out.text;
  }
  for (const char* flags : {"--place head=cuda", "--place encoder", "--place encoder=gpu",
                            "--tied --nhid 200 --place encoder=cuda"})
    EXPECT_EQ(run(std::string("rnn --mode local ") + flags).code, 2) << flags;
  EXPECT_EQ(run("rnn --mode distributed --place encoder=cuda").code, 2);
}

TEST(Programs, rnn_saves_resumes_and_generates) {
  const Corpus corpus;
  const Folder folder("saved");
  const std::string file = folder.file("model.safetensors");
  const std::string base =
      "rnn " + corpus.flag() + " --emsize 16 --nhid 16 --batch-size 4 --bptt 7 --epochs 1 --dropout 0 ";
  const Output first = run(base + "--mode local --max-steps 20 --save " + file);
  EXPECT_EQ(first.code, 0) << first.text;
  const Output second =
      run(base + "--mode distributed --max-steps 1 --lr 0 --resume " + file + " --generate 5");
  EXPECT_EQ(second.code, 0) << second.text;
  const auto test_ppl = [](const std::string& line) {
    return line.substr(line.find("test_ppl="), line.find(" tokens_per_s") - line.find("test_ppl="));
  };
  EXPECT_EQ(test_ppl(first.last()), test_ppl(second.last()));
}

TEST(Programs, cartpole_repeats_its_figures_and_fused_calls_change_none) {
  const auto figures = [](const Output& out) {
    return out.last().substr(0, out.last().find(" steps_per_s"));
  };
  const Output two = run("cartpole --max-episodes 12 --seed 3"),
               again = run("cartpole --max-episodes 12 --seed 3"),
               fused = run("cartpole --max-episodes 12 --seed 3 --calls fused"),
               compiled = run("cartpole --max-episodes 12 --seed 3 --calls fused --compile");
  EXPECT_EQ(two.code, 0) << two.text;
  EXPECT_NE(two.last().find("cartpole: solved="), std::string::npos) << two.text;
  EXPECT_EQ(figures(two), figures(again));
  EXPECT_EQ(figures(two), figures(fused));
  EXPECT_EQ(figures(two), figures(compiled)) << compiled.text;
}

TEST(Programs, cartpole_joins_the_calls_of_several_observers) {
  const Output out =
      run("cartpole --max-episodes 5 --log-interval 1 --world-size 4 --seed 3 --calls batched");
  EXPECT_EQ(out.code, 0) << out.text;
  EXPECT_NE(out.text.find("Episode 5\tLast reward: "), std::string::npos) << out.text;
  EXPECT_EQ(out.last().find("cartpole: solved=no episodes=5 "), 0u) << out.last();
  EXPECT_EQ(run("cartpole --calls many").code, 2);
  EXPECT_EQ(run("cartpole --calls batched --compile").code, 2);
}

TEST(Programs, pipeline_matches_whole_batches_with_any_number_of_stages_and_micro_batches) {
  for (const char* flags : {"", " --micro-batches 1", " --micro-batches 7 --world-size 4 --seed 5",
                            " --micro-batches 48 --world-size 2"}) {
    const Output out = run(std::string("pipeline --steps 20") + flags);
    EXPECT_EQ(out.code, 0) << out.text;
    EXPECT_EQ(out.last().find("pipeline: steps=20 loss_last=0."), 0u) << out.text;
    EXPECT_NE(out.last().find(" matches reference: yes"), std::string::npos) << out.text;
  }
  EXPECT_TRUE(run("pipeline --steps 5 --micro-batches 1").has("up to 1 micro-batches in flight"));
  EXPECT_FALSE(run("pipeline --steps 20").has("up to 1 micro-batches in flight"));
  EXPECT_EQ(run("pipeline --micro-batches 49").code, 2);
  EXPECT_EQ(run("pipeline --world-size 1").code, 2);
}

TEST(Programs, data_parallel_matches_one_process_with_the_joined_batches) {
  const Folder folder("data_parallel");
  const std::string file = folder.file("figures.json");
  for (const char* flags : {"", " --world-size 3 --seed 5"}) {
    const Output out = run("data_parallel --steps 20 --json " + file + flags);
    if (out.has("built without Gloo")) GTEST_SKIP() << out.text;
    EXPECT_EQ(out.code, 0) << out.text;
    EXPECT_EQ(out.last().find("data_parallel: steps=20 loss_last=0."), 0u) << out.text;
    EXPECT_NE(out.last().find(" matches reference: yes"), std::string::npos) << out.text;
    const Json json(contents(file));
    EXPECT_TRUE(json.ok());
    EXPECT_EQ(json.members().at("steps"), "20");
    EXPECT_EQ(json.members().count("losses"), 1u);
  }
  EXPECT_EQ(run("data_parallel --world-size 1").code, 2);
}

TEST(Programs, hybrid_matches_one_process_with_the_joined_batches) {
  const Folder folder("hybrid");
  const std::string file = folder.file("figures.json");
  for (const int trainers : {1, 2, 3}) {
    const Output out =
        run("hybrid --steps 20 --seed 5 --json " + file + " --trainers " + std::to_string(trainers));
    if (out.has("built without Gloo")) GTEST_SKIP() << out.text;
    EXPECT_EQ(out.code, 0) << out.text;
    EXPECT_EQ(out.last().find("hybrid: trainers=" + std::to_string(trainers) + " steps=20 loss_last=0."), 0u)
        << out.text;
    EXPECT_NE(out.last().find(" matches reference: yes"), std::string::npos) << out.text;
    const Json json(contents(file));
    EXPECT_TRUE(json.ok());
    EXPECT_EQ(json.members().at("trainers"), std::to_string(trainers));
    EXPECT_EQ(json.members().count("losses"), 1u);
  }
  EXPECT_EQ(run("hybrid --trainers 0").code, 2);
}

TEST(Programs, gradients_on_a_device_that_is_not_there_are_one_line_before_a_worker_starts) {
  for (const std::string program : {"data_parallel", "hybrid"}) {
    const Output out = run(program + " --device cuda",
                           {{"WEFT_CUDA_LIBRARY", "/no/such/library"}, {"CUDA_VISIBLE_DEVICES", ""}});
    if (out.has("built without Gloo")) GTEST_SKIP() << out.text;
    EXPECT_EQ(out.code, 1) << out.text;
    EXPECT_EQ(out.text.find(program + ": cuda: the "), 0u) << out.text;
    EXPECT_EQ(std::count(out.text.begin(), out.text.end(), '\n'), 1) << out.text;
  }
}

TEST(Programs, parameter_server_trains_with_three_overlapping_trainers) {
  const Output out = run("parameter_server --trainers 3 --steps 600");
  EXPECT_EQ(out.code, 0) << out.text;
  const auto value = [&](const std::string& key) {
    return std::stod(out.last().substr(out.last().find(key) + key.size()));
  };
  ASSERT_NE(out.last().find("loss_first="), std::string::npos) << out.text;
  EXPECT_LT(value("loss_last="), 0.7 * value("loss_first="));
}

TEST(Programs, the_programs_of_the_readme_run) {
  const Output training = run("hello_training"), distributed = run("hello_distributed");
  EXPECT_EQ(training.code, 0) << training.text;
  EXPECT_EQ(distributed.code, 0) << distributed.text;
  EXPECT_EQ(distributed.last().find("step 50 "), 0u) << distributed.text;
}

}  // namespace
