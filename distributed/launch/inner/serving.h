// serve_until_done for other functions that serve at their end (init.cpp).
#pragma once

#include <weft/distributed/rpc/rpc.h>

namespace weft::rpc::inner {

/// As serve_until_done; the text of a Timeout begins with `caller`.
bool serve(const char* caller, const ServeOptions& options);

}  // namespace weft::rpc::inner
