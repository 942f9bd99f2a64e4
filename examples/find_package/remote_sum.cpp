// Calls a function by RPC in the smallest group: one worker that calls itself, over the same path as another.
#include <cstdio>

#include <weft/distributed.h>
#include <weft/weft.h>

weft::Tensor add_twice(const weft::Tensor& a, const weft::Tensor& b) { return a + b + b; }
WEFT_RPC(add_twice);

int main() {
  weft::rpc::init_rpc("alone", {.rank = 0, .world_size = 1, .master_addr = "127.0.0.1", .master_port = 0});
  const weft::Tensor y = weft::rpc::rpc_sync<add_twice>("alone", weft::ones({2, 3}), weft::ones({2, 3}));
  const double sum = y.sum().item<double>();
  weft::rpc::shutdown();
  std::printf("remote_sum: %.0f\n", sum);
  return sum == 18 ? 0 : 1;
}
