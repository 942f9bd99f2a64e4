// Callback: a copyable owner of any callable of one signature. It replaces std::function, whose header would
// add to the compile time of every file that includes weft.h.
#pragma once

#include <type_traits>
#include <utility>

#include <weft/tensor/intrusive.h>

namespace weft {

template <class Signature> class Callback;

/// Copies of a Callback share one callable. Thread safety: that of the callable.
template <class R, class... Args> class Callback<R(Args...)> {
 public:
  Callback() = default;
  Callback(std::nullptr_t) {}
  template <class F>
  requires(!std::is_same_v<std::decay_t<F>, Callback> && std::is_invocable_r_v<R, std::decay_t<F>&, Args...>)
      Callback(F&& f)
      : held_(Ref<Base>::adopt(new Held<std::decay_t<F>>(std::forward<F>(f)))) {}

  explicit operator bool() const { return static_cast<bool>(held_); }
  R operator()(Args... args) const { return held_->call(std::forward<Args>(args)...); }

 private:
  struct Base : RefCounted {
    virtual ~Base() = default;
    virtual R call(Args... args) = 0;
    static void destroy(Base* b) { delete b; }
  };
  template <class F> struct Held final : Base {
    explicit Held(F&& f) : callable(std::move(f)) {}
    explicit Held(const F& f) : callable(f) {}
    R call(Args... args) override { return callable(std::forward<Args>(args)...); }
    F callable;
  };
  Ref<Base> held_;
};

}  // namespace weft
