// Calls as objects: a method of Backend with a tuple of its arguments. The views in the tuple are found by
// each_view, which has an overload per struct of views.
#pragma once

#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

#include <weft/autograd/tape/inner/program.h>

namespace weft::trace {

using OnView = const std::function<void(View&)>&;

template <class A> void each_view(A&, OnView) {}  // a number
inline void each_view(View& v, OnView f) { f(v); }
inline void each_view(std::vector<View>& list, OnView f) {
  for (View& v : list) f(v);
}
inline void each_view(LinearLossViews& v, OnView f) {
  for (View* part : {&v.x, &v.w, &v.bias, &v.target, &v.weight, &v.g, &v.loss, &v.dx, &v.dw, &v.db}) f(*part);
}
inline void each_view(AttentionViews& v, OnView f) {
  for (View* part : {&v.q, &v.k, &v.v, &v.mask, &v.y, &v.stats, &v.dy, &v.dq, &v.dk, &v.dv}) f(*part);
}
inline void each_view(RnnInputs& v, OnView f) {
  for (View* part : {&v.x, &v.h0, &v.c0, &v.w_ih, &v.w_hh, &v.b_ih, &v.b_hh}) f(*part);
}
inline void each_view(RnnOutputs& v, OnView f) {
  for (View* part : {&v.y, &v.hn, &v.cn, &v.reserve}) f(*part);
}
inline void each_view(RnnGrads& v, OnView f) {
  for (View* part : {&v.dx, &v.dh0, &v.dc0, &v.dw_ih, &v.dw_hh, &v.db_ih, &v.db_hh}) f(*part);
}

// Whether the numbers of two arguments have the same bits; views are compared by their places.
template <class A> bool same_number(const A& a, const A& b) {
  static_assert(std::is_arithmetic_v<A> || std::is_enum_v<A>, "an argument without a comparison");
  return std::memcmp(&a, &b, sizeof(A)) == 0;
}
inline bool same_number(const Scalar& a, const Scalar& b) {
  return same_number(a.d, b.d) && a.i == b.i && a.integral == b.integral;
}
inline bool same_number(const RnnLayer& a, const RnnLayer& b) {
  return a.mode == b.mode && a.reverse == b.reverse;
}
inline bool same_number(const AttentionViews& a, const AttentionViews& b) {
  return same_number(a.scale, b.scale) && a.causal == b.causal;
}
inline bool same_number(const std::vector<View>& a, const std::vector<View>& b) {
  return a.size() == b.size();
}
inline bool same_number(const View&, const View&) { return true; }
inline bool same_number(const PhiloxKey&, const PhiloxKey&) { return true; }
inline bool same_number(const LinearLossViews&, const LinearLossViews&) { return true; }
inline bool same_number(const RnnInputs&, const RnnInputs&) { return true; }
inline bool same_number(const RnnOutputs&, const RnnOutputs&) { return true; }
inline bool same_number(const RnnGrads&, const RnnGrads&) { return true; }

template <auto Method, class... A> class CallOf : public Call {
 public:
  CallOf(std::string op, const A&... args) : Call(std::move(op)), args_(args...) {}
  void run(Backend& backend, Context& context) override {
    std::apply([&](auto&... args) { (backend.*Method)(context, args...); }, args_);
  }
  void each_view(OnView f) override {
    std::apply([&](auto&... args) { (trace::each_view(args, f), ...); }, args_);
  }
  PhiloxKey* key() override {
    if constexpr ((std::is_same_v<A, PhiloxKey> || ...)) return &std::get<PhiloxKey>(args_);
    else return nullptr;
  }
  bool same_method(const Call& other) const override { return dynamic_cast<const CallOf*>(&other); }
  bool same_numbers(const Call& other) const override {
    return same_each(static_cast<const CallOf&>(other).args_, std::index_sequence_for<A...>());
  }

 protected:
  std::tuple<A...> args_;

 private:
  template <size_t... I> bool same_each(const std::tuple<A...>& other, std::index_sequence<I...>) const {
    return (same_number(std::get<I>(args_), std::get<I>(other)) && ...);
  }
};

/// Whether a method of Backend is pointwise.
template <auto Method> inline constexpr bool kPointwise = false;
template <> inline constexpr bool kPointwise<&Backend::unary> = true;
template <> inline constexpr bool kPointwise<&Backend::binary> = true;
template <> inline constexpr bool kPointwise<&Backend::ternary> = true;
template <> inline constexpr bool kPointwise<&Backend::where> = true;
template <> inline constexpr bool kPointwise<&Backend::copy> = true;
template <> inline constexpr bool kPointwise<&Backend::fill> = true;

/// A pointwise call. Where launch::run would call the row of a small row-major operation, so does a replay.
template <auto Method, class... A> class PointwiseCall final : public CallOf<Method, A...> {
  using Base = CallOf<Method, A...>;
  using Op = std::tuple_element_t<0, std::tuple<A...>>;
  static constexpr size_t kCount = sizeof...(A), kViews = (size_t{std::is_same_v<A, View>} + ...);
  static constexpr bool kHasRow =
      std::is_same_v<Op, Unary> || std::is_same_v<Op, Binary> || std::is_same_v<Op, Ternary>;

 public:
  PointwiseCall(std::string op, const A&... args) : Base(std::move(op), args...) {
    if constexpr (kHasRow) {
      const View& y = view<kViews - 1>();
      dtype_ = view<0>().dtype;
      one_type_ = y.dtype == (op_class(code()) == OpClass::kTest ? kBool : dtype_);
      fits_ = y.numel() <= kRowElements && y.is_contiguous();
      inputs([&](const View& x) {
        one_type_ = one_type_ && x.dtype == dtype_;
        fits_ = fits_ && x.is_contiguous() && x.sizes == y.sizes;
      });
      fits_ = fits_ && one_type_;
      params_.s = std::get<1>(this->args_);
      if constexpr (!std::is_same_v<Op, Ternary>) params_.t = std::get<2>(this->args_);
      count_ = y.numel();
    }
  }
  void run(Backend& backend, Context& context) override {
    if constexpr (kHasRow)
      if (const PointwiseRow row = fits_ ? backend.row(code(), dtype_) : nullptr) {
        void* p[kViews] = {view<kViews - 1>().data};
        int next = 1;
        inputs([&](const View& x) { p[next++] = x.data; });
        return row(params_, p, count_);
      }
    Base::run(backend, context);
  }
  bool is_pointwise() const override { return true; }
  void run_part(Backend& backend, Context& context, void* const* operands, int64_t count) const override {
    if constexpr (kHasRow)
      if (const PointwiseRow row = one_type_ ? backend.row(code(), dtype_) : nullptr) {
        void* p[kViews] = {operands[kViews - 1]};
        for (size_t i = 1; i < kViews; ++i) p[i] = operands[i - 1];
        return row(params_, p, count);
      }
    std::tuple<A...> part = this->args_;
    size_t next = 0;
    const auto cut = [&]<class T>(T& arg) {
      if constexpr (std::is_same_v<T, View>) arg = View{operands[next++], arg.dtype, {count}, {1}};
    };
    std::apply([&](auto&... args) { (cut(args), ...); }, part);
    std::apply([&](const auto&... args) { (backend.*Method)(context, args...); }, part);
  }

 private:
  Op code() const { return std::get<0>(this->args_); }
  template <size_t I> const View& view() const { return std::get<kCount - kViews + I>(this->args_); }
  template <class F> void inputs(F&& f) const {
    f(view<0>());
    if constexpr (kViews > 2) f(view<1>());
    if constexpr (kViews > 3) f(view<2>());
  }
  bool one_type_ = false;  // all operands have the dtype of the row
  bool fits_ = false;      // and the whole call may run it at once
  DType dtype_ = kFloat32;
  PointwiseParams params_;
  int64_t count_ = 0;
};

/// An optimizer's step. Its functors are made anew for each replay.
class StepCall final : public Call {
 public:
  StepCall(std::string op, const StepKernel& kernel, DType dtype, std::span<const StepTensor> tensors,
           std::vector<size_t> functor_bytes, StepReplay replay)
      : Call(std::move(op)),
        kernel_(kernel),
        dtype_(dtype),
        tensors_(tensors.begin(), tensors.end()),
        functor_bytes_(std::move(functor_bytes)),
        replay_(std::move(replay)) {
    size_t chunks = 0;
    for (const size_t bytes : functor_bytes_) chunks += chunks_of(bytes);
    functors_.resize(chunks);
    size_t at = 0;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      StepTensor& t = tensors_[i];
      t.hyper = &functors_[at];
      places_of_functors_.push_back(&functors_[at]);
      at += chunks_of(functor_bytes_[i]);
      const auto add = [&](const void* p, DType type, int64_t n) {
        views_.push_back({const_cast<void*>(p), type, {n}, {1}});
      };
      add(t.param, dtype_, t.numel);
      add(t.master, kFloat32, t.numel);
      for (const void* s : t.state) add(s, accumulate_type(dtype_), t.numel);
      add(t.grad, dtype_, t.numel);
      add(t.factor, kFloat64, 1);
    }
  }
  /// The roles of the views of `count` tensors.
  static std::string roles(size_t count) {
    std::string out;
    for (size_t i = 0; i < count; ++i) out += std::string(kViews - 2, 'b') + "rr";
    return out;
  }
  static constexpr size_t kViews = 2 + kMaxStepState + 2;  ///< of each tensor
  void run(Backend& backend, Context& context) override {
    const View* v = views_.data();
    for (StepTensor& t : tensors_) {
      t.param = (v++)->data;
      t.master = (v++)->data;
      for (void*& s : t.state) s = (v++)->data;
      t.grad = (v++)->data;
      t.factor = (v++)->as<double>();
    }
    const std::unique_lock<std::mutex> own = replay_(places_of_functors_, number_);
    backend.step(context, kernel_, dtype_, tensors_);
  }
  void each_view(OnView f) override { trace::each_view(views_, f); }
  void check_step() override { replay_({}, 0); }
  void begin(uint64_t replay) override { number_ = replay; }
  bool same_method(const Call& other) const override { return dynamic_cast<const StepCall*>(&other); }
  bool same_numbers(const Call& other) const override {
    const auto& o = static_cast<const StepCall&>(other);
    return kernel_.run_f32 == o.kernel_.run_f32 && dtype_ == o.dtype_ && functor_bytes_ == o.functor_bytes_;
  }

 private:
  struct alignas(64) Chunk {
    std::byte bytes[64];
  };
  static size_t chunks_of(size_t bytes) { return bytes / sizeof(Chunk) + 1; }
  const StepKernel kernel_;
  const DType dtype_;
  std::vector<StepTensor> tensors_;
  std::vector<View> views_;  // of each tensor: its parameter, master, state, gradient and factor
  std::vector<size_t> functor_bytes_;
  std::vector<Chunk> functors_;
  std::vector<void*> places_of_functors_;
  const StepReplay replay_;
  uint64_t number_ = 0;
};

}  // namespace weft::trace
