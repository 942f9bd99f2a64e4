// Intrusive reference counting: an atomic count inside the object, and a handle of one pointer.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

namespace weft {

/// Base of objects that `Ref<T>` counts. The derived class frees itself in `static void destroy(T*)`.
class RefCounted {
 public:
  RefCounted() = default;
  RefCounted(const RefCounted&) = delete;
  RefCounted& operator=(const RefCounted&) = delete;

  void retain() const { refs_.fetch_add(1, std::memory_order_relaxed); }
  /// Returns true if this was the last reference.
  bool release() const {
    // A count of 1 is the caller's own reference. Only owners copy or drop references, so no other thread can
    // change the count any more, and a load replaces the locked decrement. It acquires the decrements of the
    // earlier owners, hence their writes to the object. A weak pointer breaks the premise: try_retain() may
    // come at any time. The count of an object that has one carries kWeak and is never 1 here.
    if (refs_.load(std::memory_order_acquire) == 1) return true;
    return (refs_.fetch_sub(1, std::memory_order_acq_rel) & kCount) == 1;
  }
  /// Called by an owner before it makes the first weak pointer, which is used with try_retain().
  void allow_weak() const { refs_.fetch_or(kWeak, std::memory_order_relaxed); }
  /// Adds a reference unless the count is zero; turns a weak reference into a strong one.
  bool try_retain() const {
    uint32_t n = refs_.load(std::memory_order_relaxed);
    while ((n & kCount) != 0)
      if (refs_.compare_exchange_weak(n, n + 1, std::memory_order_acq_rel)) return true;
    return false;
  }
  uint32_t use_count() const { return refs_.load(std::memory_order_acquire) & kCount; }

 private:
  static constexpr uint32_t kWeak = uint32_t{1} << 31, kCount = kWeak - 1;
  mutable std::atomic<uint32_t> refs_{1};
};

/// Owning handle of a RefCounted object. A new object has one reference, which `Ref::adopt` takes over.
template <class T> class Ref {
 public:
  Ref() = default;
  Ref(std::nullptr_t) {}
  Ref(const Ref& other) : p_(other.p_) {
    if (p_) p_->retain();
  }
  Ref(Ref&& other) noexcept : p_(std::exchange(other.p_, nullptr)) {}
  template <class U>
  requires std::is_convertible_v<U*, T*> Ref(Ref<U> other) : p_(other.detach()) {}
  ~Ref() { drop(p_); }
  Ref& operator=(const Ref& other) {
    Ref(other).swap(*this);
    return *this;
  }
  Ref& operator=(Ref&& other) noexcept {
    Ref(std::move(other)).swap(*this);
    return *this;
  }

  static Ref adopt(T* p) {
    Ref r;
    r.p_ = p;
    return r;
  }
  static Ref share(T* p) {
    if (p) p->retain();
    return adopt(p);
  }

  T* get() const { return p_; }
  T* operator->() const { return p_; }
  T& operator*() const { return *p_; }
  explicit operator bool() const { return p_ != nullptr; }
  T* detach() { return std::exchange(p_, nullptr); }
  void reset() { drop(std::exchange(p_, nullptr)); }
  void swap(Ref& other) noexcept { std::swap(p_, other.p_); }
  friend bool operator==(const Ref& a, const Ref& b) { return a.p_ == b.p_; }

 private:
  static void drop(T* p) {
    if (p && p->release()) T::destroy(p);
  }
  T* p_ = nullptr;
};

}  // namespace weft
