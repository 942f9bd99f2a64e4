// The functions of remote_module.h that do not depend on the module's class. The functions in detail:: that
// take a module run on its owner.
#include <weft/distributed/rref/remote_module.h>

#include <charconv>

#include <weft/autograd/tape/grad_mode.h>

namespace weft::rpc::detail {

std::vector<RRef<Tensor>> parameter_rrefs(const nn::Module& module, bool recurse) {
  std::vector<RRef<Tensor>> all;
  if (recurse) {
    for (const Tensor& p : module.parameters()) all.push_back(RRef<Tensor>(p));
  } else {
    for (const auto& [name, p] : module.named_parameters(false)) all.push_back(RRef<Tensor>(p));
  }
  return all;
}

nn::NamedTensors state_on_cpu(const nn::Module& module) {
  const NoGrad guard;
  nn::NamedTensors state = module.state_dict();
  for (auto& [name, tensor] : state) tensor = tensor.to(kCpu);
  return state;
}

std::pair<Destination, Device> split_remote_device(const Destination& to) {
  const size_t slash = to.by_id() ? std::string::npos : to.name().find('/');
  if (slash == std::string::npos) return {to, kCpu};
  const std::string worker = to.name().substr(0, slash), device = to.name().substr(slash + 1);
  const auto at = [&](const auto& where) {
    return to.timeout() ? Destination(where, *to.timeout(), to.at()) : Destination(where, to.at());
  };
  constexpr std::string_view kRank = "rank:";
  int rank = -1;
  bool fits = !worker.empty() && !device.empty() && device.find('/') == std::string::npos;
  if (const bool ranked = worker.compare(0, kRank.size(), kRank) == 0; fits && ranked) {
    const auto [end, error] =
        std::from_chars(worker.data() + kRank.size(), worker.data() + worker.size(), rank);
    fits = error == std::errc() && end == worker.data() + worker.size() && rank >= 0;
  }
  if (!fits)
    throw ValueError(
        str("remote device \"", to.name(), "\": takes \"worker\", \"worker/cuda:0\" or \"rank:1/cuda:0\""));
  return {rank >= 0 ? at(rank) : at(worker), Device(device)};
}

}  // namespace weft::rpc::detail
