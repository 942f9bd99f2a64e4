// A strict reader of the JSON in headers of tensor files: objects, arrays, strings and unsigned integers. The
// caller drives the recursive descent. Malformed text throws IoError.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <weft/kernels/error.h>

namespace weft::detail {

class JsonReader {
 public:
  explicit JsonReader(std::string_view text) : text_(text) {}

  /// Calls member(key) for each member of an object, which must read its value.
  template <class F> void object(F&& member) {
    expect('{');
    if (!accept('}')) {
      do {
        const std::string key = string();
        expect(':');
        member(key);
      } while (accept(','));
      expect('}');
    }
  }
  /// Calls element() for each element of an array, which must read it.
  template <class F> void array(F&& element) {
    expect('[');
    if (!accept(']')) {
      do element();
      while (accept(','));
      expect(']');
    }
  }
  std::string string();
  uint64_t unsigned_integer();
  /// Throws: IoError unless only white space follows.
  void end();
  /// Throws: IoError with the position.
  [[noreturn]] void fail(const std::string& problem) const;

 private:
  void skip_space();
  bool accept(char c);
  void expect(char c);
  uint32_t hex4();
  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace weft::detail
