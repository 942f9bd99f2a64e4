// CartPole with one agent and several observers. Each observer runs its own environment and requests its
// actions from the agent by RPC. The agent learns after every round. Worker "agent" is rank 0; observers are
// "obs1", "obs2", ... In an elastic group (--store, --name) a dead observer is replaced, and its episode
// played again with the same draws.
#include <atomic>
#include <cmath>
#include <cstdio>
#include <memory>
#include <sstream>

#include <weft/distributed.h>
#include <weft/distributed/launch/membership.h>
#include <weft/tensor/io/write_file.h>
#include "../common/args.h"
#include "../common/group.h"
#include "../common/report.h"
#include "agent.h"
#include "env.h"

namespace cartpole {

using weft::Tensor;
using weft::rpc::RRef;

/// Adds the seconds of its lifetime to a sum.
class Clock {
 public:
  explicit Clock(std::atomic<double>& sum) : sum_(sum) {}
  ~Clock() { sum_ += examples::seconds() - start_; }
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;

 private:
  std::atomic<double>& sum_;
  const double start_ = examples::seconds();
};

/// The functions of the learner that observers call.
struct Agent : Learner {
  explicit Agent(const AgentOptions& options) : Learner(options) {}
  void report(int64_t observer, double reward) {
    const Clock clock(serving_s);
    report_reward(observer, reward);
  }
  int64_t select(int64_t observer, const Tensor& state) {
    const Clock clock(serving_s);
    return select_action(observer, state);
  }
  /// Reports the reward of the last action (none before the first step) and returns the next action.
  int64_t report_and_select(int64_t observer, double reward, bool first, const Tensor& state) {
    const Clock clock(serving_s);
    if (!first) report_reward(observer, reward);
    return select_action(observer, state);
  }
  /// The same for the calls of several observers, joined by RPC. A row of `calls` has observer, reward and
  /// whether it is the first step.
  Tensor report_and_select_joined(const Tensor& calls, const Tensor& states) {
    const Clock clock(serving_s);
    std::vector<int64_t> observers;
    const std::vector<double> rows = calls.to_vector<double>();
    for (size_t i = 0; i < rows.size(); i += 3) {
      observers.push_back(static_cast<int64_t>(rows[i]));
      if (rows[i + 2] == 0) report_reward(observers.back(), rows[i + 1]);
    }
    return select_actions(observers, states);
  }
  std::atomic<double> serving_s{0};  // in these functions
};
WEFT_RPC_CLASS(Agent, report, select, report_and_select);
WEFT_RPC_BATCHED_METHOD(Agent, report_and_select_joined);

/// One environment.
class Observer {
 public:
  Observer(int64_t number, int64_t seed, int64_t max_steps, std::string calls)
      : number_(number), seed_(seed), max_steps_(max_steps), calls_(std::move(calls)) {}
  /// Plays one episode; returns its number of steps.
  int64_t run_episode(const RRef<Agent>& agent, int64_t episode) {
    weft::Generator draws = environment_draws(static_cast<uint64_t>(seed_), number_, episode);
    std::array<float, 4> state = env_.reset(draws);
    double reward = 0;
    for (int64_t step = 0;; ++step) {
      const Tensor observation = weft::from_vector(std::vector<float>(state.begin(), state.end()), {4});
      const int64_t action = next_action(agent, reward, step == 0, observation);
      const Env::Step result = play(action);
      const bool last = result.terminated || result.truncated || step + 1 == max_steps_;
      reward = result.reward;
      if (calls_ == "two" || last) {
        const Clock clock(calling_s_);
        agent.rpc_sync<&Agent::report>(number_, reward);
      }
      if (last) return step + 1;
      state = result.observation;
    }
  }
  /// Seconds in the environment and in calls of the agent, since the beginning.
  std::vector<double> seconds() const { return {playing_s_, calling_s_}; }

 private:
  Env::Step play(int64_t action) {
    const Clock clock(playing_s_);
    return env_.step(action);
  }
  int64_t next_action(const RRef<Agent>& agent, double reward, bool first, const Tensor& observation) {
    const Clock clock(calling_s_);
    if (calls_ == "two") return agent.rpc_sync<&Agent::select>(number_, observation);
    if (calls_ == "fused")
      return agent.rpc_sync<&Agent::report_and_select>(number_, reward, first, observation);
    const std::vector<double> call{static_cast<double>(number_), reward, first ? 1.0 : 0.0};
    const Tensor row = weft::from_vector(call, {1, 3});
    return agent.rpc_sync<&Agent::report_and_select_joined>(row, observation.reshape({1, 4})).item<int64_t>();
  }
  Env env_;
  int64_t number_, seed_, max_steps_;
  std::string calls_;
  std::atomic<double> playing_s_{0}, calling_s_{0};
};
WEFT_RPC_CONSTRUCTOR(Observer, int64_t, int64_t, int64_t, std::string);
WEFT_RPC_CLASS(Observer, run_episode, seconds);

namespace {

struct Options {
  int64_t world_size = 2, seed = 543, log_interval = 10, max_episodes = 0;
  double gamma = 0.99, lr = 0.01;
  std::string calls = "two", plot, json;
  bool elastic = false, compile = false;
};

/// Writes the learning curve as SVG: the reward of each episode and its running mean.
void plot(const std::string& path, const std::vector<double>& rewards, const std::vector<double>& running) {
  std::ostringstream out;
  const double width = 800, height = 400, margin = 50;
  const auto x = [&](size_t i) {
    return margin + (width - 2 * margin) * static_cast<double>(i) /
                        static_cast<double>(std::max<size_t>(rewards.size() - 1, 1));
  };
  const auto y = [&](double v) {
    return height - margin - (height - 2 * margin) * v / static_cast<double>(kMaxSteps);
  };
  const auto line = [&](const std::vector<double>& values, const char* colour) {
    out << "<polyline fill='none' stroke='" << colour << "' points='";
    for (size_t i = 0; i < values.size(); ++i) out << x(i) << ',' << y(values[i]) << ' ';
    out << "'/>\n";
  };
  out << "<svg xmlns='http://www.w3.org/2000/svg' width='" << width << "' height='" << height
      << "' font-family='sans-serif' font-size='12'>\n"
      << "<rect width='100%' height='100%' fill='white'/>\n";
  for (int v = 0; v <= 500; v += 100)
    out << "<line x1='" << margin << "' x2='" << width - margin << "' y1='" << y(v) << "' y2='" << y(v)
        << "' stroke='#ddd'/><text x='10' y='" << y(v) + 4 << "'>" << v << "</text>\n";
  line(rewards, "#9ecae1");
  line(running, "#d62728");
  out << "<text x='" << width / 2 - 40 << "' y='" << height - 12 << "'>episode (" << rewards.size()
      << ")</text>\n"
      << "<text x='" << margin
      << "' y='25'>reward of an episode (blue), running mean (red), solved above 475</text>\n</svg>\n";
  weft::write_output(path, out.str());
}

int run_agent(const Options& o) {
  examples::catch_interrupt();
  const int64_t observers = o.world_size - 1, max_steps = std::min(kMaxSteps, 5000 / observers);
  auto learner = std::make_shared<Agent>(AgentOptions{.observers = observers,
                                                      .seed = static_cast<uint64_t>(o.seed),
                                                      .gamma = o.gamma,
                                                      .lr = o.lr,
                                                      .joined = o.calls == "batched",
                                                      .compiled = o.compile});
  // A run begins when all observers have asked; late in an episode some have ended, and it waits 200 us.
  weft::rpc::set_batch_options<Agent, &Agent::report_and_select_joined>(
      {.max_batch = observers, .max_wait = std::chrono::microseconds(200)});
  const RRef<Agent> agent(learner);
  std::vector<weft::rpc::RecreatableRRef<Observer>> all;
  for (int64_t k = 0; k < observers; ++k)
    all.emplace_back([name = "obs" + std::to_string(k + 1), k, max_steps, &o] {
      return weft::rpc::remote<Observer>(name, k, o.seed, max_steps, o.calls);
    });
  const auto play = [&](size_t k, int64_t episode) {
    try {
      return all[k].get().rpc_async<&Observer::run_episode>(agent, episode);
    } catch (const weft::PeerLost&) {
      return weft::rpc::Future<int64_t>::failed(std::current_exception());
    }
  };
  // Elastic: the steps of an observer in an episode, which its successor plays again when it is lost.
  const auto played = [&](size_t k, const weft::rpc::Future<int64_t>& playing, int64_t episode) {
    try {
      return playing.wait();
    } catch (const weft::PeerLost& e) {
      std::printf("episode %lld: worker '%s' is lost, its successor plays it again\n",
                  static_cast<long long>(episode), e.peer.c_str());
      std::fflush(stdout);
    }
    return all[k].use([&](const RRef<Observer>& observer) {
      learner->forget(static_cast<int64_t>(k));
      return observer.rpc_sync<&Observer::run_episode>(agent, episode);
    });
  };

  std::vector<double> rewards, running;
  int64_t env_steps = 0;
  std::atomic<double> learning_s{0};
  const double start = examples::seconds();
  const auto steps_per_s = [&] {
    return static_cast<double>(env_steps) / std::max(examples::seconds() - start, 1e-9);
  };
  examples::Progress progress("episodes", o.max_episodes, 10 * o.log_interval);
  bool solved = false;
  while (!solved && !examples::interrupted() &&
         (o.max_episodes == 0 || static_cast<int64_t>(rewards.size()) < o.max_episodes)) {
    const int64_t episode = learner->episode();
    std::vector<weft::rpc::Future<int64_t>> playing;
    for (size_t k = 0; k < all.size(); ++k) playing.push_back(play(k, episode));
    if (o.elastic) {
      for (size_t k = 0; k < playing.size(); ++k) env_steps += played(k, playing[k], episode);
    } else {
      for (const int64_t steps : weft::rpc::wait_all(playing)) env_steps += steps;
    }
    const double last = [&] {
      const Clock clock(learning_s);
      return learner->finish_episode();
    }();
    rewards.push_back(last);
    running.push_back(learner->running_reward());
    if (episode % o.log_interval == 0) {
      progress.finish();
      std::printf("Episode %lld\tLast reward: %.2f\tAverage reward: %.2f\n", static_cast<long long>(episode),
                  last, learner->running_reward());
      std::fflush(stdout);
    }
    solved = learner->running_reward() > kThreshold;
    char text[96];
    std::snprintf(text, sizeof text, "running reward %.1f of %g  %.0f env steps/s", learner->running_reward(),
                  kThreshold, steps_per_s());
    progress.update(static_cast<int64_t>(rewards.size()), text);
  }
  progress.finish();
  if (examples::interrupted()) std::printf("interrupted after %zu episodes\n", rewards.size());
  if (solved) std::printf("Solved! Running reward is now %g!\n", learner->running_reward());
  else
    std::printf("Not solved after %zu episodes. Running reward is now %g.\n", rewards.size(),
                learner->running_reward());
  const double wall = examples::seconds() - start, rate = steps_per_s();
  double playing_s = 0, calling_s = 0;
  for (auto& observer : all) {
    try {
      const std::vector<double> own = observer.get().rpc_sync<&Observer::seconds>();
      playing_s += own[0], calling_s += own[1];
    } catch (const weft::PeerLost&) {  // its part of the split is lost with it
    }
  }
  const auto per_step = [&](double s) {
    return 1e6 * s / static_cast<double>(std::max<int64_t>(env_steps, 1));
  };
  examples::Figures figures;
  figures.set("solved", examples::yes_no(solved));
  figures.set("episodes", static_cast<int64_t>(rewards.size()));
  figures.set("running_reward", learner->running_reward());
  figures.set("env_steps", env_steps);
  figures.set("steps_per_s", rate);
  figures.set("wall_s", wall);
  figures.set("environment_us_per_step", per_step(playing_s));
  figures.set("calls_us_per_step", per_step(calling_s));
  figures.set("agent_us_per_step", per_step(learner->serving_s));
  figures.set("learning_us_per_step", per_step(learning_s));
  for (size_t i = 0; i < rewards.size(); ++i) {
    examples::Figures record;
    record.set("reward", rewards[i]);
    record.set("running_reward", running[i]);
    figures.append("episodes_run", record);
  }
  std::printf("a step: environment %.1f us, calls %.1f us (%.1f us of them at the agent), learning %.1f us\n",
              per_step(playing_s), per_step(calling_s), per_step(learner->serving_s), per_step(learning_s));
  std::printf(
      "cartpole: solved=%s episodes=%zu running_reward=%.2f env_steps=%lld steps_per_s=%.0f wall_s=%.1f\n",
      examples::yes_no(solved).c_str(), rewards.size(), learner->running_reward(),
      static_cast<long long>(env_steps), rate, wall);
  std::fflush(stdout);
  figures.write(o.json);
  if (!o.plot.empty()) plot(o.plot, rewards, running);
  return 0;
}

}  // namespace
}  // namespace cartpole

int main(int argc, char** argv) {
  cartpole::Options o;
  examples::Args args("cartpole",
                      "solves CartPole with REINFORCE: one agent that learns, observers that play");
  args.add("world-size", o.world_size, "processes: one agent, the rest observers");
  args.add("seed", o.seed, "seed of starts, dropout and actions");
  args.add("gamma", o.gamma, "discount");
  args.add("lr", o.lr, "learning rate of Adam");
  args.add("log-interval", o.log_interval, "episodes between lines");
  args.add("max-episodes", o.max_episodes, "stop after this many (0: when solved)");
  args.add("calls", o.calls, {"two", "fused", "batched"},
           "calls per step: select_action and report_reward apart, in one, or in one with those of other "
           "observers joined");
  args.add("compile", o.compile, "the agent runs its policy by compile() (not with batched calls)");
  args.require(
      [&o] { return o.compile && o.calls == "batched" ? "--compile needs --calls two or fused" : ""; });
  args.add("plot", o.plot, "write the learning curve here (SVG)");
  args.add("json", o.json, "write the figures here");
  examples::NetworkFlags network;
  network.add_to(args);
  network.add_elastic_to(args);
  args.parse(argc, argv);
  o.elastic = !network.store.empty();
  if (o.world_size < 2 || o.world_size > examples::kMostWorkers || o.log_interval < 1 || o.max_episodes < 0 ||
      !(o.gamma >= 0 && o.gamma <= 1) || !(o.lr >= 0) || std::isinf(o.lr)) {
    std::fprintf(stderr,
                 "cartpole: world-size must be 2 to 1000, log-interval at least 1, gamma in [0, 1], lr "
                 "finite, the rest not negative\n");
    return 2;
  }
  return examples::guarded("cartpole", [&] {
    return examples::run_group(
        {.world_size = static_cast<int>(o.world_size),
         .network = network,
         .name = [](int rank,
                    bool) { return rank == 0 ? std::string("agent") : "obs" + std::to_string(rank); },
         .passive = [](const std::string& name) { return name != "agent"; },
         .prepare =
             [&](bool) {
               examples::check_outputs({o.json, o.plot});
             }},
        [&](const std::string&) {
          if (o.elastic) {
            std::vector<std::string> names;
            for (int64_t k = 1; k < o.world_size; ++k) names.push_back("obs" + std::to_string(k));
            weft::rpc::wait_for_members(names, std::chrono::seconds(60));
          } else {
            o.world_size = static_cast<int64_t>(weft::rpc::get_worker_infos().size());
          }
          return cartpole::run_agent(o);
        });
  });
}
