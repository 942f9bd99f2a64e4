// A network of simulated workers inside one process. Every message becomes bytes and is decoded again at the other side, by the
// same codec as the real wire, so nothing is shared by accident. Faults come from the runtime's seed and from rules; everything
// that happens is a line in the runtime's event log.
//
// How it is used:
//   SimRuntime rt({.seed = 7});
//   SimNetwork net(rt, {.drop = 0.01, .duplicate = 0.01});
//   auto t0 = net.attach(WorkerId{0}, receiver0), t1 = net.attach(WorkerId{1}, receiver1);   // addresses "sim:0", "sim:1"
//   t0->add_peer(WorkerId{1}, t1->addresses());
//   net.add_rule({.kind = kForkRequest, .count = 3, .action = FaultRule::Action::kDrop});     // the first three are lost
//   net.partition({WorkerId{0}}, {WorkerId{1}});  net.heal();  net.kill(WorkerId{1});
//
// Thread safety: none; everything on the thread that drives the SimRuntime. The network outlives its transports' use.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <weft/distributed/sim_runtime.h>
#include <weft/distributed/transport.h>

namespace weft::rpc {

/// What happens to messages that match; rules are asked in the order they were added, each one that matches applies.
struct FaultRule {
  enum class Action { kDrop, kDelay, kDuplicate };
  std::optional<uint8_t> kind{};  ///< only this kind; none: any
  std::optional<WorkerId> from{};
  std::optional<WorkerId> to{};
  int skip = 0;              ///< let this many matches pass first
  int count = -1;            ///< then apply to this many; negative: to all
  double probability = 1.0;  ///< of those, to this share, by seed
  Action action = Action::kDrop;
  Duration delay{};                                        ///< for kDelay: added to the way
  std::function<bool(const std::string& header)> match{};  ///< and only if this says so
};

struct SimNetOptions {
  Duration latency = std::chrono::microseconds(50);
  Duration jitter = std::chrono::microseconds(50);  ///< uniform in [0, jitter), by seed; reorders by itself
  bool fifo = false;                                ///< keep the order between two workers
  double drop = 0, duplicate = 0;                   ///< share of messages, by seed
  double bytes_per_second = 0;                      ///< per direction of a pair; 0: no limit
  Duration break_notice = std::chrono::milliseconds(1);  ///< until peers of a killed worker see kBroken
  Duration silence_notice = std::chrono::seconds(10);    ///< until the ends of a partition see kBroken
  Duration connect_timeout = std::chrono::seconds(5);    ///< until kUnreachable
  WireLimits limits{};
};

class WEFT_API SimNetwork {
 public:
  explicit SimNetwork(SimRuntime& runtime, SimNetOptions options = {});
  ~SimNetwork();

  /// Puts a worker on the network. `address` is by default "sim:<id>"; a used one throws RpcError naming it. `incarnation` 0: by seed.
  std::shared_ptr<Transport> attach(WorkerId id, Receiver& receiver, std::string address = {},
                                    Incarnation incarnation = {});

  void add_rule(FaultRule rule);
  void clear_rules();
  /// Changes the shares of lost and doubled messages from now on.
  void set_faults(double drop, double duplicate);

  /// Loses everything between the two sides, silently, until heal().
  void partition(std::vector<WorkerId> one, std::vector<WorkerId> other);
  void heal();

  /// The worker dies: its transport falls silent (its sends vanish, it gets no more callbacks) and its address is free again.
  void kill(WorkerId id);

  /// Delivers raw bytes as one frame from `from` to `to` (malformed input).
  void inject(WorkerId from, WorkerId to, std::string frame);

  class Core;  ///< defined in sim_transport.cpp

 private:
  std::shared_ptr<Core> core_;
};

}  // namespace weft::rpc
