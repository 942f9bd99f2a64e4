// A layer of a chain over workers and devices, whose steps are compared with those of a local chain on the
// CPU.
#pragma once

#include <weft/nn/linear.h>

#include "devices.h"

namespace weft::test {

struct ChainLayer : nn::Module {
  ChainLayer(int64_t in, int64_t out, int64_t seed, const std::string& device) : fc(in, out) {
    add("fc", fc);
    Generator draws{static_cast<uint64_t>(seed)};
    NoGrad guard;
    for (Tensor& p : parameters()) p.copy_(rand(p.sizes(), {}, &draws));
    to(Device(device));
  }
  Tensor forward(const Tensor& x) { return relu(fc.forward(x)); }
  std::vector<rpc::RRef<Tensor>> parameter_rrefs() {
    std::vector<rpc::RRef<Tensor>> out;
    for (const Tensor& p : parameters()) out.emplace_back(p);
    return out;
  }
  /// Gradients of the parameters on the CPU.
  std::vector<Tensor> gradients(int64_t context_id) {
    std::vector<Tensor> out;
    for (const Tensor& p : parameters()) {
      const Tensor g = dist_autograd::get_gradient(context_id, p);
      if (g.device() != p.device())
        throw ValueError(str("a gradient on ", g.device(), " for a parameter on ", p.device()));
      out.push_back(g.to(kCpu));
    }
    return out;
  }
  std::vector<Tensor> state() {
    std::vector<Tensor> out;
    for (const Tensor& p : parameters()) out.push_back(p.detach().to(kCpu));
    return out;
  }
  nn::Linear fc;
};
WEFT_RPC_CONSTRUCTOR(ChainLayer, int64_t, int64_t, int64_t, std::string);
WEFT_RPC_CLASS(ChainLayer, forward, parameter_rrefs, gradients, state);

}  // namespace weft::test
