// The time slice of a thread: for so long it runs before another thread of its processor has its turn. On a
// busy machine Linux (from 6.12 on) lets a woken thread of a shorter slice run earlier. Internal to the
// threaded runtime.
#pragma once

#include <weft/distributed/runtime/runtime.h>

namespace weft::rpc::inner {

/// Asks the system for such slices of the calling thread; threads that it starts have the system's own again.
/// Zero or less asks for nothing. No effect on a thread of a real-time policy, nor where the system refuses.
void ask_for_time_slice(Duration slice);

}  // namespace weft::rpc::inner
