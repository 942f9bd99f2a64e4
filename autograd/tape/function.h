// Custom operations with a user-defined gradient. A function is a struct with two static members:
//   struct Cube {
//     static Tensor forward(FunctionContext& ctx, const Tensor& x) { ctx.save({x}); return x * x * x; }
//     static GradList backward(FunctionContext& ctx, const GradList& g) {
//       const Tensor x = ctx.saved(0);
//       return {g[0] * x * x * 3};
//     }
//   };
//   Tensor y = apply_function<Cube>(x);
// forward runs unrecorded and may take any arguments; each Tensor among them is an input. backward gets one
// gradient per output (undefined if none arrived) and returns one per tensor input, in order. Under
// create_graph it is recorded, so a backward made of operations of this library is differentiable again.
// Intermediate results of forward have no history: under create_graph backward may read saved inputs and
// outputs, and saved() throws AutogradError for other floating tensors.
#pragma once

#include <any>
#include <array>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

#include <weft/autograd/tape/record.h>

namespace weft {

/// Data that forward passes to backward.
class WEFT_API FunctionContext {
 public:
  /// Keeps inputs, outputs or other tensors; saved() detects a later in-place write to them. Call it once, in
  /// forward.
  void save(std::vector<Tensor> tensors) { to_save_ = std::move(tensors); }
  /// The i-th saved tensor.
  /// Throws: IndexError; AutogradError if it was written to since, was freed by an earlier backward, or under
  /// create_graph is an intermediate result of forward.
  Tensor saved(size_t i) const;
  /// Any other value that backward needs; a tensor kept here counts as a constant.
  template <class T> void put(T value) { data_ = std::move(value); }
  template <class T> T& get() { return std::any_cast<T&>(data_); }
  /// Whether the gradient of a tensor input is wanted; if not, backward may return an undefined gradient.
  bool needs_grad(size_t input) const { return input < needs_.size() && needs_[input]; }
  /// Marks an output that carries no gradient (indices, masks). By default, floating outputs carry gradients.
  void mark_non_differentiable(const Tensor& output) { constant_.push_back(output); }

 private:
  friend class FunctionNode;
  std::vector<Tensor> to_save_, constant_;
  std::vector<Saved> saved_;
  std::vector<SavedOutput> saved_outputs_;
  enum class Kind : uint8_t { kOutput, kInput, kIntermediate };
  // of the i-th saved tensor: its kind, and its position among the outputs or the other tensors
  std::vector<std::pair<Kind, size_t>> places_;
  std::vector<bool> needs_;
  std::any data_;
};

/// The node of a custom function. Internal: apply_function creates it.
class WEFT_API FunctionNode final : public Node {
 public:
  using Backward = GradList (*)(FunctionContext&, const GradList&);
  FunctionNode(const char* name, Backward backward) : Node(name), backward_(backward) {}
  GradList apply(GradList grads, Pass& pass) override;
  void release_saved() noexcept override;

  FunctionContext context;
  /// Stores which inputs need gradients. Called before forward.
  void begin(const std::vector<Tensor>& inputs);
  /// Links the outputs and keeps the tensors that forward saved. Outputs that are inputs or views are
  /// replaced by aliases with this history.
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
/// The argument that forward gets. For a parameter marked concurrent it is one snapshot, so that forward and
/// the tensors that it saves see the same value.
WEFT_API Tensor pinned(const Tensor& argument);
WEFT_API std::vector<Tensor> pinned(const std::vector<Tensor>& argument);
template <class T> const T& pinned(const T& argument) { return argument; }
WEFT_API Ref<FunctionNode> begin_function(const char* name, FunctionNode::Backward backward,
                                          const std::vector<Tensor>& inputs);
/// The name of a type without its namespaces, as the compiler spells it.
template <class F> struct TypeName {
  static constexpr std::string_view find() {
    std::string_view text = __PRETTY_FUNCTION__;
    const size_t from = text.find("F = ") + 4;
    text = text.substr(from, text.find_first_of(";]", from) - from);
    for (size_t at; text.find('<') == text.npos && (at = text.find("::")) != text.npos;)
      text.remove_prefix(at + 2);
    return text;
  }
  static constexpr auto make() {
    std::array<char, find().size() + 1> out{};
    for (size_t i = 0; i + 1 < out.size(); ++i) out[i] = find()[i];
    return out;
  }
  static constexpr auto text = make();
};
template <class F> constexpr const char* function_name() {
  if constexpr (requires { F::name; }) return F::name;
  else return TypeName<F>::text.data();
}
}  // namespace detail

/// Runs F::forward on `arguments` and records F::backward. forward returns a Tensor or a std::vector<Tensor>.
/// The node is named after F, or by a `static constexpr const char* name` in F.
/// Throws: the exceptions of forward. In backward, AutogradError that names F, if the gradients do not match
/// the inputs in number, sizes, device or kind of dtype.
template <class F, class... Args> auto apply_function(const Args&... arguments) {
  static_assert(
      requires { static_cast<FunctionNode::Backward>(&F::backward); },
      "backward is static GradList backward(FunctionContext&, const GradList&)");
  const std::tuple<decltype(detail::pinned(arguments))...> given(detail::pinned(arguments)...);
  std::vector<Tensor> inputs;
  std::apply([&](const auto&... a) { (detail::collect_tensor(inputs, a), ...); }, given);
  Ref<FunctionNode> node = detail::begin_function(detail::function_name<F>(), &F::backward, inputs);
  using Result = decltype(F::forward(std::declval<FunctionContext&>(), arguments...));
  static_assert(std::is_same_v<Result, Tensor> || std::is_same_v<Result, std::vector<Tensor>>,
                "forward returns a Tensor or a std::vector<Tensor>");
  Result result;
  {
    NoGrad off;
    result = std::apply([&](const auto&... a) { return F::forward(node->context, a...); }, given);
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
