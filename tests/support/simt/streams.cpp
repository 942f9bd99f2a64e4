// Streams of the emulation: the queues of deferred work, and the order between streams (streams.h).
#include "support/simt/streams.h"

#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <utility>

#include "support/simt/memory.h"

namespace weft::cuda::simt {

namespace {

struct Queue {
  size_t issued = 0, done = 0;
  std::deque<std::function<void()>> work;
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
std::atomic<int64_t> of_default_stream{0};

Queue& queue_of(int device, void* stream) { return streams().queues[{stream ? -1 : device, stream}]; }

void run_idle() {
  for (const auto& [key, queue] : streams().queues)
    if (!queue.work.empty()) return;
  for (const auto& f : std::exchange(streams().at_idle, {})) f();
}

}  // namespace

Deferred::Deferred() { is_deferring = true; }
Deferred::~Deferred() {
  is_deferring = false;
  run_all();
}
bool deferring() { return is_deferring; }
int64_t works_of_default_stream() { return of_default_stream; }

void issue(int device, void* stream, std::function<void()> work) {
  if (!stream) ++of_default_stream;
  if (!is_deferring) return work();
  const DeviceAccess lock;
  Queue& q = queue_of(device, stream);
  ++q.issued;
  q.work.push_back(std::move(work));
}

StreamPoint point_of(int device, void* stream) {
  if (!is_deferring) return {device, stream, 0};
  const DeviceAccess lock;
  return {device, stream, queue_of(device, stream).issued};
}

void order_after(int device, void* stream, const StreamPoint& point) {
  if (!passed(point)) issue(device, stream, [point] { run_until(point); });
}

void run_until(const StreamPoint& point) {
  if (point.issued == 0) return;
  const DeviceAccess lock;
  Queue& q = queue_of(point.device, point.stream);
  while (q.done < point.issued) {
    // may recurse for another stream, never for this one, since orders have no cycles
    const auto work = std::move(q.work.front());
    q.work.pop_front();
    ++q.done;
    work();
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
