// The built-in rules are compiled here, once for all users of optim.
#include <weft/kernels/step_rules.h>

#include <weft/kernels/step_cpu.h>

namespace weft::step {

#define WEFT_DEFINE_RULE(Rule) \
  template <> StepKernel builtin_kernel<Rule>() { return make_step_kernel<Rule>("weft::step::" #Rule); }
WEFT_STEP_RULES(WEFT_DEFINE_RULE)
#undef WEFT_DEFINE_RULE

}  // namespace weft::step
