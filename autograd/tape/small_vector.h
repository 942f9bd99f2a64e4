// A vector with inline storage for N elements: gradient lists and edge lists are nearly always short. A list
// of values in braces is moved into it.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

namespace weft {

/// A vector of T; up to N elements need no heap memory.
template <class T, int N> class SmallVector {
 public:
  SmallVector() = default;
  explicit SmallVector(size_t n) { resize(n); }
  template <std::convertible_to<T>... U>
  requires(sizeof...(U) > 0) SmallVector(U&&... values) {
    reserve(sizeof...(U));
    (static_cast<void>(new (data_ + size_++) T(std::forward<U>(values))), ...);
  }
  SmallVector(const SmallVector& o) {
    reserve(o.size_);
    for (const T& v : o) push_back(v);
  }
  SmallVector(SmallVector&& o) noexcept { steal(o); }
  SmallVector& operator=(SmallVector o) noexcept {
    clear();
    free_heap();
    steal(o);
    return *this;
  }
  ~SmallVector() {
    if (size_ != 0) clear();
    free_heap();
  }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }
  T* data() { return data_; }
  const T* data() const { return data_; }
  T* begin() { return data_; }
  T* end() { return data_ + size_; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + size_; }
  T& back() { return data_[size_ - 1]; }

  void reserve(size_t n) {
    if (n > capacity_) [[unlikely]]
      grow(n);
  }
  void push_back(T v) {
    if (size_ == capacity_) [[unlikely]]
      grow(size_t{capacity_} * 2);
    new (data_ + size_) T(std::move(v));
    ++size_;
  }
  /// Appends T{values...}.
  template <class... U> void emplace_back(U&&... values) {
    if (size_ == capacity_) [[unlikely]]
      grow(size_t{capacity_} * 2);
    new (data_ + size_) T{std::forward<U>(values)...};
    ++size_;
  }
  void resize(size_t n) {
    reserve(n);
    while (size_ < n) new (data_ + size_++) T();
    while (size_ > n) data_[--size_].~T();
  }
  void clear() {
    for (size_t i = 0; i < size_; ++i) data_[i].~T();
    size_ = 0;
  }

 private:
  T* inline_data() { return reinterpret_cast<T*>(inline_); }
  void grow(size_t n) {
    T* fresh = static_cast<T*>(::operator new(n * sizeof(T), std::align_val_t(alignof(T))));
    for (size_t i = 0; i < size_; ++i) {
      new (fresh + i) T(std::move(data_[i]));
      data_[i].~T();
    }
    free_heap();
    data_ = fresh;
    capacity_ = static_cast<uint32_t>(n);
  }
  void free_heap() {
    if (data_ == inline_data()) return;
    ::operator delete(data_, std::align_val_t(alignof(T)));
    data_ = inline_data();
    capacity_ = N;
  }
  void steal(SmallVector& o) noexcept {  // this one is empty and has no heap memory
    if (o.data_ != o.inline_data()) {
      data_ = std::exchange(o.data_, o.inline_data());
      capacity_ = std::exchange(o.capacity_, static_cast<uint32_t>(N));
    } else {
      for (size_t i = 0; i < o.size_; ++i) {
        new (data_ + i) T(std::move(o.data_[i]));
        o.data_[i].~T();
      }
    }
    size_ = std::exchange(o.size_, 0u);
  }
  T* data_ = inline_data();
  uint32_t size_ = 0;
  uint32_t capacity_ = N;
  alignas(T) unsigned char inline_[N * sizeof(T)];
};

}  // namespace weft
