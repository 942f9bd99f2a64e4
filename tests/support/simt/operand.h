// A tensor's memory on the host and on the emulated device, for tests that compare one backend call on both.
#pragma once

#include <cstring>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include <weft/kernels/convert.h>
#include "support/simt/device.h"

namespace weft::cuda::simt {

/// A view on both sides with the same contents. Its memory begins `offset` elements into a block and reaches as far as the strides do.
class Operand {
 public:
  Operand(DType dtype, const Shape& sizes, const Shape& strides, int64_t offset = 0) : width_(size_of(dtype)), offset_(offset) {
    int64_t reach = offset + 1;
    for (int d = 0; d < sizes.size(); ++d) reach += (sizes[d] > 0 ? sizes[d] - 1 : 0) * strides[d];
    bytes_.resize(static_cast<size_t>(reach * width_));
    block_ = device().allocate(bytes_.size());
    host_ = {bytes_.data() + offset * width_, dtype, sizes, strides};
    device_ = host_;
    device_.data = static_cast<char*>(block_) + offset * width_;
    upload();
  }
  Operand(DType dtype, const Shape& sizes) : Operand(dtype, sizes, contiguous_strides(sizes)) {}
  ~Operand() { device().deallocate(block_, bytes_.size()); }
  Operand(const Operand&) = delete;

  /// Numbers from [low, high], whole ones for the integer types; of bool those above 0 are true.
  Operand& random(double low, double high, uint32_t seed) {
    std::mt19937 engine(seed);
    dispatch(host_.dtype, [&]<class T>(TypeTag<T>) {
      for (size_t i = 0; i < bytes_.size() / sizeof(T); ++i) {
        const double u = low + (high - low) * (static_cast<double>(engine()) * 0x1p-32);
        reinterpret_cast<T*>(bytes_.data())[i] = std::is_same_v<T, bool> ? kernels::convert<T>(u > 0) : kernels::convert<T>(u);
      }
    });
    upload();
    return *this;
  }
  /// As many of the block's elements as there are values.
  template <size_t n> Operand& set(const double (&values)[n]) {
    dispatch(host_.dtype, [&]<class T>(TypeTag<T>) {
      for (size_t i = 0; i < n; ++i) reinterpret_cast<T*>(bytes_.data())[i] = kernels::convert<T>(values[i]);
    });
    upload();
    return *this;
  }
  View host() const { return host_; }
  View on_device() const { return device_; }
  std::vector<double> host_values() const { return values(bytes_); }
  std::vector<double> device_values() const {
    std::vector<char> copy(bytes_.size());
    Context c;
    device().copy_to_host(c, block_, copy.data(), copy.size());
    return values(copy);
  }

 private:
  void upload() {
    Context c;
    device().copy_from_host(c, bytes_.data(), block_, bytes_.size());
  }
  // All elements of the block: those that the view does not show must stay as they are.
  std::vector<double> values(const std::vector<char>& from) const {
    std::vector<double> v;
    dispatch(host_.dtype, [&]<class T>(TypeTag<T>) {
      for (size_t i = 0; i < from.size() / sizeof(T); ++i) v.push_back(kernels::convert<double>(reinterpret_cast<const T*>(from.data())[i]));
    });
    return v;
  }

  int64_t width_, offset_;
  std::vector<char> bytes_;
  void* block_ = nullptr;
  View host_, device_;
};

/// Every element of the device's block against the host's, within `relative` (0: equal, NaN to NaN).
inline void expect_same(const Operand& y, double relative, const std::string& where) {
  const auto got = y.device_values(), expected = y.host_values();
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] == expected[i] || (got[i] != got[i] && expected[i] != expected[i])) continue;
    ASSERT_LE(std::abs(got[i] - expected[i]), relative * (1 + std::abs(expected[i]))) << where << ", element " << i << ": " << got[i] << " for " << expected[i];
  }
}

}  // namespace weft::cuda::simt
