// The entry of libFuzzer. WEFT_FUZZ_TARGET in the environment names the target; the option WEFT_FUZZ of CMake
// builds the program with Clang (cmake/fuzz.cmake). In the tests it is a function like any other.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "fuzz/targets.h"

namespace weft::fuzz {

const std::vector<Target>& targets() {
  static const std::vector<Target> all = {{"frame", frame, frame_seeds},
                                          {"envelope", envelope, envelope_seeds},
                                          {"codec", codec, codec_seeds},
                                          {"store", store, store_seeds},
                                          {"live", live, live_seeds, 200}};
  return all;
}

}  // namespace weft::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const weft::fuzz::Target* const chosen = [] {
    const char* const name = std::getenv("WEFT_FUZZ_TARGET");
    for (const auto& t : weft::fuzz::targets())
      if (name != nullptr && std::strcmp(t.name, name) == 0) return &t;
    std::fprintf(stderr, "WEFT_FUZZ_TARGET is one of");
    for (const auto& t : weft::fuzz::targets()) std::fprintf(stderr, " %s", t.name);
    std::fprintf(stderr, "\n");
    std::exit(2);
  }();
  chosen->one(data, size);
  return 0;
}
