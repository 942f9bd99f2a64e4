// Short paths that must stay short. scripts/check_instructions.py counts their instructions under callgrind.
// `bench_hot_paths PATH N` runs one of them N times on one thread; `bench_hot_paths` lists them after the
// compiler's version. Counts repeat to the last few instructions where times do not.
#include <array>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include <weft/distributed/wire/codec.h>
#include <weft/weft.h>

namespace {

using namespace weft;

/// Keeps a result from being optimised away.
void keep(const Tensor& t) {
  if (!t.defined()) std::abort();
}

struct Path {
  const char* name;
  std::function<void(int)> run;  ///< prepares, then repeats this often
};

void add(int n) {
  NoGrad no_grad;
  const Tensor a = ones({1}), b = ones({1});
  for (int i = 0; i < n; ++i) keep(a + b);
}

void add_backward(int n) {
  Tensor a = ones({1}).requires_grad_();
  const Tensor b = ones({1});
  for (int i = 0; i < n; ++i) (a + b).backward();
}

void chain_backward(int n) {
  Tensor a = ones({8}).requires_grad_();
  const Tensor b = ones({8});
  for (int i = 0; i < n; ++i) sum(tanh(a * b + b)).backward();
}

void view_and_index(int n) {
  const Tensor a = ones({4, 8});
  for (int i = 0; i < n; ++i) keep(a.transpose(0, 1).select(0, 3).reshape({2, 2}));
}

void cross_entropy_backward(int n) {
  Tensor logits = ones({4, 16}).requires_grad_();
  const Tensor targets = zeros({4}, {.dtype = kInt64});
  for (int i = 0; i < n; ++i) cross_entropy(logits, targets).backward();
}

/// An operation, and the layer that only calls it.
template <class F> void forward(int n, F&& f) {
  NoGrad no_grad;
  const Tensor x = ones({1, 8});
  for (int i = 0; i < n; ++i) keep(f(x));
}
void relu_op(int n) {
  forward(n, [](const Tensor& x) { return relu(x); });
}
void relu_layer(int n) {
  forward(n, [layer = nn::ReLU()](const Tensor& x) { return layer.forward(x); });
}
void linear_op(int n) {
  const nn::Linear layer(8, 8);
  forward(n, [&](const Tensor& x) { return linear(x, layer.weight, layer.bias); });
}
void linear_layer(int n) {
  const nn::Linear layer(8, 8);
  forward(n, [&](const Tensor& x) { return layer.forward(x); });
}

void lstm_cell(int n) {
  NoGrad no_grad;
  const nn::LSTMCell cell(32, 32);
  const Tensor x = ones({1, 32});
  nn::CellState state;
  for (int i = 0; i < n; ++i) state = cell.forward(x, state.h, state.c);
  keep(state.h);
}

void lstm_step(int n) {
  NoGrad no_grad;
  const nn::LSTM layer(32, 32);
  const Tensor x = ones({1, 1, 32});
  nn::RnnOutput last = layer.forward(x);
  for (int i = 0; i < n; ++i) last = layer.forward(x, last.h, last.c);
  keep(last.y);
}

template <class Optimizer> void step(int n) {
  std::vector<Tensor> parameters;
  for (int i = 0; i < 10; ++i) {
    parameters.push_back(ones({16}).requires_grad_());
    parameters.back().set_grad(ones({16}));
  }
  Optimizer optimizer(parameters, {.lr = 1e-3});
  for (int i = 0; i < n; ++i) optimizer.step();
}

void codec(int n) {
  const std::string name = "weight";
  const Tensor value = ones({3, 3});
  for (int i = 0; i < n; ++i) {
    rpc::Message message;
    rpc::Encoder(message).put(std::pair(name, std::vector<Tensor>{value}));
    rpc::Decoder in(message);
    keep(in.get<std::pair<std::string, std::vector<Tensor>>>().second[0]);
  }
}

const std::array paths{Path{"add", add},
                       Path{"add_backward", add_backward},
                       Path{"chain_backward", chain_backward},
                       Path{"view_and_index", view_and_index},
                       Path{"cross_entropy_backward", cross_entropy_backward},
                       Path{"relu", relu_op},
                       Path{"relu_layer", relu_layer},
                       Path{"linear", linear_op},
                       Path{"linear_layer", linear_layer},
                       Path{"lstm_cell", lstm_cell},
                       Path{"lstm_step", lstm_step},
                       Path{"sgd_step", step<optim::SGD>},
                       Path{"adam_step", step<optim::Adam>},
                       Path{"codec", codec}};

}  // namespace

int main(int count, char** arguments) {
  if (count == 1) {
    std::cout << "g++ " << __VERSION__ << "\n";
    for (const Path& path : paths) std::cout << path.name << "\n";
    return 0;
  }
  const int times = count == 3 ? std::atoi(arguments[2]) : 0;
  for (const Path& path : paths)
    if (times > 0 && path.name == std::string(arguments[1])) {
      set_num_threads(1);
      path.run(times);
      return 0;
    }
  std::cerr << "bench_hot_paths: usage: bench_hot_paths [PATH N]; without arguments it lists the paths\n";
  return 2;
}
