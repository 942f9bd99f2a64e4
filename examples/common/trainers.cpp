// The comparison of trainings, and the common steps of processes that average their gradients (trainers.h).
#include "trainers.h"

#include <algorithm>
#include <cmath>

#include <weft/distributed.h>
#include <weft/tensor/cuda.h>
#include "report.h"

namespace examples {

using weft::Tensor;

bool same_numbers(const Trained& a, const Trained& b) {
  if (a.losses.size() != b.losses.size() || a.parameters.size() != b.parameters.size()) return false;
  for (size_t i = 0; i < a.losses.size(); ++i)
    if (!(std::abs(a.losses[i] - b.losses[i]) < 1e-9)) return false;
  for (size_t i = 0; i < a.parameters.size(); ++i)
    if (!a.parameters[i].allclose(b.parameters[i], 1e-9, 1e-9)) return false;
  return true;
}

void check_trainers(const std::string& device) {
  if (!weft::dist::is_gloo_available())
    throw weft::RpcError("this weft was built without Gloo (Debian: libgloo-dev)");
  if (device == "cpu") return;
  weft::cuda::device_properties();
  if (!weft::dist::is_nccl_available())
    throw weft::DeviceError("--device " + device + ": NCCL 2.14 or newer was not found; install it, or set " +
                            "WEFT_NCCL_LIBRARY to the path of libnccl.so.2");
}

weft::Device device_of_trainer(const std::string& device, int rank) {
  if (device == "cpu") return weft::kCpu;
  return weft::Device(weft::DeviceType::kCuda, rank % std::max(weft::cuda::device_count(), 1));
}

StepNews tell_all(weft::dist::ProcessGroup& group, double loss) {
  const Tensor both = weft::tensor({loss, interrupted() ? 1.0 : 0.0}, {.dtype = weft::kFloat64});
  group.all_reduce(both, weft::dist::ReduceOp::kAvg);
  return {both[0].item<double>(), both[1].item<double>() > 0};
}

bool same_everywhere(weft::dist::ProcessGroup& group, const std::vector<Tensor>& parameters) {
  bool same = true;
  for (const Tensor& p : parameters) {
    const Tensor mine = p.detach().to(weft::kCpu);
    for (const Tensor& other : group.all_gather(mine)) same = same && other.equal(mine);
  }
  return same;
}

}  // namespace examples
