// Tasks on the pool and scratch memory from the allocator, for the kernels of one instruction set. The number
// of tasks depends on shapes only, so results never depend on the thread count. Only the tiles of a product
// are divided by threads (gemm.cpp), which changes no sum.
#pragma once

#include <cstddef>
#include <cstdint>

#include <weft/kernels/cpu/allocator.h>
#include <weft/kernels/cpu/isa/vec.h>
#include <weft/kernels/cpu/pool.h>

namespace weft::kernels::WEFT_ISA_NS {

/// Splits `total` into equal parts of at most `limit`: the number of parts, and the start of part i.
struct Parts {
  int64_t total, count;
  Parts(int64_t n, int64_t limit) : total(n), count(n == 0 ? 0 : (n + limit - 1) / limit) {}
  int64_t begin(int64_t i) const {
    return count == 0 ? 0 : total / count * i + (i < total % count ? i : total % count);
  }
  int64_t size(int64_t i) const { return begin(i + 1) - begin(i); }
};

/// f(0) .. f(count - 1) on the pool.
template <class F> void each_task(int64_t count, const F& f) {
  if (count == 1) return f(0);
  parallel_for(count, 1, [&f](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) f(i);
  });
}

/// Uninitialised numbers that live as long as the object.
template <class T> class Scratch {
 public:
  Scratch() = default;
  explicit Scratch(int64_t count) { resize(count); }
  ~Scratch() { resize(0); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  /// Replaces the memory by uninitialised room for `count` numbers.
  void resize(int64_t count) {
    if (data_) deallocate(data_, static_cast<size_t>(count_) * sizeof(T));
    data_ = nullptr;
    count_ = 0;
    if (count <= 0) return;
    data_ = static_cast<T*>(allocate(static_cast<size_t>(count) * sizeof(T)));
    count_ = count;
  }
  void swap(Scratch& other) {
    T* const data = data_;
    const int64_t count = count_;
    data_ = other.data_, count_ = other.count_;
    other.data_ = data, other.count_ = count;
  }
  T* get() const { return data_; }

 private:
  T* data_ = nullptr;
  int64_t count_ = 0;
};

}  // namespace weft::kernels::WEFT_ISA_NS
