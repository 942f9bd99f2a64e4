// Device: parsing and printing of names such as "cuda:1". "cuda" is cuda:0; the largest index is 127.
// Any other name is a DeviceError.
#include <weft/kernels/device.h>

namespace weft {

Device::Device(std::string_view text) {
  if (text == "cpu") return;
  constexpr std::string_view cuda = "cuda";
  if (text.substr(0, cuda.size()) == cuda) {
    std::string_view rest = text.substr(cuda.size());
    if (rest.empty()) {
      type = DeviceType::kCuda;
      return;
    }
    if (rest[0] == ':' && rest.size() >= 2 && rest.size() <= 4) {
      int number = 0;
      bool digits = true;
      for (char c : rest.substr(1)) {
        digits = digits && c >= '0' && c <= '9';
        number = number * 10 + (c - '0');
      }
      if (digits && number < 128) {
        type = DeviceType::kCuda;
        index = static_cast<int8_t>(number);
        return;
      }
    }
  }
  throw DeviceError(str("Device: takes cpu, cuda or cuda:N, got \"", text, "\""));
}

std::string to_string(Device device) {
  return device.is_cpu() ? std::string("cpu") : str("cuda:", static_cast<int>(device.index));
}

}  // namespace weft
