// Output of the example programs: a live line on a terminal (plain lines otherwise), figures as JSON, and
// the Ctrl-C flag.
#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace examples {

/// Seconds since the first call.
double seconds();

/// Progress with rate and remaining time. On a terminal it redraws one line; elsewhere it prints a line after
/// each `every` steps.
class Progress {
 public:
  Progress(std::string label, int64_t total, int64_t every);
  void update(int64_t done, const std::string& text);
  void finish();

 private:
  std::string label_;
  int64_t total_, every_, printed_ = 0;
  double start_, shown_ = 0;
  bool live_, open_ = false;
};

/// Figures by name, in the order of their addition; numbers keep all their digits.
class Figures {
 public:
  void set(const std::string& name, double value);
  void set(const std::string& name, int64_t value);
  void set(const std::string& name, const std::string& value);
  void set(const std::string& name, const std::vector<double>& values);
  /// Appends a record to a list ("intervals": [{...}, ...]).
  void append(const std::string& list, const Figures& record);
  std::string json() const;
  /// Writes the JSON to a file or stream when `path` is not empty. Throws: weft::IoError.
  void write(const std::string& path) const;

 private:
  std::vector<std::pair<std::string, std::string>> values_;
  std::vector<std::pair<std::string, std::vector<std::string>>> lists_;
};

/// Checks, before any work, that files can be written at these paths; empty paths are skipped. It changes
/// nothing. Throws: weft::IoError that names the path.
void check_writable(const std::vector<std::string>& paths);
/// The same for outputs to a file or stream, such as /dev/stdout.
void check_outputs(const std::vector<std::string>& paths);

/// "yes" or "no".
inline std::string yes_no(bool value) { return value ? "yes" : "no"; }

/// Makes Ctrl-C set a flag instead of ending the program; a second one ends it.
void catch_interrupt();
bool interrupted();

}  // namespace examples
