#include <weft/distributed.h>
#include <cstdio>
#include <cstdlib>

using namespace weft;
using Clock = std::chrono::steady_clock;

struct Server : nn::Linear {  // lives on the worker "server"; each trainer holds one of its own
  Server() : Linear(4, 1) {}
};
WEFT_RPC_CLASS(Server, forward);

void train(int seconds) {  // 50 steps when seconds is 0
  rpc::RemoteModule<Server> server("server");
  auto sgd = dist_optim::make<optim::SGDRule>(server.remote_parameters(), {.lr = 0.1});
  const Tensor x = randn({64, 4}), y = x.sum({1}, true);
  const auto end = Clock::now() + std::chrono::seconds(seconds);
  const int log = seconds > 0 ? 1000 : 10;
  for (int step = 1; seconds > 0 ? Clock::now() < end : step <= 50; ++step) {
    dist_autograd::Context context;
    const Tensor loss = mse_loss(server.forward(x), y);
    context.backward({loss});
    sgd.step(context.id());
    if (step % log != 0) continue;
    std::printf("step %d  loss %.5f\n", step, loss.item<double>());
    std::fflush(stdout);
  }
}

int help(int status) {
  std::puts("usage: hello_distributed [--seconds 0] [--trainers 1]");
  return status;
}

int main(int argc, char** argv) try {
  const rpc::WaitSignal waits;  // kill -USR1 prints who waits for whom
  int seconds = 0;
  int trainers = 1;
  for (int i = 1; i < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--help") return help(0);
    const int value = i + 1 < argc ? std::atoi(argv[i + 1]) : -1;
    if (flag == "--seconds" && value >= 0) {
      seconds = value;
    } else if (flag == "--trainers" && value >= 1) {
      trainers = value;
    } else {
      return help(2);
    }
  }
  std::vector<std::string> names;
  for (int i = 0; i < trainers; ++i) names.push_back("trainer" + std::to_string(i));
  names.push_back("server");
  return rpc::run_group({.names = names, .require_all = false},  // a trainer that dies is only a lost member
                        [&](const auto& me) {
                          if (me.name != "server") train(seconds);
                        });
} catch (const std::exception& e) {
  std::fprintf(stderr, "hello_distributed: %s\n", e.what());
  return 1;
}
