// DISTRIBUTED
#include <weft/distributed.h>

double scaled(double x, double by = 2) { return x * by; }
WEFT_RPC(scaled);

int main() {
  weft::rpc::rpc_sync<scaled>("other", 1.5);  // MISTAKE: wrong number of arguments for this remote function
}
