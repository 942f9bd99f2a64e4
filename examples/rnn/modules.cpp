// Forward passes, initial values and the tied weight of the parts of the word language model (modules.h).
#include "modules.h"

#include <map>

namespace rnn {
namespace {

using weft::Generator;
using weft::nn::name_key;

Generator stream(uint64_t seed, const char* name) { return Generator(seed).fork(name_key(name)); }

}  // namespace

EmbeddingTable::EmbeddingTable(int64_t vocabulary, int64_t dim, double dropout, uint64_t seed)
    : encoder(vocabulary, dim), drop(dropout) {
  add("encoder", encoder);
  add("drop", drop);
  Generator draws = stream(seed, "encoder.weight");
  weft::nn::init::uniform_(encoder.weight, -0.1, 0.1, &draws);
  this->seed(seed, "embedding");
}

Tensor EmbeddingTable::forward(const Tensor& ids) { return drop.forward(encoder.forward(ids)); }

Decoder::Decoder(int64_t vocabulary, int64_t hidden, double dropout, uint64_t seed, Tensor tied)
    : drop(dropout) {
  add("drop", drop);
  Generator draws = stream(seed, "decoder.weight");
  weight = add(
      "weight",
      tied.defined() ? tied : weft::nn::init::uniform_(weft::empty({vocabulary, hidden}), -0.1, 0.1, &draws));
  bias = add("bias", weft::zeros({vocabulary}));
  this->seed(seed, "decoder");
}

Tensor Decoder::forward(const Tensor& h) {
  return weft::linear(drop.forward(h).reshape({-1, weight.size(1)}), weight, bias);
}

Tensor Decoder::loss(const Tensor& h, const Tensor& target) {
  return weft::linear_cross_entropy(drop.forward(h).reshape({-1, weight.size(1)}), weight, bias, target);
}

Bundle::Bundle(const std::vector<std::pair<std::string, weft::nn::Module*>>& parts) {
  for (const auto& [name, part] : parts) add(name, *part);
}

void check_tied(const weft::nn::StateDict& state) {
  const std::map<std::string, Tensor> by_name(state.begin(), state.end());
  const auto encoder = by_name.find("encoder.weight"), decoder = by_name.find("decoder.weight");
  if (encoder == by_name.end() || decoder == by_name.end()) return;  // loading names the missing one
  if (encoder->second.sizes() != decoder->second.sizes() || !weft::equal(encoder->second, decoder->second))
    throw weft::ValueError(
        "restore: encoder.weight and decoder.weight of the state differ, a tied model has one matrix for "
        "both");
}

std::unique_ptr<weft::nn::Recurrent> make_recurrent(const Options& o) {
  Generator draws = stream(static_cast<uint64_t>(o.seed), "rnn");
  const weft::nn::RnnOptions options{.num_layers = o.nlayers, .dropout = o.dropout, .generator = &draws};
  std::unique_ptr<weft::nn::Recurrent> out;
  if (o.model == "LSTM") out = std::make_unique<weft::nn::LSTM>(o.emsize, o.nhid, options);
  else if (o.model == "GRU") out = std::make_unique<weft::nn::GRU>(o.emsize, o.nhid, options);
  else
    out = std::make_unique<weft::nn::RNN>(
        o.emsize, o.nhid, options,
        o.model == "RNN_RELU" ? weft::nn::RNN::Nonlinearity::kRelu : weft::nn::RNN::Nonlinearity::kTanh);
  out->seed(static_cast<uint64_t>(o.seed), "rnn");
  return out;
}

void Hidden::detach() {
  h = h.detach();
  if (c.defined()) c = c.detach();
}

}  // namespace rnn
