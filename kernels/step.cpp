// The registry of CUDA forms of update rules, by name. Static objects in any library of the program register
// them.
#include <weft/kernels/step.h>

#include <map>
#include <mutex>
#include <string>

namespace weft {

namespace {
struct Registry {
  std::mutex mutex;
  std::map<std::string, std::vector<const StepCuda*>, std::less<>> forms;
};
Registry& registry() {
  static Registry* const r = new Registry;  // never destroyed: used before and after main
  return *r;
}
}  // namespace

bool register_step_cuda(const char* name, const StepCuda* form) {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  r.forms[name].push_back(form);
  return true;
}

const StepCuda& step_cuda_form(const StepKernel& kernel) {
  if (kernel.cuda) return *static_cast<const StepCuda*>(kernel.cuda);
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  const auto found = r.forms.find(std::string_view(kernel.name));
  if (found == r.forms.end())
    throw DeviceError(str("step: the rule ", kernel.name,
                          " has no form for CUDA devices: write WEFT_STEP_CUDA(", kernel.name,
                          ") in a .cu file of the program"));
  if (found->second.size() > 1)
    throw DeviceError(str("step: WEFT_STEP_CUDA was written for ", found->second.size(),
                          " rules of the name ", kernel.name));
  const StepCuda& form = *found->second.front();
  if (form.state_count != kernel.state_count)
    throw DeviceError(str("step: the rule ", kernel.name, " has ", kernel.state_count,
                          " state tensors, the WEFT_STEP_CUDA of that name ", form.state_count));
  return form;
}

}  // namespace weft
