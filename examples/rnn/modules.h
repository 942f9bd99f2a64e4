// The three parts of the word language model. In local mode they live in one process; split, EmbeddingTable and Decoder live on the
// parameter server and only the recurrent part stays with the trainer. Every initial value and dropout draw is keyed by the seed and
// the part's own name, so where a part lives changes no number.
#pragma once

#include <memory>

#include <weft/weft.h>

#include "options.h"

namespace rnn {

using weft::Tensor;

/// Dropout(Embedding).
struct EmbeddingTable : weft::nn::Module {
  EmbeddingTable(int64_t vocabulary, int64_t dim, double dropout, uint64_t seed);
  /// ids int64 [T, N] -> [T, N, dim].
  Tensor forward(const Tensor& ids);

  weft::nn::Embedding encoder;
  weft::nn::Dropout drop;
};

/// Linear(Dropout(h)); with `tied` its weight is the embedding's.
struct Decoder : weft::nn::Module {
  Decoder(int64_t vocabulary, int64_t hidden, double dropout, uint64_t seed, Tensor tied = {});
  /// h [T, N, hidden] -> logits [T * N, vocabulary].
  Tensor forward(const Tensor& h);
  /// Mean cross-entropy of the logits without keeping them; target int64 [T * N].
  Tensor loss(const Tensor& h, const Tensor& target);

  weft::nn::Dropout drop;
  Tensor weight, bias;
};

/// Parts as one module under the names that a saved file has, so that they are checked together before any of them is loaded.
struct Bundle : weft::nn::Module {
  explicit Bundle(const std::vector<std::pair<std::string, weft::nn::Module*>>& parts);
  std::string name() const override { return "the language model"; }
};

/// With --tied. Throws: weft::ValueError when the state has two different matrices for the one that encoder and decoder share.
void check_tied(const weft::nn::StateDict& state);

/// The recurrent stack by name.
std::unique_ptr<weft::nn::Recurrent> make_recurrent(const Options& options);

/// Hidden state carried from window to window, cut off from the graph.
struct Hidden {
  Tensor h, c;
  void detach();
};

}  // namespace rnn
