// The measuring part of bench_gpu: rows, the clock and tensors that the cache has dropped.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <regex>
#include <string>
#include <vector>

#include <weft/tensor/cuda.h>
#include <weft/weft.h>

namespace weft::bench {

using Work = std::function<void()>;

inline const Device gpu{DeviceType::kCuda};

struct Row {
  std::string name;
  double ns = 0;
  double bytes = 0;  ///< least number of bytes that one call moves; 0: not counted
  double flops = 0;
};

struct Bench {
  std::regex filter{"."};
  std::map<std::string, double> peers;
  std::vector<Row> rows;
  double copy_rate = 0;  ///< measured rate of a copy on the device, in bytes per second
  int samples = 15;
  double seconds = 0.05;  ///< length of a sample
  int failures = 0, left_out = 0;

  bool wants(const std::string& name) const { return std::regex_search(name, filter); }

  /// Times `work` on the device. One call moves at least `bytes` and computes at least `flops`.
  void run(const std::string& name, const Work& work, double bytes = 0, double flops = 0) {
    if (!wants(name)) return;
    try {
      add({name, time_of(work), bytes, flops});
    } catch (const Error& e) {
      fail(name, e);
    }
  }
  void fail(const std::string& name, const Error& e) {
    ++failures;
    std::printf("%-34s failed: %s\n", name.c_str(), e.what());
  }
  /// Says why rows that the filter wants are not measured here; that is no failure.
  void leave_out(const std::string& names, const std::string& reason) {
    ++left_out;
    std::printf("%-34s left out: %s\n", names.c_str(), reason.c_str());
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
    if (const auto peer = peers.find(row.name); peer != peers.end())
      std::printf("  PyTorch %.1f us, %.2f times weft's", peer->second / 1e3, peer->second / row.ns);
    std::printf("\n");
    std::fflush(stdout);
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

// One function per part of the run.
void memory_bound(Bench& b);
void rows_and_columns(Bench& b);
void small(Bench& b);
void losses_and_tables(Bench& b);
void products(Bench& b);
void feed_forward_part(Bench& b);
void attention(Bench& b);
void optimizers(Bench& b);
void transfers(Bench& b);
void recurrent_layers(Bench& b);
void sharing(Bench& b);
void language_model(Bench& b, int64_t vocabulary, int64_t size, double dropout);

/// The other process of sharing(), which this program starts with the argument --ipc-owner. Serves handles of
/// its memory on its standard output, one for each byte of its input.
int own_shared_memory();

}  // namespace weft::bench
