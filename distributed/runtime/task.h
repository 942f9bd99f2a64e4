// Task: a closure that is called once and may own move-only values (payloads, promises). Closures of up to 64
// bytes are stored inline, so that posting a usual handler does not allocate.
#pragma once

#include <cstddef>
#include <new>
#include <type_traits>
#include <utility>

namespace weft::rpc {

/// A move-only `void()` closure. Thread safety: as a plain value.
class Task {
 public:
  Task() = default;
  template <class F, class = std::enable_if_t<!std::is_same_v<std::decay_t<F>, Task> &&
                                              std::is_invocable_v<std::decay_t<F>&>>>
  Task(F&& f) {  // implicit, so that a lambda can be posted directly
    using Fn = std::decay_t<F>;
    if constexpr (sizeof(Fn) <= kInline && alignof(Fn) <= alignof(std::max_align_t) &&
                  std::is_nothrow_move_constructible_v<Fn>) {
      new (buffer_) Fn(std::forward<F>(f));
      ops_ = &kInlineOps<Fn>;
    } else {
      *reinterpret_cast<Fn**>(buffer_) = new Fn(std::forward<F>(f));
      ops_ = &kHeapOps<Fn>;
    }
  }
  Task(Task&& other) noexcept { take(other); }
  Task& operator=(Task&& other) noexcept {
    if (this != &other) {
      reset();
      take(other);
    }
    return *this;
  }
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;
  ~Task() { reset(); }

  /// False for an empty Task.
  explicit operator bool() const { return ops_ != nullptr; }
  /// Calls the closure; the Task must not be empty. Throws: the closure's exception.
  void operator()() { ops_->call(buffer_); }
  /// Destroys the closure and leaves the Task empty.
  void reset() {
    if (ops_ != nullptr) std::exchange(ops_, nullptr)->destroy(buffer_);
  }

 private:
  static constexpr size_t kInline = 64;
  struct Ops {
    void (*call)(void*);
    void (*move)(void* from, void* to);
    void (*destroy)(void*);
  };
  template <class Fn>
  static constexpr Ops kInlineOps = {[](void* p) { (*static_cast<Fn*>(p))(); },
                                     [](void* from, void* to) {
                                       new (to) Fn(std::move(*static_cast<Fn*>(from)));
                                       static_cast<Fn*>(from)->~Fn();
                                     },
                                     [](void* p) { static_cast<Fn*>(p)->~Fn(); }};
  template <class Fn>
  static constexpr Ops kHeapOps = {
      [](void* p) { (**static_cast<Fn**>(p))(); },
      [](void* from, void* to) { *static_cast<Fn**>(to) = *static_cast<Fn**>(from); },
      [](void* p) { delete *static_cast<Fn**>(p); }};

  void take(Task& other) {
    ops_ = std::exchange(other.ops_, nullptr);
    if (ops_ != nullptr) ops_->move(other.buffer_, buffer_);
  }

  const Ops* ops_ = nullptr;
  alignas(std::max_align_t) unsigned char buffer_[kInline];
};

}  // namespace weft::rpc
