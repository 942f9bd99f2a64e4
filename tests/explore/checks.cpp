// Programs as tasks, and the checks at the end of a run (checks.h).
#include "explore/checks.h"

#include <cmath>

#include <weft/distributed/optim/inner/step_seam.h>

#include "../../examples/common/held_counters.h"
#include "explore/interpret.h"

namespace weft::explore {

void start_task(rpc::SimRuntime& sim, const std::shared_ptr<Task>& task, int workers) {
  sim.post([task, workers] {
    try {
      const rpc::AgentScope scope(task->agent);
      task->seen = Interpreter<RemoteWorld>(*task->program, workers).run();
    } catch (...) {
      task->error = std::current_exception();
    }
    task->done = true;
  });
}

std::string difference(const std::vector<Numbers>& seen, const std::vector<Numbers>& expected) {
  if (seen.size() != expected.size())
    return str("saw ", seen.size(), " values, ", expected.size(), " expected");
  for (size_t i = 0; i < seen.size(); ++i) {
    if (seen[i].empty() != expected[i].empty())
      return str("value ", i, " of ", seen.size(), seen[i].empty() ? " is missing" : " should be absent");
    for (size_t j = 0; j < expected[i].size(); ++j)
      if (std::abs(seen[i][j] - expected[i][j]) > 1e-9 * std::max(1.0, std::abs(expected[i][j])))
        return str("value ", i, " of ", seen.size(), " is ", seen[i][j], ", not ", expected[i][j]);
  }
  return "";
}

/// Results are dropped on a worker with a small budget.
std::string left_on(const rpc::Agent& agent, bool hurt, int64_t watches) {
  std::string out;
  for (const auto& [key, value] : agent.debug_info())
    if (key != "agent.dropped_results" && value != (key == "agent.watches" ? watches : 0) &&
        examples::counts_held(key, hurt))
      out += str(" ", agent.self().name, " has ", key, " = ", value, ";");
  return out;
}

namespace {
std::function<void()>& at_point() {
  static std::function<void()> f;
  return f;
}
}  // namespace

StepPoints::StepPoints(std::function<void(int)> f) {
  at_point() = [f = std::move(f), seen = 0]() mutable { f(++seen); };
  dist_optim::detail::at_step_point = [](const char*) { at_point()(); };
}
StepPoints::~StepPoints() { dist_optim::detail::at_step_point = nullptr, at_point() = nullptr; }

Program last_program(int workers) {
  static const Program kLast = make_small_plan(4711, 4).programs.front();
  Program out = kLast;
  for (auto& steps : out.iterations)
    for (Step& s : steps)
      for (int& w : s.way) w %= workers;
  return out;
}

}  // namespace weft::explore
