// Rows for the layers of nn. A row copies the request's values into the parameters of the layer. The
// gradients in the answer are those of the parameters.
#include "support/compare/rows.h"

namespace weft::test {
namespace {

/// Copies `values` into the parameters in registration order and converts the module to their
/// dtype. The answer for a value that requires grad is the parameter's gradient; the other
/// parameters do not require grad.
void give(Request& request, nn::Module& module, const std::vector<Tensor>& values) {
  if (!values.empty()) module.to(values[0].dtype());
  const nn::NamedTensors named = module.named_parameters();
  if (named.size() != values.size())
    throw FrameError(str(values.size(), " values for ", named.size(), " parameters"));
  nn::StateDict state;
  for (size_t i = 0; i < named.size(); ++i) state.emplace_back(named[i].first, values[i].detach());
  module.load_state_dict(state);
  for (size_t i = 0; i < named.size(); ++i) {
    Tensor parameter = named[i].second;
    if (!values[i].requires_grad()) parameter.requires_grad_(false);
    for (Tensor& leaf : request.leaves)
      if (leaf.is_same(values[i])) leaf = parameter;
  }
}

Outputs run(nn::Recurrent& layer, Request& request, const std::vector<Tensor>& values,
            const std::vector<Tensor>& x_h_c) {
  give(request, layer, values);
  layer.eval();
  const nn::RnnOutput out = layer.forward(x_h_c[0], x_h_c[1], x_h_c[2]);
  return {out.y, out.h, out.c};
}

Outputs recurrent(Request& request, std::string kind, int64_t input, int64_t hidden, int64_t layers,
                  bool bias, bool batch_first, bool bidirectional, std::vector<Tensor> x_h_c,
                  std::vector<Tensor> values) {
  if (x_h_c.size() != 3) throw FrameError("x, h and c are wanted");
  const nn::RnnOptions options{.num_layers = layers,
                               .dropout = layers > 1 ? 0.5 : 0.0,
                               .bias = bias,
                               .batch_first = batch_first,
                               .bidirectional = bidirectional};
  if (kind == "LSTM") {
    nn::LSTM layer(input, hidden, options);
    return run(layer, request, values, x_h_c);
  }
  if (kind == "GRU") {
    nn::GRU layer(input, hidden, options);
    return run(layer, request, values, x_h_c);
  }
  using Nonlinearity = nn::RNN::Nonlinearity;
  nn::RNN layer(input, hidden, options, kind == "RNN_RELU" ? Nonlinearity::kRelu : Nonlinearity::kTanh);
  return run(layer, request, values, x_h_c);
}

Outputs cell(Request& request, std::string kind, int64_t input, int64_t hidden, bool bias,
             std::vector<Tensor> x_h_c, std::vector<Tensor> values) {
  if (x_h_c.size() != 3) throw FrameError("x, h and c are wanted");
  const nn::CellOptions options{.bias = bias};
  if (kind == "LSTM") {
    nn::LSTMCell layer(input, hidden, options);
    give(request, layer, values);
    const nn::CellState out = layer.forward(x_h_c[0], x_h_c[1], x_h_c[2]);
    return {out.h, out.c};
  }
  if (kind == "GRU") {
    nn::GRUCell layer(input, hidden, options);
    give(request, layer, values);
    return {layer.forward(x_h_c[0], x_h_c[1])};
  }
  using Nonlinearity = nn::RNNCell::Nonlinearity;
  nn::RNNCell layer(input, hidden, options, kind == "RNN_RELU" ? Nonlinearity::kRelu : Nonlinearity::kTanh);
  give(request, layer, values);
  return {layer.forward(x_h_c[0], x_h_c[1])};
}

}  // namespace

void add_layers(Rows& rows) {
  row(rows, "nn.cell", cell);
  row(rows, "nn.recurrent", recurrent);
  row<RnnResult(RnnMode, DeviceAutocastArg, DeviceAutocastArg, DeviceAutocastArg, DeviceAutocastArg,
                DeviceAutocastArg, DeviceAutocastArg, DeviceAutocastArg, bool)>(rows, "rnn_layer",
                                                                                WEFT_CALL(rnn_layer));
  row(rows, "nn.Linear",
      [](Request& request, Tensor x, int64_t in, int64_t out, bool bias, std::vector<Tensor> values) {
        nn::Linear layer(in, out, {.bias = bias});
        give(request, layer, values);
        return layer.forward(x);
      });
  row(rows, "nn.Embedding",
      [](Request& request, Tensor ids, int64_t count, int64_t dim, int64_t padding,
         std::vector<Tensor> values) {
        nn::Embedding layer(count, dim, {.padding_idx = padding});
        give(request, layer, values);
        return layer.forward(ids);
      });
  row(rows, "nn.MultiheadAttention",
      [](Request& request, std::vector<Tensor> q_k_v, Tensor mask, Tensor padding, bool causal, int64_t heads,
         bool bias, bool batch_first, std::vector<Tensor> values) {
        if (q_k_v.size() != 3) throw FrameError("q, k and v are wanted");
        nn::MultiheadAttention layer(q_k_v[0].size(-1), heads, {.bias = bias, .batch_first = batch_first});
        give(request, layer, values);
        return layer.forward(q_k_v[0], q_k_v[1], q_k_v[2],
                             {.mask = mask, .key_padding = padding, .causal = causal});
      });
  row(rows, "nn.LayerNorm",
      [](Request& request, Tensor x, int64_t dim, double eps, std::vector<Tensor> values) {
        nn::LayerNorm layer(dim, eps);
        give(request, layer, values);
        return layer.forward(x);
      });
  row(rows, "nn.Dropout", [](Tensor x, double p) {
    nn::Dropout layer(p);
    layer.eval();
    return layer.forward(x);
  });
  row(rows, "nn.ReLU", [](Tensor x) { return nn::ReLU().forward(x); });
  row(rows, "nn.Tanh", [](Tensor x) { return nn::Tanh().forward(x); });
  row(rows, "nn.Sigmoid", [](Tensor x) { return nn::Sigmoid().forward(x); });
  row(rows, "nn.GELU", [](Tensor x) { return nn::GELU().forward(x); });
  row(rows, "nn.SiLU", [](Tensor x) { return nn::SiLU().forward(x); });
  row(rows, "nn.MSELoss",
      [](Tensor x, Tensor target, Reduction reduction) { return nn::MSELoss(reduction).forward(x, target); });
  row(rows, "nn.NLLLoss", [](Tensor x, Tensor target, CrossEntropyOptions options) {
    return nn::NLLLoss(options).forward(x, target);
  });
  row(rows, "nn.CrossEntropyLoss", [](Tensor x, Tensor target, CrossEntropyOptions options) {
    return nn::CrossEntropyLoss(options).forward(x, target);
  });
  row(rows, "nn.Sequential",
      [](Request& request, Tensor x, int64_t in, int64_t hidden, int64_t out, std::vector<Tensor> values) {
        nn::Sequential net;
        net.append<nn::Linear>(in, hidden);
        net.append<nn::Tanh>();
        net.append<nn::Linear>(hidden, out);
        give(request, net, values);
        return net.forward(x);
      });
  row(rows, "nn.Softmax", [](Tensor x, int64_t dim) { return nn::Softmax(dim).forward(x); });
  row(rows, "nn.LogSoftmax", [](Tensor x, int64_t dim) { return nn::LogSoftmax(dim).forward(x); });
  row(rows, "nn.Categorical", [](Tensor x, bool logits, Tensor value) {
    const nn::Categorical c = logits ? nn::Categorical::from_logits(x) : nn::Categorical::from_probs(x);
    return Outputs{c.log_prob(value), c.entropy()};
  });
}

}  // namespace weft::test
