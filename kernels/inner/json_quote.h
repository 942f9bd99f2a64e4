// Text as a JSON string, for the files that the libraries write: headers of tensors, traces.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>

namespace weft::detail {

/// `text` as a JSON string with its quotes.
inline std::string json_quote(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", static_cast<unsigned>(c));
      out += code;
    } else {
      out += c;
    }
  }
  return out + '"';
}

}  // namespace weft::detail
