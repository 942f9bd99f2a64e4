// The scheduler of the simulated runtime.
//
// A job is a task; it gets a fiber when it begins. A job is runnable, waiting (on an Event, perhaps with a
// deadline) or done. One ordered map has all timers and deadlines. A step draws a runnable job from the
// seed and runs it until it waits, ends or is preempted. Preemption happens only after a job has released
// its last Mutex, so no job ever waits for a lock. Without a runnable job, time jumps to the first entry
// of the map, and all due jobs become runnable. The driver, the code outside any fiber, takes steps itself
// when it waits.
#include <weft/distributed/sim/sim_runtime.h>

#include <algorithm>
#include <cstdio>
#include <deque>
#include <map>
#include <unordered_map>
#include <utility>

#include <weft/distributed/runtime/inner/task_state.h>
#include <weft/distributed/runtime/sync.h>
#include <weft/distributed/sim/inner/fiber.h>

namespace weft::rpc {
namespace {

struct Random {
  uint64_t state;
  uint64_t next() {
    uint64_t z = (state += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }
};

/// Longest pause of a preempted task: a few times the usual latency of a message.
constexpr Duration kLongestPause = std::chrono::microseconds(200);

struct Job;
class SimEvent;

/// A fiber and the job it runs now.
struct Carrier {
  std::unique_ptr<inner::Fiber> fiber;
  Job* job = nullptr;
};

struct Job {
  uint64_t id = 0;
  Task task;
  bool begun = false;
  bool done = false;
  bool timed_out = false;
  Carrier* carrier = nullptr;
  SimEvent* event = nullptr;  // the event that it waits for
  const char* waits_for = nullptr;
  TimePoint deadline = kNever;
  uint64_t deadline_id = 0;
  inner::TaskState state;
  inner::SavedThreadStates thread_states;
};

std::string time_text(TimePoint t) {
  char text[40];
  std::snprintf(text, sizeof text, "[%.9f] ", static_cast<double>(t.time_since_epoch().count()) * 1e-9);
  return text;
}

}  // namespace

class SimRuntime::Scheduler {
 public:
  Scheduler(SimRuntime& owner, const SimOptions& o)
      : runtime(owner), options(o), order{o.seed}, numbers{o.seed ^ 0x5bd1e995973f1a21ULL} {}
  ~Scheduler() {
    for (Job* job : jobs_in_order()) delete job;
  }

  struct Due {  // a timer, the deadline of a waiting job or the return of a preempted one
    Task task;
    Job* job = nullptr;
  };

  SimRuntime& runtime;
  const SimOptions options;
  Random order;
  Random numbers;
  TimePoint clock{};
  std::map<std::pair<TimePoint, uint64_t>, Due> due;
  std::unordered_map<uint64_t, TimePoint> due_times;
  uint64_t next_due = 1;
  std::deque<Job*> runnable;
  std::unordered_map<uint64_t, Job*> alive;
  uint64_t next_job = 1;
  std::vector<std::unique_ptr<Carrier>> carriers;
  std::vector<Carrier*> free_carriers;
  Job* running = nullptr;
  bool stopping = false;
  uint64_t steps_at_once = 0;
  PoolStats stats;
  std::vector<std::string> log;
  uint64_t hash = 0xcbf29ce484222325ULL;
  inner::LockWatch lock_watch{.released = [](void* self) { static_cast<Scheduler*>(self)->maybe_preempt(); },
                              .scheduler = this};

  std::vector<Job*> jobs_in_order() const {
    std::vector<Job*> all;
    for (const auto& entry : alive) all.push_back(entry.second);
    std::sort(all.begin(), all.end(), [](const Job* a, const Job* b) { return a->id < b->id; });
    return all;
  }

  void mix(uint64_t value) { hash = (hash ^ value) * 0x100000001b3ULL + (hash >> 47); }
  void mix(std::string_view text) {
    for (const char c : text) mix(static_cast<unsigned char>(c));
  }

  Job* add_job(Task task, const char* no_block) {
    auto job = std::make_unique<Job>();
    job->id = next_job++;
    job->task = std::move(task);
    job->state.no_block = no_block;
    job->thread_states = inner::initial_thread_states();
    alive.emplace(job->id, job.get());
    try {
      runnable.push_back(job.get());
    } catch (...) {  // no memory
      alive.erase(job->id);
      throw;
    }
    stats.peak_threads = std::max(stats.peak_threads, static_cast<int>(alive.size()));
    return job.release();
  }

  uint64_t add_due(TimePoint when, Due entry) {
    const uint64_t id = next_due++;
    due_times.emplace(id, when);
    try {
      due.emplace(std::pair(when, id), std::move(entry));
    } catch (...) {  // no memory
      due_times.erase(id);
      throw;
    }
    return id;
  }
  bool remove_due(uint64_t id) {
    auto time = due_times.find(id);
    if (time == due_times.end()) return false;
    Due dropped = std::move(due.at(std::pair(time->second, id)));
    due.erase(std::pair(time->second, id));
    due_times.erase(time);
    return true;
  }

  void wake(Job* job) {
    if (job->deadline_id != 0) remove_due(job->deadline_id);
    job->deadline_id = 0;
    job->event = nullptr;
    runnable.push_back(job);
  }

  Carrier* carrier_for(Job* job) {
    if (free_carriers.empty()) {
      carriers.push_back(std::make_unique<Carrier>());
      Carrier* c = carriers.back().get();
      c->fiber = std::make_unique<inner::Fiber>(options.stack_bytes, [this, c] {
        if (c->job == nullptr) return;
        inner::run_task(c->job->task, &runtime);
        c->job->done = true;
      });
      free_carriers.push_back(c);
    }
    Carrier* c = free_carriers.back();
    free_carriers.pop_back();
    c->job = job;
    return c;
  }

  /// Runs one runnable job until it waits or ends.
  void step() {
    if (++steps_at_once > options.max_steps_at_once && !stopping) {
      throw Deadlock(str("simulation: ", steps_at_once, " task switches at ", time_text(clock),
                         "without time moving on"));
    }
    const size_t n = runnable.size();
    const size_t i = options.shuffle ? static_cast<size_t>(order.next() % n) : 0;
    std::swap(runnable[i], runnable[options.shuffle ? n - 1 : 0]);
    Job* job = options.shuffle ? runnable.back() : runnable.front();
    if (options.shuffle) {
      runnable.pop_back();
    } else {
      runnable.pop_front();
    }
    mix(job->id);
    mix(static_cast<uint64_t>(clock.time_since_epoch().count()));
    if (!job->begun) {
      job->begun = true;
      job->carrier = carrier_for(job);
    }
    inner::TaskState* outside = inner::current_state();
    inner::SavedThreadStates outside_states;
    inner::save_thread_states(outside_states);
    inner::current_state() = &job->state;
    inner::load_thread_states(job->thread_states);
    running = job;
    inner::LockWatch* const outer_watch = std::exchange(inner::lock_watch, &lock_watch);
    job->carrier->fiber->resume();
    inner::lock_watch = outer_watch;
    running = nullptr;
    inner::save_thread_states(job->thread_states);
    inner::load_thread_states(outside_states);
    inner::current_state() = outside;
    if (job->done) {
      job->carrier->job = nullptr;
      free_carriers.push_back(job->carrier);
      alive.erase(job->id);
      delete job;
      ++stats.completed;
    }
  }

  /// May preempt the running job, which holds no lock, for a while. Callbacks of timers and of the transport
  /// are not preempted: in the threaded runtime they run one after another, too.
  void maybe_preempt() {
    Job* const job = running;
    if (options.preempt == 0 || !options.shuffle || stopping || job->state.no_block) return;
    const uint64_t drawn = order.next();
    if (drawn % options.preempt != 0) return;
    const auto away = static_cast<int64_t>((drawn >> 32) % static_cast<uint64_t>(2 * kLongestPause.count()));
    if (away < kLongestPause.count()) job->deadline_id = add_due(clock + Duration(away), {Task(), job});
    else runnable.push_back(job);
    job->carrier->fiber->suspend();
  }

  /// Moves time to the next timer or deadline, but not past `limit`. False: there is none before it.
  bool advance(TimePoint limit) {
    if (due.empty() || due.begin()->first.first > limit) return false;
    if (due.begin()->first.first > clock) {
      clock = due.begin()->first.first;
      steps_at_once = 0;
    }
    while (!due.empty() && due.begin()->first.first <= clock) {
      auto first = due.begin();
      Due entry = std::move(first->second);
      due_times.erase(first->first.second);
      due.erase(first);
      if (entry.job != nullptr) {
        entry.job->timed_out = true;
        entry.job->deadline_id = 0;
        if (entry.job->event != nullptr) detach(entry.job);
        runnable.push_back(entry.job);
      } else {
        add_job(std::move(entry.task), "a timer callback");
      }
    }
    return true;
  }

  void detach(Job* job);  // removes a waiting job from its event's list

  std::vector<std::string> blocked() const {
    std::vector<std::string> texts;
    for (const Job* job : jobs_in_order()) {
      if (job->event != nullptr) texts.push_back(str("task ", job->id, " waits for ", job->waits_for));
    }
    return texts;
  }
  std::string blocked_text() const {
    std::string text;
    const auto waits = blocked();
    for (size_t i = 0; i < waits.size() && i < 20; ++i) text += (text.empty() ? "" : "; ") + waits[i];
    if (waits.size() > 20) text += str("; and ", waits.size() - 20, " more");
    return text;
  }
};

namespace {

class SimEvent final : public EventImpl {
 public:
  SimEvent(SimRuntime::Scheduler& s, const char* what) : scheduler_(s), what_(what) {}

  void set() override {
    set_ = true;
    for (Job* job : std::exchange(waiting_, {})) scheduler_.wake(job);
  }
  void reset() override { set_ = false; }
  bool is_set() const override { return set_; }

  bool wait_until(TimePoint deadline) override {
    if (set_) return true;
    inner::check_may_block(what_);
    auto& s = scheduler_;
    if (s.clock >= deadline) return false;
    if (s.stopping) throw_stopped();
    return s.running == nullptr ? drive(deadline) : suspend(deadline);
  }

  void forget(Job* job) { waiting_.erase(std::find(waiting_.begin(), waiting_.end(), job)); }

 private:
  /// Suspends the fiber of the waiting job.
  bool suspend(TimePoint deadline) {
    Job* job = scheduler_.running;
    job->event = this;
    job->waits_for = what_;
    job->deadline = deadline;
    job->timed_out = false;
    if (deadline != kNever) job->deadline_id = scheduler_.add_due(deadline, {Task(), job});
    waiting_.push_back(job);
    job->carrier->fiber->suspend();
    // the event may be destroyed once it is set: do not use it here
    if (job->timed_out) return false;
    if (scheduler_stopped(job)) throw_stopped_of(job);
    return true;
  }
  static bool scheduler_stopped(Job* job) { return job->deadline == TimePoint::min(); }
  [[noreturn]] static void throw_stopped_of(Job* job) {
    throw RuntimeStopped(str("wait for ", job->waits_for, ": the runtime has stopped"));
  }
  [[noreturn]] void throw_stopped() const {
    throw RuntimeStopped(str("wait for ", what_, ": the runtime has stopped"));
  }

  /// Runs jobs while the driver waits.
  bool drive(TimePoint deadline) {
    auto& s = scheduler_;
    const TimePoint limit = deadline == kNever ? s.clock + s.options.max_wait : deadline;
    while (!set_) {
      if (!s.runnable.empty()) {
        s.step();
      } else if (!s.advance(limit)) {
        if (deadline != kNever) {
          s.clock = deadline;
          s.steps_at_once = 0;
          return false;
        }
        throw Deadlock(str("simulation: the driver waits for ", what_, " and ",
                           s.due.empty() ? "nothing can run and no timer is set"
                                         : "the longest allowed virtual time has passed",
                           "; ", s.blocked_text()));
      }
    }
    return true;
  }

  SimRuntime::Scheduler& scheduler_;
  const char* what_;
  bool set_ = false;
  std::vector<Job*> waiting_;
};

class SimService final : public Service {
 public:
  SimService(SimRuntime& runtime, std::string name, Task body)
      : name_(std::make_shared<std::string>("the end of service " + name)),
        done_(std::make_shared<Event>(runtime, name_->c_str())) {
    runtime.post([name = name_, done = done_, b = std::move(body)]() mutable {
      inner::run_task(b);
      done->set();
    });
  }
  ~SimService() override {
    try {
      SimService::join();
    } catch (const Error&) {  // the runtime has stopped, or a deadlock, which the next wait reports
    }
  }
  void join() override { done_->wait(); }

 private:
  std::shared_ptr<std::string> name_;
  std::shared_ptr<Event> done_;
};

}  // namespace

void SimRuntime::Scheduler::detach(Job* job) {
  job->event->forget(job);
  job->event = nullptr;
}

SimRuntime::SimRuntime(SimOptions options) : scheduler_(std::make_unique<Scheduler>(*this, options)) {}
SimRuntime::~SimRuntime() { stop(); }

void SimRuntime::run_until_idle() {
  auto& s = *scheduler_;
  if (s.running != nullptr) throw Error("SimRuntime::run_until_idle: called inside a task");
  const TimePoint limit = s.clock + s.options.max_wait;
  while (true) {
    if (!s.runnable.empty()) {
      s.step();
    } else if (!s.advance(limit)) {
      break;
    }
  }
  if (!s.due.empty())
    throw Deadlock(str("run_until_idle: timers are still being set after the longest allowed virtual time"));
  if (!s.blocked().empty())
    throw Deadlock("run_until_idle: nothing can run and no timer is set; " + s.blocked_text());
}

void SimRuntime::run_for(Duration d) {
  auto& s = *scheduler_;
  if (s.running != nullptr) throw Error("SimRuntime::run_for: called inside a task");
  const TimePoint end = s.clock + d;
  while (true) {
    if (!s.runnable.empty()) {
      s.step();
    } else if (!s.advance(end)) {
      break;
    }
  }
  s.clock = end;
  s.steps_at_once = 0;
}

const std::vector<std::string>& SimRuntime::log() const { return scheduler_->log; }
uint64_t SimRuntime::log_hash() const { return scheduler_->hash; }
std::vector<std::string> SimRuntime::blocked() const { return scheduler_->blocked(); }

TimePoint SimRuntime::now() { return scheduler_->clock; }

void SimRuntime::post(Task task) {
  if (scheduler_->stopping) return;
  scheduler_->add_job(std::move(task), nullptr);
}

TimerId SimRuntime::call_at(TimePoint when, Task task) {
  if (scheduler_->stopping) return {};
  return {scheduler_->add_due(std::max(when, scheduler_->clock), {std::move(task), nullptr})};
}
bool SimRuntime::cancel(TimerId id) { return scheduler_->remove_due(id.value); }

std::unique_ptr<Service> SimRuntime::start_service(std::string name, Task body) {
  return std::make_unique<SimService>(*this, std::move(name), std::move(body));
}
std::unique_ptr<EventImpl> SimRuntime::make_event(const char* what) {
  return std::make_unique<SimEvent>(*scheduler_, what);
}

uint64_t SimRuntime::random() { return scheduler_->numbers.next(); }

PoolStats SimRuntime::pool_stats() {
  auto& s = *scheduler_;
  PoolStats stats = s.stats;
  for (const auto& entry : s.alive) {
    const Job& job = *entry.second;
    if (!job.begun) ++stats.queued;
    if (job.begun) ++stats.threads;
    if (job.event != nullptr) ++stats.blocked;
  }
  stats.max_threads = stats.peak_threads;
  return stats;
}

void SimRuntime::trace(std::string_view line) {
  auto& s = *scheduler_;
  s.mix(line);
  if (s.options.keep_log) s.log.push_back(time_text(s.clock) + std::string(line));
}

int SimRuntime::stop(Duration) {
  auto& s = *scheduler_;
  if (s.running != nullptr) throw Error("SimRuntime::stop: called inside a task");
  if (s.stopping && s.alive.empty()) return 0;
  s.stopping = true;
  auto due = std::exchange(s.due, {});
  s.due_times.clear();
  due.clear();
  s.steps_at_once = 0;
  for (Job* job : s.jobs_in_order()) {  // tasks not begun are dropped, waits end with an error
    if (!job->begun) {
      s.runnable.erase(std::find(s.runnable.begin(), s.runnable.end(), job));
      s.alive.erase(job->id);
      delete job;
    } else if (job->event != nullptr) {
      s.detach(job);
      job->deadline = TimePoint::min();
      job->deadline_id = 0;
      s.runnable.push_back(job);
    } else if (job->deadline_id != 0) {  // preempted
      job->deadline_id = 0;
      s.runnable.push_back(job);
    }
  }
  while (!s.runnable.empty()) s.step();
  return static_cast<int>(s.alive.size());
}

}  // namespace weft::rpc
