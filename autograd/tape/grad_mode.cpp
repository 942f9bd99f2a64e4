// The thread-local state of the tape (grad_mode.h), in one object so that the distributed layer can save and
// restore it.
#include <weft/autograd/tape/grad_mode.h>

namespace weft {

constinit thread_local AutogradState detail::t_autograd_state{};

}  // namespace weft
