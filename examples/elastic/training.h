// The workers of the example: a parameter server with the first layer of a model, and a trainer with the
// second. They form an elastic group; each of them, and the store, can be killed and started again.
#pragma once

#include "options.h"

namespace elastic {

/// Serves the group's store until the process is told to end.
int serve_store(const Options& options);
/// Serves as worker "ps" until the trainer has finished.
int serve_parameters(const Options& options);
/// Trains as worker "trainer", from the checkpoint if there is one. After a loss it goes on from there with
/// the successor. Writes the result. Throws: the last error when nothing has gone on for two minutes.
int train(const Options& options);
/// The last loss of the same training in one process, without losses of workers.
double train_undisturbed(const Options& options);

}  // namespace elastic
