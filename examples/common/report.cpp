// Progress lines, JSON output, checks of output paths, and the Ctrl-C handler (report.h).
#include "report.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include <unistd.h>

#include <weft/tensor/io/write_file.h>

namespace examples {
namespace {

std::atomic<bool> g_interrupted{false};

void on_interrupt(int) {
  if (g_interrupted.exchange(true)) _exit(130);
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) out += c;
  }
  return out + "\"";
}

/// A number with all its digits, as JSON; JSON has no infinities or NaN.
std::string number(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.17g", value);
  return std::isfinite(value) ? text : "null";
}

}  // namespace

double seconds() {
  static const auto start = std::chrono::steady_clock::now();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Progress::Progress(std::string label, int64_t total, int64_t every)
    : label_(std::move(label)),
      total_(total),
      every_(std::max<int64_t>(every, 1)),
      start_(seconds()),
      live_(isatty(STDOUT_FILENO) == 1) {}

void Progress::update(int64_t done, const std::string& text) {
  const double now = seconds();
  const bool due = live_ ? now - shown_ > 0.2 : done / every_ > printed_ / every_;
  if (!due && done != total_) return;
  shown_ = now;
  printed_ = done;
  const double rate = static_cast<double>(done) / std::max(now - start_, 1e-9);
  const double left = total_ > 0 && rate > 0 ? static_cast<double>(total_ - done) / rate : 0;
  char line[256];
  if (total_ > 0)
    std::snprintf(line, sizeof line, "%s %lld/%lld  %s  %.1f/s  %.0f s left", label_.c_str(),
                  static_cast<long long>(done), static_cast<long long>(total_), text.c_str(), rate, left);
  else
    std::snprintf(line, sizeof line, "%s %lld  %s  %.1f/s", label_.c_str(), static_cast<long long>(done),
                  text.c_str(), rate);
  if (live_) std::printf("\r\033[K%s", line);
  else std::printf("%s\n", line);
  std::fflush(stdout);
  open_ = live_;
}

void Progress::finish() {
  if (open_) std::printf("\r\033[K");
  std::fflush(stdout);
  open_ = false;
}

void Figures::set(const std::string& name, double value) { values_.emplace_back(name, number(value)); }
void Figures::set(const std::string& name, int64_t value) {
  values_.emplace_back(name, std::to_string(value));
}
void Figures::set(const std::string& name, const std::string& value) {
  values_.emplace_back(name, quoted(value));
}

void Figures::set(const std::string& name, const std::vector<double>& values) {
  std::string list;
  for (const double v : values) list += (list.empty() ? "" : ", ") + number(v);
  values_.emplace_back(name, "[" + list + "]");
}

void Figures::append(const std::string& list, const Figures& record) {
  auto at = std::find_if(lists_.begin(), lists_.end(), [&](const auto& l) { return l.first == list; });
  if (at == lists_.end()) at = lists_.insert(at, {list, {}});
  at->second.push_back(record.json());
}

std::string Figures::json() const {
  std::string out = "{";
  for (const auto& [name, value] : values_) out += (out.size() > 1 ? ", " : "") + quoted(name) + ": " + value;
  for (const auto& [name, records] : lists_) {
    out += (out.size() > 1 ? ", " : "") + quoted(name) + ": [";
    for (size_t i = 0; i < records.size(); ++i) out += (i ? ", " : "") + records[i];
    out += "]";
  }
  return out + "}";
}

void Figures::write(const std::string& path) const {
  if (!path.empty()) weft::write_output(path, json() + "\n");
}

void check_writable(const std::vector<std::string>& paths) {
  for (const std::string& path : paths)
    if (!path.empty()) weft::check_writable(path);
}

void check_outputs(const std::vector<std::string>& paths) {
  for (const std::string& path : paths)
    if (!path.empty()) weft::check_output(path);
}

void catch_interrupt() { std::signal(SIGINT, on_interrupt); }
bool interrupted() { return g_interrupted.load(); }

}  // namespace examples
