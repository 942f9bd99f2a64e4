// The thread's view of the tape.
#include <weft/autograd/grad_mode.h>

namespace weft {

AutogradState& autograd_state() {
  static constinit thread_local AutogradState state;
  return state;
}

}  // namespace weft
