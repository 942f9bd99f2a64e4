// The text of floating numbers in str(): the fewest of 6, 9 or 17 significant digits that read back as the
// same number. Nine are exact for float, 17 for double.
#include <weft/kernels/str.h>

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
  char text[32];  // %.17g of a double fits
  for (int digits : {6, 9, 17}) {
    std::snprintf(text, sizeof text, "%.*g", digits, value);
    double back = 0;
    if (std::sscanf(text, "%lf", &back) == 1 && back == value) break;
  }
  out += text;
}

}  // namespace weft::detail
