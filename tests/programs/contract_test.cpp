// The promises of every program beyond its numbers. These are figures as JSON, a clean stop after Ctrl-C, and
// one line that names a faulty flag, corpus or saved model.
#include <sys/stat.h>

#include <sstream>

#include <weft/tensor/factories.h>
#include <weft/tensor/io/safetensors.h>
#include "program.h"

namespace {

using namespace programs;

/// One line "rnn: ..." on the error stream that has `part`, and exit code 1, before any worker was started
/// unless `started`.
void expect_refusal(const Output& out, const std::string& part, bool started = false) {
  EXPECT_EQ(out.code, 1) << out.text;
  const std::string said = out.lines("rnn: ");
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << out.text;
  EXPECT_NE(said.find(part), std::string::npos) << "wanted " << part << ", got " << out.text;
  EXPECT_TRUE(started || !out.has("pids:")) << out.text;
}

/// The entries of a last line: "name=value" and "matches name: yes".
std::vector<std::pair<std::string, std::string>> figures_of(const std::string& last) {
  std::vector<std::pair<std::string, std::string>> all;
  std::istringstream words(last);
  for (std::string word; words >> word;) {
    const size_t equals = word.find('=');
    if (equals != std::string::npos) {
      all.emplace_back(word.substr(0, equals), word.substr(equals + 1));
    } else if (word == "matches") {
      std::string what, answer;
      words >> what >> answer;
      all.emplace_back("matches " + what.substr(0, what.find(':')), answer);
    }
  }
  return all;
}

TEST(ProgramsJson, holds_the_figures_of_the_last_line_for_every_program) {
  const Corpus corpus;
  const Folder folder("json");
  const std::string file = folder.file("figures.json");
  for (const auto& [command, list] : {
           std::pair<std::string, std::string>("my_add --transport sim", ""),
           {"my_add", ""},
           {"custom_optimizer", ""},
           {"custom_optimizer --mode distributed", ""},
           {"parameter_server --trainers 2 --steps 50 --log-interval 20", "intervals"},
           {"cartpole --max-episodes 2", "episodes_run"},
           {"cartpole --max-episodes 2 --world-size 3 --calls batched", "episodes_run"},
           {"pipeline --steps 3", "losses"},
           {"elastic --steps 30 --kills 0", ""},
           {"rnn --tutorial --mode local", "epochs_run"},
           {"rnn --mode local --log-interval 3 --max-steps 8 " + corpus.flag() + kTiny, "intervals"},
       }) {
    std::filesystem::remove(file);
    const Output out = run(command + " --json " + file);
    EXPECT_EQ(out.code, 0) << out.text;
    const Json json(contents(file));
    EXPECT_TRUE(json.ok()) << command << "\n" << contents(file);
    EXPECT_TRUE(list.empty() || json.members().count(list) == 1) << command << "\n" << contents(file);
    const std::string last = out.last();
    const auto figures = figures_of(last);
    for (const auto& [name, shown] : figures) {
      ASSERT_EQ(json.members().count(name), 1u) << name << " of " << command << "\n" << contents(file);
      const std::string& kept = json.members().at(name);
      char* rest = nullptr;
      const double value = std::strtod(shown.c_str(), &rest);
      if (*rest == '\0') {
        EXPECT_NEAR(std::stod(kept), value, 0.51) << name << " of " << command;
      } else {
        EXPECT_EQ(kept.find_first_of("[\""), 0u) << name << " of " << command << ": " << kept;
      }
    }
    EXPECT_GE(figures.size(), 3u) << last;
  }
}

TEST(ProgramsJson, rnn_keeps_every_interval_and_epoch) {
  const Corpus corpus;
  const Folder folder("intervals");
  const std::string file = folder.file("figures.json");
  ASSERT_EQ(
      run("rnn --mode local --log-interval 3 --max-steps 8 --json " + file + " " + corpus.flag() + kTiny)
          .code,
      0);
  const Json json(contents(file));
  ASSERT_TRUE(json.ok());
  EXPECT_EQ(json.members().at("epochs"), "1");
  EXPECT_EQ(json.members().at("steps"), "8");
  const std::string& intervals = json.members().at("intervals");
  for (const char* steps : {"\"steps\": 3,", "\"steps\": 6,", "\"steps\": 8,"})
    EXPECT_NE(intervals.find(steps), std::string::npos) << intervals;
  EXPECT_NE(json.members().at("epochs_run").find("valid_ppl"), std::string::npos);
}

TEST(ProgramsInterrupt, rnn_stops_evaluates_and_prints_its_last_line_locally_and_split) {
  const Corpus corpus;
  for (const std::string mode : {"--mode local ", "--mode distributed "}) {
    Process rnn("rnn " + mode + corpus.flag() + kTiny + "--epochs 100000 --log-interval 5");
    ASSERT_TRUE(rnn.says("epoch 1 5/"));
    rnn.interrupt();
    const Output out = rnn.finish();
    EXPECT_EQ(out.code, 0) << out.text;
    EXPECT_TRUE(out.has("interrupted after ")) << out.text;
    EXPECT_TRUE(out.has(" s left")) << out.text;
    EXPECT_EQ(out.last().compare(0, 12, "rnn: epochs="), 0) << out.last();
    EXPECT_NE(out.last().find(" test_ppl="), std::string::npos) << out.last();
  }
}

TEST(ProgramsInterrupt, rnn_tutorial_counts_the_epochs_that_it_ran) {
  Process rnn("rnn --tutorial --mode local --epochs 100000000");
  ASSERT_TRUE(rnn.says("Training epoch 3\n"));
  rnn.interrupt();
  const Output out = rnn.finish();
  EXPECT_EQ(out.code, 0);
  EXPECT_TRUE(out.has("interrupted after "));
  EXPECT_EQ(out.last().find("rnn: epochs=100000000 "), std::string::npos) << out.last();
  EXPECT_NE(out.last().find(" test_ppl="), std::string::npos) << out.last();
}

TEST(ProgramsInterrupt, parameter_server_stops_its_trainers_and_prints_its_last_line) {
  Process server("parameter_server --trainers 2 --steps 10000000 --log-interval 100");
  ASSERT_TRUE(server.says(" s left"));
  server.interrupt();
  const Output out = server.finish();
  EXPECT_EQ(out.code, 0) << out.text;
  EXPECT_TRUE(out.has("steps 100/10000000  loss ")) << out.text;
  EXPECT_TRUE(out.has("interrupted after ")) << out.text;
  EXPECT_EQ(out.last().compare(0, 35, "parameter_server: trainers=2 steps="), 0) << out.last();
  EXPECT_EQ(out.last().find("steps=10000000"), std::string::npos) << out.last();
}

TEST(ProgramsInterrupt, cartpole_says_so_and_prints_its_last_line) {
  Process cartpole("cartpole --log-interval 1 --max-episodes 100000000 --lr 0");
  ASSERT_TRUE(cartpole.says(" s left"));
  EXPECT_TRUE(cartpole.says("Episode 10\tLast reward: "));
  cartpole.interrupt();
  const Output out = cartpole.finish();
  EXPECT_EQ(out.code, 0) << out.text;
  EXPECT_TRUE(out.has("interrupted after ")) << out.text;
  EXPECT_EQ(out.last().compare(0, 28, "cartpole: solved=no episodes"), 0) << out.last();
}

TEST(ProgramsFlags, switches_take_a_word_and_numbers_must_fit) {
  const Corpus corpus;
  const std::string base = "rnn --mode local --max-steps 1 " + corpus.flag() + kTiny;
  for (const char* off : {"--tied=false", "--tied=no", "--tied=0"})
    EXPECT_EQ(run(base + "--nhid 6 " + off).code, 0) << off;
  for (const char* on : {"--tied", "--tied=true", "--tied=yes", "--tied=1"})
    EXPECT_EQ(run(base + "--nhid 6 " + on).code, 2) << on;
  for (const char* bad :
       {"--tied=maybe", "--tied=", "--epochs 99999999999999999999", "--epochs -99999999999999999999",
        "--lr 1e999", "--lr nan", "--momentum -1", "--optimizer qhm --momentum -0.5", "--lr inf",
        "--momentum inf", "--nu -inf", "--tutorial --tied", "--tutorial --nhid 5", "--threads 99999999999"})
    EXPECT_EQ(run(std::string("rnn --mode local ") + bad).code, 2) << bad;
  EXPECT_EQ(run("cartpole --lr inf").code, 2);
  for (const char* crowd : {"my_add --world-size 4294967298", "cartpole --world-size 4294967298",
                            "parameter_server --trainers 4294967298 --steps 4294967298"})
    EXPECT_EQ(run(crowd).code, 2) << crowd;
}

TEST(ProgramsFlags, rnn_tutorial_saves_resumes_generates_and_counts_steps) {
  const Folder folder("tutorial");
  const std::string file = folder.file("model.safetensors");
  const Output first = run("rnn --tutorial --mode local --max-steps 7 --generate 4 --save " + file);
  EXPECT_EQ(first.code, 0) << first.text;
  EXPECT_NE(first.last().find("rnn: epochs=2 steps=7 "), std::string::npos) << first.text;
  ASSERT_TRUE(std::filesystem::exists(file));
  const Output second = run("rnn --tutorial --mode local --max-steps 1 --lr 0 --save " +
                            folder.file("again") + " --resume " + file);
  EXPECT_EQ(second.code, 0) << second.text;
  EXPECT_EQ(contents(folder.file("again")), contents(file));
}

TEST(ProgramsCorpus, what_is_wrong_with_it_is_named_before_a_worker_starts) {
  for (const std::string mode : {"--mode local ", "--mode distributed "}) {
    const Corpus corpus;
    const std::string command = "rnn " + mode + corpus.flag() + kTiny;
    const std::string train = corpus.file("train.txt"), valid = corpus.file("valid.txt"),
                      text = contents(valid);
    write(valid, "");
    expect_refusal(run(command), valid + " is empty");
    write(valid, "one two three\n");
    expect_refusal(run(command), valid + " has 4 tokens, too few for 10 columns");
    std::filesystem::remove(valid);
    expect_refusal(run(command), "cannot open " + valid);
    std::filesystem::create_directory(valid);
    expect_refusal(run(command), valid + " is a folder");
    std::filesystem::remove(valid);
    ASSERT_EQ(mkfifo(valid.c_str(), 0600), 0);
    expect_refusal(run(command), valid + " is not a regular file");
    std::filesystem::remove(valid);
    write(valid, text);
    expect_refusal(run(command + "--batch-size 601"), train + " has 1200 tokens, too few for 601 columns");
    EXPECT_EQ(run(command + "--max-steps 1").code, 0);
  }
}

TEST(ProgramsResume, a_file_of_another_model_is_refused_by_name_locally_and_split) {
  using weft::NamedTensors;
  const Corpus corpus;
  const Folder folder("resume");
  const std::string good = folder.file("good"), bad = folder.file("bad"),
                    base = "rnn " + corpus.flag() + kTiny + "--max-steps 1 ";
  ASSERT_EQ(run(base + "--mode local --save " + good).code, 0);
  const NamedTensors state = weft::load_safetensors(good).tensors;
  const auto without = [&](const std::string& prefix) {
    NamedTensors out;
    for (const auto& entry : state)
      if (entry.first.compare(0, prefix.size(), prefix) != 0) out.push_back(entry);
    return out;
  };
  const auto with = [&](const std::string& name, const weft::Tensor& tensor) {
    NamedTensors out = without(name);
    out.emplace_back(name, tensor);
    return out;
  };
  const std::vector<std::pair<NamedTensors, std::string>> cases{
      {without("decoder."), "missing: decoder.weight decoder.bias"},
      {without("rnn.weight_hh_l1"), "missing: rnn.weight_hh_l1"},
      {with("decoder.bias", weft::zeros({1})), "decoder.bias is [38] here and [1] in the state"},
      {with("encoder.more", weft::zeros({1})), "unexpected: encoder.more"}};
  for (const auto& [tensors, said] : cases) {
    weft::save_safetensors(bad, tensors);
    expect_refusal(run(base + "--mode local --resume " + bad), said);
    expect_refusal(run(base + "--mode distributed --resume " + bad), said, true);
  }
  expect_refusal(run(base + "--mode local --tied --resume " + good), "differ");
  expect_refusal(run(base + "--mode local --resume " + folder.file("none")), folder.file("none"));
}

}  // namespace
