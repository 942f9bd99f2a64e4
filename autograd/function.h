// Operations with a gradient of the user's own. A function is a struct with two static members:
//   struct Cube {
//     static Tensor forward(FunctionContext& ctx, const Tensor& x) { ctx.save({x}); return x * x * x; }
//     static GradList backward(FunctionContext& ctx, const GradList& g) { Tensor x = ctx.saved(0); return {g[0] * x * x * 3}; }
//   };
//   Tensor y = apply_function<Cube>(x);
// forward runs unrecorded and may take any arguments; each Tensor among them is an input. backward gets one gradient per output
// (undefined where none arrived) and returns one per tensor input, in order; under create_graph it is recorded, so written in our own
// ops it is differentiable again.
#pragma once

#include <any>
#include <tuple>
#include <type_traits>
#include <vector>

#include <weft/autograd/record.h>

namespace weft {

/// What forward leaves for backward.
class WEFT_API FunctionContext {
 public:
  /// Keeps inputs, outputs or others; an in-place write to one of them is found out. Call once, in forward.
  void save(std::vector<Tensor> tensors) { to_save_ = std::move(tensors); }
  /// The i-th saved tensor. Throws: IndexError, AutogradError when it was written to since or was freed by an earlier backward.
  Tensor saved(size_t i) const;
  size_t saved_count() const { return places_.size(); }
  /// Anything else that backward needs.
  template <class T> void put(T value) { data_ = std::move(value); }
  template <class T> T& get() { return std::any_cast<T&>(data_); }
  /// Which tensor inputs' gradients are wanted; others may be returned undefined.
  bool needs_grad(size_t input) const { return input < needs_.size() && needs_[input]; }
  /// This output carries no gradient (indices, masks). Floating outputs do by default.
  void mark_non_differentiable(const Tensor& output) { constant_.push_back(output); }

 private:
  friend class FunctionNode;
  std::vector<Tensor> to_save_, constant_;
  std::vector<Saved> saved_;
  std::vector<SavedOutput> saved_outputs_;
  std::vector<std::pair<bool, size_t>>
      places_;  // of the i-th saved tensor: whether among the outputs, and where
  std::vector<bool> needs_;
  std::any data_;
};

/// The node of a custom function (library internal).
class WEFT_API FunctionNode final : public Node {
 public:
  using Backward = GradList (*)(FunctionContext&, const GradList&);
  FunctionNode(const char* name, Backward backward) : Node(name), backward_(backward) {}
  GradList apply(GradList grads, Pass& pass) override;
  void release_saved() noexcept override;

  FunctionContext context;
  /// Notes which inputs want gradients; before forward.
  void begin(const std::vector<Tensor>& inputs);
  /// Links outputs and keeps what forward saved. Outputs that are inputs, or views, are replaced by aliases with this history.
  static void finish(Ref<FunctionNode> node, std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs);

 private:
  Backward backward_;
  bool released_ = false;
};

namespace detail {
template <class T> void collect_tensor(std::vector<Tensor>& out, const T& argument) {
  if constexpr (std::is_same_v<std::decay_t<T>, Tensor>) out.push_back(argument);
  else if constexpr (std::is_same_v<std::decay_t<T>, std::vector<Tensor>>)
    out.insert(out.end(), argument.begin(), argument.end());
}
WEFT_API Ref<FunctionNode> begin_function(const char* name, FunctionNode::Backward backward,
                                          const std::vector<Tensor>& inputs);
template <class F> constexpr const char* function_name() {
  if constexpr (requires { F::name; }) return F::name;
  else return "Function";
}
}  // namespace detail

/// Runs F::forward on `arguments` and records F::backward. forward returns a Tensor or a std::vector<Tensor>. A `static constexpr const char*
/// name` in F names the node. Throws: what forward throws.
template <class F, class... Args> auto apply_function(const Args&... arguments) {
  std::vector<Tensor> inputs;
  (detail::collect_tensor(inputs, arguments), ...);
  Ref<FunctionNode> node = detail::begin_function(detail::function_name<F>(), &F::backward, inputs);
  using Result = decltype(F::forward(std::declval<FunctionContext&>(), arguments...));
  static_assert(std::is_same_v<Result, Tensor> || std::is_same_v<Result, std::vector<Tensor>>,
                "forward returns a Tensor or a std::vector<Tensor>");
  Result result;
  {
    NoGrad off;
    result = F::forward(node->context, arguments...);
  }
  if constexpr (std::is_same_v<Result, Tensor>) {
    std::vector<Tensor> outputs{std::move(result)};
    FunctionNode::finish(std::move(node), outputs, inputs);
    return outputs[0];
  } else {
    FunctionNode::finish(std::move(node), result, inputs);
    return result;
  }
}

}  // namespace weft
