// Calls a function by RPC in a group of one worker. Any gRPC client of this user can inspect it meanwhile.
#include <cstdio>

#include <weft/distributed.h>
#include <weft/distributed/inspection/inspection.h>
#include <weft/weft.h>

weft::Tensor add_twice(const weft::Tensor& a, const weft::Tensor& b) { return a + b + b; }
WEFT_RPC(add_twice);

int main() {
  weft::rpc::init_rpc("alone", {.rank = 0, .world_size = 1, .master_addr = "127.0.0.1", .master_port = 0});
  const weft::rpc::InspectionServer inspection;
  const weft::Tensor y = weft::rpc::rpc_sync<add_twice>("alone", weft::ones({2, 3}), weft::ones({2, 3}));
  const double sum = y.sum().item<double>();
  weft::rpc::shutdown();
  std::printf("inspected_sum: %.0f, by %s\n", sum, inspection.address().c_str());
  return sum == 18 ? 0 : 1;
}
