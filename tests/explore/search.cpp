// Ranges of schedules, their systematic exploration, and the shrinking of failures.
#include "explore/explore.h"

#include <weft/kernels/error.h>

namespace weft::explore {

namespace {

/// Most runs that the shrinking of one schedule takes.
constexpr int kShrinkRuns = 400;

/// The faults of one worker that are tried at every message. A cut of half a lease costs time only. A longer
/// one ends with a successor, as a kill does, and a successor may come without either.
constexpr Fault kOfWorker[] = {{.kind = Fault::Kind::kKill, .us = 400},
                               {.kind = Fault::Kind::kReplace, .late_us = 300},
                               {.kind = Fault::Kind::kCut, .us = 1000000},
                               {.kind = Fault::Kind::kIsolate, .us = 2500000}};

/// The same in an elastic group, whose lease is 4 s.
constexpr Fault kOfMember[] = {{.kind = Fault::Kind::kKill, .us = 400},
                               {.kind = Fault::Kind::kReplace, .us = 6000000},
                               {.kind = Fault::Kind::kCut, .us = 900000},
                               {.kind = Fault::Kind::kPart, .us = 3000000},
                               {.kind = Fault::Kind::kIsolate, .us = 6000000}};

class Shrinker {
 public:
  Shrinker(Plan plan, const Planted* planted) : best_(std::move(plan)), planted_(planted) {}

  Plan go() {
    for (size_t before = size_of(best_) + 1; size_of(best_) < before && runs_ < kShrinkRuns;) {
      before = size_of(best_);
      leave_out([](Plan & p) -> auto& { return p.programs; });
      leave_out([](Plan & p) -> auto& { return p.faults; });
      for (size_t i = 0; i < best_.programs.size(); ++i) {
        leave_out([i](Plan & p) -> auto& { return p.programs[i].iterations; });
        for (size_t j = 0; j < best_.programs[i].iterations.size(); ++j)
          leave_out([ i, j ](Plan & p) -> auto& { return p.programs[i].iterations[j]; });
        attempt([i](Plan& p) { p.programs[i].optimizer = false; });
        attempt([i](Plan& p) { p.programs[i].fast = false; });
        attempt([i](Plan& p) { p.programs[i].two_phase = false; });
      }
    }
    attempt([](Plan& p) { p.drop = 0; });
    attempt([](Plan& p) { p.duplicate = 0; });
    attempt([](Plan& p) { p.shutdown = false; });
    attempt([](Plan& p) { p.jitter_us = 0; });
    attempt([](Plan& p) { p.small = -1; });
    return best_;
  }

 private:
  template <class Change> bool attempt(Change change) {
    if (++runs_ > kShrinkRuns) return false;
    Plan next = best_;
    change(next);
    if (run(next, planted_).failure.empty()) return false;
    best_ = std::move(next);
    return true;
  }
  /// Halves first, then single entries.
  template <class List> void leave_out(List list) {
    for (size_t n = std::max<size_t>(1, list(best_).size() / 2);; n /= 2) {
      for (size_t at = 0; at + n <= list(best_).size();) {
        const bool gone = attempt([&](Plan& p) {
          auto& all = list(p);
          all.erase(all.begin() + static_cast<ptrdiff_t>(at), all.begin() + static_cast<ptrdiff_t>(at + n));
        });
        if (!gone) at += n;
      }
      if (n <= 1) return;
    }
  }

  Plan best_;
  const Planted* const planted_;
  int runs_ = 0;
};

std::string story(const Plan& plan, const Outcome& failed, const std::string& command,
                  const Planted* planted) {
  const Plan small = shrink(plan, planted);
  return str(failed.failure, "\nto repeat it: ", command, "\nshrunk from ", size_of(plan),
             " steps and faults to ", size_of(small), ":\n", to_string(small),
             "which ends with: ", run(small, planted).failure, "\n");
}

/// Adds a schedule to a report. False: it failed.
bool add(Report& report, const Plan& plan, const std::string& command, const Planted* planted) {
  const Outcome outcome = run(plan, planted);
  ++report.schedules;
  report.messages += static_cast<uint64_t>(outcome.messages);
  report.completed += outcome.completed;
  report.hurt += outcome.hurt;
  if (outcome.failure.empty()) return true;
  report.failure = story(plan, outcome, command, planted);
  return false;
}

}  // namespace

Plan shrink(Plan plan, const Planted* planted) { return Shrinker(std::move(plan), planted).go(); }

Report explore(const Range& range, const Planted* planted) {
  Report report;
  for (uint64_t seed = range.seed; seed < range.seed + range.schedules; ++seed) {
    std::string command = str("test_explore --schedules 1 --seed ", seed);
    if (range.workers > 0) command += str(" --workers ", range.workers);
    if (planted) command += str(" --planted ", planted->name);
    if (!add(report, make_plan(seed, range.workers), command, planted)) {
      report.failed_seed = seed;
      break;
    }
  }
  return report;
}

Report explore_all(uint64_t seed, int workers, int depth, int width, bool elastic) {
  Report report;
  Plan whole = make_small_plan(seed, workers);
  whole.elastic = elastic;
  const std::string command = str("test_explore --depth ", depth, " --width ", width, " --seed ", seed,
                                  " --workers ", workers, elastic ? " --elastic 1" : "");
  if (!add(report, whole, command, nullptr)) return report;
  depth = std::min(depth, static_cast<int>(report.messages));
  constexpr int kActions = 4;  // none, loss, doubling, delay
  int combinations = 1;
  for (int i = 0; i < width; ++i) combinations *= kActions;
  for (int at = 0; at < depth; ++at) {
    if (elastic) {
      std::vector<Fault> faults{{.kind = Fault::Kind::kStore, .us = 1000000}};
      for (int worker = 0; worker < workers; ++worker)
        for (Fault fault : kOfMember) fault.worker = worker, faults.push_back(fault);
      for (Fault fault : faults) {
        Plan plan = whole;
        fault.message = at;
        plan.faults = {fault};
        if (!add(report, plan, command, nullptr)) return report;
      }
      continue;
    }
    for (int combination = 1; combination < combinations; ++combination) {
      if (combination % kActions == 0) continue;  // a later window has it
      Plan plan = whole;
      for (int i = 0, left = combination; i < width; ++i, left /= kActions) {
        if (left % kActions == 0) continue;
        plan.faults.push_back({.kind = static_cast<Fault::Kind>(left % kActions - 1),
                               .message = at + i,
                               .us = left % kActions == 3 ? 300000 : 0});
      }
      if (!add(report, plan, command, nullptr)) return report;
    }
    for (int worker = 0; worker < workers; ++worker)
      for (Fault fault : kOfWorker) {
        fault.message = at, fault.worker = worker;
        Plan plan = whole;
        plan.faults.push_back(fault);
        if (!add(report, plan, command, nullptr)) return report;
      }
  }
  return report;
}

}  // namespace weft::explore
