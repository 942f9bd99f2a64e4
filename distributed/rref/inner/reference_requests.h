// The requests of other workers that References serves: Kind::kRemote to Kind::kDelete. Internal to rref.h.
#pragma once

#include <weft/distributed/rref/inner/references.h>

namespace weft::rpc::detail {

/// Registers the handlers. They do not keep `references` alive.
void serve_references(Agent& agent, std::weak_ptr<References> references);

}  // namespace weft::rpc::detail
