// Device maps: entries, their encoding as one line of text for the rendezvous, and the checks of a group. The
// file rpc/devices.cpp runs the checks and applies the maps to calls.
#include <weft/distributed/wire/device_map.h>

#include <algorithm>

#include <weft/distributed/runtime/error.h>
#include <weft/distributed/wire/inner/plans_so_far.h>
#include <weft/kernels/backend.h>

namespace weft::rpc {

DeviceMap::DeviceMap(std::initializer_list<std::pair<Device, Device>> entries) {
  for (const auto& [from, to] : entries) set(from, to);
}

void DeviceMap::set(Device from, Device to) {
  for (const auto& [f, t] : entries_) {
    if (f == from && t == to) return;
    if (f == from)
      throw ValueError(
          str("a device map is one to one: ", from, " cannot go to ", to, ", it goes to ", t, " already"));
    if (t == to)
      throw ValueError(
          str("a device map is one to one: ", from, " cannot go to ", to, ", ", f, " goes there already"));
  }
  entries_.emplace_back(from, to);
}

std::optional<Device> DeviceMap::find(Device from) const {
  for (const auto& [f, t] : entries_)
    if (f == from) return t;
  return std::nullopt;
}

DeviceMap DeviceMap::reversed() const {
  DeviceMap out;
  for (const auto& [f, t] : entries_) out.entries_.emplace_back(t, f);
  return out;
}

std::string to_string(const DeviceMap& map) {
  std::string out;
  for (const auto& [f, t] : map) out += str(out.empty() ? "" : ",", f, ">", t);
  return out;
}

DeviceMaps::DeviceMaps(std::initializer_list<std::pair<std::string, DeviceMap>> maps) {
  for (const auto& [callee, map] : maps) set(callee, map);
}

void DeviceMaps::set(const std::string& callee, const DeviceMap& map) {
  const auto found = maps_.find(callee);
  DeviceMap merged = found == maps_.end() ? DeviceMap() : found->second;
  try {
    for (const auto& [f, t] : map) merged.set(f, t);
  } catch (const ValueError& e) {
    throw ValueError(str("device map for worker '", callee, "': ", e.what()));
  }
  maps_[callee] = std::move(merged);
}

const DeviceMap& DeviceMaps::of(const std::string& callee) const {
  static const DeviceMap none;
  const auto found = maps_.find(callee);
  return found == maps_.end() ? none : found->second;
}

// ---- plans as text: "ps=cpu>cuda:0,cuda:0>cuda:1;w=...|cuda:0,cuda:1|lends". Names of workers contain none
// of the separators.

std::string to_line(const DevicePlan& plan) {
  std::string out;
  for (const auto& [callee, map] : plan.maps) out += str(out.empty() ? "" : ";", callee, "=", to_string(map));
  if (plan.devices.empty() && !plan.lends) return out;
  out += '|';
  for (size_t i = 0; i < plan.devices.size(); ++i) out += str(i == 0 ? "" : ",", plan.devices[i]);
  return plan.lends ? out += "|lends" : out;
}

namespace {
std::vector<std::string_view> split(std::string_view text, char sign) {
  std::vector<std::string_view> out;
  while (!text.empty()) {
    const size_t end = std::min(text.find(sign), text.size());
    out.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}
std::pair<std::string_view, std::string_view> halves(std::string_view text, char sign) {
  const size_t at = text.find(sign);
  if (at == std::string_view::npos) throw ValueError(str("no '", sign, "' in '", text, "'"));
  return {text.substr(0, at), text.substr(at + 1)};
}
}  // namespace

DevicePlan read_device_plan(const std::string& line) {
  try {
    DevicePlan plan;
    const size_t bar = std::min(line.find('|'), line.size());
    for (const std::string_view one : split(std::string_view(line).substr(0, bar), ';')) {
      const auto [callee, entries] = halves(one, '=');
      DeviceMap map;
      for (const std::string_view entry : split(entries, ',')) {
        const auto [from, to] = halves(entry, '>');
        map.set(Device(from), Device(to));
      }
      plan.maps.set(std::string(callee), map);
    }
    if (bar == line.size()) return plan;
    const std::string_view rest = std::string_view(line).substr(bar + 1);
    const size_t second = std::min(rest.find('|'), rest.size());
    for (const std::string_view device : split(rest.substr(0, second), ','))
      plan.devices.emplace_back(device);
    plan.lends = second < rest.size();
    if (plan.lends && rest.substr(second) != "|lends")
      throw ValueError(str("'", rest.substr(second), "' at its end"));
    return plan;
  } catch (const Error& e) {
    throw RpcError(str("the device maps '", line, "' cannot be read: ", e.what()));
  }
}

// ---- checks

namespace {
const DevicePlan* find_plan(const std::vector<std::pair<std::string, DevicePlan>>& members,
                            const std::string& name) {
  for (const auto& [member, plan] : members)
    if (member == name) return &plan;
  return nullptr;
}

bool allows(const DevicePlan& plan, Device device) {
  return device.is_cpu() || plan.devices.empty() ||
         std::find(plan.devices.begin(), plan.devices.end(), device) != plan.devices.end();
}

std::string list(const std::vector<Device>& devices) {
  std::string out;
  for (const Device& d : devices) out += str(out.empty() ? "" : ", ", d);
  return out;
}

/// `all`: every worker that a map may name is among the members.
void check_plans(const std::vector<std::pair<std::string, DevicePlan>>& members, bool all) {
  std::string names;
  for (const auto& [name, plan] : members) names += str(names.empty() ? "'" : ", '", name, "'");
  for (const auto& [name, plan] : members) {
    for (const Device& d : plan.devices)
      if (!d.is_cuda()) throw ValueError(str("devices of worker '", name, "': ", d, " is no CUDA device"));
    for (const auto& [callee, map] : plan.maps) {
      const DevicePlan* const other = find_plan(members, callee);
      if (!other && all)
        throw ValueError(str("worker '", name, "' has a device map for worker '", callee,
                             "', which is not in the group: ", names));
      for (const auto& [from, to] : map) {
        const std::string entry =
            str("worker '", name, "' maps its ", from, " to ", to, " of worker '", callee, "': ");
        if (!allows(plan, from))
          throw ValueError(str(entry, from, " is not among the devices of worker '", name, "' (",
                               list(plan.devices), ")"));
        if (other && !allows(*other, to))
          throw ValueError(str(entry, to, " is not among the devices of worker '", callee, "' (",
                               list(other->devices), ")"));
      }
    }
  }
}
}  // namespace

void check_device_plans(const std::vector<std::pair<std::string, DevicePlan>>& members) {
  check_plans(members, true);
}

void inner::check_plans_so_far(const std::vector<std::pair<std::string, DevicePlan>>& members) {
  check_plans(members, false);
}

std::string missing_devices(const std::string& self,
                            const std::vector<std::pair<std::string, DevicePlan>>& members) {
  std::string out;
  const auto need = [&](Device device, const auto&... why) {
    try {
      if (device.is_cuda()) backend(device);
    } catch (const DeviceError& e) {
      out +=
          str(out.empty() ? "" : "; ", why..., " worker '", self, "' has no ", device, " (", e.what(), ")");
    }
  };
  for (const auto& [name, plan] : members) {
    if (name == self)
      for (const Device& d : plan.devices) need(d, "devices:");
    for (const auto& [callee, map] : plan.maps)
      for (const auto& [from, to] : map) {
        if (name == self) need(from, "the device map for worker '", callee, "' begins at ", from, ":");
        if (callee == self) need(to, "the device map of worker '", name, "' leads to ", to, ":");
      }
  }
  return out;
}

}  // namespace weft::rpc
