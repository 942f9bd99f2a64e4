// The model split as in the tutorial: embedding and decoder on worker "ps", the recurrent part here. With a device the server's parts live there; the
// trainer's device map takes its tensors to that device and brings results back to the CPU, so nothing else in the model knows of it.
#pragma once

#include <weft/distributed/device_map.h>
#include "model.h"

namespace rnn {

/// The trainer's.
weft::rpc::DeviceMaps split_device_maps(const Options& options);
std::unique_ptr<Model> make_split_model(const Options& options);

}  // namespace rnn
