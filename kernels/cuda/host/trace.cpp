// Spans of a trace. A span has an event of its stream on either side, so that the device measures its time.
// The times of events count from the first event of the device, for which the host waits. So the two clocks
// differ at most by that wait. Events are used again as soon as their span has its times. While a graph is
// recorded there are no events, since they would become part of it.
#include <weft/kernels/cuda/trace.h>

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include <weft/kernels/cuda/host/runtime.h>
#include <weft/kernels/error.h>
#include <weft/kernels/inner/trace_file.h>

namespace weft::cuda {

std::atomic<bool> inner::traces{false};

namespace {

using detail::json_quote, detail::micros;

constexpr size_t kMostSpans = size_t{1} << 20;  // of a file; later ones are counted
constexpr size_t kMostUnsettled = 1024;         // spans with events, before their times are asked for

int64_t now() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

int thread_number() {
  static std::atomic<int> count{0};
  thread_local const int number = ++count;
  return number;
}

struct Span {
  const std::string* name;
  int thread, device;
  void* stream;
  int64_t begin, end;                           // of the host, ns
  int64_t device_begin = -1, device_end = -1;   // on the same clock; -1: not known
  runtime::Event from = nullptr, to = nullptr;  // until the times are known
};

class Trace {
 public:
  explicit Trace(std::string file) : file_(std::move(file)) {}
  ~Trace() {
    for (; settled_ < spans_.size(); ++settled_) give_back(spans_[settled_]);
    for (auto& [device, clock] : clocks_) {
      if (clock.first) runtime::delete_event(clock.first);
      for (const runtime::Event event : clock.idle) runtime::delete_event(event);
    }
  }
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;
  bool has_file() const { return !file_.empty(); }

  const std::string* name_of(const char* name) {
    const std::lock_guard lock(mutex_);
    return &*names_.emplace(name).first;
  }
  /// An event behind the work of the stream; null while it is recorded. The first one waits for the stream.
  runtime::Event mark(int device, void* stream) {
    if (runtime::capturing(stream)) return nullptr;
    const std::lock_guard lock(mutex_);
    Clock& clock = clocks_[device];
    if (!clock.first) {
      clock.first = runtime::new_event(true);
      runtime::record(clock.first, stream);
      runtime::synchronize_event(clock.first);
      clock.at = now();
    }
    runtime::Event event = nullptr;
    if (clock.idle.empty()) {
      event = runtime::new_event(true);
    } else {
      event = clock.idle.back();
      clock.idle.pop_back();
    }
    runtime::record(event, stream);
    return event;
  }
  void add(const Span& span) {
    const std::lock_guard lock(mutex_);
    if (spans_.size() < kMostSpans) spans_.push_back(span);
    else give_back(span), ++dropped_;
    if (spans_.size() - settled_ > kMostUnsettled) settle(false);
  }
  void write() {
    const std::lock_guard lock(mutex_);
    settle(true);
    std::ofstream out(file_);
    if (!out) throw IoError(str("WEFT_CUDA_TRACE: cannot write '", file_, "'"));
    detail::TraceWriter writer(out);
    write_names(writer);
    const int64_t zero = spans_.empty() ? 0 : earliest();
    for (const Span& s : spans_) {
      write_one(writer, s, 0, static_cast<size_t>(s.thread), s.begin - zero, s.end - s.begin);
      if (s.device_end >= 0)
        write_one(writer, s, 1 + s.device, row_of(s), s.device_begin - zero, s.device_end - s.device_begin);
    }
    writer.finish();
    if (!out) throw IoError(str("WEFT_CUDA_TRACE: cannot write '", file_, "'"));
    if (dropped_ > 0)
      std::fprintf(stderr, "weft: the trace '%s' has the first %zu spans, %zu more are not kept\n",
                   file_.c_str(), spans_.size(), dropped_);
  }

 private:
  struct Clock {  // of a device
    runtime::Event first = nullptr;
    int64_t at = 0;  // the host's time of it
    std::vector<runtime::Event> idle;
  };

  void give_back(const Span& s) {
    for (const runtime::Event event : {s.from, s.to})
      if (event) clocks_[s.device].idle.push_back(event);
  }
  /// Queries the times of spans, in their order, up to the first span that is not done. `wait`: for all.
  void settle(bool wait) {
    for (; settled_ < spans_.size(); ++settled_) {
      Span& s = spans_[settled_];
      if (!s.from || !s.to) {
        give_back(s);
        continue;
      }
      try {
        if (wait) runtime::synchronize_event(s.to);
        else if (!runtime::finished_event(s.to)) return;
        const Clock& clock = clocks_[s.device];
        const auto at = [&](runtime::Event event) {
          return clock.at + static_cast<int64_t>(runtime::elapsed_ms(clock.first, event) * 1e6);
        };
        s.device_begin = at(s.from);
        s.device_end = at(s.to);
      } catch (const Error&) {  // the context is broken: the host's time is all there is
      }
      give_back(s);
      s.from = s.to = nullptr;
    }
  }
  int64_t earliest() const {
    int64_t first = INT64_MAX;
    for (const Span& s : spans_) {
      first = std::min(first, s.begin);
      if (s.device_end >= 0) first = std::min(first, s.device_begin);
    }
    return first;
  }
  size_t row_of(const Span& s) {
    return rows_.emplace(std::pair(s.device, s.stream), rows_.size()).first->second;
  }
  void write_names(detail::TraceWriter& writer) {
    const auto process = [&](int number, const std::string& name) {
      writer.event(str("\"ph\": \"M\", \"pid\": ", number,
                       ", \"name\": \"process_name\", \"args\": {\"name\": ", json_quote(name), "}"));
    };
    process(0, "host");
    for (const auto& [device, clock] : clocks_) process(1 + device, str("cuda:", device));
  }
  static void write_one(detail::TraceWriter& writer, const Span& s, int process, size_t row, int64_t begin,
                        int64_t length) {
    writer.event(str("\"ph\": \"X\", \"pid\": ", process, ", \"tid\": ", row, ", \"ts\": ", micros(begin),
                     ", \"dur\": ", micros(length), ", \"name\": ", json_quote(*s.name)));
  }

  const std::string file_;  // empty: NVTX alone
  std::mutex mutex_;
  std::set<std::string, std::less<>> names_;
  std::vector<Span> spans_;
  size_t settled_ = 0, dropped_ = 0;
  std::map<int, Clock> clocks_;
  std::map<std::pair<int, void*>, size_t> rows_;  // of streams
};

std::mutex& changing() {
  static auto* const mutex = new std::mutex;
  return *mutex;
}
std::shared_ptr<Trace>& current() {
  static auto* const trace = new std::shared_ptr<Trace>;  // never destroyed: threads may still issue work
  return *trace;
}
std::shared_ptr<Trace> current_trace() {
  const std::lock_guard lock(changing());
  return current();
}

std::string with_process(std::string file) {
  if (const size_t at = file.find("%p"); at != std::string::npos)
    file.replace(at, 2, std::to_string(getpid()));
  return file;
}

// The CUDA runtime is there until its own handler, which is older than the one of a first span.
void finish_at_exit() {
  try {
    finish_trace();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "weft: %s\n", e.what());
  }
}

const bool from_environment = [] {
  const char* const set = std::getenv("WEFT_CUDA_TRACE");
  const char* const tool = std::getenv("NVTX_INJECTION64_PATH");  // Nsight sets it
  if (set && *set) start_trace(set);
  else if (tool && *tool) start_trace("nvtx");
  return true;
}();

}  // namespace

struct TraceSpan::Open {
  std::shared_ptr<Trace> trace;
  Span span;
};

void TraceSpan::begin(const char* name, void* stream) {
  std::shared_ptr<Trace> trace = current_trace();
  if (!trace) return;
  runtime::push_range(name);
  if (!trace->has_file()) {
    open_ = new Open{std::move(trace), {}};
    return;
  }
  try {
    const int device = runtime::current_device();
    static const bool registered = std::atexit(finish_at_exit) == 0;
    static_cast<void>(registered);
    Span span{trace->name_of(name), thread_number(), device, stream, 0, 0};
    span.from = trace->mark(device, stream);
    span.begin = now();
    open_ = new Open{std::move(trace), span};
  } catch (...) {
    runtime::pop_range();
    throw;
  }
}

void TraceSpan::end() noexcept {
  const std::unique_ptr<Open> open(std::exchange(open_, nullptr));
  runtime::pop_range();
  if (!open->trace->has_file()) return;
  Span& span = open->span;
  span.end = now();
  try {
    runtime::set_device(span.device);  // a cuda::Range may end on another one
    if (span.from) span.to = open->trace->mark(span.device, span.stream);
    open->trace->add(span);
  } catch (const std::exception&) {  // no memory, or a broken context: the trace lacks this span
  }
}

void start_trace(const std::string& to) {
  const std::lock_guard lock(changing());
  current() = std::make_shared<Trace>(to == "nvtx" ? "" : with_process(to));
  inner::traces = true;
}

void finish_trace() {
  std::shared_ptr<Trace> trace;
  {
    const std::lock_guard lock(changing());
    inner::traces = false;
    trace.swap(current());
  }
  if (trace && trace->has_file()) trace->write();
}

}  // namespace weft::cuda
