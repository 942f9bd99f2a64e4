// Device: the CPU, or a CUDA device by its index.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <string_view>

#include <weft/kernels/error.h>

namespace weft {

/// The kind of a device.
enum class DeviceType : uint8_t { kCpu, kCuda };

/// The CPU, or a CUDA device by its index.
struct WEFT_API Device {
  DeviceType type = DeviceType::kCpu;
  int8_t index = 0;

  constexpr Device() = default;
  constexpr Device(DeviceType t, int i = 0) : type(t), index(static_cast<int8_t>(i)) {}
  /// From "cpu", "cuda" or "cuda:1". Throws: DeviceError for anything else.
  Device(std::string_view text);
  Device(const char* text) : Device(std::string_view(text)) {}

  constexpr bool is_cpu() const { return type == DeviceType::kCpu; }
  constexpr bool is_cuda() const { return type == DeviceType::kCuda; }
  friend constexpr bool operator==(const Device&, const Device&) = default;
};

inline constexpr Device kCpu{};

/// "cpu" or "cuda:1".
WEFT_API std::string to_string(Device device);
WEFT_API std::ostream& operator<<(std::ostream& out, const Device& device);

}  // namespace weft
