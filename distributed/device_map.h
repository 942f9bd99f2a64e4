// Where the tensors of a call go: for each callee, which of the caller's devices stands for which of the callee's.
//
//   rpc::init_rpc("trainer", {.device_maps = {{"ps", {{"cuda:0", "cuda:1"}, {"cpu", "cuda:0"}}}}});
//   options.set_device_map("ps", {{"cuda:0", "cuda:1"}});            // the same, one entry after another
//
// Arguments follow the map, results and the gradients of arguments come back by the reversed one. The CPU may stand on either side; without an
// entry it stands for itself. A worker stands for itself too: calls to oneself need no map. The maps of all workers are checked against each
// other when the group forms.
// Thread safety: plain values.
#pragma once

#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <weft/kernels/device.h>

namespace weft::rpc {

/// Local device -> device of the other worker; one to one.
class WEFT_API DeviceMap {
 public:
  DeviceMap() = default;
  /// Throws: ValueError unless it is one to one.
  DeviceMap(std::initializer_list<std::pair<Device, Device>> entries);

  /// Adds an entry; the same one again changes nothing. Throws: ValueError when either device has another partner already.
  void set(Device from, Device to);
  std::optional<Device> find(Device from) const;
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

/// The maps of one worker by the callee's name.
class WEFT_API DeviceMaps {
 public:
  DeviceMaps() = default;
  /// Throws: ValueError that names the callee.
  DeviceMaps(std::initializer_list<std::pair<std::string, DeviceMap>> maps);

  /// Adds the entries of `map`. Throws: ValueError that names the callee and the devices; nothing is changed then.
  void set(const std::string& callee, const DeviceMap& map);
  /// Empty when there is none.
  const DeviceMap& of(const std::string& callee) const;
  bool empty() const { return maps_.empty(); }
  auto begin() const { return maps_.begin(); }
  auto end() const { return maps_.end(); }
  friend bool operator==(const DeviceMaps&, const DeviceMaps&) = default;

 private:
  std::map<std::string, DeviceMap> maps_;
};

/// What the members of a group tell each other of their devices.
struct DevicePlan {
  DeviceMaps maps{};
  std::vector<Device> devices{};  ///< CUDA devices that maps may name here; empty: any
  bool lends = false;             ///< takes part in lending device memory to workers of its host
  bool empty() const { return maps.empty() && devices.empty(); }
  friend bool operator==(const DevicePlan&, const DevicePlan&) = default;
};
/// A line of text, and back. Throws: RpcError for what to_line did not write.
WEFT_API std::string to_line(const DevicePlan& plan);
WEFT_API DevicePlan read_device_plan(const std::string& line);

/// Throws: ValueError for a member whose plan does not fit the group: an unknown callee, a device outside the lists of either side, a list with a device
/// that is no CUDA one. The text names the workers and devices. The same on every worker.
WEFT_API void check_device_plans(const std::vector<std::pair<std::string, DevicePlan>>& members);
/// What `self` cannot do of these plans because a device is missing on this machine; empty: nothing.
WEFT_API std::string missing_devices(const std::string& self,
                                     const std::vector<std::pair<std::string, DevicePlan>>& members);

}  // namespace weft::rpc
