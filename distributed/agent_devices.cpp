// Devices of a group: the maps of its members, and messages with tensors of devices on their way in.
#include <weft/distributed/agent_impl.h>

namespace weft::rpc {

/// Keeps what a member says of its devices, and what follows for messages to it.
void Agent::Impl::add_plan(const Member& member) {
  const DevicePlan own{options.device_maps, options.devices};
  DeviceMap arguments = own.maps.of(member.name);
  DeviceMap results = (member.id == self.id ? own : member.plan).maps.of(self.name).reversed();
  if (!arguments.empty() || !results.empty()) has_device_maps = true;
  Peer& p = peer(member.id);
  MutexLock lock(p.mutex);
  p.plan = member.id == self.id ? own : member.plan;
  p.for_arguments = std::move(arguments);
  p.for_results = std::move(results);
}

void Agent::agree_on_devices(Duration timeout) {
  std::vector<std::pair<std::string, DevicePlan>> plans;
  bool any = false;
  for (Peer* p : impl_->all_peers()) {
    MutexLock lock(p->mutex);
    if (!p->known) continue;
    plans.emplace_back(p->name, p->plan);
    any = any || !p->plan.empty();
  }
  if (!any) return;
  check_device_plans(plans);
  Message mine;
  { Encoder out(mine, this); out.put(missing_devices(self().name, plans)); }
  register_stream_states();  // that may have opened some
  std::string missing;
  for (const auto& [name, message] : gather(std::move(mine), {}, timeout)) {
    Decoder in(message, this);
    const std::string text = in.get<std::string>();
    if (!text.empty()) missing += str(missing.empty() ? "" : "; ", text);
  }
  if (!missing.empty()) throw DeviceError(str("device maps: ", missing));
}

Device Agent::target_device(WorkerId to, bool reply, Device source, bool unmapped_to_cpu) const {
  const Impl& s = *impl_;
  if (source.is_cpu() && !s.has_device_maps) return source;
  Peer& p = impl_->peer(to);
  std::string name;
  {
    MutexLock lock(p.mutex);
    if (const auto found = (reply ? p.for_results : p.for_arguments).find(source)) return *found;
    name = p.name;
  }
  if (source.is_cpu() || unmapped_to_cpu) return kCpu;
  if (to == s.self.id) return source;
  if (reply)
    throw DeviceError(str("a tensor on ", source, " of worker '", s.self.name, "' cannot go back to worker '", name, "': the device map of '", name, "' for '", s.self.name,
                          "' has no entry that leads to ", source, "; add one there, set_device_map(\"", s.self.name, "\", {{<a device of '", name, "'>, \"", source,
                          "\"}}), or return the tensor on the cpu"));
  throw DeviceError(str("a tensor on ", source, " of worker '", s.self.name, "' cannot go to worker '", name, "': the device map for '", name, "' has no entry from ", source,
                        "; add one, set_device_map(\"", name, "\", {{\"", source, "\", <a device of '", name, "'>}}), or move the tensor to the cpu"));
}

Message Agent::Impl::receive(Inbound inbound, const Envelope& e) {
  Message message = unseal(std::move(inbound.header), std::move(inbound.payloads), e);
  if (!message.staging || message.staging->ready()) return message;
  const Future<void> arrival(runtime);
  message.staging->arrival = arrival;
  courier->carry(message.staging, [arrival](std::exception_ptr error) {
    if (error) arrival.state()->try_set_error(std::move(error));
    else arrival.state()->try_set();
  });
  return message;
}

}  // namespace weft::rpc
