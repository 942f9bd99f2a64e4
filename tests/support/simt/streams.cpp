// Streams of the emulation: the queues of deferred work, and the order between streams (streams.h).
#include "support/simt/streams.h"

#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "support/simt/memory.h"

namespace weft::cuda::simt {

namespace {

/// Work, or a wait for a point of another stream.
struct Entry {
  std::function<void()> work;
  std::optional<StreamPoint> after = {};
};
struct Queue {
  size_t issued = 0, done = 0;
  std::deque<Entry> work;
  bool busy = false;  // one of its entries runs
};

struct Streams {
  std::map<std::pair<int, void*>, Queue> queues;
  std::vector<std::function<void()>> at_idle;
};
/// Guarded by the lock of DeviceAccess, which is one for the whole emulation.
Streams& streams() {
  static auto* const s = new Streams;
  return *s;
}

std::atomic<bool> is_deferring{false};
std::atomic<Others> are_others{Others::kLate};
std::atomic<int64_t> waits{0};
std::atomic<int64_t> of_default_stream{0};

Queue& queue_of(int device, void* stream) { return streams().queues[{stream ? -1 : device, stream}]; }

void run_idle() {
  for (const auto& [key, queue] : streams().queues)
    if (!queue.work.empty()) return;
  for (const auto& f : std::exchange(streams().at_idle, {})) f();
}

void push(int device, void* stream, Entry entry) {
  const DeviceAccess lock;
  Queue& q = queue_of(device, stream);
  ++q.issued;
  q.work.push_back(std::move(entry));
}

/// Marks a queue as busy.
class Busy {
 public:
  explicit Busy(Queue& q) : q_(q), before_(std::exchange(q.busy, true)) {}
  ~Busy() { q_.busy = before_; }
  Busy(const Busy&) = delete;

 private:
  Queue& q_;
  bool before_;
};

void run_front(Queue& q) {
  // may recurse for another stream, never for this one, since orders have no cycles
  const Entry entry = std::move(q.work.front());
  q.work.pop_front();
  const Busy busy(q);
  if (entry.after) run_until(*entry.after);
  ++q.done;
  if (!entry.after) entry.work();
}

/// Runs the work of all streams but the busy ones, up to their first wait for work that has not run.
void run_others() {
  for (bool any = true; any;) {
    any = false;
    for (auto& [key, q] : streams().queues)
      while (!q.busy && !q.work.empty() && (!q.work.front().after || passed(*q.work.front().after)))
        run_front(q), any = true;
  }
}

}  // namespace

Deferred::Deferred(Others others) { are_others = others, is_deferring = true; }
Deferred::~Deferred() {
  is_deferring = false;
  run_all();
}
bool deferring() { return is_deferring; }
Others others() { return are_others; }
int64_t stream_waits() { return waits; }
std::atomic<int64_t>& left_out() {
  static std::atomic<int64_t> number{-1};
  return number;
}
bool counts_wait() { return waits++ != left_out(); }
int64_t works_of_default_stream() { return of_default_stream; }

void issue(int device, void* stream, std::function<void()> work) {
  if (!stream) ++of_default_stream;
  if (!is_deferring) return work();
  push(device, stream, {std::move(work)});
}

StreamPoint point_of(int device, void* stream) {
  if (!is_deferring) return {device, stream, 0};
  const DeviceAccess lock;
  return {device, stream, queue_of(device, stream).issued};
}

void order_after(int device, void* stream, const StreamPoint& point) {
  if (passed(point)) return;
  if (!stream) ++of_default_stream;
  push(device, stream, {{}, point});
}

void run_until(const StreamPoint& point) {
  if (point.issued == 0) return;
  const DeviceAccess lock;
  Queue& q = queue_of(point.device, point.stream);
  while (q.done < point.issued) {
    const Busy busy(q);
    if (are_others == Others::kEarly) run_others();
    run_front(q);
  }
  run_idle();
}

void run_all() {
  const DeviceAccess lock;
  for (auto& [key, queue] : streams().queues) run_until({key.first, key.second, queue.issued});
}

bool passed(const StreamPoint& point) {
  if (point.issued == 0) return true;
  const DeviceAccess lock;
  return queue_of(point.device, point.stream).done >= point.issued;
}

void when_idle(std::function<void()> f) {
  const DeviceAccess lock;
  streams().at_idle.push_back(std::move(f));
  run_idle();
}

}  // namespace weft::cuda::simt
