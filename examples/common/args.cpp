// Parsing of command lines, checks of the values, and the text of --help (args.h).
#include "args.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>

namespace examples {
namespace {

std::string normal(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

std::string show(double v) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", v);
  return text;
}

}  // namespace

void Args::add(const std::string& flag, int64_t& value, const std::string& help) {
  flags_.push_back({flag, std::to_string(value), help, false, [&value](const std::string& text) {
                      char* end = nullptr;
                      errno = 0;
                      const long long v = std::strtoll(text.c_str(), &end, 10);
                      if (text.empty() || *end || errno == ERANGE) return false;
                      value = v;
                      return true;
                    }});
}

void Args::add(const std::string& flag, double& value, const std::string& help) {
  flags_.push_back({flag, show(value), help, false, [&value](const std::string& text) {
                      char* end = nullptr;
                      errno = 0;
                      const double v = std::strtod(text.c_str(), &end);
                      if (text.empty() || *end || std::isnan(v) || (errno == ERANGE && std::isinf(v)))
                        return false;
                      value = v;
                      return true;
                    }});
}

void Args::add(const std::string& flag, std::string& value, const std::string& help) {
  flags_.push_back({flag, value.empty() ? "none" : value, help, false, [&value](const std::string& text) {
                      value = text;
                      return true;
                    }});
}

void Args::add(const std::string& flag, std::optional<std::string>& value, const std::string& help) {
  const auto set = [&value](const std::string& text) {
    value = text;
    return true;
  };
  flags_.push_back({flag, "off", help, false, set, false, true});
}

void Args::add(const std::string& flag, bool& value, const std::string& help) {
  flags_.push_back({flag, "off", help, true, [&value](const std::string& text) {
                      const bool on = text == "true" || text == "yes" || text == "1",
                                 off = text == "false" || text == "no" || text == "0";
                      if (on || off) value = on;
                      return on || off;
                    }});
}

void Args::add(const std::string& flag, std::string& value, std::vector<std::string> choices,
               const std::string& help) {
  std::string list;
  for (const auto& c : choices) list += (list.empty() ? "" : "|") + c;
  flags_.push_back({flag, value, list + ": " + help, false, [&value, choices](const std::string& text) {
                      if (std::find(choices.begin(), choices.end(), text) == choices.end()) return false;
                      value = text;
                      return true;
                    }});
}

Args::Flag* Args::find(const std::string& name) {
  for (Flag& f : flags_)
    if (f.name == name) return &f;
  return nullptr;
}

bool Args::given(const std::string& flag) const {
  return std::any_of(flags_.begin(), flags_.end(), [&](const Flag& f) { return f.name == flag && f.given; });
}

void Args::fail(const std::string& what) const {
  std::fprintf(stderr, "%s: %s (--help lists the flags)\n", program_.c_str(), what.c_str());
  std::exit(2);
}

void Args::print_help() const {
  std::printf("%s: %s\n\n", program_.c_str(), summary_.c_str());
  for (const Flag& f : flags_)
    std::printf("  --%-22s %s%s\n", f.name.c_str(), f.help.c_str(),
                f.is_switch ? "" : (" (" + f.fallback + ")").c_str());
}

void Args::parse(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    std::string text = argv[i];
    if (text == "--help" || text == "-h") {
      print_help();
      std::exit(0);
    }
    if (text.compare(0, 2, "--") != 0) fail("unexpected argument '" + text + "'");
    const size_t equals = text.find('=');
    const std::string name = normal(text.substr(2, equals == std::string::npos ? equals : equals - 2));
    Flag* flag = find(name);
    if (!flag) fail("unknown flag '--" + name + "'");
    std::string value = "true";  // the value of a switch without one
    if (equals != std::string::npos) value = text.substr(equals + 1);
    else if (flag->may_be_alone) {
      const bool alone = i + 1 == argc || argv[i + 1][0] == '-';
      value = alone ? "" : argv[++i];
    } else if (!flag->is_switch) {
      if (i + 1 == argc) fail("--" + name + " needs a value");
      value = argv[++i];
    }
    if (!flag->set(value)) fail("--" + name + " does not take '" + value + "': " + flag->help);
    flag->given = true;
  }
  for (const auto& problem : problems_)
    if (const std::string text = problem(); !text.empty()) fail(text);
}

int guarded(const char* program, const std::function<int()>& body) {
  try {
    return body();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s: %s\n", program, e.what());
    return 1;
  }
}

}  // namespace examples
