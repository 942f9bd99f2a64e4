#include <weft/distributed.h>
#include <cstdio>
#include <cstdlib>

using namespace weft;
using Clock = std::chrono::steady_clock;

struct Server {  // lives on the worker "server"; each trainer holds a reference to one of its own
  nn::Linear layer{4, 1};
  Tensor forward(const Tensor& x) { return layer.forward(x); }
  std::vector<rpc::RRef<Tensor>> parameters() { return {rpc::RRef(layer.weight), rpc::RRef(layer.bias)}; }
};
WEFT_RPC_CLASS(Server, forward, parameters);

void train(int seconds) {  // 50 steps when seconds is 0
  auto server = rpc::remote<Server>("server");
  auto sgd = dist_optim::make<optim::SGDRule>(server.rpc_sync<&Server::parameters>(), {.lr = 0.1});
  const Tensor x = randn({64, 4}), y = x.sum({1}, true);
  const auto end = Clock::now() + std::chrono::seconds(seconds);
  for (int step = 1; seconds > 0 ? Clock::now() < end : step <= 50; ++step) {
    dist_autograd::Context context;
    const Tensor loss = mse_loss(server.rpc_sync<&Server::forward>(x), y);
    context.backward({loss});
    sgd.step(context.id());
    if (step % (seconds > 0 ? 1000 : 10) == 0) std::printf("step %d  loss %.5f\n", step, loss.item<double>());
    std::fflush(stdout);
  }
}

int main(int argc, char** argv) try {
  int seconds = 0, trainers = 1;
  for (int i = 1; i < argc; i += 2) {
    const std::string word = argv[i];
    int* const flag = word == "--seconds" ? &seconds : word == "--trainers" ? &trainers : nullptr;
    if (flag && i + 1 < argc && (*flag = std::atoi(argv[i + 1])) >= (flag == &trainers)) continue;
    return std::puts("usage: hello_distributed [--seconds 0] [--trainers 1]"), word == "--help" ? 0 : 2;
  }
  std::vector<std::string> names;
  for (int i = 0; i < trainers; ++i) names.push_back("trainer" + std::to_string(i));
  names.push_back("server");
  return rpc::run_group({.names = names, .require_all = false}, [&](const rpc::WorkerInfo& me) {
    if (me.name != "server") train(seconds);
  });  // a worker that is done serves the others; a trainer that dies ends nobody else
} catch (const std::exception& e) {
  return std::fprintf(stderr, "hello_distributed: %s\n", e.what()), 1;
}
