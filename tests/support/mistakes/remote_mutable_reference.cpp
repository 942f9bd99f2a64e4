// DISTRIBUTED
#include <weft/distributed.h>

void clear(weft::Tensor& x) { x.zero_(); }
WEFT_RPC(clear);  // MISTAKE: a parameter of a remote function cannot be a mutable reference
