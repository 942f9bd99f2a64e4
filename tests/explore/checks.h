// The parts that the runs of both kinds of groups share: programs as tasks, and the checks at the end.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <weft/distributed/rpc/agent.h>
#include <weft/distributed/sim/sim_runtime.h>

#include "explore/explore.h"
#include "explore/world.h"

namespace weft::explore {

/// A program on one life of its driver.
struct Task {
  const Program* program = nullptr;
  const std::vector<Numbers>* expected = nullptr;
  std::string name;
  std::shared_ptr<rpc::Agent> agent;
  bool done = false;
  bool killed = false;  ///< its process is no more; here its task just waits
  std::exception_ptr error;
  std::vector<Numbers> seen;
};
/// Runs it as a task of the simulation.
void start_task(rpc::SimRuntime& sim, const std::shared_ptr<Task>& task, int workers);

/// The first difference as text; empty: none.
std::string difference(const std::vector<Numbers>& seen, const std::vector<Numbers>& expected);
/// The counters that should be zero when nothing is held, and are not. `hurt`: a life ended early. `watches`:
/// the lives that a worker keeps under lease as long as the group lives.
std::string left_on(const rpc::Agent& agent, bool hurt, int64_t watches);
/// A program over all workers, for the end of a run.
Program last_program(int workers);

/// Calls f with 1, 2, ... at the points of steps in two phases while it lives.
class StepPoints {
 public:
  explicit StepPoints(std::function<void(int)> f);
  StepPoints(const StepPoints&) = delete;
  ~StepPoints();
};

/// The run of a plan with `elastic`.
Outcome run_elastic(const Plan& plan, const Planted* planted);

}  // namespace weft::explore
