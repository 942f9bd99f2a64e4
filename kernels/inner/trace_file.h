// Traces in the format of chrome://tracing, which ui.perfetto.dev opens too.
#pragma once

#include <cstdint>
#include <cstdio>
#include <ostream>
#include <string>
#include <utility>

#include <weft/kernels/inner/json_quote.h>

namespace weft::detail {

/// Microseconds with nanoseconds behind the point, from the first time of the trace.
inline std::string micros(int64_t ns) {
  char text[40];
  std::snprintf(text, sizeof text, "%.3f", static_cast<double>(ns) / 1000);
  return text;
}

/// Writes the events of a trace, one per line.
class TraceWriter {
 public:
  explicit TraceWriter(std::ostream& out) : out_(out) {
    out_ << "{\"displayTimeUnit\": \"ns\", \"traceEvents\": [";
  }
  void event(const std::string& fields) {
    out_ << (std::exchange(first_, false) ? "\n{" : ",\n{") << fields << '}';
  }
  void finish() { out_ << "\n]}\n" << std::flush; }

 private:
  std::ostream& out_;
  bool first_ = true;
};

}  // namespace weft::detail
