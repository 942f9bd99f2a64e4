// One schedule: the programs run as tasks of a simulated group while faults hit the messages that the
// schedule names. Then the group is made whole, and a last program over all workers must be right. At the
// end the living hold nothing.
#include <optional>
#include <set>

#include "explore/between.h"
#include "explore/checks.h"
#include "explore/interpret.h"
#include "support/cluster.h"

namespace weft::explore {

namespace {

using namespace std::chrono_literals;
using rpc::Duration;
using test::Cluster;

constexpr Duration kLease = 2s;
/// The longest life of a program in virtual time: some calls of a minute each, with a margin.
constexpr Duration kLongest = 600s;
/// of the worker Plan::small: room for some of the requests of a burst. Those of two programs and of the
/// earlier lives of their drivers fit in the limit in all.
constexpr rpc::BudgetLimits kSmallBudget{.per_peer = 256 << 10, .in_all = 1 << 20};
/// After this time of quiet nothing may be left.
constexpr Duration kQuiet = 8s;

Duration us(int64_t n) { return std::chrono::microseconds(n); }

/// Between the network and an agent. A life that the agent has lost hears so at its first message, and an
/// agent that hears so has lost the sender.
class LossesHeard final : public Between {
 public:
  LossesHeard(rpc::Receiver& agent, const int& told, std::string& wrong)
      : Between(agent, {}), told_(told), wrong_(wrong) {}
  std::weak_ptr<rpc::Agent> agent;

  void on_message(Inbound message) override {
    const std::shared_ptr<rpc::Agent> mine = agent.lock();
    const rpc::Life from{message.from, message.incarnation};
    const uint64_t to = envelope(message).to_incarnation;
    if (!mine || !mine->is_running() || mine->life_of(from.id) != from ||
        (to != 0 && to != mine->life().incarnation.value))
      return Between::on_message(std::move(message));
    const bool fenced = is(message, Kind::kFenced);
    const bool must_tell = !fenced && (message.kind & rpc::kReplyBit) == 0 && mine->is_lost(from);
    const int before = told_;
    Between::on_message(std::move(message));
    if (must_tell && told_ == before) fail(*mine, "does not tell worker ", from, " that it has lost it");
    if (fenced && !mine->is_lost(from)) fail(*mine, "is lost for worker ", from, ", heard so and goes on");
  }

 private:
  void fail(const rpc::Agent& mine, const char* begin, rpc::Life other, const char* end) {
    if (wrong_.empty()) wrong_ = str("worker ", mine.self().id, " ", begin, other.id, end);
  }
  const int& told_;  ///< number of all messages that tell of a loss
  std::string& wrong_;
};

class Run {
 public:
  Run(const Plan& plan, const Planted* planted)
      : plan_(plan), planted_(planted), lease_(planted ? std::chrono::seconds(planted->lease_s) : kLease) {}

  Outcome go() {
    nested_waits = planted_ && planted_->nested_waits;
    ran_twice = 0;
    for (const Program& p : plan_.programs)
      expected_.push_back(Interpreter<LocalWorld>(p, plan_.workers).run());
    {
      start();
      for (size_t i = 0; i < plan_.programs.size(); ++i) launch(plan_.programs[i], expected_[i], "program");
      wait_for_tasks();
      make_whole();
      finish();
      out_.hash = c_->sim().log_hash();
      out_.messages = messages_;
      tasks_.clear();
      c_->net().clear_rules();  // the goodbyes of the agents meet no fault
      c_.reset();
      points_.reset();
    }
    nested_waits = false;
    if (Table::living != 0) fail(str(Table::living.exchange(0), " tables live after their workers' end"));
    return out_;
  }

 private:
  void fail(const std::string& text) {
    if (out_.failure.empty()) out_.failure = text;
  }

  void start() {
    rpc::AgentOptions agent;
    agent.lease = lease_;
    agent.rpc_timeout = 60s;
    test::ClusterOptions options{
        .size = plan_.workers,
        .seed = plan_.seed,
        .net = {.jitter = us(plan_.jitter_us), .drop = plan_.drop, .duplicate = plan_.duplicate},
        .agent = agent,
        .each =
            [this](int rank, rpc::AgentOptions& mine) {
              if (rank == plan_.small) mine.budget = kSmallBudget;
            },
        .keep_log = std::getenv("WEFT_TEST_LOG") != nullptr};
    options.before = [this](int rank, rpc::Receiver& agent) -> rpc::Receiver& {
      if (planted_ && planted_->before)
        between_.push_back(
            planted_->before(agent, [this, rank](rpc::WorkerId to, uint8_t kind, std::string header) {
              if (c_) c_->agent(rank)->transport().send(to, kind, std::move(header));
            }));
      rpc::Receiver& inner = planted_ && planted_->before ? *between_.back() : agent;
      heard_.push_back(std::make_unique<LossesHeard>(inner, told_losses_, wrong_));
      return *heard_.back();
    };
    c_ = std::make_unique<Cluster>(std::move(options));
    for (int w = 0; w < plan_.workers; ++w) heard_[static_cast<size_t>(w)]->agent = c_->agent(w);
    hurt_.resize(static_cast<size_t>(plan_.workers));
    cut_off_.resize(static_cast<size_t>(plan_.workers));
    c_->net().add_rule({.match = [this](const std::string&) { return at_message(), false; }});
    c_->net().add_rule({.kind = static_cast<uint8_t>(rpc::Kind::kFenced),
                        .match = [this](const std::string&) { return ++told_losses_, false; }});
    points_.emplace([this](int point) { at_point(point); });
    add_rule(Fault::Kind::kDrop, rpc::FaultRule::Action::kDrop);
    add_rule(Fault::Kind::kDouble, rpc::FaultRule::Action::kDuplicate);
    for (const Fault& f : plan_.faults)
      if (f.kind == Fault::Kind::kDelay)
        c_->net().add_rule(
            {.action = rpc::FaultRule::Action::kDelay,
             .delay = us(f.us),
             .match = [this, at = f.message](const std::string&) { return messages_ == at + 1; }});
  }

  void add_rule(Fault::Kind kind, rpc::FaultRule::Action action) {
    std::set<int> at;
    for (const Fault& f : plan_.faults)
      if (f.kind == kind) at.insert(f.message + 1);
    if (!at.empty())
      c_->net().add_rule(
          {.action = action, .match = [this, at](const std::string&) { return at.count(messages_) > 0; }});
  }

  /// The first rule sees every message once.
  void at_message() {
    ++messages_;
    for (const Fault& f : plan_.faults)
      if (f.point == 0 && f.message + 1 == messages_ && f.kind >= Fault::Kind::kCut)
        after(0us, [this, &f] { hit(f); });  // as a callback it is not preempted
  }
  void at_point(int point) {
    for (const Fault& f : plan_.faults)
      if (f.point == point) after(0us, [this, &f] { hit(f); });
  }

  void after(Duration wait, rpc::Task f) { c_->sim().call_at(c_->sim().now() + wait, std::move(f)); }

  void hit(const Fault& f) {
    const int w = f.worker % plan_.workers;
    if (whole_) return;
    if (f.kind == Fault::Kind::kCut) return cut(w, us(f.us), {});
    if (hurt_[static_cast<size_t>(w)]) return;  // one life per schedule
    hurt_[static_cast<size_t>(w)] = true;
    ++ending_;
    const Duration within = us(f.late_us);
    if (f.kind == Fault::Kind::kIsolate) cut_off_[static_cast<size_t>(w)] = us(f.us) >= lease_;
    if (f.kind == Fault::Kind::kIsolate)
      return cut(w, us(f.us), [this, w, within] { replace(w, within, true); });
    if (f.kind == Fault::Kind::kReplace) return replace(w, within, true);
    c_->kill(w);
    for (const auto& t : tasks_)
      if (t->agent == c_->agent(w)) t->killed = true;
    after(us(f.us), [this, w, within] { replace(w, within, false); });
  }

  void cut(int w, Duration length, rpc::Task then) {
    std::vector<rpc::WorkerId> others;
    for (int i = 0; i < plan_.workers; ++i)
      if (i != w) others.push_back(rpc::WorkerId{i});
    c_->net().partition({rpc::WorkerId{w}}, others);
    after(length, [this, then = std::move(then)]() mutable {
      c_->net().heal();
      if (then) then();
    });
  }

  void replace(int w, Duration within, bool keep_old) {
    c_->restart(w, keep_old, within);
    heard_.back()->agent = c_->agent(w);
    told_ = std::max(told_, c_->sim().now() + within);
    --ending_;
    if (planted_ && planted_->late_loss_us > 0)
      after(us(planted_->late_loss_us), [this, w] {
        for (int i = 0; i < plan_.workers; ++i)
          if (i != w && !c_->dead(i)) c_->agent(i)->declare_lost(rpc::WorkerId{w}, "an old life was lost");
      });
    for (size_t i = 0; i < plan_.programs.size(); ++i)
      if (plan_.programs[i].driver % plan_.workers == w)
        launch(plan_.programs[i], expected_[i], "repeated program");
  }

  void launch(const Program& program, const std::vector<Numbers>& expected, const std::string& name) {
    auto task = std::make_shared<Task>();
    const int w = program.driver % plan_.workers;
    task->program = &program;
    task->expected = &expected;
    task->name = str(name, " on worker ", w);
    task->agent = c_->agent(w);
    tasks_.push_back(task);
    start_task(c_->sim(), task, plan_.workers);
  }

  bool all_done() const {
    for (const auto& t : tasks_)
      if (!t->done && !t->killed) return false;
    return ending_ == 0 && c_->sim().now() >= told_;
  }

  void wait_for_tasks() {
    const rpc::TimePoint end = c_->sim().now() + kLongest;
    Duration step = 5ms;
    while (!all_done() && c_->sim().now() < end) {
      c_->sim().run_for(step);
      step = std::min<Duration>(step * 2, 1s);
    }
    for (const auto& t : tasks_) judge(*t);
  }

  bool living(const Task& t) const {
    const int w = t.program->driver % plan_.workers;
    return !c_->dead(w) && c_->agent(w) == t.agent;
  }

  void judge(const Task& t) {
    if (t.killed) return;
    if (!t.done) {
      std::string waits;
      for (const auto& text : c_->sim().blocked()) waits += "; " + text;
      return fail(str(t.name, " has not ended", waits, "; ", t.agent->dump()));
    }
    if (!living(t)) return;
    if (!t.error) {
      const std::string wrong = difference(t.seen, *t.expected);
      if (!wrong.empty()) fail(t.name + ": " + wrong);
      return;
    }
    out_.hurt = true;
    try {
      std::rethrow_exception(t.error);
    } catch (const PeerLost& e) {
      if (!any_hurt()) fail(t.name + ": no worker died, and it ended with " + e.what());
      else if (told_by_cut_off(e.what())) return;
      else if (e.peer == t.agent->self().name) fail(t.name + ": its own loss is reported to it: " + e.what());
      else if (!named_hurt(e.peer)) fail(t.name + ": the loss of a living worker is reported: " + e.what());
    } catch (const std::exception& e) {
      if (names_dead_stranger(e.what()) || dropped_by_cut_off(e.what())) return;
      fail(t.name + ": it ended with an error that is no loss: " + e.what());
    }
  }

  /// A successor is not told of members that are dead at its start.
  bool names_dead_stranger(const std::string& text) const {
    for (int w = 0; w < plan_.workers; ++w)
      if (hurt_[static_cast<size_t>(w)] && text.find(str("no worker has the id ", w)) != std::string::npos)
        return true;
    return false;
  }

  /// A worker that was cut off for a lease counts all others as lost, and serves calls until it is replaced.
  bool told_by_cut_off(const std::string& text) const {
    static const std::string kOn = "On worker '";
    const size_t at = text.rfind(kOn);
    if (at == std::string::npos) return false;
    const size_t begin = at + kOn.size();
    return named(text.substr(begin, text.find('\'', begin) - begin), cut_off_);
  }

  /// It drops the values that the others hold.
  bool dropped_by_cut_off(const std::string& text) const {
    return told_by_cut_off(text) && text.find("the workers that held it were lost") != std::string::npos;
  }

  bool named_hurt(const std::string& name) const { return named(name, hurt_); }

  bool named(const std::string& name, const std::vector<bool>& workers) const {
    for (int w = 0; w < plan_.workers; ++w)
      if (workers[static_cast<size_t>(w)] && name == str("worker", w)) return true;
    return false;
  }

  /// From here on the network is good and every worker lives. A program over all of them must be right.
  void make_whole() {
    whole_ = true;
    if (!wrong_.empty()) fail(wrong_);
    for (const auto& each : heard_) each->agent.reset();
    if (failed()) return;
    c_->net().clear_rules();
    c_->net().set_faults(0, 0);
    c_->net().heal();
    last_ = last_program(plan_.workers);
    last_expected_ = Interpreter<LocalWorld>(last_, plan_.workers).run();
    for (last_.driver = 0; last_.driver < plan_.workers; ++last_.driver) {
      if (last_.driver > 1 && !hurt_[static_cast<size_t>(last_.driver)]) continue;
      launch(last_, last_expected_, "last program");
      const Task& t = *tasks_.back();
      for (int i = 0; i < 600 && !t.done; ++i) c_->sim().run_for(100ms);
      if (!t.done) return judge(t);
      if (t.error) {
        try {
          std::rethrow_exception(t.error);
        } catch (const std::exception& e) {
          return fail(t.name + ": " + e.what());
        }
      }
      const std::string wrong = difference(t.seen, last_expected_);
      if (!wrong.empty()) return fail(t.name + ": " + wrong);
    }
  }

  void finish() {
    if (failed()) return;
    c_->sim().run_for(kQuiet);
    if (ran_twice != 0) fail("a call with a large result ran twice");
    for (int w = 0; w < plan_.workers; ++w) {
      const std::string left = left_on(*c_->agent(w), any_hurt(), 0);
      if (!left.empty()) fail("something is left:" + left);
    }
    if (failed()) return;
    out_.completed = !out_.hurt;
    if (!plan_.shutdown) return;
    try {
      c_->shutdown(60s);
    } catch (const std::exception& e) {
      fail(str("graceful shutdown: ", e.what()));
    }
  }

  bool failed() const { return !out_.failure.empty(); }
  bool any_hurt() const { return std::find(hurt_.begin(), hurt_.end(), true) != hurt_.end(); }

  const Plan& plan_;
  const Planted* const planted_;
  const Duration lease_;
  std::vector<std::vector<Numbers>> expected_;
  std::vector<std::unique_ptr<rpc::Receiver>> between_;
  std::vector<std::unique_ptr<LossesHeard>> heard_;
  int told_losses_ = 0;
  std::string wrong_;  ///< what they have found
  std::unique_ptr<Cluster> c_;
  std::optional<StepPoints> points_;
  std::vector<std::shared_ptr<Task>> tasks_;
  std::vector<bool> hurt_;
  std::vector<bool> cut_off_;  ///< for a lease or longer
  Program last_;
  std::vector<Numbers> last_expected_;
  rpc::TimePoint told_{};
  int messages_ = 0, ending_ = 0;
  bool whole_ = false;
  Outcome out_;
};

}  // namespace

Outcome run(const Plan& plan, const Planted* planted) {
  return plan.elastic ? run_elastic(plan, planted) : Run(plan, planted).go();
}

}  // namespace weft::explore
