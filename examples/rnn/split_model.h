// The model split as in PyTorch's RPC tutorial: embedding and decoder on worker "ps", the recurrent part on
// the trainer. With a device, the server's parts are on that device. The trainer's device map moves its
// tensors there and the results back to the CPU. So the rest of the model does not depend on it.
#pragma once

#include <weft/distributed/wire/device_map.h>
#include "model.h"

namespace rnn {

/// Makes the trainer's model.
weft::rpc::DeviceMaps split_device_maps(const Options& options);
std::unique_ptr<Model> make_split_model(const Options& options);
/// The same in an elastic group. When "ps" is lost, the model is made again on its successor with the last
/// copy of the parameters (options.snapshot_every). Then the step runs again. The optimizer's momentum and
/// the streams of dropout begin anew.
std::unique_ptr<Model> make_replaceable_model(const Options& options);

}  // namespace rnn
