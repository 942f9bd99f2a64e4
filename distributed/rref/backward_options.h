// Options of a distributed backward pass, for dist_autograd::backward (dist_autograd.h) and
// RRef<Tensor>::backward (rref.h).
#pragma once

#include <weft/distributed/runtime/runtime.h>

namespace weft::dist_autograd {

using rpc::Duration;

/// The two modes of PyTorch's distributed autograd design; dist_autograd.h describes them.
enum class Backward : uint8_t { kFast, kSmart };

/// Options of a distributed backward pass.
struct BackwardOptions {
  bool retain_graph = false;  ///< keep the graph for another pass
  /// Records the pass, so that gradients have graphs across the workers. Further passes of the context may
  /// begin at these gradients. Implies retain_graph. SMART only.
  bool create_graph = false;
  Backward mode = Backward::kSmart;
  /// Watchdog of kFast: a worker that awaits gradients and gets none for this time ends the pass with an
  /// AutogradError that names them. Zero: no watchdog. SMART has no watchdog.
  Duration stall = std::chrono::seconds(60);
  /// Limit of the whole pass; zero: no limit. After a failure the workers have one more second to confirm
  /// that they have dropped its gradients.
  Duration timeout = std::chrono::seconds(0);
};

}  // namespace weft::dist_autograd
