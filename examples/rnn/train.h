// The training loop of the word language model: windows, validation, learning-rate cuts, the best parameters,
// generation. It uses a Model and does not depend on the place of its parts.
#pragma once

#include "model.h"

namespace rnn {

/// Trains on the corpus of options.data and prints the last line; returns the exit code.
int train(const Options& options, const examples::Corpus& corpus, Model& model);

/// The tutorial's toy run: 10 epochs of 5 seeded batches, `Training epoch N`. The corpus has
/// only a vocabulary.
int train_tutorial(const Options& options, const examples::Corpus& corpus, Model& model);

}  // namespace rnn
