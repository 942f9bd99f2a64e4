// The three parts of the word language model. In local mode they are in one process. In distributed
// mode EmbeddingTable and Decoder are on the parameter server and the recurrent part is on the trainer.
// Each initial value and dropout draw is keyed by the seed and the part's name, so the place of a part
// changes no number.
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

/// Linear(Dropout(h)); with `tied` it shares the weight of the embedding.
struct Decoder : weft::nn::Module {
  Decoder(int64_t vocabulary, int64_t hidden, double dropout, uint64_t seed, Tensor tied = {});
  /// h [T, N, hidden] -> logits [T * N, vocabulary].
  Tensor forward(const Tensor& h);
  /// Mean cross-entropy of the logits, which are not stored; target int64 [T * N].
  Tensor loss(const Tensor& h, const Tensor& target);

  weft::nn::Dropout drop;
  Tensor weight, bias;
};

/// The parts as one module with the names of a saved file. Loading checks them together before
/// it changes any.
struct Bundle : weft::nn::Module {
  explicit Bundle(const std::vector<std::pair<std::string, weft::nn::Module*>>& parts);
  std::string name() const override { return "the language model"; }
};

/// Checks a state for --tied. Throws: weft::ValueError when its encoder and decoder matrices differ, though
/// the model has one for both.
void check_tied(const weft::nn::StateDict& state);

/// Makes the recurrent stack of this name.
std::unique_ptr<weft::nn::Recurrent> make_recurrent(const Options& options);

/// The hidden state for the next window, detached from the graph.
struct Hidden {
  Tensor h, c;
  void detach();
};

}  // namespace rnn
