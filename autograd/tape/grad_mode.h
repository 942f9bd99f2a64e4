// Thread-local state of the tape, and scopes that change it: NoGrad, EnableGrad, InferenceMode,
// DetectAnomaly.
//   { NoGrad guard; w -= 0.1 * g; }  // the write is not recorded
#pragma once

#include <weft/kernels/dtype.h>

namespace weft {

class Node;
class SavedTensorHooks;

/// The tape's state on one thread. The distributed layer saves and restores it with a handler or fiber.
struct AutogradState {
  bool grad_enabled = true;
  bool inference = false;
  bool anomaly = false;
  Node* current = nullptr;                        ///< the node that backward is executing
  const SavedTensorHooks* saved_hooks = nullptr;  ///< innermost scope (autograd/tape/saved_hooks.h)
  DType autocast = kFloat32;                      ///< half dtype of the innermost Autocast; float32: none
};
namespace detail {
extern WEFT_API constinit thread_local AutogradState t_autograd_state;
}
inline AutogradState& autograd_state() { return detail::t_autograd_state; }

inline bool grad_enabled() { return autograd_state().grad_enabled; }

/// Sets grad mode for its lifetime, then restores it.
class GradMode {
 public:
  explicit GradMode(bool on) : before_(autograd_state().grad_enabled) { autograd_state().grad_enabled = on; }
  ~GradMode() { autograd_state().grad_enabled = before_; }
  GradMode(const GradMode&) = delete;

 private:
  bool before_;
};
/// Switches recording off for its lifetime.
struct NoGrad : GradMode {
  NoGrad() : GradMode(false) {}
};
/// Switches recording on for its lifetime.
struct EnableGrad : GradMode {
  EnableGrad() : GradMode(true) {}
};

/// NoGrad for evaluation; autograd_state().inference lets custom layers distinguish it from NoGrad. A view
/// taken in it is like detach(): a later recorded write changes only the history of the tensor that was
/// written through. So views are cheaper than under NoGrad; all else costs the same.
class InferenceMode {
 public:
  InferenceMode() : before_(autograd_state()) {
    autograd_state().grad_enabled = false;
    autograd_state().inference = true;
  }
  ~InferenceMode() {
    autograd_state().grad_enabled = before_.grad_enabled;
    autograd_state().inference = before_.inference;
  }
  InferenceMode(const InferenceMode&) = delete;

 private:
  AutogradState before_;
};

/// For its lifetime, errors in backward name the forward call that created the failing node, and a NaN
/// gradient is an AutogradError.
class DetectAnomaly {
 public:
  DetectAnomaly() : before_(autograd_state().anomaly) { autograd_state().anomaly = true; }
  ~DetectAnomaly() { autograd_state().anomaly = before_; }
  DetectAnomaly(const DetectAnomaly&) = delete;

 private:
  bool before_;
};

}  // namespace weft
