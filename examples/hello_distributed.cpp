#include <weft/distributed.h>
#include <cstdio>

using namespace weft;

struct Server {  // lives on the worker "server"; the trainer holds a reference
  nn::Linear layer{4, 1};
  Tensor forward(const Tensor& x) { return layer.forward(x); }
  std::vector<rpc::RRef<Tensor>> parameters() {
    return {rpc::RRef<Tensor>(layer.weight), rpc::RRef<Tensor>(layer.bias)};
  }
};
WEFT_RPC_CLASS(Server, forward, parameters);

int main() {
  auto children =
      rpc::spawned_rank() ? std::optional<rpc::Children>() : rpc::spawn({.world_size = 2, .first_rank = 1});
  if (!children) rpc::init_rpc("server");
  else
    rpc::init_rpc(
        "trainer",
        {.rank = 0, .world_size = 2, .master_addr = "127.0.0.1", .master_port = children->master_port()});
  if (children) {
    auto server = rpc::remote<Server>("server");
    auto sgd = dist_optim::make<optim::SGDRule>(server.rpc_sync<&Server::parameters>(), {.lr = 0.1});
    const Tensor x = randn({64, 4}), y = x.sum({1}, true);
    for (int step = 0; step < 50; ++step) {
      dist_autograd::Context context;
      const Tensor loss = mse_loss(server.rpc_sync<&Server::forward>(x), y);
      context.backward({loss});
      sgd.step(context.id());
      if (step % 10 == 9) std::printf("step %d  loss %.5f\n", step + 1, loss.item<double>());
    }
  }
  rpc::shutdown();
}
