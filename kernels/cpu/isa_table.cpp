// Builds the tables of the three instruction sets and chooses one: WEFT_ISA when set, else the widest that the machine has.
// "avx2" means AVX2 with FMA and F16C; "avx512" means the F, BW, DQ and VL parts.
#include <weft/kernels/cpu/isa_table.h>

#include <atomic>
#include <cstdlib>
#include <string_view>

namespace weft::kernels {

namespace {

#define WEFT_CALL_FILL(file) fill_##file(table);
IsaTable make_base() {
  using namespace isa_base;
  IsaTable table;
  table.name = "baseline";
  WEFT_ISA_FILES(WEFT_CALL_FILL)
  return table;
}
#ifdef WEFT_ISA_X86
IsaTable make_avx2() {
  using namespace isa_avx2;
  IsaTable table;
  table.name = "avx2";
  WEFT_ISA_FILES(WEFT_CALL_FILL)
  return table;
}
IsaTable make_avx512() {
  using namespace isa_avx512;
  IsaTable table;
  table.name = "avx512";
  WEFT_ISA_FILES(WEFT_CALL_FILL)
  return table;
}
#endif
#undef WEFT_CALL_FILL

/// The table of that name, or null when this machine (or this build) lacks it.
const IsaTable* table_named(std::string_view name) {
  static const IsaTable base = make_base();
  if (name == "baseline") return &base;
#ifdef WEFT_ISA_X86
  static const IsaTable avx2 = make_avx2();
  static const IsaTable avx512 = make_avx512();
  static const bool has_avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  static const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") &&
                                 __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                                 __builtin_cpu_supports("avx512vl");
  if (name == "avx2" && has_avx2) return &avx2;
  if (name == "avx512" && has_avx512) return &avx512;
#endif
  return nullptr;
}

const IsaTable& checked(const char* what, std::string_view name) {
  if (const IsaTable* table = table_named(name)) return *table;
  const bool known = name == "baseline" || name == "avx2" || name == "avx512";
  if (known) throw ValueError(str(what, ": this machine does not run ", name));
  throw ValueError(str(what, ": takes baseline, avx2 or avx512, got \"", name, "\""));
}

std::atomic<const IsaTable*> current{nullptr};

const IsaTable& choose() {
  const IsaTable* table = nullptr;
  if (const char* wanted = std::getenv("WEFT_ISA"); wanted && *wanted) {
    table = &checked("WEFT_ISA", wanted);
  } else {
    for (const char* name : {"avx512", "avx2", "baseline"})
      if ((table = table_named(name))) break;
  }
  current.store(table, std::memory_order_release);
  return *table;
}

}  // namespace

const IsaTable& isa_table() {
  if (const IsaTable* table = current.load(std::memory_order_acquire)) [[likely]]
    return *table;
  return choose();
}

}  // namespace weft::kernels

namespace weft {

const char* cpu_isa() { return kernels::isa_table().name; }

void set_cpu_isa(const char* name) {
  kernels::current.store(&kernels::checked("set_cpu_isa", name), std::memory_order_release);
}

}  // namespace weft
