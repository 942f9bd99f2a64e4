// Streams of the emulation. Ordinarily what is issued runs at once. While a Deferred lives, it stays in its stream until somebody waits for it, as on
// a machine that is slow: work that reads what another stream writes, and is not ordered after it, then finds what was there before.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

namespace weft::cuda::simt {

/// Not two at a time.
struct Deferred {
  Deferred();
  ~Deferred();  ///< runs what is left
  Deferred(const Deferred&) = delete;
};
bool deferring();
/// The calling thread's device.
int current_device();

/// A place in a stream: all that was issued to it before. `device`: of a default stream, which each device has one of.
struct StreamPoint {
  int device = 0;
  void* stream = nullptr;
  size_t issued = 0;
};

/// Runs `work` in stream order: at once, or later.
void issue(int device, void* stream, std::function<void()> work);
StreamPoint point_of(int device, void* stream);
/// What is issued to the stream from now on comes after the point.
void order_after(int device, void* stream, const StreamPoint& point);
/// Runs all before the point, and what that is ordered after.
void run_until(const StreamPoint& point);
void run_all();
bool passed(const StreamPoint& point);
/// Calls f when nothing is deferred any more.
void when_idle(std::function<void()> f);

}  // namespace weft::cuda::simt
