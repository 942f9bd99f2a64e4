// Measures the engines for a shape (autotune.h), each three times after a first run that is not counted. MKL
// takes part where WEFT_MKL_LIBRARY names it.
#include <weft/kernels/cpu/autotune.h>

#include <chrono>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string_view>
#include <vector>

namespace weft::kernels {

namespace {

using Clock = std::chrono::steady_clock;
constexpr int kRuns = 3;

std::vector<GemmEngine> engines() {
  std::vector<GemmEngine> all{GemmEngine::kTile, GemmEngine::kEigen};
  if (has_onednn()) all.push_back(GemmEngine::kOnednn);
  if (autotunes_mkl()) all.push_back(GemmEngine::kMkl);
  return all;
}

GemmEngine measure(FunctionRef<void(GemmEngine)> run) {
  static const std::vector<GemmEngine> all = engines();
  GemmEngine best = all[0];
  Clock::duration least = Clock::duration::max();
  for (const GemmEngine engine : all) {
    run(engine);  // its memory, and a library's choice of code
    for (int i = 0; i < kRuns; ++i) {
      const Clock::time_point start = Clock::now();
      run(engine);
      const Clock::duration took = Clock::now() - start;
      if (took < least) least = took, best = engine;
    }
  }
  return best;
}

struct Known {
  std::mutex mutex;
  std::map<ProductShape, GemmEngine> engines;
};
Known& known() {
  static Known* const all = new Known;  // products may run in destructors of static objects
  return *all;
}

}  // namespace

bool autotunes() {
  static const bool on = [] {
    const char* text = std::getenv("WEFT_AUTOTUNE");
    const std::string_view value = text ? text : "";
    if (!value.empty() && value != "0" && value != "1")
      throw ValueError(str("WEFT_AUTOTUNE: takes 0 or 1, got \"", value, "\""));
    return value == "1";
  }();
  return on;
}

bool autotunes_mkl() { return std::getenv("WEFT_MKL_LIBRARY") && mkl_missing().empty(); }

GemmEngine tuned_engine(const ProductShape& shape, FunctionRef<void(GemmEngine)> run) {
  Known& all = known();
  {
    const std::scoped_lock lock(all.mutex);
    if (const auto found = all.engines.find(shape); found != all.engines.end()) return found->second;
  }
  const GemmEngine best = measure(run);
  const std::scoped_lock lock(all.mutex);
  return all.engines.emplace(shape, best).first->second;
}

}  // namespace weft::kernels
