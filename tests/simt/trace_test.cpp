// Traces of the work of devices: their spans in a file, and as NVTX ranges, for which the emulation keeps a
// list. A time is only held against another one of the same clock.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <weft/kernels/cuda/trace.h>
#include <weft/tensor/cuda.h>
#include <weft/weft.h>
#include "../../bench/gpu/bench.h"
#include "cuda/shared/device_test.h"
#include "support/errors.h"

namespace weft::test {
namespace {

using std::string, std::vector;

struct Event {
  string name;
  int process = -1, row = -1;  // process 0 is the host, 1 + i is cuda:i
  double begin = 0, length = 0;
};

/// The value of a field up to its comma, or to the end of the event.
string field(const string& line, const string& name) {
  const size_t at = line.find("\"" + name + "\": ");
  if (at == string::npos) return "";
  const size_t begin = at + name.size() + 4;
  return line.substr(begin, line.find_first_of(",}", begin) - begin);
}

struct SimtTrace : DeviceTest {
  void SetUp() override {
    DeviceTest::SetUp();
    file = std::filesystem::temp_directory_path() / ("weft_trace_" + std::to_string(getpid()) + ".json");
    cuda::simt::take_ranges();
  }
  void TearDown() override {
    cuda::start_trace("nvtx");  // drops a trace that a failed test has left
    cuda::finish_trace();
    std::filesystem::remove(file);
    DeviceTest::TearDown();
  }
  vector<Event> finish() {
    cuda::finish_trace();
    std::ifstream in(file);
    std::stringstream text;
    text << in.rdbuf();
    EXPECT_EQ(text.str().substr(0, 1), "{");
    EXPECT_EQ(text.str().substr(text.str().size() - 4), "\n]}\n");
    vector<Event> events;
    for (string line; std::getline(text, line);)
      if (line.starts_with("{\"ph\": \"X\""))
        events.push_back({field(line, "name"), std::stoi(field(line, "pid")), std::stoi(field(line, "tid")),
                          std::stod(field(line, "ts")), std::stod(field(line, "dur"))});
    return events;
  }
  static vector<Event> named(const vector<Event>& events, const string& name, int process) {
    vector<Event> found;
    for (const Event& e : events)
      if (e.name == '"' + name + '"' && e.process == process) found.push_back(e);
    return found;
  }
  std::filesystem::path file;
};

TEST_F(SimtTrace, spans_have_the_times_of_the_host_and_of_the_device) {
  const Tensor x = ones({64, 3}, {.device = gpu});
  cuda::start_trace(file);
  {
    const cuda::Range range("a \"part\"", gpu);
    EXPECT_EQ(exp(x).sum().item<float>(), exp(ones({64, 3})).sum().item<float>());
  }
  exp(x);
  const vector<Event> events = finish();
  for (const int process : {0, 1}) {
    const vector<Event> launches = named(events, "Exp", process),
                        copies = named(events, "copy_to_host", process),
                        ranges = named(events, "a \\\"part\\\"", process);
    ASSERT_EQ(launches.size(), 2u) << process;
    ASSERT_EQ(copies.size(), 1u) << process;
    ASSERT_EQ(ranges.size(), 1u) << process;
    const auto holds = [&](const Event& e) {
      return ranges[0].begin <= e.begin && e.begin + e.length <= ranges[0].begin + ranges[0].length + 0.002;
    };
    EXPECT_TRUE(holds(launches[0]) || holds(launches[1])) << process;
    EXPECT_FALSE(holds(launches[0]) && holds(launches[1])) << process;
    EXPECT_TRUE(holds(copies[0])) << process;
  }
  for (const Event& e : events) {
    EXPECT_GE(e.begin, 0) << e.name;
    EXPECT_GE(e.length, 0) << e.name;
  }
}

TEST_F(SimtTrace, streams_devices_and_threads_have_rows_of_their_own) {
  const cuda::Stream side(gpu);
  const Tensor x = ones({5}, {.device = gpu}), y = ones({5}, {.device = "cuda:1"});
  cuda::start_trace(file);
  exp(x);
  {
    const cuda::StreamGuard guard(side);
    exp(x);
  }
  std::thread([&] { exp(y); }).join();
  const vector<Event> events = finish();
  const vector<Event> first = named(events, "Exp", 1), second = named(events, "Exp", 2),
                      host = named(events, "Exp", 0);
  ASSERT_EQ(first.size(), 2u);
  ASSERT_EQ(second.size(), 1u);
  ASSERT_EQ(host.size(), 3u);
  EXPECT_NE(first[0].row, first[1].row);
  EXPECT_EQ(host[0].row, host[1].row);
  EXPECT_NE(host[0].row, host[2].row);
}

TEST_F(SimtTrace, recorded_work_has_the_time_of_the_host_alone_and_a_replay_has_both) {
  Tensor x = ones({7}, {.device = gpu}), y;
  exp(x);
  cuda::start_trace(file);
  cuda::Graph graph(gpu);
  graph.capture([&] { y = exp(x); });
  for (int i = 0; i < 3; ++i) graph.replay();
  EXPECT_EQ(y.to_vector<float>(), exp(ones({7})).to_vector<float>());
  const vector<Event> events = finish();
  EXPECT_EQ(named(events, "Exp", 0).size(), 1u);
  EXPECT_EQ(named(events, "Exp", 1).size(), 0u);
  EXPECT_EQ(named(events, "replay", 0).size(), 3u);
  EXPECT_EQ(named(events, "replay", 1).size(), 3u);
}

TEST_F(SimtTrace, bench_gpu_leaves_a_row_out_whose_call_does_not_issue_its_kernels) {
  const Tensor x = ones({7}, {.device = gpu});
  bench::Bench b;
  b.samples = 1, b.seconds = 0;
  const auto work = [&] { exp(exp(x)); };
  b.run_with({{"Exp"}}, "Shown/1", work);
  b.run_with({{"Exp", 2}}, "Shown/2", work);
  EXPECT_EQ(b.rows.size(), 2u);
  b.run_with({{"Exp"}, {"Tanh"}}, "Hidden/1", work);
  b.run_with({{"Exp", 1}}, "Hidden/2", work);
  EXPECT_EQ(b.rows.size(), 2u);
  EXPECT_EQ(b.left_out, 2);
  b.run_with({{"Exp"}}, "Failed", [&] { exp(ones({7}, {.device = "cuda:9"})); });
  EXPECT_EQ(b.failures, 1);
  Tensor y;
  cuda::Graph graph(gpu);
  const auto recorded = bench::spans_of([&] { graph.capture([&] { y = exp(x); }); });
  ASSERT_TRUE(recorded);
  EXPECT_EQ(*recorded, (bench::Spans{{"Exp", 1}}));
  cuda::start_trace(file);  // a trace of the user's goes on
  b.run_with({{"Tanh"}}, "Shown/3", work);
  EXPECT_EQ(b.rows.size(), 3u);
  EXPECT_FALSE(named(finish(), "Exp", 0).empty());
}

TEST_F(SimtTrace, bench_gpu_fails_one_row_where_no_folder_takes_a_trace) {
  const char* const set = std::getenv("TMPDIR");
  const string before = set ? set : "";
  const Tensor x = ones({7}, {.device = gpu});
  bench::Bench b;
  b.samples = 1, b.seconds = 0;
  setenv("TMPDIR", "/no/such/folder", 1);
  b.run_with({{"Exp"}}, "Failed", [&] { exp(x); });
  set ? setenv("TMPDIR", before.c_str(), 1) : unsetenv("TMPDIR");
  EXPECT_EQ(b.failures, 1);
  b.run_with({{"Exp"}}, "Shown", [&] { exp(x); });
  EXPECT_EQ(b.rows.size(), 1u);
}

TEST(BenchGpu, a_row_of_another_form_stands_beside_the_figure_of_its_work) {
  bench::Bench b;
  b.peers = {{"LmStep/1/2", 1}, {"LmStepGraph/1/2", 2}, {"Attention/both/x", 3}, {"Lstm/a", 4}};
  for (const auto& [name, ns] : std::map<string, double>{{"LmStep/1/2", 1},
                                                         {"LmStepPersistent/1/2", 1},
                                                         {"LmStepCudnnDropoutFlat/1/2", 1},
                                                         {"LmStepGraphWavefront/1/2", 2},
                                                         {"AttentionCudnnUnordered/both/x", 3},
                                                         {"LstmCudnnFlat/a", 4},
                                                         {"LstmPersistent/b", 0},
                                                         {"LmStepBFloat16/1/2", 0}})
    EXPECT_EQ(b.peer_of(name).value_or(0), ns) << name;
}

TEST_F(SimtTrace, more_spans_than_events_at_once_keep_their_times) {
  const Tensor x = ones({2}, {.device = gpu});
  cuda::start_trace(file);
  for (int i = 0; i < 1500; ++i) exp(x);
  const vector<Event> events = finish();
  EXPECT_EQ(named(events, "Exp", 0).size(), 1500u);
  EXPECT_EQ(named(events, "Exp", 1).size(), 1500u);
}

TEST_F(SimtTrace, ranges_nest_and_end_where_an_error_leaves) {
  const Tensor x = ones({4}, {.device = gpu});
  cuda::start_trace("nvtx");
  try {
    const cuda::Range range("outer", gpu);
    exp(x);
    throw ValueError("a step that fails");
  } catch (const ValueError&) {
  }
  EXPECT_EQ(cuda::simt::take_ranges(), (vector<string>{"outer", "Exp", "end", "end"}));
  cuda::finish_trace();
  {
    const cuda::Range range("outer", gpu);
    exp(x);
  }
  EXPECT_EQ(cuda::simt::take_ranges(), vector<string>{});
}

TEST_F(SimtTrace, a_range_that_outlives_its_trace_ends) {
  cuda::start_trace(file);
  {
    const cuda::Range range("outer", gpu);
    EXPECT_TRUE(finish().empty());
  }
  EXPECT_EQ(cuda::simt::take_ranges(), (vector<string>{"outer", "end"}));
}

TEST_F(SimtTrace, a_file_that_cannot_be_written_is_an_error_that_names_it) {
  cuda::start_trace("/nonexistent/trace.json");
  exp(ones({4}, {.device = gpu}));
  EXPECT_TRUE(has(error_of<IoError>([] { cuda::finish_trace(); }), "'/nonexistent/trace.json'"));
  cuda::start_trace(std::filesystem::temp_directory_path() / "weft_trace_%p.json");
  EXPECT_TRUE(finish().empty());
  EXPECT_TRUE(std::filesystem::exists(file));  // the one with this process's number
}

}  // namespace
}  // namespace weft::test
