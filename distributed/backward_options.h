// How a distributed backward pass is run: what dist_autograd::backward (dist_autograd.h) and RRef<Tensor>::backward (rref.h) both take.
#pragma once

#include <weft/distributed/runtime.h>

namespace weft::dist_autograd {

using rpc::Duration;

enum class Backward : uint8_t { kFast, kSmart };

struct BackwardOptions {
  bool retain_graph = false;
  Backward mode = Backward::kFast;
  /// A worker whose pass awaits gradients and has seen none for this long ends it with an AutogradError that names them; zero: never.
  Duration stall = std::chrono::seconds(60);
  /// Of the whole pass; zero: none.
  Duration timeout = std::chrono::seconds(0);
};

}  // namespace weft::dist_autograd
