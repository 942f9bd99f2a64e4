// Thread-local switches of the tape.
#pragma once

#include <weft/kernels/dtype.h>

namespace weft {

class Node;
class SavedTensorHooks;

/// What a thread knows of the tape. The distributed layer saves and restores it with a handler or fiber.
struct AutogradState {
  bool grad_enabled = true;
  bool inference = false;
  bool anomaly = false;
  Node* current = nullptr;                        ///< the node whose backward runs
  const SavedTensorHooks* saved_hooks = nullptr;  ///< innermost scope (autograd/saved_hooks.h)
  DType autocast = kFloat32;  ///< the half type of the scope (autograd/autocast.h), float32: none
};
WEFT_API AutogradState& autograd_state();

inline bool grad_enabled() { return autograd_state().grad_enabled; }

/// Sets grad mode for a scope; restores on exit.
class GradMode {
 public:
  explicit GradMode(bool on) : before_(autograd_state().grad_enabled) { autograd_state().grad_enabled = on; }
  ~GradMode() { autograd_state().grad_enabled = before_; }
  GradMode(const GradMode&) = delete;

 private:
  bool before_;
};
struct NoGrad : GradMode {
  NoGrad() : GradMode(false) {}
};
struct EnableGrad : GradMode {
  EnableGrad() : GradMode(true) {}
};

/// No recording, and layers may leave out what only backward needs: for evaluation loops.
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

/// Errors of backward name the forward call that made the failing node, and a NaN gradient is an AutogradError.
class DetectAnomaly {
 public:
  DetectAnomaly() : before_(autograd_state().anomaly) { autograd_state().anomaly = true; }
  ~DetectAnomaly() { autograd_state().anomaly = before_; }
  DetectAnomaly(const DetectAnomaly&) = delete;

 private:
  bool before_;
};

}  // namespace weft
