// The trace of a group (trace.h): registered functions that every worker serves, clocks, and the file in
// Chrome's trace format. A worker is a process in the file; spans that overlap get separate rows. A worker
// may join while a trace begins or ends. Either the call to all workers includes it, or it gets a call of its
// own.
#include <weft/distributed/rpc/trace.h>

#include <algorithm>
#include <fstream>

#include <weft/distributed/rpc/inner/agent_impl.h>
#include <weft/distributed/rpc/inner/trace_functions.h>
#include <weft/distributed/rpc/rpc.h>
#include <weft/kernels/inner/trace_file.h>

namespace weft::rpc {

namespace builtin {

WorkerTrace trace(int64_t action, int64_t spans) {
  const std::shared_ptr<Agent> agent = current_agent();
  Tracer& tracer = agent->impl().core.tracer;
  WorkerTrace out;
  if (action == kTraceStart || (action == kTraceJoin && !tracer.on()))
    tracer.start(static_cast<size_t>(std::clamp<int64_t>(spans, 1, kMostSpans)));
  if (action == kTraceStop) tracer.stop();
  if (action == kTraceRead) {
    for (const Span& s : tracer.spans())
      out.spans.push_back({.of = static_cast<uint8_t>(s.of),
                           .ok = s.ok,
                           .name = name_of(s),
                           .peer = s.peer.id.value,
                           .incarnation = s.peer.incarnation.value,
                           .sequence = s.sequence,
                           .bytes = s.bytes,
                           .start = s.start.time_since_epoch().count(),
                           .begun = s.begun.time_since_epoch().count(),
                           .end = s.end.time_since_epoch().count()});
    out.dropped = tracer.dropped();
  }
  out.incarnation = agent->life().incarnation.value;
  out.now = agent->runtime()->now().time_since_epoch().count();
  return out;
}

std::string open_calls() { return current_agent()->dump(); }

}  // namespace builtin

namespace {

using weft::detail::json_quote, weft::detail::micros, weft::detail::TraceWriter;

constexpr int kClockCalls = 5;

/// The living workers, this one included.
std::vector<WorkerInfo> living(Agent& agent) {
  std::vector<WorkerInfo> all;
  for (const WorkerInfo& worker : agent.worker_infos())
    if (worker.id == agent.self().id || !agent.is_lost(agent.life_of(worker.id))) all.push_back(worker);
  return all;
}

/// A context whose calls do not wait for credit, as those of a handler. They look in where others wait.
CallContext passing() {
  CallContext context = capture_context();
  if (context.serving == 0) context.serving = UINT64_MAX;
  return context;
}

/// Calls the trace function of all other living workers, all at once.
void tell_others(int64_t action, int64_t spans, Duration timeout) {
  const std::shared_ptr<Agent> agent = current_agent();
  const CallScope scope(passing());
  std::vector<Future<builtin::WorkerTrace>> answers;
  for (const WorkerInfo& worker : living(*agent))
    if (worker.id != agent->self().id)
      answers.push_back(rpc_async<&builtin::trace>(To(worker.id.value, timeout), action, spans));
  for (auto& answer : answers) {
    try {
      answer.wait();
    } catch (const PeerLost&) {  // it does not live any more
    }
  }
}

/// The time that is left for one more call. Throws: Timeout.
Duration time_to_ask(Agent& agent, TimePoint until) {
  if (until == kNever) return Duration::zero();  // no limit
  const Duration rest = until - agent.runtime()->now();
  if (rest <= Duration::zero()) throw Timeout("write_trace: the time is over, and workers are left to ask");
  return rest;
}

/// The spans of one worker and the difference of its clock to this worker's.
struct Collected {
  WorkerInfo worker;
  builtin::WorkerTrace trace;
  int64_t ahead = 0;  ///< nanoseconds to subtract from its times
};

Collected collect(Agent& agent, const WorkerInfo& worker, TimePoint until) {
  Collected out{worker, {}, 0};
  int64_t best = INT64_MAX;
  for (int i = 0; worker.id != agent.self().id && i < kClockCalls; ++i) {
    const int64_t before = agent.runtime()->now().time_since_epoch().count();
    const int64_t there =
        rpc_sync<&builtin::trace>(To(worker.id.value, time_to_ask(agent, until)), builtin::kTraceClock, 0)
            .now;
    const int64_t after = agent.runtime()->now().time_since_epoch().count();
    if (after - before >= best) continue;
    best = after - before;
    out.ahead = there - (before + (after - before) / 2);
  }
  out.trace =
      rpc_sync<&builtin::trace>(To(worker.id.value, time_to_ask(agent, until)), builtin::kTraceRead, 0);
  return out;
}

/// Corrects the difference of the other's clock so that each handler between the two lies within its call.
/// The fastest call alone leaves an error of half its time.
void hold_within_calls(const Collected& self, Collected& other) {
  int64_t least = INT64_MIN, most = INT64_MAX;
  // `sign`: -1 if the other worker is the caller
  const auto compare = [&](const Collected& caller, const Collected& callee, int64_t sign) {
    std::map<uint64_t, const builtin::SpanRecord*> calls;
    for (const auto& s : caller.trace.spans)
      if (s.of == static_cast<uint8_t>(SpanOf::kCall) && s.peer == callee.worker.id.value &&
          s.incarnation == callee.trace.incarnation)
        calls[s.sequence] = &s;
    for (const auto& s : callee.trace.spans) {
      if (s.of != static_cast<uint8_t>(SpanOf::kServed) || s.peer != caller.worker.id.value ||
          s.incarnation != caller.trace.incarnation)
        continue;
      const auto call = calls.find(s.sequence);
      if (call == calls.end()) continue;
      const int64_t after = s.start - call->second->start, before = s.end - call->second->end;
      least = std::max(least, sign > 0 ? before : -after);
      most = std::min(most, sign > 0 ? after : -before);
    }
  };
  compare(self, other, 1);
  compare(other, self, -1);
  if (least <= most) other.ahead = std::clamp(other.ahead, least, most);
}

/// The first row whose last span has ended at `start`; the row is taken until `end`.
size_t take_row(std::vector<int64_t>& rows, int64_t start, int64_t end) {
  size_t row = 0;
  while (row < rows.size() && rows[row] > start) ++row;
  if (row == rows.size()) rows.push_back(end);
  else rows[row] = end;
  return row;
}

/// The number of a life in the file: 0 for the first one of its worker that the file names. A life's own
/// number proves it to the others, so nothing that is written has it.
class LifeNumbers {
 public:
  size_t of(int32_t worker, uint64_t incarnation) {
    std::vector<uint64_t>& lives = lives_[worker];
    const auto at = std::find(lives.begin(), lives.end(), incarnation);
    const auto number = static_cast<size_t>(at - lives.begin());
    if (at == lives.end()) lives.push_back(incarnation);
    return number;
  }

 private:
  std::map<int32_t, std::vector<uint64_t>> lives_;
};

/// How the spans of one kind look. The rows of a kind begin behind `first_row`.
struct Look {
  const char *category, *row, *other;  ///< `other`: name of the other worker's argument
  size_t first_row;
};
constexpr Look kLooks[] = {
    {"call", "calls ", "to", 100000}, {"served", "serves ", "from", 200000}, {"program", "program ", "", 0}};

void write_worker(TraceWriter& file, const Collected& c, int64_t zero,
                  const std::map<int32_t, std::string>& names, LifeNumbers& lives) {
  const int32_t id = c.worker.id.value;
  const std::string process = str("\"pid\": ", id, ", ");
  file.event(str("\"ph\": \"M\", ", process,
                 "\"name\": \"process_name\", \"args\": {\"name\": ", json_quote(c.worker.name), "}"));
  auto spans = c.trace.spans;
  std::sort(spans.begin(), spans.end(), [](const auto& a, const auto& b) { return a.start < b.start; });
  std::vector<int64_t> rows[std::size(kLooks)];
  for (const builtin::SpanRecord& s : spans) {
    if (s.of >= std::size(kLooks)) continue;
    const Look& look = kLooks[s.of];
    const bool served = s.of == static_cast<uint8_t>(SpanOf::kServed);
    const size_t before = rows[s.of].size(), row = take_row(rows[s.of], s.start, s.end);
    const std::string where = str(process, "\"tid\": ", look.first_row + row + 1, ", ");
    if (rows[s.of].size() > before)
      file.event(str("\"ph\": \"M\", ", where, "\"name\": \"thread_name\", \"args\": {\"name\": ",
                     json_quote(str(look.row, row + 1)), "}"));
    const auto at = [&](int64_t time) { return micros(time - c.ahead - zero); };
    const auto peer = names.find(s.peer);
    std::string arguments = str("\"ok\": ", s.ok ? "true" : "false");
    if (*look.other != 0)
      arguments += str(", \"", look.other,
                       "\": ", json_quote(peer != names.end() ? peer->second : str("worker ", s.peer)),
                       ", \"tensor_bytes\": ", s.bytes);
    file.event(str("\"ph\": \"X\", ", where, "\"cat\": \"", look.category, "\", \"ts\": ", at(s.start),
                   ", \"dur\": ", micros(s.end - s.start), ", \"name\": ", json_quote(s.name),
                   ", \"args\": {", arguments, "}"));
    const int64_t begun = std::clamp(s.begun, s.start, s.end);
    if (served && begun > s.start)
      file.event(str("\"ph\": \"X\", ", where, "\"cat\": \"queue\", \"ts\": ", at(s.start),
                     ", \"dur\": ", micros(begun - s.start), ", \"name\": \"waits for a thread\""));
    if (s.sequence == 0) continue;
    const std::string caller = served ? str(s.peer, ".", lives.of(s.peer, s.incarnation))
                                      : str(id, ".", lives.of(id, c.trace.incarnation));
    file.event(str("\"ph\": \"", served ? "f\", \"bp\": \"e" : "s", "\", ", where,
                   "\"cat\": \"flow\", \"ts\": ", at(served ? begun : s.start),
                   ", \"name\": \"call\", \"id\": ",
                   json_quote(str(caller, ".", served ? id : s.peer, ".", s.sequence))));
  }
  if (c.trace.dropped > 0)
    file.event(str("\"ph\": \"M\", ", process, "\"name\": \"process_labels\", \"args\": {\"labels\": ",
                   json_quote(str(c.trace.dropped, " older spans are not kept")), "}"));
}

/// Collects and writes. The caller looks at the state of `out`.
void write_events(std::ostream& out, const std::vector<std::string>& workers, Duration timeout) {
  std::vector<Collected> all;
  std::map<int32_t, std::string> names;
  int64_t zero = INT64_MAX;
  {
    const std::shared_ptr<Agent> agent = current_agent();
    const CallScope scope(passing());
    const TimePoint until = timeout > Duration::zero() ? agent->runtime()->now() + timeout : kNever;
    std::vector<WorkerInfo> asked;
    for (const std::string& name : workers) asked.push_back(agent->worker_info(name));
    if (workers.empty()) asked = living(*agent);
    for (const WorkerInfo& worker : agent->worker_infos()) names[worker.id.value] = worker.name;
    for (const WorkerInfo& worker : asked) {
      try {
        all.push_back(collect(*agent, worker, until));
      } catch (const PeerLost&) {  // it does not live any more
        if (!workers.empty()) throw;
        continue;
      }
    }
    const auto self = std::find_if(all.begin(), all.end(),
                                   [&](const Collected& c) { return c.worker.id == agent->self().id; });
    for (Collected& c : all) {
      if (self != all.end() && &c != &*self) hold_within_calls(*self, c);
      for (const auto& s : c.trace.spans) zero = std::min(zero, s.start - c.ahead);
    }
  }
  TraceWriter file(out);
  LifeNumbers lives;
  for (const Collected& c : all)
    if (out) write_worker(file, c, zero, names, lives);
  file.finish();
}

}  // namespace

void inner::trace_joined(const WorkerInfo& member) {
  constexpr Duration kLimit = std::chrono::seconds(10);
  const auto tracer = []() -> Tracer& { return current_agent()->impl().core.tracer; };
  const int64_t spans = tracer().for_joiners();
  if (spans == 0) return;
  const CallScope scope(passing());
  const To to(member.id.value, kLimit);
  try {
    rpc_async<&builtin::trace>(to, builtin::kTraceJoin, spans).then([=](Future<builtin::WorkerTrace> done) {
      // The trace has ended meanwhile, and the word of that may have come there before the start.
      if (!done.has_error() && !tracer().on())
        rpc_async<&builtin::trace>(to, builtin::kTraceStop, int64_t{0});
    });
  } catch (const Error&) {  // it is lost again
  }
}

TraceSpan::TraceSpan(const char* name) noexcept : name_(name) {
  try {
    const std::shared_ptr<Endpoint> endpoint = current_endpoint();
    if (endpoint == nullptr) return;
    auto agent = std::static_pointer_cast<Agent>(endpoint);
    if (!agent->impl().core.tracer.on()) return;
    start_ = agent->runtime()->now();
    agent_ = std::move(agent);
  } catch (const Error&) {  // no worker runs here
  }
}

TraceSpan::~TraceSpan() {
  if (agent_ == nullptr) return;
  agent_->impl().core.tracer.add(
      {.of = SpanOf::kProgram, .what = name_, .start = start_, .end = agent_->runtime()->now()});
}

void start_trace(const TraceOptions& options) {
  if (options.spans < 1 || options.spans > builtin::kMostSpans)
    throw ValueError(str("start_trace: ", options.spans, " spans, it must be 1 to ", builtin::kMostSpans));
  const auto start = options.keep ? builtin::kTraceJoin : builtin::kTraceStart;
  builtin::trace(start, options.spans);
  // Before the list of workers is read: one that is not in it yet finds this when it joins.
  current_agent()->impl().core.tracer.start_joiners(options.spans);
  tell_others(start, options.spans, options.timeout);
}

void stop_trace(Duration timeout) {
  builtin::trace(builtin::kTraceStop, 0);
  tell_others(builtin::kTraceStop, 0, timeout);
}

void write_trace(const std::string& path, Duration timeout) {
  current_agent();  // without one no file is made
  std::ofstream file(path, std::ios::trunc);
  if (!file) throw IoError(str("cannot write ", path));
  write_events(file, {}, timeout);
  file.close();
  if (!file) throw IoError(str("cannot write ", path));
}

void write_trace(std::ostream& out, const std::vector<std::string>& workers, Duration timeout) {
  write_events(out, workers, timeout);
  if (!out) throw IoError("cannot write the trace to its stream");
}

std::map<std::string, Latencies> call_latencies() { return current_agent()->impl().core.tracer.latencies(); }

std::string wait_graph(Duration timeout) {
  const std::shared_ptr<Agent> agent = current_agent();
  const CallScope scope(passing());
  std::vector<std::pair<WorkerInfo, Future<std::string>>> asked;
  std::string out;
  for (const WorkerInfo& worker : living(*agent))
    if (worker.id != agent->self().id)
      asked.emplace_back(worker, rpc_async<&builtin::open_calls>(To(worker.id.value, timeout)));
  out += str("worker '", agent->self().name, "':\n", agent->dump());
  for (auto& [worker, answer] : asked) {
    try {
      out += str("worker '", worker.name, "':\n", answer.wait());
    } catch (const Error& e) {
      out += str("worker '", worker.name, "' does not answer: ", e.what(), "\n");
    }
  }
  return out;
}

}  // namespace weft::rpc
