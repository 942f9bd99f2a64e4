// The trace of a group over the simulated network: spans of both ends, arrows between them, latencies and
// failed calls. Also the limit of kept spans, and the open calls of all workers.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <weft/distributed/autograd/dist_autograd.h>
#include <weft/distributed/rpc/rpc.h>
#include <weft/distributed/rpc/trace.h>
#include <weft/distributed/rref/rref.h>
#include <weft/kernels/error.h>
#include <weft/tensor/factories.h>

#include "support/cluster.h"

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace std::chrono_literals;
using test::Cluster;

void nap(int ms) { current_runtime()->sleep_for(std::chrono::milliseconds(ms)); }
WEFT_RPC(nap);

void nap_next_door(int ms) {
  const TraceSpan span("next door");
  rpc_sync<nap>("worker2", ms);
}
WEFT_RPC(nap_next_door);

Future<int> nap_later(int ms) {  // asynchronous: it returns before the nap has begun
  return rpc_async<nap>("worker2", ms).then([](Future<void> done) {
    const TraceSpan span("after the nap");
    done.wait();
    return 1;
  });
}
WEFT_RPC(nap_later);

void refuse_it() { throw ValueError("no"); }
WEFT_RPC(refuse_it);

/// The trace file that `write` makes, as lines; the file is removed.
std::vector<std::string> written() {
  const std::string path =
      std::filesystem::path(::testing::TempDir()) / str("weft_trace_", getpid(), ".json");
  write_trace(path);
  std::ifstream in(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  std::filesystem::remove(path);
  return lines;
}

int count_lines(const std::vector<std::string>& lines, const std::vector<std::string>& parts) {
  int count = 0;
  for (const std::string& line : lines)
    count += std::all_of(parts.begin(), parts.end(),
                         [&](const std::string& part) { return line.find(part) != std::string::npos; });
  return count;
}

/// The number behind `"key": ` in a line.
double number_of(const std::string& line, const std::string& key) {
  const size_t at = line.find("\"" + key + "\": ");
  return at == std::string::npos ? -1 : std::stod(line.substr(at + key.size() + 4));
}
/// A time of a line in nanoseconds, which the file has exactly.
int64_t nanoseconds_of(const std::string& line, const std::string& key) {
  return std::llround(number_of(line, key) * 1000);
}

TEST(Trace, calls_and_their_handlers_are_spans_on_every_worker_with_arrows_between) {
  Cluster c({.size = 3, .seed = 4});
  c.run(0, [] {
    rpc_sync<nap>("worker1", 1);  // before the start: not in the trace
    start_trace();
    rpc_sync<nap_next_door>("worker1", 20);
    EXPECT_THROW(rpc_sync<refuse_it>("worker2"), ValueError);
    stop_trace();
    rpc_sync<nap>("worker1", 1);
    const auto lines = written();
    const auto span = [&](const char* kind, int pid, const char* name) {
      return count_lines(lines, {"\"ph\": \"X\"", str("\"cat\": \"", kind, "\""), str("\"pid\": ", pid, ","),
                                 str("\"name\": \"", name, "\"")});
    };
    EXPECT_EQ(span("call", 0, "nap_next_door"), 1);
    EXPECT_EQ(span("served", 1, "nap_next_door"), 1);
    EXPECT_EQ(span("call", 1, "nap"), 1);
    EXPECT_EQ(span("served", 2, "nap"), 1);
    EXPECT_EQ(span("call", 0, "nap"), 0);
    EXPECT_EQ(span("program", 1, "next door"), 1);
    EXPECT_EQ(count_lines(lines, {"refuse_it", "\"ok\": false"}), 2);  // at both ends
    EXPECT_EQ(count_lines(lines, {"process_name", "\"worker2\""}), 1);
    ASSERT_GE(lines.size(), 3u);
    EXPECT_EQ(lines.front(), R"({"displayTimeUnit": "ns", "traceEvents": [)");
    EXPECT_EQ(lines.back(), "]}");
    for (size_t i = 1; i + 1 < lines.size(); ++i) {  // an object per line
      EXPECT_EQ(lines[i].substr(0, 7), R"({"ph": )") << lines[i];
      EXPECT_TRUE(lines[i].ends_with(i + 2 < lines.size() ? "}," : "}")) << lines[i];
      EXPECT_EQ(std::count(lines[i].begin(), lines[i].end(), '"') % 2, 0) << lines[i];
    }
    for (const std::string& line : lines) {
      if (line.find("\"name\": \"nap\"") == std::string::npos || line.find("\"X\"") == std::string::npos)
        continue;
      EXPECT_GE(number_of(line, "dur"), 20'000) << line;  // microseconds
    }
    // each arrow of a handler begins at a call
    int arrows = 0;
    for (const std::string& line : lines) {
      if (line.find("\"ph\": \"f\"") == std::string::npos) continue;
      const std::string id = line.substr(line.find("\"id\": "), line.find('}') - line.find("\"id\": "));
      const int begun = count_lines(lines, {"\"ph\": \"s\"", id});
      arrows += begun;
      EXPECT_LE(begun, 1) << line;
    }
    EXPECT_GE(arrows, 3);
  });
  c.shutdown();
}

TEST(Trace, messages_of_references_and_passes_are_spans_with_the_bytes_of_their_tensors) {
  Cluster c({.size = 2, .seed = 4});
  c.run(0, [] {
    start_trace();
    const Tensor w = ones({100}).requires_grad_(true);
    {
      dist_autograd::Context context;
      context.backward({rpc_sync<builtin::add>("worker1", w, w).sum()});
    }
    remote<builtin::add>("worker1", w.detach(), w.detach()).to_here();
    while (current_agent()->debug_info().at("agent.client_active_calls") >
           0)  // a span is that of an ended call
      current_runtime()->sleep_for(1ms);
    const auto lines = written();
    EXPECT_EQ(count_lines(lines, {"\"call\"", "\"pid\": 0,", "\"weft::add\"", "\"tensor_bytes\": 800"}), 2);
    EXPECT_EQ(count_lines(lines, {"\"program\"", "\"pid\": 0,", "\"backward\""}), 1);
    EXPECT_GE(count_lines(lines, {"\"call\"", "\"pid\": 0,", "\"gradients of a backward pass\""}), 1);
    EXPECT_GE(count_lines(lines, {"\"served\"", "\"pid\": 1,", str("\"", to_string(Kind::kGradients), "\"")}),
              1);
    EXPECT_GE(count_lines(lines, {"\"call\"", "\"pid\": 0,", "\"to_here\""}), 1);
  });
  c.shutdown();
}

TEST(Trace, an_asynchronous_function_has_a_span_until_its_future_is_done_and_the_calls_that_it_made) {
  Cluster c({.size = 3, .seed = 4});
  c.run(0, [] {
    start_trace();
    EXPECT_EQ(rpc_sync<nap_later>("worker1", 20), 1);
    const auto lines = written();
    const auto spans = [&](const char* kind, int pid, const char* name) {
      std::vector<std::string> found;
      for (const std::string& line : lines)
        if (count_lines({line}, {"\"ph\": \"X\"", str("\"cat\": \"", kind, "\""), str("\"pid\": ", pid, ","),
                                 str("\"name\": \"", name, "\"")}) == 1)
          found.push_back(line);
      return found;
    };
    ASSERT_EQ(spans("served", 1, "nap_later").size(), 1u);
    EXPECT_GE(number_of(spans("served", 1, "nap_later").front(), "dur"), 20'000);  // microseconds
    EXPECT_EQ(spans("call", 0, "nap_later").size(), 1u);
    EXPECT_EQ(spans("call", 1, "nap").size(), 1u);
    EXPECT_EQ(spans("served", 2, "nap").size(), 1u);
    EXPECT_EQ(spans("program", 1, "after the nap").size(), 1u);
  });
  c.shutdown();
}

TEST(Trace, clocks_are_aligned_so_that_a_handler_lies_within_its_call) {
  Cluster c({.over = test::Over::kGrpc, .size = 2});
  c.run(0, [] {
    start_trace();
    rpc_sync<nap>("worker1", 30);
    const auto lines = written();
    int64_t call_start = -1, call_end = -1, served_start = -1, served_end = -1;
    for (const std::string& line : lines) {
      if (line.find("\"name\": \"nap\"") == std::string::npos || line.find("\"X\"") == std::string::npos)
        continue;
      const bool served = line.find("\"served\"") != std::string::npos;
      const int64_t start = nanoseconds_of(line, "ts");
      (served ? served_start : call_start) = start;
      (served ? served_end : call_end) = start + nanoseconds_of(line, "dur");
    }
    ASSERT_GE(call_start, 0);
    EXPECT_GE(served_start, call_start);
    EXPECT_LE(served_end, call_end);
  });
  c.shutdown();
}

TEST(Trace, clocks_are_aligned_also_where_messages_take_different_times) {
  Cluster c({.size = 2, .seed = 3, .net = {.latency = 0us, .jitter = 400us}});
  c.run(0, [] {
    start_trace();
    for (int i = 0; i < 30; ++i) rpc_sync<nap>("worker1", 0);
    std::vector<std::pair<int64_t, int64_t>> calls, served;
    for (const std::string& line : written()) {
      if (line.find("\"name\": \"nap\"") == std::string::npos || line.find("\"X\"") == std::string::npos)
        continue;
      const int64_t start = nanoseconds_of(line, "ts"), end = start + nanoseconds_of(line, "dur");
      (line.find("\"served\"") != std::string::npos ? served : calls).emplace_back(start, end);
    }
    std::sort(calls.begin(), calls.end());
    std::sort(served.begin(), served.end());
    ASSERT_EQ(calls.size(), 30u);
    ASSERT_EQ(served.size(), 30u);
    for (size_t i = 0; i < calls.size(); ++i) {
      EXPECT_GE(served[i].first, calls[i].first) << i;
      EXPECT_LE(served[i].second, calls[i].second) << i;
    }
  });
  c.shutdown();
}

TEST(Trace, latencies_are_counted_by_function) {
  Cluster c({.size = 2});
  c.run(0, [] {
    start_trace();
    for (int i = 0; i < 9; ++i) rpc_sync<nap>("worker1", 10);
    rpc_sync<nap>("worker1", 500);
    EXPECT_THROW(rpc_sync<refuse_it>("worker1"), ValueError);
    const auto all = call_latencies();
    const Latencies& nap = all.at("nap");
    EXPECT_EQ(nap.count, 10);
    EXPECT_EQ(nap.errors, 0);
    EXPECT_GE(nap.quantile(0.5), 10ms);
    EXPECT_LE(nap.quantile(0.5), 20ms);
    EXPECT_GE(nap.quantile(1), 500ms);
    EXPECT_EQ(nap.quantile(1), nap.longest);
    EXPECT_EQ(all.at("refuse_it").errors, 1);
    EXPECT_THROW(nap.quantile(1.5), ValueError);
    start_trace();
    EXPECT_EQ(call_latencies().count("nap"), 0u);
  });
  c.shutdown();
}

class TraceOver : public ::testing::TestWithParam<test::Over> {};
INSTANTIATE_TEST_SUITE_P(Over, TraceOver, ::testing::Values(test::Over::kSim, test::Over::kGrpc),
                         [](const auto& info) { return test::to_string(info.param); });

/// Four callers at once in worker 0 of three.
void call_at_once() {
  constexpr int kCalls = 25;
  start_trace();
  std::vector<Future<void>> callers;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back();
    current_runtime()->post([i, done = callers.back(), agent = current_agent()] {
      const AgentScope scope(agent);
      const std::string to = i % 2 == 0 ? "worker1" : "worker2";
      try {
        for (int call = 0; call < kCalls; ++call) {
          if (i < 2) rpc_sync<nap>(to, 0);
          else if (i == 2) rpc_sync<nap_next_door>(to, 0);
          else EXPECT_THROW(rpc_sync<refuse_it>(to), ValueError);
        }
        done.set_result();
      } catch (...) {
        done.set_error(std::current_exception());
      }
    });
  }
  wait_all(callers);
  const auto latencies = call_latencies();
  const auto counts = [&](const char* name) {
    const auto at = latencies.find(name);
    return at == latencies.end() ? std::pair<int64_t, int64_t>()
                                 : std::pair(at->second.count, at->second.errors);
  };
  EXPECT_EQ(counts("nap"), std::pair(int64_t{2 * kCalls}, int64_t{0}));
  EXPECT_EQ(counts("nap_next_door"), std::pair(int64_t{kCalls}, int64_t{0}));
  EXPECT_EQ(counts("refuse_it"), std::pair(int64_t{kCalls}, int64_t{kCalls}));
  stop_trace();
  const auto lines = written();
  const auto spans = [&](const char* kind, int pid, const char* name, const char* other, bool ok) {
    return count_lines(lines, {"\"ph\": \"X\"", str("\"cat\": \"", kind, "\""), str("\"pid\": ", pid, ","),
                               str("\"name\": \"", name, "\""), str(": \"", other, "\""),
                               str("\"ok\": ", ok ? "true" : "false")});
  };
  // from worker 0 to each of the others, and from worker 1 to worker 2
  EXPECT_EQ(spans("call", 0, "nap", "worker1", true), kCalls);
  EXPECT_EQ(spans("call", 0, "nap", "worker2", true), kCalls);
  EXPECT_EQ(spans("call", 0, "nap_next_door", "worker1", true), kCalls);
  EXPECT_EQ(spans("call", 0, "refuse_it", "worker2", false), kCalls);
  EXPECT_EQ(spans("call", 1, "nap", "worker2", true), kCalls);
  EXPECT_EQ(spans("served", 1, "nap", "worker0", true), kCalls);
  EXPECT_EQ(spans("served", 2, "nap", "worker0", true), kCalls);
  EXPECT_EQ(spans("served", 2, "nap", "worker1", true), kCalls);
  EXPECT_EQ(spans("served", 1, "nap_next_door", "worker0", true), kCalls);
  EXPECT_EQ(spans("served", 2, "refuse_it", "worker0", false), kCalls);
  EXPECT_EQ(count_lines(lines, {"\"ph\": \"X\"", "\"name\": \"nap\""}), 6 * kCalls);
  EXPECT_EQ(count_lines(lines, {"\"ph\": \"X\"", "\"name\": \"nap_next_door\""}), 2 * kCalls);
  EXPECT_EQ(count_lines(lines, {"\"ph\": \"X\"", "\"name\": \"refuse_it\""}), 2 * kCalls);
}

// test_profiler_rpc_key_names, and the profiler's tests with a single thread
TEST_P(TraceOver, calls_at_once_keep_their_names_workers_and_counts) {
  for (const int threads : {1, 4}) {
    Cluster c({.over = GetParam(), .size = 3, .threads = threads});
    c.run(0, call_at_once);
    c.shutdown();
  }
}

TEST(Trace, the_newest_spans_are_kept_and_the_others_counted) {
  Cluster c({.size = 2});
  c.run(0, [] {
    start_trace({.spans = 8});
    for (int i = 0; i < 20; ++i) rpc_sync<nap>("worker1", i);
    const auto lines = written();
    EXPECT_LE(count_lines(lines, {"\"pid\": 0,", "\"ph\": \"X\"", "\"cat\": \"call\""}), 8);
    EXPECT_EQ(count_lines(lines, {"\"pid\": 1,", "older spans are not kept"}), 1);
    EXPECT_THROW(start_trace({.spans = 0}), ValueError);
    EXPECT_THROW(write_trace("no/such/folder/trace.json"), IoError);
  });
  c.shutdown();
}

TEST(Trace, a_stream_gets_the_named_workers_or_all) {
  Cluster c({.size = 3, .seed = 6, .agent = {.lease = 1s}});
  c.run(0, [&] {
    start_trace();
    rpc_sync<nap_next_door>("worker1", 5);
    const auto stream_of = [](const std::vector<std::string>& workers) {
      std::ostringstream out;
      write_trace(out, workers);
      return out.str();
    };
    const auto named = [](const std::string& trace, int worker) {
      return trace.find(str("{\"name\": \"worker", worker, "\"}")) != std::string::npos;
    };
    const std::string all = stream_of({}), one = stream_of({"worker1"});
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(named(all, i)) << i;
      EXPECT_EQ(named(one, i), i == 1) << i;
    }
    EXPECT_THROW(stream_of({"nobody"}), ValueError);
    std::ostringstream broken;
    broken.setstate(std::ios::badbit);
    EXPECT_THROW(write_trace(broken), IoError);
  });
  c.kill(2);
  c.run(0, [] {
    std::ostringstream out;
    EXPECT_THROW(write_trace(out, {"worker2"}, 30s), PeerLost);
  });
}

TEST(Trace, the_file_has_no_number_that_proves_a_life) {
  Cluster c({.size = 2, .seed = 5});
  std::string all;
  c.run(0, [&] {
    start_trace();
    rpc_sync<nap>("worker1", 1);
    for (const std::string& line : written()) all += line;
  });
  EXPECT_NE(all.find("\"id\": \"0.0.1."), std::string::npos) << all;
  for (int rank : {0, 1}) {
    const std::string number = str(c.agent(rank)->life().incarnation.value);
    ASSERT_GT(number.size(), 4u);
    EXPECT_EQ(all.find(number), std::string::npos) << all;
  }
  c.shutdown();
}

TEST(Trace, a_lost_worker_is_left_out_and_calls_that_wait_are_shown_with_their_worker) {
  Cluster c({.size = 4, .seed = 2, .agent = {.lease = 1s}});
  c.kill(3);
  c.run(0, [&] {
    start_trace({.timeout = 30s});
    Future<void> waits = rpc_async<nap_next_door>("worker1", 5000);
    current_runtime()->sleep_for(100ms);
    const std::string graph = wait_graph();
    EXPECT_NE(graph.find("worker 'worker1':"), std::string::npos) << graph;
    EXPECT_NE(graph.find("'nap_next_door'"), std::string::npos) << graph;
    EXPECT_NE(graph.find("'nap' on worker 'worker2'"), std::string::npos) << graph;
    waits.wait();
    EXPECT_GT(written().size(), 4u);
  });
}

}  // namespace
