// DISTRIBUTED
#include <weft/distributed.h>

struct Box {
  explicit Box(double v) : value(v) {}
  double get() const { return value; }
  double value;
};
WEFT_RPC_CLASS(Box, get);

int main() {
  weft::rpc::remote<Box>("other", "three");  // MISTAKE: no constructor takes these arguments
}
