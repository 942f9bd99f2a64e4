// Devices of an agent: the device maps of the group, the agreement on CUDA IPC, and the arrival of messages
// with device tensors.
#include <weft/distributed/rpc/inner/devices.h>

#include <weft/distributed/rpc/current_agent.h>
#include <weft/distributed/rpc/inner/device_functions.h>

namespace weft::rpc {

Devices::Devices(AgentCore& core, PeerTable& peers)
    : core_(core),
      peers_(peers),
      continuations_(std::make_shared<CopyContinuations>(core.runtime)),
      lending_(core.options.cuda_ipc ? std::make_shared<Lending>() : nullptr) {}

void Devices::add_plan(Peer& p, const Member& member) {
  const bool is_self = member.id == core_.self.id;
  const DevicePlan own = plan();
  DeviceMap arguments = own.maps.of(member.name);
  DeviceMap results = (is_self ? own : member.plan).maps.of(core_.self.name).reversed();
  if (!arguments.empty() || !results.empty()) has_maps_ = true;
  MutexLock lock(p.mutex);
  p.plan = is_self ? own : member.plan;
  p.host_key = member.address.host_key;
  p.for_arguments = std::move(arguments);
  p.for_results = std::move(results);
}

void Devices::peer_lost(WorkerId peer) {
  if (lending_) lending_->peer_lost(peer);
}

namespace {

/// Every member's value by name.
template <class T> std::map<std::string, T> gather_values(Agent& agent, const T& mine, Duration timeout) {
  Message message;
  {
    Encoder out(message, &agent);
    out.put(mine);
  }
  std::map<std::string, T> all;
  for (const auto& [name, theirs] : agent.gather(std::move(message), {}, timeout)) {
    Decoder in(theirs, &agent);
    all.emplace(name, in.get<T>());
  }
  return all;
}

}  // namespace

void Devices::agree(Agent& agent, Duration timeout) {
  std::vector<std::pair<std::string, DevicePlan>> plans;
  bool any = false, lends = false;
  for (Peer* p : peers_.all()) {
    MutexLock lock(p->mutex);
    if (!p->known) continue;
    plans.emplace_back(p->name, p->plan);
    any = any || !p->plan.empty();
    lends = lends || p->plan.lends;
  }
  if (!any) return;
  check_device_plans(plans);
  std::string missing;
  for (const auto& [name, text] : gather_values(agent, missing_devices(core_.self.name, plans), timeout))
    if (!text.empty()) missing += str(missing.empty() ? "" : "; ", text);
  register_stream_states();  // the check may have opened devices
  if (!missing.empty()) throw DeviceError(str("device maps: ", missing));
  if (lends) agree_on_lending(agent, timeout);
}

std::string builtin::missing_devices(const std::string& caller, const std::string& plan) {
  const std::string text =
      rpc::missing_devices(current_agent()->self().name, {{caller, read_device_plan(plan)}});
  register_stream_states();  // the check may have opened devices
  return text;
}

/// lending.h, step 1. All members call it; those without lending contribute nothing.
void Devices::agree_on_lending(Agent& agent, Duration timeout) {
  // device, IPC handle, offset, contents
  using Probe = std::tuple<std::string, std::array<uint8_t, 64>, int64_t, uint64_t>;
  // lender, its device, this worker's device
  using Pair = std::tuple<int32_t, std::string, std::string>;
  std::vector<Probe> mine;
  if (lending_)
    for (const Lending::Probe& p : lending_->offer(*core_.runtime))
      mine.emplace_back(to_string(p.device), p.block.handle, p.block.offset, p.contents);
  const std::string own_host = core_.transport->addresses().host_key;
  std::vector<Pair> readable;
  for (const auto& [name, probes] : gather_values(agent, mine, timeout)) {
    Peer& p = peers_.at(agent.worker_info_id(name));
    {
      MutexLock lock(p.mutex);
      if (!lending_ || p.id == core_.self.id || own_host.empty() || p.host_key != own_host) continue;
    }
    std::vector<Lending::Probe> theirs;
    for (const auto& [device, handle, offset, contents] : probes)
      theirs.push_back({Device(device), {handle, offset}, contents});
    for (const auto& [their_device, our_device] : Lending::try_out(theirs))
      readable.emplace_back(p.id.value, to_string(their_device), to_string(our_device));
  }
  for (const auto& [name, pairs] : gather_values(agent, readable, timeout))
    for (const auto& [lender, device, reader] : pairs)
      if (lending_ && lender == core_.self.id.value)
        lending_->agree(agent.worker_info_id(name), {{Device(device), Device(reader)}});
  if (lending_) lending_->end_offer();
}

Device Devices::target(WorkerId to, bool reply, Device source, bool unmapped_to_cpu) {
  if (source.is_cpu() && !has_maps_) return source;
  Peer& p = peers_.at(to);
  std::string name;
  {
    MutexLock lock(p.mutex);
    if (const auto found = (reply ? p.for_results : p.for_arguments).find(source)) return *found;
    name = p.name;
  }
  if (source.is_cpu() || unmapped_to_cpu) return kCpu;
  if (to == core_.self.id) return source;
  if (reply)
    throw DeviceError(str("a tensor on ", source, " of worker '", core_.self.name,
                          "' cannot go back to worker '", name, "': the device map of '", name, "' for '",
                          core_.self.name, "' has no entry that leads to ", source,
                          "; add one there, set_device_map(\"", core_.self.name, "\", {{<a device of '", name,
                          "'>, \"", source, "\"}}), or return the tensor on the cpu"));
  throw DeviceError(str("a tensor on ", source, " of worker '", core_.self.name, "' cannot go to worker '",
                        name, "': the device map for '", name, "' has no entry from ", source,
                        "; add one, set_device_map(\"", name, "\", {{\"", source, "\", <a device of '", name,
                        "'>}}), or move the tensor to the cpu"));
}

void Devices::seal_for(const Peer& p, Message& message) {
  try {
    seal(message, lending_.get(), p.id);
  } catch (...) {
    for (const Place& place : message.places)
      if (place.loan) lending_->end(place.loan->number);
    throw;
  }
  if (!lending_) return;
  for (const Place& place : message.places) {
    if (!place.loan) continue;
    message.settled.push_back([weak = std::weak_ptr<Lending>(lending_), rt = core_.runtime,
                               lease = core_.options.lease, number = place.loan->number](bool) {
      rt->call_at(rt->now() + lease, [weak, number] {
        if (const auto alive = weak.lock()) alive->end(number);
      });
    });
  }
}

namespace {

/// Completes an arrival when the lender confirms that its loans were still valid (lending.h, step 3).
class Returned final : public ReplySink {
 public:
  explicit Returned(Future<void> arrival) : arrival_(std::move(arrival)) {}
  void on_reply(Agent&, WorkerId from, Message message) noexcept override {
    try {
      Decoder in(message);
      if (!in.get<bool>())
        throw RpcError(str("worker ", from.value,
                           " took back the device memory that it had lent: it has given up on the call"));
      arrival_.state()->try_set();
    } catch (...) {
      on_error(std::current_exception());
    }
  }
  void on_error(std::exception_ptr error) noexcept override {
    arrival_.state()->try_set_error(std::move(error));
  }

 private:
  Future<void> arrival_;
};

}  // namespace

Message Devices::receive(Inbound inbound, const Envelope& e) {
  if (inbound.unread) std::rethrow_exception(inbound.unread);
  const WorkerId from = inbound.from;
  Message message = unseal(std::move(inbound.header), std::move(inbound.payloads), e);
  const std::shared_ptr<Staging> staging = message.staging;
  if (!staging || (staging->loans.empty() && staging->ready())) return message;
  const Future<void> arrival(core_.runtime);
  staging->arrival = arrival;
  const auto arrived = [arrival, from, held = core_.agent(), lease = core_.options.lease,
                        loans = staging->loans](std::exception_ptr error) {
    try {
      if (error) std::rethrow_exception(error);
      if (loans.empty() || !held) {
        arrival.state()->try_set();
        return;
      }
      Message back;
      {
        Encoder out(back);
        out.put(loans);
      }
      // Two leases: a dead lender is lost after one, and PeerLost is more informative than Timeout.
      held->call(from, Kind::kReturn, std::move(back), {2 * lease, "return of a loan"},
                 std::make_unique<Returned>(arrival));
    } catch (...) {
      arrival.state()->try_set_error(std::current_exception());
    }
  };
  if (staging->ready()) arrived(nullptr);
  else continuations_->run_after(staging, arrived);
  return message;
}

}  // namespace weft::rpc
