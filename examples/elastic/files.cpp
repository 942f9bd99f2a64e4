// The files of a run (options.h). A reader sees a whole value: small ones are replaced by renaming, and a
// line of `events` is one write.
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <fstream>

#include <weft/kernels/error.h>

#include "options.h"

namespace elastic {
namespace {

void replace(const std::string& path, const std::string& text) {
  const std::string beside = path + ".new";
  if (!(std::ofstream(beside) << text).flush() || std::rename(beside.c_str(), path.c_str()) != 0)
    throw weft::IoError("cannot write " + path);
}

}  // namespace

int64_t now_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

void write_step(const std::string& dir, int64_t step) { replace(dir + "/step", std::to_string(step)); }

int64_t read_step(const std::string& dir) {
  int64_t step = 0;
  std::ifstream(dir + "/step") >> step;
  return step;
}

void report_loss(const std::string& dir, const std::string& observer, const std::string& lost) {
  const std::string line = observer + " " + lost + " " + std::to_string(now_ns()) + "\n";
  const int file = open((dir + "/events").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (file < 0) return;
  if (write(file, line.data(), line.size()) < 0)
    std::fprintf(stderr, "elastic: cannot write %s\n", line.c_str());
  close(file);
}

std::vector<Report> reported(const std::string& dir) {
  std::vector<Report> all;
  std::ifstream in(dir + "/events");
  for (Report r; in >> r.observer >> r.lost >> r.ns;) all.push_back(r);
  return all;
}

void write_result(const std::string& dir, const Result& result) {
  char text[96];
  std::snprintf(text, sizeof text, "%.17g %lld %lld", result.loss, static_cast<long long>(result.kept),
                static_cast<long long>(result.resumes));
  replace(dir + "/result", text);
}

Result read_result(const std::string& dir) {
  Result result;
  if (!(std::ifstream(dir + "/result") >> result.loss >> result.kept >> result.resumes))
    throw weft::IoError("the trainer left no result in " + dir);
  return result;
}

}  // namespace elastic
