// Common parts of the programs that are compared with a reference in one process, and of those whose
// processes average their gradients.
#pragma once

#include <string>
#include <vector>

#include <weft/distributed/collectives/process_group.h>

namespace examples {

/// The numbers of a training.
struct Trained {
  std::vector<double> losses;
  std::vector<weft::Tensor> parameters;
};
/// True if they differ in the last digits of float64 alone.
bool same_numbers(const Trained& a, const Trained& b);

/// Throws, before any process is started: RpcError without Gloo; DeviceError for the device "cuda" without
/// one, or without NCCL.
void check_trainers(const std::string& device);
/// The device of a process by its rank, where a machine has a device for each of its processes.
weft::Device device_of_trainer(const std::string& device, int rank);

struct StepNews {
  double loss;       ///< the mean over the processes
  bool interrupted;  ///< one of them got a Ctrl-C
};
/// All processes of the group call it after a step, with their losses.
StepNews tell_all(weft::dist::ProcessGroup& group, double loss);

/// True if all processes of the group have the same bits. All of them make the call.
bool same_everywhere(weft::dist::ProcessGroup& group, const std::vector<weft::Tensor>& parameters);

}  // namespace examples
