// Streams of the emulation. Issued work usually runs at once. While a Deferred lives, work stays in its
// stream until a wait needs it, as on a slow device. So a read that is not ordered after another stream's
// write finds the old value. A graph is then replayed in such an order too.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace weft::cuda::simt {

/// The moment at which deferred work of other streams runs: when the stream that is waited for needs it, or
/// as soon as their own waits allow it. A missing order of two streams shows in one of these, by the stream
/// that lacks it. For a graph, the stream that is waited for is the one on which its recording began.
enum class Others { kLate, kEarly };
/// Defers issued work for its lifetime; at most one object at a time.
struct Deferred {
  explicit Deferred(Others others = Others::kLate);
  ~Deferred();  ///< runs the remaining work
  Deferred(const Deferred&) = delete;
};
bool deferring();
Others others();
/// The number of waits of streams for events so far. The one of the number `left_out` is not made.
int64_t stream_waits();
std::atomic<int64_t>& left_out();
/// Counts a wait; false: it is the one that is left out.
bool counts_wait();
/// The number of times that work went to CUDA's own default stream, which is null.
int64_t works_of_default_stream();
/// The calling thread's device.
int current_device();

/// A point in a stream, after all work issued to it before. `device`: the device of a default stream.
struct StreamPoint {
  int device = 0;
  void* stream = nullptr;
  size_t issued = 0;
};

/// Runs `work` in stream order, at once or deferred.
void issue(int device, void* stream, std::function<void()> work);
StreamPoint point_of(int device, void* stream);
/// Orders all later work of the stream after the point.
void order_after(int device, void* stream, const StreamPoint& point);
/// Runs all work before the point, and the work before that.
void run_until(const StreamPoint& point);
void run_all();
bool passed(const StreamPoint& point);
/// Calls f when no work is deferred.
void when_idle(std::function<void()> f);

}  // namespace weft::cuda::simt
