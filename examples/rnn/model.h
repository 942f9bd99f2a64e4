// The interface of a model for the training loop. LocalModel (local_model.cpp) has all parts in this process;
// SplitModel (split_model.cpp) uses a parameter server. Both do the same steps in the same order, so their
// losses agree bit for bit.
#pragma once

#include <memory>
#include <string>

#include "../common/corpus.h"
#include "modules.h"

namespace rnn {

class Model {
 public:
  virtual ~Model() = default;
  virtual Hidden zero_hidden(int64_t columns) = 0;
  /// Forward, backward, clip, update; returns the loss before the update. Updates `hidden`.
  virtual double train_step(const examples::Window& window, Hidden& hidden) = 0;
  /// Mean loss of a window in evaluation mode, without recording.
  virtual double eval_loss(const examples::Window& window, Hidden& hidden) = 0;
  /// Logits [vocabulary] of the word after `id`.
  virtual Tensor next_word(int64_t id, Hidden& hidden) = 0;
  /// Switches between training (with dropout) and evaluation.
  virtual void train(bool on) = 0;
  virtual void set_lr(double lr) = 0;
  /// Copies all parameters by name (encoder.weight, rnn...., decoder.weight, decoder.bias), and restores
  /// them. The restore throws, with nothing changed: weft::ValueError for missing or unknown names,
  /// weft::ShapeError for other sizes.
  virtual weft::nn::StateDict snapshot() = 0;
  virtual void restore(const weft::nn::StateDict& state) = 0;
  /// A line on the training so far; "": none.
  virtual std::string remark() const { return ""; }
};

std::unique_ptr<Model> make_local_model(const Options& options);

}  // namespace rnn
