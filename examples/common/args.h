// Command lines of the example programs: each flag is bound to a variable that holds its default; hyphens and underscores are the same,
// `--flag value` and `--flag=value` both work, --help prints the list. Bad arguments end with exit code 2, a failed run with 1.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace examples {

class Args {
 public:
  Args(std::string program, std::string summary)
      : program_(std::move(program)), summary_(std::move(summary)) {}

  /// Numbers that do not fit, and nan, are refused.
  void add(const std::string& flag, int64_t& value, const std::string& help);
  void add(const std::string& flag, double& value, const std::string& help);
  void add(const std::string& flag, std::string& value, const std::string& help);
  /// A switch: present means true; `--flag=false` (no, 0) and `--flag=true` (yes, 1) say it.
  void add(const std::string& flag, bool& value, const std::string& help);
  /// One of a list of words.
  void add(const std::string& flag, std::string& value, std::vector<std::string> choices,
           const std::string& help);

  /// Asked once all flags are read: what is wrong with them together; empty: nothing.
  void require(std::function<std::string()> problem) { problems_.push_back(std::move(problem)); }

  /// Parses; prints help and exits 0 for --help; prints one line to stderr and exits 2 for bad arguments.
  void parse(int argc, char** argv);
  /// True when the flag was given.
  bool given(const std::string& flag) const;

 private:
  struct Flag {
    std::string name, fallback, help;
    bool is_switch;
    std::function<bool(const std::string&)> set;
    bool given = false;
  };
  [[noreturn]] void fail(const std::string& what) const;
  Flag* find(const std::string& name);
  void print_help() const;
  std::string program_, summary_;
  std::vector<Flag> flags_;
  std::vector<std::function<std::string()>> problems_;
};

/// Runs the body; an exception becomes one line on stderr ("program: what") and exit code 1.
int guarded(const char* program, const std::function<int()>& body);

}  // namespace examples
