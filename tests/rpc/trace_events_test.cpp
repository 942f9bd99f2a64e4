// The file of a trace as a whole: it is JSON, and spans that share a row nest. The wait for a thread and the
// steps of optimizers have spans. In an elastic group workers that join later record too.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <thread>

#include <weft/distributed/autograd/dist_autograd.h>
#include <weft/distributed/optim/dist_optimizer.h>
#include <weft/distributed/rpc/rpc.h>
#include <weft/distributed/rpc/trace.h>
#include <weft/distributed/rref/rref.h>
#include <weft/tensor/factories.h>

#include "support/cluster.h"
#include "support/elastic.h"
#include "support/json.h"

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace std::chrono_literals;
using test::Cluster;
using test::ElasticGroup;

int64_t traced_twice(int64_t n) {
  current_runtime()->sleep_for(2ms);
  return 2 * n;
}
WEFT_RPC(traced_twice);

void traced_work() {  // it keeps its thread of the pool
  const TraceSpan span("work");
  std::this_thread::sleep_for(5ms);
}
WEFT_RPC(traced_work);

int64_t traced_pass_on(int64_t n) {
  const TraceSpan span("pass on");
  return rpc_sync<traced_twice>("worker0", n) + rpc_sync<traced_twice>("worker2", n);
}
WEFT_RPC(traced_pass_on);

RRef<Tensor> traced_parameter() { return RRef<Tensor>(ones({2}).requires_grad_()); }
WEFT_RPC(traced_parameter);

/// An event of a file; times in nanoseconds, which the file has exactly.
struct Event {
  std::string kind, category, name, process, row;
  int64_t start = 0, end = 0;
};

int64_t time_in(const test::Json& json, const char* member) {
  return json.members().count(member) ? std::llround(std::stod(json.value_of(member)) * 1000) : 0;
}

/// Collects the trace as the current worker. The whole file must be JSON, and so must be each line of it.
std::vector<Event> collected_events() {
  std::ostringstream out;
  write_trace(out);
  const test::Json whole(out.str());
  EXPECT_TRUE(whole.ok()) << out.str();
  EXPECT_EQ(whole.members().count("traceEvents"), 1u) << out.str();
  std::vector<Event> events;
  std::istringstream lines(out.str());
  for (std::string line; std::getline(lines, line);) {
    if (line.find("\"ph\"") == std::string::npos) continue;
    const test::Json json(line.ends_with(',') ? line.substr(0, line.size() - 1) : line);
    EXPECT_TRUE(json.ok()) << line;
    const int64_t start = time_in(json, "ts");
    events.push_back({json.value_of("ph"), json.value_of("cat"), json.value_of("name"), json.value_of("pid"),
                      json.value_of("tid"), start, start + time_in(json, "dur")});
  }
  return events;
}

std::vector<Event> named_spans(const std::vector<Event>& events, const std::string& category,
                               const std::string& name, const std::string& process = "") {
  std::vector<Event> found;
  for (const Event& e : events)
    if (e.kind == "X" && e.category == category && e.name == name &&
        (process.empty() || e.process == process))
      found.push_back(e);
  return found;
}

bool lies_within(const Event& inner, const Event& outer) {
  return outer.start <= inner.start && inner.end <= outer.end;
}

void expect_rows_nest(const std::vector<Event>& events) {
  for (size_t i = 0; i < events.size(); ++i) {
    for (size_t k = 0; k < i; ++k) {
      const Event &a = events[i], &b = events[k];
      if (a.kind != "X" || b.kind != "X" || a.process != b.process || a.row != b.row) continue;
      const bool apart = a.end <= b.start || b.end <= a.start;
      EXPECT_TRUE(apart || lies_within(a, b) || lies_within(b, a))
          << a.category << " " << a.name << " " << a.start << " to " << a.end << ", " << b.category << " "
          << b.name << " " << b.start << " to " << b.end;
    }
  }
}

TEST(Trace, spans_that_overlap_and_do_not_nest_have_rows_of_their_own) {
  Cluster c({.size = 3, .seed = 9});
  c.run(0, [] {
    start_trace();
    std::vector<Future<int64_t>> calls;
    for (int i = 0; i < 12; ++i) {
      calls.push_back(rpc_async<traced_pass_on>("worker1", i));
      current_runtime()->sleep_for(700us);
    }
    for (auto& call : calls) call.wait();
    const auto events = collected_events();
    const auto served = named_spans(events, "served", "traced_pass_on", "1");
    ASSERT_EQ(served.size(), 12u);
    size_t overlaps = 0;
    for (size_t i = 1; i < served.size(); ++i) overlaps += served[i].start < served[i - 1].end;
    EXPECT_GT(overlaps, 0u);
    EXPECT_EQ(named_spans(events, "program", "pass on", "1").size(), 12u);
    expect_rows_nest(events);
  });
  c.shutdown();
}

TEST(Trace, a_request_that_waits_for_a_thread_has_a_span_that_ends_where_its_handler_begins) {
  Cluster c({.over = test::Over::kGrpc, .size = 2, .threads = 1});
  c.run(0, [] {
    start_trace();
    std::vector<Future<void>> calls;
    for (int i = 0; i < 6; ++i) calls.push_back(rpc_async<traced_work>("worker1"));
    for (auto& call : calls) call.wait();
    const auto events = collected_events();
    expect_rows_nest(events);
    const auto served = named_spans(events, "served", "traced_work", "1");
    const auto works = named_spans(events, "program", "work", "1");
    ASSERT_EQ(served.size(), 6u);
    ASSERT_EQ(works.size(), 6u);
    int waited = 0;
    for (const Event& wait : named_spans(events, "queue", "waits for a thread", "1")) {
      const auto request = std::find_if(served.begin(), served.end(), [&](const Event& s) {
        return s.row == wait.row && s.start == wait.start;
      });
      if (request == served.end()) continue;  // of another function
      EXPECT_TRUE(lies_within(wait, *request));
      // the arrow leads to the begin of the handler
      EXPECT_TRUE(std::any_of(events.begin(), events.end(), [&](const Event& e) {
        return e.kind == "f" && e.process == "1" && e.row == wait.row && e.start == wait.end;
      }));
      // with one thread another handler ran meanwhile, and none is cut by the begin of this one
      bool beside = false;
      for (const Event& work : works) {
        EXPECT_FALSE(work.start < wait.end && wait.end < work.end);
        beside = beside || (work.start < wait.end && wait.start < work.end);
      }
      waited += beside;
    }
    EXPECT_GE(waited, 1);
  });
  c.shutdown();
}

TEST(Trace, a_step_of_a_distributed_optimizer_is_a_span_around_the_calls_to_the_owners) {
  for (const bool two_phase : {false, true}) {
    Cluster c({.size = 2, .seed = 3});
    c.run(0, [two_phase] {
      const RRef<Tensor> mine = traced_parameter(), theirs = rpc_sync<traced_parameter>("worker1");
      dist_optim::DistributedOptimizer sgd =
          dist_optim::make<optim::SGDRule>({mine, theirs}, {.lr = 0.1}, {.two_phase = two_phase});
      start_trace();
      dist_autograd::Context context;
      const Tensor w = mine.local_value();
      context.backward({rpc_sync<builtin::add>("worker1", w, w).sum()});
      sgd.step(context.id());
      const auto events = collected_events();
      const auto steps = named_spans(events, "program", "step", "0");
      ASSERT_EQ(steps.size(), 1u);
      ASSERT_EQ(named_spans(events, "program", "backward", "0").size(), 1u);
      EXPECT_LE(named_spans(events, "program", "backward", "0")[0].end, steps[0].start);
      int calls = 0;
      for (const Event& e : events) {
        if (e.kind != "X" || e.category != "call" || e.process != "0") continue;
        if (e.name.find("OwnerOptimizer::") == std::string::npos) continue;
        ++calls;
        EXPECT_TRUE(lies_within(e, steps[0])) << e.name;
      }
      EXPECT_GE(calls, two_phase ? 4 : 2);
    });
    c.shutdown();
  }
}

/// A group of "a", "b" and "c" that know each other, whose lease is a second.
struct TracedGroup {
  explicit TracedGroup(SimNetOptions net = {}) : g({.seed = 5, .net = net, .lease = 1s}) {
    for (const char* name : {"a", "b", "c"}) workers.push_back(&g.join(name));
    g.sim().run_for(1s);
  }
  ElasticGroup::Worker& operator[](size_t i) { return *workers.at(i); }
  /// Another life of a worker that has died, or a new one.
  ElasticGroup::Worker& joined(const std::string& name) {
    auto& worker = g.join(name);
    g.sim().run_for(1s);  // until all know it, and until the one that traces has told it
    return worker;
  }
  ElasticGroup g;
  std::vector<ElasticGroup::Worker*> workers;
};

/// Calls between the current worker `me` and `other` in both directions. Then the spans of both ends are in
/// the file that `me` writes, and each handler lies within its call.
void expect_recorded(TracedGroup& t, const ElasticGroup::Worker& me, const ElasticGroup::Worker& other,
                     bool recorded = true) {
  t.g.run(other, [&] { EXPECT_EQ(rpc_sync<traced_twice>(me.name, 1), 2); });
  t.g.run(me, [&] {
    EXPECT_EQ(rpc_sync<traced_twice>(other.name, 1), 2);
    const auto events = collected_events();
    const std::string here = str(me.id()), there = str(other.id());
    const auto served = named_spans(events, "served", "traced_twice", there);
    const auto calls = named_spans(events, "call", "traced_twice", there);
    ASSERT_EQ(served.size(), recorded ? 1u : 0u);
    ASSERT_EQ(calls.size(), recorded ? 1u : 0u);
    if (!recorded) return;
    const auto inside = [](const Event& handler) {
      return [&](const Event& call) { return lies_within(handler, call); };
    };
    const auto from_here = named_spans(events, "call", "traced_twice", here);
    EXPECT_TRUE(std::any_of(from_here.begin(), from_here.end(), inside(served[0])));
    const auto served_here = named_spans(events, "served", "traced_twice", here);
    EXPECT_TRUE(std::any_of(served_here.begin(), served_here.end(),
                            [&](const Event& handler) { return lies_within(handler, calls[0]); }));
    expect_rows_nest(events);
  });
}

TEST(Trace, a_successor_and_a_worker_that_joins_later_record_too) {
  for (size_t starter = 0; starter < 3; ++starter) {
    for (size_t victim = 0; victim < 3; ++victim) {
      if (victim == starter) continue;
      TracedGroup t;
      t.g.run(t[starter], [] { start_trace(); });
      t.g.kill(t[victim]);
      SCOPED_TRACE(str("starter ", starter, ", victim ", victim));
      expect_recorded(t, t[starter], t.joined(t[victim].name));
    }
  }
  TracedGroup t;
  t.g.run(t[1], [] { start_trace(); });
  expect_recorded(t, t[1], t.joined("d"));
}

TEST(Trace, a_worker_that_joins_keeps_as_many_spans_and_those_of_its_own_start) {
  TracedGroup t;
  t.g.run(t[0], [] { start_trace({.spans = 3}); });
  auto& d = t.joined("d");
  t.g.run(d, [&] {
    for (int i = 0; i < 5; ++i) rpc_sync<traced_twice>("b", i);
    std::ostringstream out;
    write_trace(out, {"d"});
    EXPECT_NE(out.str().find("older spans are not kept"), std::string::npos) << out.str();
  });
}

TEST(Trace, a_start_that_keeps_forgets_no_spans_and_starts_the_others) {
  TracedGroup t;
  t.g.run(t[0], [] { start_trace(); });
  t.g.run(t[1], [] { EXPECT_EQ(rpc_sync<traced_twice>("c", 1), 2); });
  t.g.kill(t[0]);
  t.g.sim().run_for(5s);
  auto& d = t.joined("d");  // nobody tells it
  t.g.run(d, [&] {
    start_trace({.keep = true});
    const auto events = collected_events();
    EXPECT_EQ(named_spans(events, "call", "traced_twice", "1").size(), 1u);
    EXPECT_EQ(named_spans(events, "served", "traced_twice", "2").size(), 1u);
  });
  expect_recorded(t, d, t.joined("e"));
}

TEST(Trace, a_worker_that_joins_after_its_end_does_not_record) {
  for (const size_t stops : {0, 1}) {  // the worker that has started it, or another one
    TracedGroup t;
    t.g.run(t[0], [] { start_trace(); });
    t.g.run(t[stops], [] { stop_trace(); });
    expect_recorded(t, t[0], t.joined("d"), false);
  }
}

TEST(Trace, a_worker_that_joins_while_it_begins_records) {
  for (int i = 0; i < 40; ++i) {
    SCOPED_TRACE(i);
    TracedGroup t;
    t.g.sim().post([&, i] {
      t.g.sim().sleep_for(i * 100us);
      t.g.run(t[0], [] { start_trace(); });
    });
    expect_recorded(t, t[0], t.joined("d"));
  }
}

TEST(Trace, a_worker_that_joins_while_it_ends_does_not_record) {
  for (int i = 0; i < 40; ++i) {
    SCOPED_TRACE(i);
    TracedGroup t({.jitter = 2ms});  // the word of the end may come before that of the start
    t.g.run(t[0], [&] {
      start_trace();
      on_member_joined([&, i](const WorkerInfo&) {
        t.g.sim().sleep_for(i * 50us);
        stop_trace();
      });
    });
    expect_recorded(t, t[0], t.joined("d"), false);
  }
}

TEST(Trace, a_worker_that_joins_after_the_loss_of_the_starter_records_from_the_next_start_on) {
  TracedGroup t;
  t.g.run(t[0], [] { start_trace(); });
  t.g.kill(t[0]);
  t.g.sim().run_for(5s);
  expect_recorded(t, t[1], t.joined("d"), false);
  t.g.run(t[1], [] { start_trace(); });
  expect_recorded(t, t[1], t.joined("e"));
}

TEST(Trace, a_worker_that_does_not_allow_it_joins_all_the_same) {
  TracedGroup t;
  t.g.run(t[0], [] { start_trace(); });
  auto& d = t.g.join("d", [](AgentOptions& o) { o.allow["weft::trace"] = {"b"}; });
  t.g.sim().run_for(1s);
  t.g.run(t[0], [] { EXPECT_EQ(rpc_sync<traced_twice>("d", 1), 2); });
  t.g.run(d, [] {
    EXPECT_EQ(rpc_sync<traced_twice>("a", 1), 2);
    EXPECT_TRUE(call_latencies().empty());  // it records nothing
  });
}

}  // namespace
