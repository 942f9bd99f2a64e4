// Lookup of the entries of a saved state. Schedules and the GradScaler use it to refuse missing and unknown
// names before they load anything.
#include <weft/optim/state_dict.h>

#include <algorithm>

namespace weft::optim {

std::vector<Tensor> state_entries(const char* who, const StateDict& state,
                                  std::initializer_list<const char*> names) {
  std::vector<Tensor> out;
  for (const char* name : names) {
    const auto found =
        std::find_if(state.begin(), state.end(), [&](const auto& entry) { return entry.first == name; });
    if (found == state.end())
      throw ValueError(str("load_state_dict: a state without '", name, "' is none of ", who));
    out.push_back(found->second);
  }
  for (const auto& entry : state)
    if (std::find(names.begin(), names.end(), entry.first) == names.end())
      throw ValueError(str("load_state_dict: ", who, " has no state called '", entry.first, "'"));
  return out;
}

}  // namespace weft::optim
