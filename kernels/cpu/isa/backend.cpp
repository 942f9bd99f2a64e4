// Creates the backend of the instruction set. cpu_backend.cpp calls it only on a processor that supports the
// set.
#include <weft/kernels/cpu/isa/backend.h>

#include <weft/kernels/cpu/isa/engines.h>

namespace weft::kernels::WEFT_ISA_NS {

namespace {

/// FNV-1a over the numbers of the table.
constexpr uint32_t hash_of_engines() {
  uint32_t hash = 2166136261;
  const auto add = [&](int64_t x) { hash = (hash ^ static_cast<uint32_t>(x ^ (x >> 32))) * 16777619; };
  for (const int64_t x : {kEngineSide, kEngineWork}) add(x);
  for (const EngineRow& row : kEngineRows)
    for (const int64_t x :
         {int64_t(row.engine), int64_t(row.transposed_b), row.least_m, row.most_m, row.least_b, row.most_b})
      add(x);
  return hash;
}

}  // namespace

CpuBackend* make_backend(const char* isa) {
  constexpr uint32_t kEngines = hash_of_engines();
  return new IsaBackend(isa, kEngines);
}

}  // namespace weft::kernels::WEFT_ISA_NS
