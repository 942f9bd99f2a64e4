// Starts the processes of a run, and starts one again that has ended. It kills or stops some of them at
// random moments of the training.
#pragma once

#include <map>

#include "options.h"

namespace elastic {

struct Outcome {
  int64_t kills = 0, stops = 0, restarts = 0;
  std::map<std::string, int64_t> by_role;  ///< kills and stops
  std::vector<double> report_ms;           ///< from a worker's death to the first report of it
  std::vector<double> stop_report_ms;      ///< from a worker's stop for two leases to the first report of it
  int64_t unreported = 0;                  ///< such deaths and stops without a report
  std::vector<double> pause_s;             ///< from a kill or stop until the training went on
  Result result;
};

/// Runs the training to its end, or until it is interrupted. Throws: RpcError when nothing goes on for three
/// minutes, or processes end too often by themselves.
Outcome supervise(const Options& options);

}  // namespace elastic
