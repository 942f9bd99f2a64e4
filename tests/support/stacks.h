// Stacks of nn/rnn.h for tests: a module with its inputs on one device, its results, and comparisons with
// those of another.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include <weft/nn/rnn.h>
#include <weft/weft.h>

namespace weft::cuda {

struct Case {
  RnnMode mode = RnnMode::kLstm;
  nn::RnnOptions options = {.num_layers = 2};
  bool states = true;
  int64_t inputs = 3, hidden = 4, steps = 5;
};

inline std::shared_ptr<nn::Recurrent> module_of(const Case& c, Device device) {
  Generator numbers(11);
  nn::RnnOptions o = c.options;
  o.generator = &numbers;
  std::shared_ptr<nn::Recurrent> m;
  if (c.mode == RnnMode::kLstm) m = std::make_shared<nn::LSTM>(c.inputs, c.hidden, o);
  else if (c.mode == RnnMode::kGru) m = std::make_shared<nn::GRU>(c.inputs, c.hidden, o);
  else
    m = std::make_shared<nn::RNN>(
        c.inputs, c.hidden, o,
        c.mode == RnnMode::kTanh ? nn::RNN::Nonlinearity::kTanh : nn::RNN::Nonlinearity::kRelu);
  m->to(device);
  return m;
}

/// A module on one device with its inputs: x, h0, c0.
struct Net {
  Case c;
  std::shared_ptr<nn::Recurrent> module;
  std::vector<Tensor> in;
  Net(const Case& which, Device device) : c(which), module(module_of(which, device)) {
    Generator numbers(12);
    const int64_t cells = c.options.num_layers * (c.options.bidirectional ? 2 : 1);
    for (const Shape& sizes :
         {c.options.batch_first ? Shape{2, c.steps, c.inputs} : Shape{c.steps, 2, c.inputs},
          Shape{cells, 2, c.hidden}, Shape{cells, 2, c.hidden}})
      in.push_back(
          randn(sizes, {.dtype = kFloat64}, &numbers).to(c.options.dtype).to(device).requires_grad_());
    if (!c.states) in[1] = in[2] = Tensor();
    if (c.mode != RnnMode::kLstm) in[2] = Tensor();
  }
  std::vector<Tensor> wanted() const {
    std::vector<Tensor> all = module->parameters();
    for (const Tensor& t : in)
      if (t.defined()) all.push_back(t);
    return all;
  }
  std::vector<Tensor> forward() const {
    const nn::RnnOutput r = module->forward(in[0], in[1], in[2]);
    return r.c.defined() ? std::vector<Tensor>{r.y, r.h, r.c} : std::vector<Tensor>{r.y, r.h};
  }
  Tensor loss() const {
    Tensor sum;
    for (const Tensor& t : forward()) sum = sum.defined() ? sum + (t * t).sum() : (t * t).sum();
    return sum;
  }
  /// Outputs, then gradients.
  std::vector<Tensor> run() const {
    const std::vector<Tensor> out = forward();
    Tensor sum = (out[0] * out[0]).sum() + out[1].sum();
    if (out.size() == 3) sum = sum + (out[2] * out[2]).sum();
    std::vector<Tensor> all;
    for (const Tensor& t : out) all.push_back(t.detach());
    for (const Tensor& t : grad({sum}, wanted())) all.push_back(t);
    return all;
  }
};

inline void expect_near(const std::vector<Tensor>& a, const std::vector<Tensor>& b, double allowed) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].sizes(), b[i].sizes());
    const Tensor x = a[i].to(kCpu).to(kFloat64), y = b[i].to(kCpu).to(kFloat64);
    EXPECT_LE((x - y).abs().max().item<double>(), allowed * std::max(1.0, y.abs().max().item<double>()))
        << "result " << i;
  }
}
inline bool same(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  for (size_t i = 0; i < a.size(); ++i)
    if ((a[i].to(kCpu) - b[i].to(kCpu)).abs().max().item<double>() != 0) return false;
  return true;
}

/// A stack whose layers drop out half of the numbers that pass between them.
inline Case dropping() {
  return {.options = {.num_layers = 3, .dropout = 0.5, .dtype = kFloat64}, .hidden = 8};
}

}  // namespace weft::cuda
