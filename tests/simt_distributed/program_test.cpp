// The example `rnn` as a user runs it with devices, as real processes over gRPC: a build of it that has the
// emulated ones. Its losses are those of the CPU to float rounding.
#include <sys/resource.h>

#include <cmath>

#include <weft/kernels/str.h>

#include "programs/program.h"
#include "support/errors.h"

namespace {

using namespace programs;
using weft::str;
using weft::test::has;

constexpr rlim_t kFiles = 6;
const char kSmallModel[] =
    " --emsize 8 --nhid 8 --batch-size 4 --bptt 5 --epochs 1 --max-steps 5 --dropout 0.2 --clip 0.25 --lr 2 "
    "--print-losses ";

/// The losses of the five steps of a run that went well, and the perplexities of its last line.
std::vector<double> losses_of(const Output& out) {
  EXPECT_EQ(out.code, 0) << out.text;
  std::vector<double> all;
  std::istringstream words(out.lines("step ") + out.last());
  for (std::string word; words >> word;) {
    const size_t equals = word.find("_ppl=");
    if (word == "loss" && words >> word) all.push_back(std::stod(word));
    else if (equals != std::string::npos) all.push_back(std::stod(word.substr(equals + 5)));
  }
  EXPECT_EQ(all.size(), 7u) << out.text;
  return all;
}

void expect_close(const std::vector<double>& a, const std::vector<double>& b, const std::string& where) {
  ASSERT_EQ(a.size(), b.size()) << where;
  for (size_t i = 0; i < a.size(); ++i)
    EXPECT_NEAR(a[i], b[i], 1e-4 * std::abs(b[i])) << where << ", figure " << i;
}

TEST(SimtPrograms, rnn_with_the_server_on_a_device_has_the_losses_of_the_cpu) {
  const Corpus corpus(37, 20, 4);
  for (const char* flags : {"--decoder remote-logits ",
                            "--decoder remote-loss --tied --backward smart --optimizer adam --lr 0.01 "}) {
    const std::string base = corpus.flag() + kSmallModel + flags;
    const auto expected = losses_of(run("rnn " + base + "--mode local"));
    expect_close(losses_of(run("rnn_emulated " + base + "--mode distributed --device cuda")), expected,
                 flags);
  }
}

TEST(SimtPrograms, rnn_with_embedding_and_decoder_on_a_device_has_the_losses_of_the_cpu) {
  const Corpus corpus(37, 20, 4);
  const std::string base = corpus.flag() + kSmallModel + "--mode local ";
  const auto expected = losses_of(run("rnn " + base));
  expect_close(losses_of(run("rnn_emulated " + base + "--place encoder=cuda,decoder=cuda")), expected,
               "one device");
  expect_close(losses_of(run("rnn_emulated " + base + "--place encoder=cuda:1,decoder=cuda:0")), expected,
               "two devices");
}

TEST(SimtPrograms, rnn_tutorial_runs_with_the_server_on_a_device) {
  const Output out = run("rnn_emulated --tutorial --epochs 2 --mode distributed --device cuda");
  EXPECT_EQ(out.code, 0) << out.text;
  EXPECT_TRUE(has(out.text, "Training epoch 2\n"));
}

TEST(SimtPrograms, rnn_whose_server_has_no_device_says_so_at_both) {
  const Corpus corpus(37, 20, 4);
  const Port port;
  Variables server = port.worker(0, 2);
  // nor would it find a real one
  server["WEFT_CUDA_LIBRARY"] = "/no/such/library", server["CUDA_VISIBLE_DEVICES"] = "";
  Process ps("rnn " + corpus.flag() + kSmallModel + "--mode distributed", server);
  const Output trainer = run(
      "rnn_emulated " + corpus.flag() + kSmallModel + "--mode distributed --device cuda", port.worker(1, 2));
  for (const Output& out : {trainer, ps.finish()}) {
    EXPECT_EQ(out.code, 1) << out.text;
    EXPECT_TRUE(
        has(out.text, "the device map of worker 'trainer' leads to cuda:0: worker 'ps' has no cuda:0"));
  }
}

TEST(SimtPrograms, hello_cuda_replays_its_recorded_step_to_the_losses_of_the_cpu) {
  const Output here = run("hello_cuda 12",
                          {{"WEFT_CUDA_LIBRARY", "/no/such/library"}, {"CUDA_VISIBLE_DEVICES", ""}}),
               there = run("hello_cuda_emulated 12");
  const auto loss = [](const Output& out) {
    EXPECT_EQ(out.code, 0) << out.text;
    const std::string line = out.lines("step 12  loss ");
    return line.empty() ? NAN : std::stod(line.substr(14));
  };
  EXPECT_TRUE(has(here.text, "on the CPU: ")) << here.text;
  EXPECT_FALSE(has(there.text, "on the CPU: ")) << there.text;
  EXPECT_NEAR(loss(there), loss(here), 5e-3);
}

TEST(SimtPrograms, bench_gpu_hands_memory_over_between_two_processes) {
  const Output out = run("bench_gpu_emulated --quick --part=ipc");
  EXPECT_EQ(out.code, 0) << out.text;
  for (const char* const row : {"Export", "Open", "OpenAgain", "HandOver"})
    EXPECT_TRUE(has(out.lines(str("Ipc/", row, "/64MiB ")), " us")) << out.text;
  EXPECT_EQ(run("bench_gpu_emulated --part=speed").code, 2);
}

TEST(SimtPrograms, bench_gpu_begins_with_training_steps_and_a_part_without_room_ends_alone) {
  EXPECT_TRUE(run("bench_gpu_emulated --list-parts").text.starts_with("model\nlarge_model\n"));
  const Output out = run("bench_gpu_emulated --quick --part=memory");
  EXPECT_EQ(out.code, 1);
  EXPECT_TRUE(has(out.lines("part memory "), "failed: cuda:0: out of memory")) << out.text;
  EXPECT_TRUE(has(out.last(), "bench_gpu: 0 rows, 0 left out, 1 failed")) << out.text;
}

/// Leaves a program so few files that it can open no pipes.
bool open_few_files() {
  const rlimit few{kFiles, kFiles};
  return setrlimit(RLIMIT_NOFILE, &few) == 0;
}

TEST(SimtPrograms, bench_gpu_fails_if_its_other_process_cannot_be_started) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the sanitizers check the types of objects by pipes of their own";
#endif
  const Output out = run("bench_gpu_emulated --quick --part=ipc", {}, &open_few_files);
  EXPECT_EQ(out.code, 1) << out.text;
  EXPECT_TRUE(has(out.lines("Ipc "), "failed: bench_gpu: no pipe")) << out.text;
}

TEST(SimtPrograms, rnn_names_a_device_beyond_those_that_are_there) {
  const Corpus corpus(37, 20, 4);
  const Output out =
      run("rnn_emulated " + corpus.flag() + kSmallModel + "--mode local --place encoder=cuda:7,decoder=cuda");
  EXPECT_EQ(out.code, 1) << out.text;
  EXPECT_TRUE(has(out.lines("rnn: "), "cuda:7"));
}

}  // namespace
