#include <weft/distributed/remote_module.h>

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

}  // namespace weft::rpc::detail
