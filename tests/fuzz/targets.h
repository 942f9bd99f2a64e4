// The readers of bytes from other processes, each as a function for libFuzzer and for the tests. A target
// returns for any input, and throws only for a defect. It catches WireError and the documented errors of bad
// input.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace weft::fuzz {

struct Target {
  const char* name;
  void (*one)(const uint8_t* data, size_t size);
  std::vector<std::string> (*seeds)();  ///< well-formed inputs; tests/fuzz/corpus/<name> has more
  uint64_t least = 2000;                ///< inputs that a test tries at least
};

void frame(const uint8_t* data, size_t size);
std::vector<std::string> frame_seeds();
void envelope(const uint8_t* data, size_t size);
std::vector<std::string> envelope_seeds();
void codec(const uint8_t* data, size_t size);
std::vector<std::string> codec_seeds();
void store(const uint8_t* data, size_t size);
std::vector<std::string> store_seeds();
void live(const uint8_t* data, size_t size);
std::vector<std::string> live_seeds();
/// Messages that the worker of `live` has refused so far.
int64_t malformed_at_live_port();

const std::vector<Target>& targets();

/// A defect that a target found.
struct Defect : std::logic_error {
  using std::logic_error::logic_error;
};

/// Cuts an input into pieces: each begins with a byte that is its length.
std::vector<std::string> pieces_of(const uint8_t* data, size_t size);
std::string join(const std::vector<std::string>& pieces);

}  // namespace weft::fuzz
