// The spans and latencies of one agent (inner/tracer.h). Spans go into a ring under the mutex; latencies are
// counted by the name of the call.
#include <weft/distributed/rpc/inner/tracer.h>

#include <algorithm>
#include <bit>

namespace weft::rpc {

std::string name_of(const Span& span) { return span.what != nullptr ? span.what : to_string(span.kind); }

int64_t tensor_bytes(const Message& message) {
  int64_t bytes = 0;
  for (const Tensor& t : message.tensors) bytes += t.numel() * size_of(t.dtype());
  return bytes;
}

void Latencies::add(Duration duration, bool ok) {
  const auto us = static_cast<uint64_t>(std::max<int64_t>(0, duration.count() / 1000));
  ++calls[std::min<size_t>(std::bit_width(us), calls.size() - 1)];
  ++count;
  errors += !ok;
  total += duration;
  longest = std::max(longest, duration);
}

Duration Latencies::quantile(double part) const {
  if (!(part >= 0 && part <= 1)) throw ValueError(str("quantile: ", part, " is not in 0 to 1"));
  if (count == 0) return Duration::zero();
  const auto wanted = std::max<int64_t>(1, static_cast<int64_t>(part * static_cast<double>(count) + 0.5));
  int64_t below = 0;
  for (size_t i = 0; i < calls.size(); ++i) {
    below += calls[i];
    if (below >= wanted) return std::min<Duration>(std::chrono::microseconds(int64_t{1} << i), longest);
  }
  return longest;
}

void Tracer::start(size_t capacity) {
  MutexLock lock(mutex_);
  ring_.clear();
  latencies_.clear();
  capacity_ = capacity;
  count_ = 0;
  on_ = true;
}

void Tracer::add(Span span) {
  MutexLock lock(mutex_);
  if (!on() || capacity_ == 0) return;
  if (span.of == SpanOf::kCall) latencies_[name_of(span)].add(span.end - span.start, span.ok);
  if (ring_.size() < capacity_) ring_.push_back(span);
  else ring_[count_ % capacity_] = span;
  ++count_;
}

std::vector<Span> Tracer::spans() const {
  MutexLock lock(mutex_);
  std::vector<Span> all = ring_;
  if (count_ > all.size() && !all.empty())
    std::rotate(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count_ % capacity_), all.end());
  return all;
}

int64_t Tracer::dropped() const {
  MutexLock lock(mutex_);
  return static_cast<int64_t>(count_ - ring_.size());
}

std::map<std::string, Latencies> Tracer::latencies() const {
  MutexLock lock(mutex_);
  return latencies_;
}

}  // namespace weft::rpc
