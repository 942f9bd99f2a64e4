// The generator of schedules, and their text.
#include "explore/plan.h"

#include <array>
#include <random>
#include <sstream>

namespace weft::explore {

namespace {

constexpr std::array kOps = {
    "local",   "call",   "free",   "chain",     "free_chain", "async",    "await",
    "forget",  "remote", "hold",   "parameter", "third",      "fetch",    "use",
    "forward", "keep",   "give",   "drop_ref",  "drop_value", "backward", "remote_backward",
    "step",    "burst",  "cancel", "results"};
constexpr std::array kFaults = {"drop", "double",  "delay", "cut",  "isolate",
                                "kill", "replace", "part",  "store"};

class Draw {
 public:
  explicit Draw(uint64_t seed) : rng_(seed * 0x9e3779b97f4a7c15ULL + 1) {}
  int upto(int n) { return static_cast<int>(rng_() % static_cast<uint64_t>(n)); }
  bool one_in(int n) { return upto(n) == 0; }
  /// Small numbers more often than large ones.
  int early(int n) {
    const int most = 1 + upto(n);
    return upto(most);
  }

 private:
  std::mt19937_64 rng_;
};

Step draw_step(Draw& draw, int workers) {
  // how often each operation is drawn
  constexpr std::array<int, 20> kWeights = {3, 6, 3, 4, 3, 3, 2, 1, 4, 2, 2, 2, 4, 3, 2, 2, 2, 2, 1, 3};
  int total = 0;
  for (const int w : kWeights) total += w;
  int at = draw.upto(total);
  int op = 0;
  while (at >= kWeights[static_cast<size_t>(op)]) at -= kWeights[static_cast<size_t>(op++)];
  Step s;
  s.op = static_cast<Step::Op>(op);
  s.kind = draw.upto(3);
  s.a = draw.upto(64), s.b = draw.upto(64), s.worker = draw.upto(workers);
  if (s.op == Step::Op::kChain || s.op == Step::Op::kFreeChain)
    for (int n = 1 + draw.upto(3); n > 0; --n) s.way.push_back(draw.upto(workers));
  return s;
}

Program draw_program(Draw& draw, int driver, int workers, int most_steps) {
  Program p;
  p.driver = driver;
  p.optimizer = draw.one_in(2);
  for (int n = 1 + draw.upto(2); n > 0; --n) {
    std::vector<Step> steps;
    for (int i = 3 + draw.upto(most_steps); i > 0; --i) steps.push_back(draw_step(draw, workers));
    for (int losses = 1 + draw.upto(2); losses > 0; --losses) {
      Step loss = draw_step(draw, workers);
      loss.op = draw.one_in(4) ? Step::Op::kRemoteBackward : Step::Op::kBackward;
      loss.b = draw.upto(64);
      steps.push_back(loss);
    }
    if (p.optimizer) steps.push_back({.op = Step::Op::kStep});
    p.iterations.push_back(std::move(steps));
  }
  return p;
}

/// One program in an elastic group. Most faults come while it runs: at a message, or at a point of its steps
/// in two phases.
void make_elastic(Draw& draw, Plan& plan) {
  using Kind = Fault::Kind;
  plan.elastic = true;
  plan.shutdown = false;
  plan.programs.resize(1);
  plan.faults.clear();
  for (int n = draw.upto(4); n > 0; --n) {
    Fault f;
    f.kind = std::array{Kind::kCut,     Kind::kIsolate, Kind::kKill, Kind::kKill,
                        Kind::kReplace, Kind::kPart,    Kind::kStore}[static_cast<size_t>(draw.upto(7))];
    f.worker = draw.upto(plan.workers);
    if (draw.one_in(4)) f.at_us = 1000 * (1 + draw.upto(15000));
    else if (plan.programs.front().two_phase && draw.one_in(2)) f.point = 1 + draw.upto(3 * plan.workers);
    else f.message = draw.early(250);
    f.us = 1000 * (f.kind == Kind::kKill      ? draw.upto(5000)
                   : f.kind == Kind::kReplace ? 5000 + draw.upto(5000)
                   : f.kind == Kind::kPart    ? 200 + draw.upto(3500)
                   : draw.one_in(2)           ? 200 + draw.upto(1500)
                                              : 5000 + draw.upto(8000));
    plan.faults.push_back(f);
  }
}

}  // namespace

Plan make_plan(uint64_t seed, int workers, bool plain) {
  Draw draw(seed);
  Plan plan;
  plan.seed = seed;
  plan.workers = workers > 0 ? workers : 2 + draw.upto(3);
  plan.jitter_us = std::array<int64_t, 4>{0, 50, 1000, 5000}[static_cast<size_t>(draw.upto(4))];
  if (draw.one_in(3)) plan.drop = 0.01 * (1 + draw.upto(10)), plan.duplicate = 0.01 * draw.upto(10);
  plan.shutdown = draw.one_in(4);
  const int programs = draw.one_in(3) ? 2 : 1;
  for (int i = 0; i < programs; ++i)
    plan.programs.push_back(
        draw_program(draw, draw.upto(plan.workers), plan.workers, programs == 2 ? 8 : 14));
  constexpr int kMessages = 250;
  for (int n = draw.upto(6); n > 0; --n) {
    Fault f;
    f.kind = static_cast<Fault::Kind>(draw.upto(3));
    f.message = draw.early(kMessages);
    if (f.kind == Fault::Kind::kDelay)
      f.us = std::array{500, 5000, 150000, 900000}[static_cast<size_t>(draw.upto(4))];
    plan.faults.push_back(f);
  }
  if (draw.one_in(5))
    plan.faults.push_back({.kind = Fault::Kind::kCut,
                           .message = draw.early(kMessages),
                           .worker = draw.upto(plan.workers),
                           .us = 1000 * (50 + draw.upto(850))});
  for (int n = draw.one_in(2) ? 1 + draw.early(2) : 0; n > 0; --n) {
    Fault f;
    f.kind = std::array{Fault::Kind::kKill, Fault::Kind::kKill, Fault::Kind::kReplace,
                        Fault::Kind::kIsolate}[static_cast<size_t>(draw.upto(4))];
    f.message = draw.early(kMessages);
    f.worker = draw.upto(plan.workers);
    f.us = f.kind == Fault::Kind::kIsolate
               ? 1000 * (2500 + draw.upto(2000))
               : std::array{0, 300, 5000, 500000, 3000000}[static_cast<size_t>(draw.upto(5))];
    f.late_us = std::array{0, 100, 2000, 300000}[static_cast<size_t>(draw.upto(4))];
    plan.faults.push_back(f);
  }
  if (plain) return plan;
  Draw modes(~seed);  // apart, so that the rest of a seed's schedule is the same without it
  for (Program& p : plan.programs) p.fast = modes.one_in(3);
  for (Program& p : plan.programs) p.two_phase = p.optimizer && modes.one_in(2);
  for (const Program& p : plan.programs)
    if (p.two_phase && modes.one_in(2))
      plan.faults.push_back({.kind = modes.one_in(2) ? Fault::Kind::kKill : Fault::Kind::kReplace,
                             .worker = modes.upto(plan.workers),
                             .us = 1000 * modes.upto(1000),
                             .point = 1 + modes.upto(3 * plan.workers)});
  if (modes.one_in(8)) {
    plan.small = modes.upto(plan.workers);
    for (Program& p : plan.programs) {
      auto& steps = p.iterations.front();
      const int at = modes.upto(static_cast<int>(steps.size()));
      steps.insert(steps.begin() + at,
                   {.op = Step::Op::kBurst, .a = modes.upto(64), .b = modes.upto(64), .worker = plan.small});
    }
  } else if (modes.one_in(6)) {
    make_elastic(modes, plan);
  }
  if (!plan.elastic && modes.one_in(6)) {
    auto& steps = plan.programs.front().iterations.front();
    Step cancel{.op = Step::Op::kCancel, .kind = modes.upto(3)};
    for (int n = 1 + modes.upto(2); n > 0; --n) cancel.way.push_back(modes.upto(plan.workers));
    steps.insert(steps.begin() + modes.upto(static_cast<int>(steps.size())), cancel);
  }
  if (plan.small >= 0 && modes.one_in(2)) {
    auto& steps = plan.programs.front().iterations.front();
    const int at = modes.upto(static_cast<int>(steps.size()));
    steps.insert(steps.begin() + at, {.op = Step::Op::kResults, .worker = plan.small});
  }
  return plan;
}

Plan make_small_plan(uint64_t seed, int workers) {
  Draw draw(seed);
  Plan plan;
  plan.seed = seed;
  plan.workers = workers;
  plan.programs.push_back(draw_program(draw, 0, workers, 4));
  plan.programs.front().optimizer = true;
  plan.programs.front().fast = seed % 2 == 0;
  plan.programs.front().two_phase = seed % 4 >= 2;
  plan.programs.front().iterations.resize(1);
  auto& steps = plan.programs.front().iterations.front();
  steps.insert(steps.begin(), {.op = Step::Op::kChain, .way = {workers - 1, 1 % workers}});
  steps.push_back({.op = Step::Op::kStep});
  return plan;
}

size_t size_of(const Plan& plan) {
  size_t n = plan.faults.size();
  for (const Program& p : plan.programs)
    for (const auto& steps : p.iterations) n += steps.size();
  return n;
}

std::string to_string(const Plan& plan) {
  std::ostringstream out;
  out << plan.workers << " workers, task seed " << plan.seed << ", jitter " << plan.jitter_us << " us, drop "
      << plan.drop << ", duplicate " << plan.duplicate << (plan.shutdown ? ", graceful shutdown" : "")
      << (plan.elastic ? ", elastic" : "");
  if (plan.small >= 0) out << ", a small budget on worker " << plan.small;
  out << "\n";
  for (size_t i = 0; i < plan.programs.size(); ++i) {
    const Program& p = plan.programs[i];
    out << "program " << i << " on worker " << p.driver << (p.optimizer ? " with an optimizer" : "")
        << (p.two_phase ? " in two phases" : "") << (p.fast ? " in FAST mode" : "") << "\n";
    for (const auto& steps : p.iterations) {
      out << "  context\n";
      for (const Step& s : steps) {
        out << "    " << kOps.at(static_cast<size_t>(s.op)) << " kind " << s.kind << " a " << s.a << " b "
            << s.b << " worker " << s.worker;
        if (!s.way.empty()) out << " way";
        for (const int w : s.way) out << " " << w;
        out << "\n";
      }
    }
  }
  for (const Fault& f : plan.faults) {
    if (f.at_us > 0) out << "fault at " << f.at_us << " us: ";
    else if (f.point > 0) out << "fault at point " << f.point << " of the steps: ";
    else out << "fault at message " << f.message << ": ";
    out << kFaults.at(static_cast<size_t>(f.kind));
    if (f.kind >= Fault::Kind::kCut && f.kind != Fault::Kind::kStore) out << " worker " << f.worker;
    if (f.us != 0) out << ", " << f.us << " us";
    if (f.late_us != 0) out << ", told within " << f.late_us << " us";
    out << "\n";
  }
  return out.str();
}

}  // namespace weft::explore
