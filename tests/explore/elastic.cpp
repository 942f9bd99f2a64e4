// One schedule in an elastic group. A program runs while workers are cut off from the store or from others,
// die, and are succeeded. The store dies and comes back. Every life calls every name all the time. No two
// lives of a name may serve at one time (lives.h). Then each name gets a life that works, and a last program
// must be right. At the end the living hold nothing.
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <optional>

#include <weft/distributed/rpc/rpc.h>

#include "explore/checks.h"
#include "explore/interpret.h"
#include "explore/lives.h"
#include "support/elastic.h"

namespace weft::explore {

namespace {

using namespace std::chrono_literals;
using rpc::Duration;
using test::ElasticGroup;

constexpr Duration kElasticLease = 4s;
constexpr Duration kStepLease = 2s;  ///< of a decision on a step in two phases (world.cpp)
constexpr Duration kLongestProgram = 300s;

/// Of the current run.
Lives* lives_of_run = nullptr;
void ping() { lives_of_run->served(); }
WEFT_RPC_AS("explore_ping", &ping);

std::string name_of(int worker) { return str("worker", worker); }

class ElasticRun {
 public:
  ElasticRun(const Plan& plan, const Planted* planted) : plan_(plan), planted_(planted) {}

  Outcome go() {
    {
      try {
        start();
        watch_program();
        make_whole();
        finish();
      } catch (const std::exception& e) {
        fail(str("the group does not become whole: ", e.what()));
      }
      points_.reset();
      over_ = true;  // after a failure too no task may outlive the group
      for (int i = 0; i < 100 && callers_ + open_ > 0; ++i) g_->sim().run_for(1s);
      out_.hash = g_->sim().log_hash();
      task_.reset();
      g_.reset();
      lives_of_run = nullptr;
      std::filesystem::remove(log_);
      std::filesystem::remove(log_ + ".lock");
    }
    if (Table::living != 0) fail(str(Table::living.exchange(0), " tables live after their workers' end"));
    return out_;
  }

 private:
  using Worker = ElasticGroup::Worker;

  void fail(const std::string& text) {
    if (out_.failure.empty()) out_.failure = text;
  }
  bool failed() const { return !out_.failure.empty(); }
  Worker& worker(int w) { return *lives_[static_cast<size_t>(w)]; }

  void start() {
    test::ElasticOptions options{.seed = plan_.seed,
                                 .net = {.jitter = std::chrono::microseconds(plan_.jitter_us),
                                         .drop = plan_.drop,
                                         .duplicate = plan_.duplicate},
                                 .lease = kElasticLease,
                                 .init_timeout = 25s,
                                 .keep_log = std::getenv("WEFT_TEST_LOG") != nullptr};
    for (const Fault& f : plan_.faults)
      if (f.kind == Fault::Kind::kStore)
        log_ = std::filesystem::temp_directory_path() / str("weft_explore_", getpid(), ".log");
    options.store_log = log_;
    options.around = [this](const std::string&, std::shared_ptr<rpc::Store> client) {
      if (planted_ && planted_->store) client = planted_->store(std::move(client));
      return served_->around(std::move(client));
    };
    g_ = std::make_unique<ElasticGroup>(std::move(options));
    served_.emplace(g_->sim(), kElasticLease);
    lives_of_run = &*served_;
    g_->net().add_rule({.match = [this](const std::string&) { return at_message(), false; }});
    for (int w = 0; w < plan_.workers; ++w) lives_.push_back(&join(w));
    wait_for_all();
    for (Worker* w : lives_) call_all_the_time(*w);
    for (const Fault& f : plan_.faults)
      if (f.at_us > 0)
        g_->sim().call_at(g_->sim().now() + std::chrono::microseconds(f.at_us), [this, &f] { hit(f); });
    points_.emplace([this](int point) {
      for (const Fault& f : plan_.faults)
        if (f.point == point && f.at_us == 0) soon(f);
    });
    before_ = out_.messages;
  }

  Worker& join(int w) {
    return g_->join(name_of(w), [](rpc::AgentOptions& mine) { mine.rpc_timeout = 60s; });
  }

  void wait_for_all() {
    std::vector<std::string> names;
    for (int w = 0; w < plan_.workers; ++w) names.push_back(name_of(w));
    for (Worker* w : lives_) w->membership->wait_for(names, g_->sim().now() + 20s);
  }

  void call_all_the_time(const Worker& from) {
    ++callers_;
    g_->sim().post([this, &from] {
      while (!over_ && from.agent()->is_running()) {
        for (int to = 0; to < plan_.workers && !over_; ++to) {
          try {
            g_->run(from, [&] { rpc::rpc_sync<ping>({rpc::WorkerId{to}, 1s}); });
          } catch (const Error&) {
          }
        }
        g_->sim().sleep_for(400ms);
      }
      --callers_;
    });
  }

  // ---- faults

  void at_message() {
    const int at = ++out_.messages - before_;
    if (!points_) return;  // before the program
    for (const Fault& f : plan_.faults)
      if (f.at_us == 0 && f.point == 0 && f.message + 1 == at) soon(f);
  }
  /// As a callback, which is not preempted.
  void soon(const Fault& f) {
    g_->sim().call_at(g_->sim().now(), [this, &f] { hit(f); });
  }

  void hit(const Fault& f) {
    if (whole_) return;
    const int w = f.worker % plan_.workers;
    const Duration length = std::chrono::microseconds(f.us);
    if (f.kind == Fault::Kind::kStore) return hit_store(length);
    if (f.kind == Fault::Kind::kKill) {
      hurt_ = true;
      g_->kill(worker(w));
      if (task_->agent == worker(w).agent()) task_->killed = true;
      return after(length, [this, w] { succeed(w); });
    }
    count_cut(length);
    if (f.kind == Fault::Kind::kIsolate) g_->cut_all(worker(w));
    else if (f.kind == Fault::Kind::kPart) g_->cut_members(worker(w));
    else g_->cut_store(worker(w));
    if (f.kind == Fault::Kind::kReplace) succeed(w);
    after(length, [this] { g_->net().heal(); });
  }

  /// A program may fail when the cuts take half of a lease. A lost message costs a step a large part of its
  /// lease, so that a cut of any length may be too long beside it.
  void count_cut(Duration length) {
    cut_ += length;
    const bool two_phase = !plan_.programs.empty() && plan_.programs.front().two_phase;
    const bool lossy_step = two_phase && plan_.drop > 0;
    hurt_ = hurt_ || lossy_step || cut_ > (two_phase ? kStepLease : kElasticLease) / 2;
  }

  void hit_store(Duration length) {
    if (std::exchange(store_away_, true)) return;
    count_cut(length);
    g_->kill_store();
    after(length, [this] {
      g_->start_store();
      store_away_ = false;
    });
  }

  void after(Duration wait, rpc::Task f) {
    ++open_;
    g_->sim().call_at(g_->sim().now() + wait, [this, f = std::move(f)]() mutable {
      --open_;
      f();
    });
  }

  /// Another life asks for the name. It may wait in vain while the old one renews its lease.
  void succeed(int w) {
    ++open_;
    g_->sim().post([this, w] {
      try {
        Worker& next = join(w);
        lives_[static_cast<size_t>(w)] = &next;
        hurt_ = true;
        call_all_the_time(next);
      } catch (const Error&) {
      }
      --open_;
    });
  }

  // ---- the program

  void launch(const Program& program, const std::vector<Numbers>& expected, const std::string& name) {
    task_ = std::make_shared<Task>();
    task_->program = &program;
    task_->expected = &expected;
    const int w = program.driver % plan_.workers;
    task_->name = str(name, " on worker ", w);
    task_->agent = worker(w).agent();
    start_task(g_->sim(), task_, plan_.workers);
  }

  void watch_program() {
    const Program& program = plan_.programs.empty() ? last_ : plan_.programs.front();
    if (plan_.programs.empty()) last_ = last_program(plan_.workers);
    expected_ = Interpreter<LocalWorld>(program, plan_.workers).run();
    launch(program, expected_, "program");
    int64_t latest = 0;
    for (const Fault& f : plan_.faults) latest = std::max(latest, f.at_us);
    g_->sim().run_for(std::chrono::microseconds(latest) + 1ms);
    const rpc::TimePoint end = g_->sim().now() + kLongestProgram;
    while ((open_ > 0 || !(task_->done || task_->killed)) && g_->sim().now() < end) g_->sim().run_for(500ms);
    judge(hurt_);
  }

  void judge(bool may_fail) {
    const Task& t = *task_;
    if (t.killed) return;
    if (!t.done) return fail(str(t.name, " has not ended; ", t.agent->dump()));
    if (!t.error) {
      const std::string wrong = difference(t.seen, *t.expected);
      if (!wrong.empty()) fail(t.name + ": " + wrong);
      return;
    }
    out_.hurt = true;
    try {
      std::rethrow_exception(t.error);
    } catch (const RpcError& e) {  // PeerLost, Fenced, and the errors of a pass or a step that they end
      if (!may_fail) fail(str(t.name, ": it ended although nobody lost a lease: ", e.what()));
    } catch (const AutogradError& e) {  // a context of a life that is lost here and there
      if (!may_fail) fail(str(t.name, ": it ended although nobody lost a lease: ", e.what()));
    } catch (const std::exception& e) {
      fail(str(t.name, ": it ended with an error that is no loss: ", e.what()));
    }
  }

  // ---- the end

  /// A worker that is dead, fenced for good, or lost for another one.
  bool needs_successor(int w) {
    const rpc::Life life = worker(w).agent()->life();
    if (stays_out(worker(w))) return true;
    for (int other = 0; other < plan_.workers; ++other)
      if (other != w &&
          (worker(other).agent()->is_lost(life) || worker(w).agent()->is_lost(worker(other).agent()->life())))
        return true;
    return false;
  }
  bool stays_out(const Worker& w) {
    try {
      w.membership->wait_for({w.name}, g_->sim().now());
      return false;
    } catch (const Error&) {
      return true;
    }
  }

  void make_whole() {
    whole_ = true;
    if (failed()) return;
    g_->net().clear_rules();
    g_->net().set_faults(0, 0);
    g_->net().heal();
    g_->sim().run_for(4 * kElasticLease);
    for (int w = 0; w < plan_.workers; ++w) {
      if (!needs_successor(w)) continue;
      g_->kill(worker(w));
      lives_[static_cast<size_t>(w)] = &join(w);
      call_all_the_time(worker(w));
    }
    wait_for_all();
    g_->sim().run_for(2s);
    over_ = true;
    for (int i = 0; i < 100 && callers_ > 0; ++i) g_->sim().run_for(1s);
    if (callers_ > 0) return fail("a call has not ended by its deadline");
    check_lives();
    last_ = last_program(plan_.workers);
    expected_ = Interpreter<LocalWorld>(last_, plan_.workers).run();
    for (last_.driver = 0; last_.driver < plan_.workers && !failed(); ++last_.driver) {
      launch(last_, expected_, "last program");
      for (int i = 0; i < 600 && !task_->done; ++i) g_->sim().run_for(100ms);
      judge(false);
    }
  }

  void check_lives() {
    if (!served_->wrong().empty()) fail(served_->wrong());
  }

  void finish() {
    if (failed()) return;
    g_->sim().run_for(4 * kElasticLease);
    for (const Worker* w : lives_) {
      const std::string left = left_on(*w->agent(), true, 1);
      if (!left.empty()) fail("something is left:" + left);
    }
    out_.completed = !failed() && !out_.hurt;
  }

  const Plan& plan_;
  const Planted* const planted_;
  std::optional<Lives> served_;  ///< which of them served; outlives the group
  std::unique_ptr<ElasticGroup> g_;
  std::optional<StepPoints> points_;
  std::string log_;  ///< of the store, if it dies
  int before_ = 0;   ///< messages before the program
  std::vector<Worker*> lives_;
  std::shared_ptr<Task> task_;
  std::vector<Numbers> expected_;
  Program last_;
  Duration cut_{};  ///< all cuts together: they may follow each other
  int callers_ = 0, open_ = 0;
  bool over_ = false, whole_ = false, hurt_ = false, store_away_ = false;
  Outcome out_;
};

}  // namespace

Outcome run_elastic(const Plan& plan, const Planted* planted) { return ElasticRun(plan, planted).go(); }

}  // namespace weft::explore
