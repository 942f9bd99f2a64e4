// Integer types of files without a matching dtype; each is read into a wider dtype.
#pragma once

#include <cstring>

#include <weft/tensor/tensor.h>

namespace weft::detail {

enum class FileInt { kNone, kInt8, kInt16, kUInt16, kUInt32 };

/// The dtype for a file type: int64 for uint32, else int32.
constexpr DType widened(FileInt t) { return t == FileInt::kUInt32 ? kInt64 : kInt32; }
constexpr int64_t width_of(FileInt t) { return t == FileInt::kInt8 ? 1 : t == FileInt::kUInt32 ? 4 : 2; }

template <class From, class To> void widen_in_place(const char* from, To* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    From v;
    std::memcpy(&v, from + i * static_cast<int64_t>(sizeof(From)), sizeof v);
    to[i] = static_cast<To>(v);
  }
}

/// Fills a new row-major x with numbers of type `t`, which `fill(pointer, bytes)` reads. It reads them to the
/// end of x's memory and widens them from the front, so no number is overwritten before it is used.
template <class F> void read_widened(FileInt t, const Tensor& x, F&& fill) {
  const int64_t n = x.numel(), packed = n * width_of(t);
  char* from = static_cast<char*>(x.address()) + n * size_of(x.dtype()) - packed;
  fill(from, static_cast<uint64_t>(packed));
  switch (t) {
    case FileInt::kNone: break;
    case FileInt::kInt8: return widen_in_place<int8_t>(from, static_cast<int32_t*>(x.address()), n);
    case FileInt::kInt16: return widen_in_place<int16_t>(from, static_cast<int32_t*>(x.address()), n);
    case FileInt::kUInt16: return widen_in_place<uint16_t>(from, static_cast<int32_t*>(x.address()), n);
    case FileInt::kUInt32: return widen_in_place<uint32_t>(from, static_cast<int64_t*>(x.address()), n);
  }
}

}  // namespace weft::detail
