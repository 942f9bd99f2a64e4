// Event of the threaded runtime. A thread that finds the poll role free polls (poll_group.h) until the event
// is set, the deadline comes or the runtime stops. Any other wait registers itself with the core, for stop(),
// and gives up its place in the pool if it has one. Then it polls, or sleeps on the event's latch. A wait
// longer than kActive leaves the role to other threads. A service thread runs handlers itself, while a
// waiting thread would wake a pool thread for each handler.
//
// A waiting thread that polls also runs unrelated deliveries. They see fresh FiberLocals and thread states.
#include <weft/distributed/runtime/inner/threaded_core.h>

namespace weft::rpc::inner {
namespace {

/// The memory of an event that has ended on this thread, for the next one.
struct SpareEvent {
  ~SpareEvent();
  void* memory = nullptr;
};
constinit thread_local bool spare_ended = false;
SpareEvent::~SpareEvent() { ::operator delete(memory), spare_ended = true; }
SpareEvent* spare_event() {
  static thread_local SpareEvent spare;
  return spare_ended ? nullptr : &spare;
}

class ThreadedEvent final : public EventImpl {
 public:
  ThreadedEvent(std::shared_ptr<Core> core, const char* what) : core_(std::move(core)), what_(what) {}

  static void* operator new(size_t bytes) {
    SpareEvent* const spare = spare_event();
    void* const memory = spare ? std::exchange(spare->memory, nullptr) : nullptr;
    return memory ? memory : ::operator new(bytes);
  }
  static void operator delete(void* memory) {
    SpareEvent* const spare = spare_event();
    if (spare && !spare->memory) spare->memory = memory;
    else ::operator delete(memory);
  }

  void set() override {
    Core* core = core_.get();  // the event may be gone after set()
    if (!latch_.set()) return;
    const PollGroup* const polled = PollGroup::polled_here();
    if (polled != nullptr && polled == core->open_group) return;  // by this thread, which looks at its latch
    if (auto group = core->poll_group()) group->kick();
  }
  void reset() override { latch_.reset(); }
  bool is_set() const override { return latch_.is_set(); }

  bool wait_until(TimePoint deadline) override {
    if (latch_.is_set()) return true;
    check_may_block(what_);
    const TimePoint now = clock_now();
    if (now >= deadline) return false;
    const TimePoint active_until = std::min(deadline, now + kActive);
    if (pool_core() != core_.get()) poll_unregistered(active_until);
    if (latch_.is_set()) return true;
    Registered here(*this);
    here.refused.run();
    while (true) {
      if (latch_.is_set()) return true;
      if (core_->stopping.load()) throw RuntimeStopped(str("wait for ", what_, ": the runtime has stopped"));
      if (deadline != kNever && clock_now() >= deadline) return false;
      if (here.active && clock_now() >= active_until) {
        here.leave_polling();
        continue;
      }
      if (here.active && here.group->try_take()) {
        poll(*here.group, active_until, 1);
        continue;
      }
      if (here.group == nullptr && latch_.spin(core_->options.spin)) return true;
      if (!latch_.announce() && !core_->stopping.load()) latch_.sleep(here.active ? active_until : deadline);
    }
  }

 private:
  static constexpr Duration kActive = std::chrono::microseconds(200);

  /// Polls if the role is free. stop() kicks the poll.
  void poll_unregistered(TimePoint deadline) {
    struct Counted {
      explicit Counted(Core& c) : core(c) { ++core.unregistered; }
      ~Counted() { --core.unregistered; }
      Core& core;
    } const counted(*core_);
    PollGroup* const group = core_->open_group;
    if (group != nullptr && group->try_take()) poll(*group, deadline, 0);
  }

  /// Polls until the event is set, the deadline comes or the runtime stops. `own`: this wait, if the core
  /// counts it.
  void poll(PollGroup& group, TimePoint deadline, int own) {
    if (!latch_.announce_poll()) {
      ForeignWork work;
      bool more = true;
      while (more && !latch_.is_set() && !core_->stopping.load() &&
             (deadline == kNever || clock_now() < deadline)) {
        more = group.poll(deadline);
      }
      latch_.end_poll();
    }
    const bool others = core_->wait_count.load() > own;
    if (latch_.is_set() || others) group.release(others);
    else group.pass_to_service();  // a long wait
  }

  /// Keeps a wait on the core's list for its scope.
  struct Registered {
    explicit Registered(ThreadedEvent& e) : event(e), pool(pool_core() == e.core_.get()) {
      auto& core = *event.core_;
      MutexLock lock(core.mutex);
      if (core.spare_waits.empty()) core.spare_waits.push_back(nullptr);
      place = core.spare_waits.begin();
      *place = &event.latch_;
      group = core.group;
      active = group != nullptr;
      auto& list = active ? core.waits : core.long_waits;
      list.splice(list.end(), core.spare_waits, place);
      if (active) core.wait_count.fetch_add(1);
      if (pool) {
        ++core.stats.blocked;
        if (!core.stopping.load()) dispatch(core, &refused);
      }
    }
    ~Registered() {
      auto& core = *event.core_;
      MutexLock lock(core.mutex);
      core.spare_waits.splice(core.spare_waits.begin(), active ? core.waits : core.long_waits, place);
      if (active) core.wait_count.fetch_sub(1);
      if (pool) --core.stats.blocked;
    }
    /// No thread offers the poll role to this wait any more.
    void leave_polling() {
      auto& core = *event.core_;
      MutexLock lock(core.mutex);
      core.long_waits.splice(core.long_waits.end(), core.waits, place);
      core.wait_count.fetch_sub(1);
      active = false;
    }
    ThreadedEvent& event;
    const bool pool;
    bool active = false;  ///< it takes the poll role
    std::list<Latch*>::iterator place;
    std::shared_ptr<PollGroup> group;
    Refused refused;  ///< tasks for which the last running thread of the pool was needed
  };

  std::shared_ptr<Core> core_;
  const char* what_;
  Latch latch_;
};

}  // namespace

std::unique_ptr<EventImpl> make_threaded_event(std::shared_ptr<Core> core, const char* what) {
  return std::make_unique<ThreadedEvent>(std::move(core), what);
}

}  // namespace weft::rpc::inner
