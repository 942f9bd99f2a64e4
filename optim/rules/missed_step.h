// MissedStep: the step of a rule for a row of a table that has no gradient in it (optim/optimizer.h).
#pragma once

namespace weft::optim {

/// A step without a gradient, for a rule in which that step is linear in the parameter p and the rule's state
/// s. Then p' = pp p + ps s and s' = sp p + ss s. The state may be absent.
struct MissedStep {
  double pp = 1, ps = 0, sp = 0, ss = 1;
};

}  // namespace weft::optim
