// Flags and files that the processes of the example share. The folder of a run has `step` (the steps that the
// trainer has taken), `events` (the losses that workers reported) and `result`. It also has the store's log
// and the set of checkpoint files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace elastic {

struct Options {
  std::string dir, store, victims = "ps,trainer,store", json;
  bool etcd = false;  ///< a cluster of etcd is the store
  int64_t steps = 400, save_every = 20, kills = 3, stops = 0, seed = 1;
  double lease = 2;
};

/// The roles of the processes, by rank.
inline std::vector<std::string> roles(const Options& o) {
  if (o.etcd) return {"etcd0", "etcd1", "etcd2", "ps", "trainer"};
  return {"store", "ps", "trainer"};
}

/// A loss as a worker reported it; times are of the steady clock, which all processes of a host share.
struct Report {
  std::string observer, lost;
  int64_t ns = 0;
};

/// The result of a training.
struct Result {
  double loss = 0;      ///< of the last step
  int64_t kept = 0;     ///< sum of the counters of held things at server and trainer, at the end
  int64_t resumes = 0;  ///< how often the last trainer began again
};

int64_t now_ns();
void write_step(const std::string& dir, int64_t step);
/// The newest step of the trainer; 0 before the first.
int64_t read_step(const std::string& dir);
void report_loss(const std::string& dir, const std::string& observer, const std::string& lost);
std::vector<Report> reported(const std::string& dir);
void write_result(const std::string& dir, const Result& result);
Result read_result(const std::string& dir);

}  // namespace elastic
