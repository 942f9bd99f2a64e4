// A tensor's memory on the host and on the emulated device, for tests that compare one backend call on both.
#pragma once

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include <weft/kernels/inner/convert.h>
#include "support/simt/device.h"

namespace weft::cuda::simt {

/// A view with the same contents on both sides. Its memory begins `offset` elements into a block and ends
/// with the last strided element. Before the first write all bits are ones.
class Operand {
 public:
  /// Strides of 0 length: row-major.
  Operand(DType dtype, const Shape& sizes, const Shape& strides = {}, int64_t offset = 0)
      : host_{nullptr, dtype, sizes, strides.empty() ? contiguous_strides(sizes) : strides} {
    int64_t reach = offset + 1;
    for (int d = 0; d < sizes.size(); ++d) reach += (sizes[d] > 0 ? sizes[d] - 1 : 0) * host_.strides[d];
    bytes_.resize(static_cast<size_t>(reach * size_of(dtype)), 1);
    block_ = device().allocate(bytes_.size());
    device_ = host_;
    host_.data = bytes_.data() + offset * size_of(dtype);
    device_.data = static_cast<char*>(block_) + offset * size_of(dtype);
    send();
  }
  ~Operand() { device().deallocate(block_, bytes_.size()); }
  Operand(const Operand&) = delete;

  View host() const { return host_; }
  View on_device() const { return device_; }
  /// Copies the host's block to the device, after a direct write to the host's.
  void send() {
    Context c;
    device().copy_from_host(c, bytes_.data(), block_, bytes_.size());
  }

  /// Sets every element of the block to f(its index in the block, element).
  template <class F> Operand& each(const F& f) {
    dispatch(host_.dtype, [&]<class T>(TypeTag<T>) {
      T* const p = reinterpret_cast<T*>(bytes_.data());
      for (size_t i = 0; i < bytes_.size() / sizeof(T); ++i)
        p[i] = kernels::convert<T>(f(i, kernels::convert<double>(p[i])));
    });
    send();
    return *this;
  }
  /// Fills the block with numbers from [low, high); integers for integer dtypes, and number > 0 for bool.
  Operand& random(double low, double high, uint32_t seed) {
    std::mt19937 engine(seed);
    return each([&](size_t, double) {
      const double u = low + (high - low) * (static_cast<double>(engine()) * 0x1p-32);
      return host_.dtype == kBool ? static_cast<double>(u > 0) : u;
    });
  }
  Operand& fill(double value) {
    return each([&](size_t, double) { return value; });
  }
  /// Sets the first elements of the block to these values.
  template <size_t n> Operand& set(const double (&values)[n]) {
    return each([&](size_t i, double old) { return i < n ? values[i] : old; });
  }

  /// All elements of the block; those outside of the view must not change.
  template <class T> std::vector<T> device_elements() const {
    std::vector<T> copy(bytes_.size() / sizeof(T));
    Context c;
    device().copy_to_host(c, block_, copy.data(), bytes_.size());
    return copy;
  }
  std::vector<double> host_values() const { return values(bytes_); }
  std::vector<double> device_values() const { return values(device_elements<char>()); }

 private:
  std::vector<double> values(const std::vector<char>& from) const {
    std::vector<double> v;
    dispatch(host_.dtype, [&]<class T>(TypeTag<T>) {
      for (size_t i = 0; i < from.size() / sizeof(T); ++i)
        v.push_back(kernels::convert<double>(reinterpret_cast<const T*>(from.data())[i]));
    });
    return v;
  }
  friend void expect_same(const Operand& y, double relative, const std::string& where);

  std::vector<char> bytes_;
  void* block_ = nullptr;
  View host_, device_;
};

/// Compares every element of the device's block with the host's: within `relative`, or bit for bit if that is
/// 0 (all NaNs are equal).
inline void expect_same(const Operand& y, double relative = 0, const std::string& where = "") {
  const std::vector<char> bytes = y.device_elements<char>();
  const auto got = y.device_values(), expected = y.host_values();
  const size_t width = static_cast<size_t>(size_of(y.host().dtype));
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::memcmp(&bytes[i * width], &y.bytes_[i * width], width) == 0 ||
        (got[i] != got[i] && expected[i] != expected[i]))
      continue;
    if (relative > 0 && got[i] == expected[i]) continue;
    ASSERT_TRUE(relative > 0 && std::abs(got[i] - expected[i]) <= relative * (1 + std::abs(expected[i])))
        << where << ", element " << i << ": " << got[i] << " for " << expected[i];
  }
}

}  // namespace weft::cuda::simt
