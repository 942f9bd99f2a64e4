// Device maps: for each callee, a map from the caller's devices to the callee's devices, as in PyTorch's
// TensorPipe options. It decides the device on which each tensor of a call arrives.
//
//   rpc::init_rpc("trainer", {.device_maps = {{"ps", {{"cuda:0", "cuda:1"}, {"cpu", "cuda:0"}}}}});
//   options.set_device_map("ps", {{"cuda:0", "cuda:1"}});            // the same, one entry after another
//
// Arguments follow the map; results, and gradients of arguments, come back by the reversed map. The CPU may
// be on either side; without an entry the CPU maps to the CPU. Calls to oneself need no map. The maps of all
// workers are checked against each other when the group forms; in an elastic group, when a worker joins.
// Thread safety: as plain values; the free functions may be called from any thread.
#pragma once

#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <weft/kernels/device.h>

namespace weft::rpc {

/// A one-to-one map from local devices to devices of another worker.
class WEFT_API DeviceMap {
 public:
  DeviceMap() = default;
  /// Throws: ValueError unless the entries are one to one.
  DeviceMap(std::initializer_list<std::pair<Device, Device>> entries);

  /// Adds an entry; an equal entry changes nothing. Throws: ValueError when either device has another entry.
  void set(Device from, Device to);
  /// The device that `from` maps to; none without an entry.
  std::optional<Device> find(Device from) const;
  /// The map from the other worker's devices to the local ones.
  DeviceMap reversed() const;
  bool empty() const { return entries_.empty(); }
  auto begin() const { return entries_.begin(); }
  auto end() const { return entries_.end(); }
  friend bool operator==(const DeviceMap&, const DeviceMap&) = default;

 private:
  std::vector<std::pair<Device, Device>> entries_;
};
/// "cpu>cuda:0,cuda:0>cuda:1".
WEFT_API std::string to_string(const DeviceMap& map);

/// The device maps of one worker, by the callee's name.
class WEFT_API DeviceMaps {
 public:
  DeviceMaps() = default;
  /// Throws: ValueError that names the callee, unless each map is one to one.
  DeviceMaps(std::initializer_list<std::pair<std::string, DeviceMap>> maps);

  /// Adds the entries of `map`. Throws, with nothing changed: ValueError that names the callee and the
  /// devices, unless the result is one to one.
  void set(const std::string& callee, const DeviceMap& map);
  /// The map for `callee`; an empty map when there is none.
  const DeviceMap& of(const std::string& callee) const;
  bool empty() const { return maps_.empty(); }
  auto begin() const { return maps_.begin(); }
  auto end() const { return maps_.end(); }
  friend bool operator==(const DeviceMaps&, const DeviceMaps&) = default;

 private:
  std::map<std::string, DeviceMap> maps_;
};

/// The device settings that each member of a group publishes.
struct DevicePlan {
  DeviceMaps maps{};
  std::vector<Device> devices{};  ///< CUDA devices of this worker that maps may name; empty: any
  bool lends = false;             ///< shares device memory with workers of its host by CUDA IPC
  bool empty() const { return maps.empty() && devices.empty(); }
  friend bool operator==(const DevicePlan&, const DevicePlan&) = default;
};
/// Writes a plan as one line of text, and reads it back. Throws: RpcError for any other text.
WEFT_API std::string to_line(const DevicePlan& plan);
WEFT_API DevicePlan read_device_plan(const std::string& line);

/// Checks the plans of a group; the result is the same on every worker. Throws: ValueError that names the
/// workers and devices. Causes are an unknown callee, a device outside either side's list, and a listed
/// device that is not a CUDA device.
WEFT_API void check_device_plans(const std::vector<std::pair<std::string, DevicePlan>>& members);
/// The error text for the devices that these plans need of `self` and this machine lacks; empty: none.
WEFT_API std::string missing_devices(const std::string& self,
                                     const std::vector<std::pair<std::string, DevicePlan>>& members);

}  // namespace weft::rpc
