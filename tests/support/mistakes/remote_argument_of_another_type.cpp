// DISTRIBUTED
#include <weft/distributed.h>

weft::Tensor twice(const weft::Tensor& x) { return x * 2; }
WEFT_RPC(twice);

int main() {
  weft::rpc::rpc_sync<twice>("other", "three");  // MISTAKE: an argument does not convert to the remote function's parameter
}
