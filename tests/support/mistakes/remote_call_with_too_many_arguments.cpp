// DISTRIBUTED
#include <weft/distributed.h>

weft::Tensor twice(const weft::Tensor& x) { return x * 2; }
WEFT_RPC(twice);

int main() {
  const weft::Tensor x = weft::ones(3);
  weft::rpc::rpc_sync<twice>("other", x, x);  // MISTAKE: wrong number of arguments for this remote function
}
