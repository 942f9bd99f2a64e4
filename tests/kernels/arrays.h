// Helpers of the kernel tests: arrays of any strides with guard zones around them, and loops over instruction
// sets and thread counts.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <weft/kernels/backend.h>
#include <weft/kernels/cpu_settings.h>

namespace weft::test {

inline Backend& cpu() { return backend(kCpu); }

/// Runs f once under each instruction set of this machine, and puts the chosen one back.
inline void each_isa(const std::function<void()>& f) {
  const std::string before = cpu_isa();
  for (const char* name : {"baseline", "avx2", "avx512"}) {
    try {
      set_cpu_isa(name);
    } catch (const ValueError&) {
      continue;
    }
    SCOPED_TRACE(std::string("instruction set ") + name);
    f();
  }
  set_cpu_isa(before.c_str());
}

/// The bytes that f returns must be the same for 1, 2 and 5 threads.
inline void expect_same_bits_for_any_thread_count(const std::function<std::vector<char>()>& f) {
  const int before = num_threads();
  set_num_threads(1);
  const std::vector<char> one = f();
  EXPECT_FALSE(one.empty());
  for (int n : {2, 5}) {
    set_num_threads(n);
    EXPECT_TRUE(f() == one) << n << " threads";
  }
  set_num_threads(before);
}

/// Numbers with a guard zone on both sides, seen through a View.
template <class T> class Array {
 public:
  static constexpr int64_t kGuard = 32;

  /// Strides of 0 length: row-major. `span` is how many elements the strides reach over.
  explicit Array(std::initializer_list<int64_t> sizes, const Shape& strides = {})
      : Array(Shape(sizes), strides) {}
  explicit Array(const Shape& sizes, const Shape& strides = {}) {
    view_.dtype = dtype_of<T>;
    view_.sizes = sizes;
    view_.strides = strides.empty() ? contiguous_strides(sizes) : strides;
    int64_t span = 1;
    for (int d = 0; d < sizes.size(); ++d) span += sizes[d] > 0 ? (sizes[d] - 1) * view_.strides[d] : 0;
    count_ = span + 2 * kGuard;
    memory_ = std::make_unique<T[]>(static_cast<size_t>(count_));
    for (int64_t i = 0; i < count_; ++i) memory_[i] = i < kGuard || i >= count_ - kGuard ? T(-99) : T(77);
  }
  ~Array() {
    for (int64_t i = 0; i < kGuard; ++i) {
      EXPECT_EQ(static_cast<double>(memory_[i]), static_cast<double>(T(-99))) << "written before the array";
      EXPECT_EQ(static_cast<double>(memory_[count_ - 1 - i]), static_cast<double>(T(-99)))
          << "written behind the array";
    }
  }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  View view() {
    View v = view_;
    v.data = data();
    return v;
  }
  T* data() { return memory_.get() + kGuard; }
  int64_t numel() const { return view_.numel(); }
  int64_t offset(int64_t linear) const {
    int64_t at = 0;
    for (int d = view_.ndim() - 1; d >= 0; --d) {
      at += linear % view_.sizes[d] * view_.strides[d];
      linear /= view_.sizes[d];
    }
    return at;
  }
  /// Element by its row-major number.
  T& operator[](int64_t linear) { return data()[offset(linear)]; }
  double at(int64_t linear) { return static_cast<double>((*this)[linear]); }

  Array& random(uint64_t seed, double low = -1, double high = 1) {
    std::mt19937_64 engine(seed);
    std::uniform_real_distribution<double> draw(low, high);
    for (int64_t i = 0; i < numel(); ++i) {
      if constexpr (std::is_integral_v<T>) (*this)[i] = static_cast<T>(std::floor(draw(engine)));
      else
        (*this)[i] =
            T(static_cast<std::conditional_t<std::is_same_v<T, double>, double, float>>(draw(engine)));
    }
    return *this;
  }
  Array& fill(double value) {
    for (int64_t i = 0; i < numel(); ++i) (*this)[i] = T(value);
    return *this;
  }
  std::vector<char> bytes() {
    std::vector<char> out(static_cast<size_t>(numel()) * sizeof(T));
    for (int64_t i = 0; i < numel(); ++i) std::memcpy(out.data() + i * sizeof(T), &(*this)[i], sizeof(T));
    return out;
  }

 private:
  View view_;
  std::unique_ptr<T[]> memory_;  // a vector of bool would not have its numbers side by side
  int64_t count_ = 0;
};

/// A bool array is held as bytes and shown to the kernel as bool.
inline View as_bool(View v) {
  v.dtype = kBool;
  return v;
}

inline std::vector<char> join(std::initializer_list<std::vector<char>> parts) {
  std::vector<char> all;
  for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

/// Room for rounding in a sum of `terms` numbers of about 1.
template <class T> double tolerance(int64_t terms) {
  const double unit = std::is_same_v<T, double>  ? 2e-16
                      : std::is_same_v<T, float> ? 1e-7
                      : std::is_same_v<T, Half>  ? 1e-3
                                                 : 8e-3;
  return unit * (8 + static_cast<double>(terms));
}

}  // namespace weft::test
