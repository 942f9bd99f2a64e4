// The devices of an agent: the device maps of the group, and memory lent by CUDA IPC (lending.h). Messages
// with device tensors leave and arrive here (staging.h).
#pragma once

#include <weft/distributed/rpc/inner/core.h>
#include <weft/distributed/rpc/inner/peers.h>
#include <weft/distributed/wire/inner/lending.h>

namespace weft::rpc {

class Devices {
 public:
  Devices(AgentCore& core, PeerTable& peers);

  DevicePlan plan() const {
    return {core_.options.device_maps, core_.options.devices, core_.options.cuda_ipc};
  }
  /// Stores a member's device settings and the maps for messages to it.
  void add_plan(Peer& p, const Member& member);
  /// As Agent::target_device.
  Device target(WorkerId to, bool reply, Device source, bool unmapped_to_cpu);
  /// As Agent::agree_on_devices.
  void agree(Agent& agent, Duration timeout);

  /// seal(), with tensors lent to the peer where possible.
  void seal_for(const Peer& p, Message& message);
  /// unseal(), and starts the completion of the arrival of device tensors.
  Message receive(Inbound inbound, const Envelope& e);
  /// Calls `then` with null or an error when the tensors of a message have been copied.
  void carry(const std::shared_ptr<Staging>& staging, std::function<void(std::exception_ptr)> then) {
    continuations_->run_after(staging, std::move(then));
  }
  void peer_lost(WorkerId peer);
  /// Null without AgentOptions::cuda_ipc.
  const std::shared_ptr<Lending>& lending() const { return lending_; }

 private:
  void agree_on_lending(Agent& agent, Duration timeout);
  AgentCore& core_;
  PeerTable& peers_;
  const std::shared_ptr<CopyContinuations> continuations_;
  const std::shared_ptr<Lending> lending_;
  std::atomic<bool> has_maps_{false};  ///< a device map concerns this worker
};

}  // namespace weft::rpc
