// The built-in optimizers: optim::SGD, optim::Adam and others, one per row of rules/table.h. The file of each
// rule in rules/ has its options, formula and source. All have the interface of Fused (optimizer.h):
//   optim::Adam opt(model.parameters(), {.lr = 1e-3});
#pragma once

#include <weft/optim/optimizer.h>
#include <weft/optim/qhm_settings.h>
#include <weft/optim/rules/table.h>

namespace weft::optim {

// The instantiations are in rules.cpp.
#define WEFT_DECLARE_RULE(Name, ...)                                                       \
  using Name = Fused<Name##Rule>;                                                          \
  extern template WEFT_API Variant detail::rule_variant<Name##Rule>(const Name##Options&); \
  extern template WEFT_API void detail::rule_construct<Name##Rule>(void*, const Name##Options&, int64_t);
WEFT_OPTIMIZER_RULES(WEFT_DECLARE_RULE)
#undef WEFT_DECLARE_RULE

}  // namespace weft::optim
