// The supervisor (supervisor.h). The victims and the moments of their deaths come from the seed. Within a
// step the moment is random too: the kill comes up to a few milliseconds after a step was seen.
#include "supervisor.h"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <random>
#include <thread>

#include <weft/distributed/launch/spawn.h>
#include "../common/report.h"
#include "etcd.h"

namespace elastic {
namespace {

using namespace std::chrono_literals;
using weft::rpc::Children;
using weft::rpc::ChildState;

class Supervisor {
 public:
  explicit Supervisor(const Options& o)
      : options_(o),
        roles_(roles(o)),
        draws_(static_cast<uint64_t>(o.seed)),
        children_(weft::rpc::spawn({.world_size = static_cast<int>(roles_.size()),
                                    .arguments = {"--dir", o.dir},
                                    .environment = {{"WEFT_STORE", o.store}},
                                    .restarts = static_cast<int>(4 * (o.kills + o.stops) + 20)})) {
    std::uniform_int_distribution<int64_t> at(1, std::max<int64_t>(o.steps - 1, 1));
    for (int64_t i = 0; i < o.kills; ++i) plan_.push_back({at(draws_), 0});
    for (int64_t i = 0; i < o.stops; ++i) plan_.push_back({at(draws_), i % 2 == 0 ? 0.5 : 2});
    std::sort(plan_.begin(), plan_.end(), [](const Strike& a, const Strike& b) { return a.step < b.step; });
    for (size_t from = 0; from <= o.victims.size();) {
      const size_t end = std::min(o.victims.find(',', from), o.victims.size());
      victims_.push_back(o.victims.substr(from, end - from));
      from = end + 1;
    }
  }
  Outcome run() {
    while (!finished_ && !examples::interrupted()) {
      watch();
      strike();
      std::this_thread::sleep_for(1ms);
    }
    if (!finished_) return outcome_;  // interrupted: there is no result
    outcome_.result = read_result(options_.dir);
    outcome_.report_ms = times_of_reports(deaths_);
    outcome_.stop_report_ms = times_of_reports(stops_);
    outcome_.unreported = static_cast<int64_t>(deaths_.size() + stops_.size() - outcome_.report_ms.size() -
                                               outcome_.stop_report_ms.size());
    return outcome_;
  }

 private:
  struct Strike {
    int64_t step;
    double leases;  // SIGSTOP for that long; 0: SIGKILL
  };
  static constexpr int kStepsSince = 2;                         // of the training, until it has gone on
  using Losses = std::vector<std::pair<std::string, int64_t>>;  // roles and times

  std::vector<double> times_of_reports(const Losses& losses) const {
    std::vector<double> ms;
    const auto reports = reported(options_.dir);
    for (const auto& [role, lost] : losses)
      for (const Report& r : reports)
        if (r.lost == role && r.ns >= lost) {
          ms.push_back(static_cast<double>(r.ns - lost) / 1e6);
          break;
        }
    return ms;
  }

  const ChildState& state(const std::string& role) {
    const auto found = std::find(roles_.begin(), roles_.end(), role);
    return children_.poll().at(static_cast<size_t>(found - roles_.begin()));
  }

  /// Lets ended processes start again, and follows the steps.
  void watch() {
    outcome_.restarts = 0;
    for (const ChildState& child : children_.poll()) {
      outcome_.restarts += child.restarts;
      if (child.running) continue;
      if (child.exit_code != 0 || child.signal != 0)
        throw weft::RpcError("the processes end too often: " + weft::rpc::to_string(child));
      if (roles_[static_cast<size_t>(child.rank)] == "trainer") finished_ = true;
    }
    if (struck_ns_ != 0 && over_ns_ == 0 && state(struck_role_).restarts > struck_restarts_) recover();
    const int64_t step = read_step(options_.dir);
    if (step != step_) {
      step_ = step, moved_ = now_ns();
      if (struck_ns_ != 0 && over_ns_ != 0 && ++steps_since_ == kStepsSince) {
        outcome_.pause_s.push_back(static_cast<double>(moved_ - struck_ns_) / 1e9);
        struck_ns_ = 0;
      }
    }
    if (now_ns() - moved_ > 180'000'000'000)
      throw weft::RpcError(weft::str("the training has stood at step ", step_, " for three minutes"));
  }

  /// The strike is over. Steps of before it do not count, nor does one that had its replies by then. The next
  /// strike would meet a group that is not whole again: it has no worker yet that could report a loss.
  void recover() { over_ns_ = now_ns(), step_ = read_step(options_.dir), steps_since_ = 0; }

  /// Kills or stops a process when its moment has come and the training has gone on since the last one.
  void strike() {
    if (next_ == plan_.size() || step_ < plan_[next_].step || struck_ns_ != 0) return;
    if (now_ns() < calm_until_ns_) return;
    const std::string victim = victims_[draws_() % victims_.size()];
    const bool member = options_.etcd && victim == "store";
    const std::string role = member ? roles_[draws_() % kMembers] : victim;
    if (!state(role).running || finished_) return;
    std::this_thread::sleep_for(std::chrono::microseconds(draws_() % 4000));
    const Strike s = plan_[next_++];
    const ChildState child = state(role);
    const pid_t pid = child.pid;
    ++outcome_.by_role[victim];
    struck_role_ = role, struck_restarts_ = child.restarts, struck_ns_ = now_ns(), over_ns_ = 0;
    const bool reported = victim != "store";  // nobody but the group reports the store
    if (s.leases == 0) {
      kill(pid, SIGKILL);
      if (reported) deaths_.emplace_back(role, struck_ns_);
      ++outcome_.kills;
      std::printf("step %lld: killed the %s (pid %d)\n", static_cast<long long>(step_), role.c_str(), pid);
    } else {
      if (reported && s.leases > 1) stops_.emplace_back(role, struck_ns_);
      ++outcome_.stops;
      std::printf("step %lld: stopped the %s (pid %d) for %g leases\n", static_cast<long long>(step_),
                  role.c_str(), pid, s.leases);
      kill(pid, SIGSTOP);
      std::this_thread::sleep_for(std::chrono::duration<double>(s.leases * options_.lease));
      kill(pid, SIGCONT);
      recover();
    }
    // Once back, a member needs a moment until the cluster can do without another one.
    if (member) calm_until_ns_ = struck_ns_ + static_cast<int64_t>(2e9 * longest_absence(options_));
    std::fflush(stdout);
  }

  const Options& options_;
  const std::vector<std::string> roles_;
  std::mt19937_64 draws_;
  std::vector<Strike> plan_;
  std::vector<std::string> victims_;
  Children children_;
  Losses deaths_, stops_;
  size_t next_ = 0;
  int64_t step_ = 0, moved_ = now_ns(), struck_ns_ = 0;
  int64_t over_ns_ = 0;  // when the last strike was over, by a new process or its end; 0: not yet
  int64_t calm_until_ns_ = 0;
  int struck_restarts_ = 0, steps_since_ = 0;
  std::string struck_role_;
  bool finished_ = false;
  Outcome outcome_;
};

}  // namespace

Outcome supervise(const Options& options) { return Supervisor(options).run(); }

}  // namespace elastic
