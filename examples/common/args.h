// Command lines of the example programs. Each flag is bound to a variable with its default. Hyphens and
// underscores are equal, `--flag value` and `--flag=value` both work, and --help prints the list. Bad
// arguments exit with code 2, a failed run with 1.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace examples {

class Args {
 public:
  Args(std::string program, std::string summary)
      : program_(std::move(program)), summary_(std::move(summary)) {}

  /// Adds a flag with a number. Numbers out of range, and nan, are refused.
  void add(const std::string& flag, int64_t& value, const std::string& help);
  void add(const std::string& flag, double& value, const std::string& help);
  void add(const std::string& flag, std::string& value, const std::string& help);
  /// Adds a flag that is unset without it. `--flag` alone is an empty text; a word behind it that is no flag
  /// is its value.
  void add(const std::string& flag, std::optional<std::string>& value, const std::string& help);
  /// Adds a switch: `--flag` or `--flag=true` (yes, 1) sets it, `--flag=false` (no, 0) clears it.
  void add(const std::string& flag, bool& value, const std::string& help);
  /// Adds a flag with one word of a list.
  void add(const std::string& flag, std::string& value, std::vector<std::string> choices,
           const std::string& help);

  /// Adds a check of all flags together. It returns the error text; empty: no error.
  void require(std::function<std::string()> problem) { problems_.push_back(std::move(problem)); }

  /// Parses the command line. For --help it prints the help and exits with 0. For bad arguments it prints one
  /// line to stderr and exits with 2.
  void parse(int argc, char** argv);
  /// True when the flag was given.
  bool given(const std::string& flag) const;

 private:
  struct Flag {
    std::string name, fallback, help;
    bool is_switch;
    std::function<bool(const std::string&)> set;
    bool given = false, may_be_alone = false;
  };
  [[noreturn]] void fail(const std::string& what) const;
  Flag* find(const std::string& name);
  void print_help() const;
  std::string program_, summary_;
  std::vector<Flag> flags_;
  std::vector<std::function<std::string()>> problems_;
};

/// Runs the body. An exception becomes one line on stderr ("program: text") and exit code 1.
int guarded(const char* program, const std::function<int()>& body);

}  // namespace examples
