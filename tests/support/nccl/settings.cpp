// The one copy of the settings and counts, in the program.
#include "support/nccl/settings.h"

namespace weft::test {

NcclSettings& nccl_settings() {
  static auto* const s = new NcclSettings;
  return *s;
}
NcclCounts& nccl_counts() {
  static auto* const c = new NcclCounts;
  return *c;
}

}  // namespace weft::test
