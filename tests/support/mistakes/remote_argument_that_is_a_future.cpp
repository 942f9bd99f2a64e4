// DISTRIBUTED
#include <weft/distributed.h>

double twice(const weft::rpc::Future<double>& x) { return x.wait() * 2; }
WEFT_RPC(twice);  // MISTAKE: a Future cannot travel: wait for it first
