// Flags of the word language model; `rnn --help` lists them with their defaults.
#pragma once

#include <cstdint>
#include <string>

#include "../common/group.h"

namespace rnn {

constexpr int64_t kEvalColumns = 10;  // batch columns of the validation and the test text

struct Options {
  std::string mode = "distributed", data = "build/data/kjv", model = "LSTM", optimizer = "sgd",
              device = "cpu", place, backward = "smart", decoder = "remote-logits", save, resume, json;
  int64_t emsize = 200, nhid = 200, nlayers = 2, epochs = 40, max_steps = 0, batch_size = 20, bptt = 35,
          seed = 1111, log_interval = 200, threads = 0, generate = 0, snapshot_every = 50;
  double dropout = 0.2, lr = 20, clip = 0.25, momentum = 0, nu = 0.7;
  bool tied = false, print_losses = false, tutorial = false, compile = false;
  int64_t vocabulary = 0;  // from the corpus
  examples::NetworkFlags network;
  /// The device of "encoder", "rnn" or "decoder" in local mode: that in `place`, else `device`.
  std::string placed(const std::string& part) const;
};

Options parse(int argc, char** argv);

}  // namespace rnn
