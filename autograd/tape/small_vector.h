// A vector with inline storage for N elements: gradient lists and edge lists are nearly always short.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <new>
#include <utility>

namespace weft {

template <class T, int N> class SmallVector {
 public:
  SmallVector() = default;
  explicit SmallVector(size_t n) { resize(n); }
  SmallVector(std::initializer_list<T> values) {
    reserve(values.size());
    for (const T& v : values) push_back(v);
  }
  SmallVector(const SmallVector& o) {
    reserve(o.size_);
    for (const T& v : o) push_back(v);
  }
  SmallVector(SmallVector&& o) noexcept { steal(o); }
  SmallVector& operator=(SmallVector o) noexcept {
    clear_all();
    steal(o);
    return *this;
  }
  ~SmallVector() { clear_all(); }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T& operator[](size_t i) { return data()[i]; }
  const T& operator[](size_t i) const { return data()[i]; }
  T* data() { return heap_ ? heap_ : inline_data(); }
  const T* data() const { return heap_ ? heap_ : const_cast<SmallVector*>(this)->inline_data(); }
  T* begin() { return data(); }
  T* end() { return data() + size_; }
  const T* begin() const { return data(); }
  const T* end() const { return data() + size_; }
  T& back() { return data()[size_ - 1]; }

  void reserve(size_t n) {
    if (n <= capacity_) return;
    T* fresh = static_cast<T*>(::operator new(n * sizeof(T), std::align_val_t(alignof(T))));
    T* old = data();
    for (size_t i = 0; i < size_; ++i) {
      new (fresh + i) T(std::move(old[i]));
      old[i].~T();
    }
    free_heap();
    heap_ = fresh;
    capacity_ = n;
  }
  void push_back(T v) {
    if (size_ == capacity_) reserve(capacity_ * 2);
    new (data() + size_) T(std::move(v));
    ++size_;
  }
  void resize(size_t n) {
    reserve(n);
    while (size_ < n) new (data() + size_++) T();
    while (size_ > n) data()[--size_].~T();
  }
  void clear() { resize(0); }

 private:
  T* inline_data() { return reinterpret_cast<T*>(inline_); }
  void free_heap() {
    if (heap_) ::operator delete(heap_, std::align_val_t(alignof(T)));
    heap_ = nullptr;
    capacity_ = N;
  }
  void clear_all() {
    for (size_t i = 0; i < size_; ++i) data()[i].~T();
    size_ = 0;
    free_heap();
  }
  void steal(SmallVector& o) noexcept {
    if (o.heap_) {
      heap_ = std::exchange(o.heap_, nullptr);
      capacity_ = std::exchange(o.capacity_, static_cast<size_t>(N));
    } else {
      for (size_t i = 0; i < o.size_; ++i) {
        new (inline_data() + i) T(std::move(o.inline_data()[i]));
        o.inline_data()[i].~T();
      }
    }
    size_ = std::exchange(o.size_, 0);
  }
  T* heap_ = nullptr;
  size_t size_ = 0;
  size_t capacity_ = N;
  alignas(T) unsigned char inline_[N * sizeof(T)];
};

}  // namespace weft
