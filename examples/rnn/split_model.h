// The model split as in the tutorial: embedding and decoder on worker "ps", the recurrent part here.
#pragma once

#include "model.h"

namespace rnn {

std::unique_ptr<Model> make_split_model(const Options& options);

}  // namespace rnn
