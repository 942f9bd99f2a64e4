// The CPU kernels of weft's own rules and the construction of their functors, compiled once for all programs
// (extern template in rules.h).
#include <weft/optim/rules.h>

namespace weft::optim {
namespace {

template <class F> constexpr bool named_by_weft() {
  return std::string_view(step_kernel_name<F>()).starts_with("weft::");
}
template <class Rule> constexpr bool kernels_named_by_weft() {
  if constexpr (requires { typename Rule::Functors; })
    return
        []<class... F>(StepFunctors<F...>) { return (named_by_weft<F>() && ...); }(typename Rule::Functors());
  else return named_by_weft<Rule>();
}

}  // namespace

#define WEFT_COMPILE_RULE(Name, ...)                                                                      \
  static_assert(kernels_named_by_weft<Name##Rule>(), "a rule of weft's has kKernelName = \"weft::...\""); \
  template WEFT_API Variant detail::rule_variant<Name##Rule>(const Name##Options&);                       \
  template WEFT_API void detail::rule_construct<Name##Rule>(void*, const Name##Options&, int64_t);
WEFT_OPTIMIZER_RULES(WEFT_COMPILE_RULE)
#undef WEFT_COMPILE_RULE

WeightDecay weight_decay_type(const std::string& text) {
  if (text == "grad") return WeightDecay::kGrad;
  if (text == "direct") return WeightDecay::kDirect;
  throw ValueError("weight decay type must be 'grad' or 'direct', got '" + text + "'");
}

}  // namespace weft::optim
