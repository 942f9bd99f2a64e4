// DISTRIBUTED
#include <weft/distributed.h>

weft::Tensor twice(const weft::Tensor& x) { return x * 2; }
WEFT_RPC(twice);

int main() {
  weft::rpc::rpc_sync<twice>("other");  // MISTAKE: wrong number of arguments for this remote function
}
