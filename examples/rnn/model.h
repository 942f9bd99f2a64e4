// What the training loop needs of a model, wherever its parts live. LocalModel (local_model.cpp) keeps all in this process;
// SplitModel (split_model.cpp) drives a parameter server. Both take the same steps in the same order, so their losses agree bit for bit.
#pragma once

#include <memory>

#include "../common/corpus.h"
#include "modules.h"

namespace rnn {

class Model {
 public:
  virtual ~Model() = default;
  virtual Hidden zero_hidden(int64_t columns) = 0;
  /// Forward, backward, clip, update; returns the loss before the update. `hidden` moves on.
  virtual double train_step(const examples::Window& window, Hidden& hidden) = 0;
  /// Mean loss of a window in evaluation mode, nothing recorded.
  virtual double eval_loss(const examples::Window& window, Hidden& hidden) = 0;
  /// Logits [vocabulary] of the word after `id`.
  virtual Tensor next_word(int64_t id, Hidden& hidden) = 0;
  /// Training (dropout on) or evaluation.
  virtual void train(bool on) = 0;
  virtual void set_lr(double lr) = 0;
  /// A copy of all parameters by name (encoder.weight, rnn...., decoder.weight, decoder.bias), and back. Restoring throws weft::ValueError for
  /// names that are missing or too many, weft::ShapeError for other sizes, and then nothing has changed.
  virtual weft::nn::StateDict snapshot() = 0;
  virtual void restore(const weft::nn::StateDict& state) = 0;
};

std::unique_ptr<Model> make_local_model(const Options& options);

}  // namespace rnn
