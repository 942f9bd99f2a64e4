// What the programs say: a live line on a terminal (plain lines otherwise), figures as JSON, and the Ctrl-C flag.
#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace examples {

/// Seconds since the program asked first.
double seconds();

/// Progress with rate and time left. On a terminal one line is redrawn; elsewhere a line is printed whenever `every` more are done.
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

/// Figures by name, in order; numbers keep all their digits.
class Figures {
 public:
  void set(const std::string& name, double value);
  void set(const std::string& name, int64_t value);
  void set(const std::string& name, const std::string& value);
  void set(const std::string& name, const std::vector<double>& values);
  /// One record of a list ("intervals": [{...}, ...]).
  void append(const std::string& list, const Figures& record);
  std::string json() const;
  /// Writes the JSON when `path` is not empty. Throws: weft::IoError.
  void write(const std::string& path) const;

 private:
  std::vector<std::pair<std::string, std::string>> values_;
  std::vector<std::pair<std::string, std::vector<std::string>>> lists_;
};

/// Before any work: that files can be written at these paths (empty ones are skipped). Nothing is left behind and nothing is changed. `replaced`: a
/// new file will take the old one's place. Throws: weft::IoError naming the path.
void check_writable(const std::vector<std::string>& paths, bool replaced = false);

/// "yes" or "no".
inline std::string yes_no(bool value) { return value ? "yes" : "no"; }

/// Makes Ctrl-C set a flag instead of ending the program; a second one ends it.
void catch_interrupt();
bool interrupted();

}  // namespace examples
