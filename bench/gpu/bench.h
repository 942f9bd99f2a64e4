// The measuring part of bench_gpu: rows, the clock and tensors that the cache has dropped.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <climits>
#include <cstdio>
#include <functional>
#include <map>
#include <optional>
#include <regex>
#include <string>
#include <vector>

#include <weft/tensor/cuda.h>
#include <weft/weft.h>

#include "spans.h"

namespace weft::bench {

using Work = std::function<void()>;

inline const Device gpu{DeviceType::kCuda};

struct Row {
  std::string name;
  double ns = 0;
  double bytes = 0;  ///< least number of bytes that one call moves; 0: not counted
  double flops = 0;
};

/// A span that a call must have (spans.h), and how often at most.
struct Launch {
  std::string name;
  int most = INT_MAX;
};

struct Bench {
  std::regex filter{"."};
  std::map<std::string, double> peers;
  std::vector<Row> rows;
  std::function<void()> keep;  ///< called after each row
  double copy_ns = 0;          ///< measured time of a copy of 1 GiB on the device; 0: not yet
  double copy_rate = 0;        ///< its rate in bytes per second
  int samples = 15;
  double seconds = 0.05;  ///< length of a sample
  int failures = 0, left_out = 0;

  bool wants(const std::string& name) const { return std::regex_search(name, filter); }
  /// Whether it wants any row `before` + kind + `after`.
  bool wants_any(const std::string& before, const std::vector<const char*>& kinds,
                 const std::string& after) const {
    return std::any_of(kinds.begin(), kinds.end(),
                       [&](const char* kind) { return wants(before + kind + after); });
  }

  /// Times `work` on the device. One call moves at least `bytes` and computes at least `flops`.
  void run(const std::string& name, const Work& work, double bytes = 0, double flops = 0) {
    if (!wants(name)) return;
    try {
      add({name, time_of(work), bytes, flops});
    } catch (const Error& e) {
      fail(name, e);
    }
  }
  /// As run(), if one call issues all of `launches`. Else other kernels would stand under this name, and the
  /// row is left out.
  void run_with(const std::vector<Launch>& launches, const std::string& name, const Work& work,
                double bytes = 0, double flops = 0) {
    if (!wants(name)) return;
    try {
      if (!launches.empty() && !shows(name, launches, spans_of(work))) return;
    } catch (const Error& e) {
      return fail(name, e);
    }
    run(name, work, bytes, flops);
  }
  /// Whether the spans of a call have all of `launches`; nullopt has. Else leaves the row out.
  bool shows(const std::string& name, const std::vector<Launch>& launches,
             const std::optional<Spans>& spans) {
    for (const Launch& launch : launches) {
      if (!spans) break;
      const auto at = spans->find(launch.name);
      const int times = at == spans->end() ? 0 : at->second;
      if (times > 0 && times <= launch.most) continue;
      leave_out(name, times == 0 ? str("a call issues no ", launch.name)
                                 : str("a call issues ", launch.name, " ", times, " times"));
      return false;
    }
    return true;
  }
  void fail(const std::string& name, const std::exception& e) {
    ++failures;
    std::printf("%-34s failed: %s\n", name.c_str(), e.what());
    std::fflush(stdout);
  }
  /// Says why rows that the filter wants are not measured here; that is no failure.
  void leave_out(const std::string& names, const std::string& reason) {
    ++left_out;
    std::printf("%-34s left out: %s\n", names.c_str(), reason.c_str());
    std::fflush(stdout);
  }
  double time_of(const Work& work) {
    for (int i = 0; i < 3; ++i) work();
    cuda::synchronize(gpu);
    const double once = sample(work, 1);
    const int inner = std::clamp(static_cast<int>(seconds * 1e9 / std::max(once, 1.0)), 1, 2000);
    std::vector<double> times;
    for (int i = 0; i < samples; ++i) times.push_back(sample(work, inner));
    std::nth_element(times.begin(), times.begin() + samples / 2, times.end());
    return times[static_cast<size_t>(samples / 2)];
  }
  /// As run(), by the clock of the host: for calls that issue no work to the device, or wait for it.
  void run_on_host(const std::string& name, const Work& work) {
    if (!wants(name)) return;
    using Clock = std::chrono::steady_clock;
    try {
      for (int i = 0; i < 3; ++i) work();
      std::vector<double> times;
      const auto end = Clock::now() + std::chrono::duration<double>(seconds * samples);
      while (times.size() < static_cast<size_t>(samples) || (Clock::now() < end && times.size() < 2000)) {
        const auto start = Clock::now();
        work();
        times.push_back(std::chrono::duration<double, std::nano>(Clock::now() - start).count());
      }
      const auto middle = times.begin() + static_cast<int64_t>(times.size()) / 2;
      std::nth_element(times.begin(), middle, times.end());
      add({name, *middle});
    } catch (const Error& e) {
      fail(name, e);
    }
  }
  static double sample(const Work& work, int inner) {
    cuda::Event start(gpu, true), end(gpu, true);
    start.record();
    for (int i = 0; i < inner; ++i) work();
    end.record();
    end.synchronize();
    return start.elapsed_time(end) * 1e6 / inner;
  }
  void add(const Row& row) {
    rows.push_back(row);
    std::printf("%-34s %12.1f us", row.name.c_str(), row.ns / 1e3);
    if (row.bytes > 0) {
      const double rate = row.bytes / row.ns * 1e9;
      std::printf("  %8.1f GB/s", rate / 1e9);
      if (copy_rate > 0) std::printf("  %5.1f %% of copy", 100 * rate / copy_rate);
    }
    if (row.flops > 0) std::printf("  %8.1f TFLOP/s", row.flops / row.ns / 1e3);
    if (const auto peer = peer_of(row.name))
      std::printf("  PyTorch %.1f us, %.2f times weft's", *peer / 1e3, *peer / row.ns);
    std::printf("\n");
    std::fflush(stdout);
    if (keep) keep();
  }
  /// The other library's time for this work, which has no forms: that of `Lstm/...` for `LstmCudnnFlat/...`.
  std::optional<double> peer_of(const std::string& name) const {
    static const std::regex form("(Persistent|Wavefront|Cudnn(Dropout|Unordered)?(Flat)?)(?=/)");
    const auto peer = peers.find(std::regex_replace(name, form, ""));
    return peer == peers.end() ? std::nullopt : std::optional(peer->second);
  }
};

/// Several equal tensors, used in turn, so that the cache has dropped a tensor before its next use.
class Rotating {
 public:
  Rotating(const Shape& sizes, DType dtype, int count) {
    for (int i = 0; i < count; ++i) tensors_.push_back(randn(sizes, {.dtype = dtype, .device = gpu}));
  }
  const Tensor& next() { return tensors_[at_++ % tensors_.size()]; }

 private:
  std::vector<Tensor> tensors_;
  size_t at_ = 0;
};

inline constexpr int64_t kMany = int64_t{1} << 26;  // elements of the pointwise cases
inline constexpr double kElements = static_cast<double>(kMany);

/// Sets the time and the rate of a copy, if they are not known yet.
void measure_copy(Bench& b);

// One function per part of the run. Forms are those that no device has run often: they get parts of their
// own, so that a defect of theirs costs no other rows.
enum class Forms { kPlain, kOther };
void memory_bound(Bench& b);
void rows_and_columns(Bench& b);
void small(Bench& b);
void losses_and_tables(Bench& b);
void products(Bench& b);
void feed_forward_part(Bench& b);
void attention(Bench& b, Forms forms);
void optimizers(Bench& b);
void transfers(Bench& b);
void recurrent_layers(Bench& b, Forms forms);
void sharing(Bench& b);
void language_model(Bench& b, int64_t vocabulary, int64_t size, double dropout, Forms forms);

/// The other process of sharing(), which this program starts with the argument --ipc-owner. Serves handles of
/// its memory on its standard output, one for each byte of its input.
int own_shared_memory();

}  // namespace weft::bench
