// The one part of the error texts that is not a template: numbers as people write them.
#include <weft/kernels/error.h>

#include <cmath>
#include <cstdio>

namespace weft::detail {

void append_number(std::string& out, double value) {
  if (std::isnan(value)) {
    out += "nan";
    return;
  }
  if (std::isinf(value)) {
    out += value < 0 ? "-inf" : "inf";
    return;
  }
  char text[32];  // the shortest of %.6g and %.17g that reads back as the same number
  for (int digits : {6, 9, 17}) {
    std::snprintf(text, sizeof text, "%.*g", digits, value);
    double back = 0;
    if (std::sscanf(text, "%lf", &back) == 1 && back == value) break;
  }
  out += text;
}

}  // namespace weft::detail
