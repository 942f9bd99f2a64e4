// ModuleList and ModuleDict. A module is registered first and stored in memory reserved before, so a name
// that is refused leaves the container unchanged.
#include <weft/nn/containers.h>

namespace weft::nn {

Module& ModuleList::operator[](int64_t index) const {
  const auto count = static_cast<int64_t>(size()), at = index < 0 ? index + count : index;
  if (at < 0 || at >= count)
    throw IndexError(str("ModuleList: index ", index, " is outside [", -count, ", ", count, ")"));
  return *modules_[static_cast<size_t>(at)];
}

void ModuleList::take(std::unique_ptr<Module> module) {
  if (!module) throw ValueError("ModuleList: there is no module to append");
  modules_.reserve(modules_.size() + 1);  // nothing below throws once the name is registered
  add(std::to_string(modules_.size()), *module);
  modules_.push_back(std::move(module));
}

void ModuleList::wrong_kind(const std::string& key, const Module& module) {
  throw ValueError(str("module '", key, "' is a ", module.name(), ", not of the type that was asked for"));
}

Module* ModuleDict::find(const std::string& key) const {
  for (const auto& [name, module] : modules_)
    if (name == key) return module.get();
  return nullptr;
}

std::vector<std::string> ModuleDict::keys() const {
  std::vector<std::string> out;
  for (const auto& entry : modules_) out.push_back(entry.first);
  return out;
}

Module& ModuleDict::operator[](const std::string& key) const {
  if (Module* module = find(key)) return *module;
  std::string there;
  for (const auto& entry : modules_) there += str(there.empty() ? "" : ", ", entry.first);
  throw IndexError(str("ModuleDict: no module '", key, "'; there are: ", there));
}

void ModuleDict::take(const std::string& key, std::unique_ptr<Module> module) {
  if (!module) throw ValueError(str("ModuleDict: there is no module to insert as '", key, "'"));
  modules_.reserve(modules_.size() + 1);
  add(key, *module);
  modules_.emplace_back(key, std::move(module));
}

}  // namespace weft::nn
