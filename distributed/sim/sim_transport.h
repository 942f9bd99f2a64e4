// A network of simulated workers inside one process. Each message is encoded and decoded with the frame
// format of the gRPC transport, so workers share no memory by accident. Faults come from the runtime's seed
// and from rules. Each event is a line in the runtime's trace.
//
// How it is used:
//   SimRuntime rt({.seed = 7});
//   SimNetwork net(rt, {.drop = 0.01, .duplicate = 0.01});
//   auto t0 = net.attach(WorkerId{0}, receiver0);   // its address is "sim:0"
//   auto t1 = net.attach(WorkerId{1}, receiver1);
//   t0->add_peer(WorkerId{1}, t1->addresses());
//   const auto fork = static_cast<uint8_t>(Kind::kFork);
//   net.add_rule({.kind = fork, .count = 3, .action = FaultRule::Action::kDrop});
//   net.partition({WorkerId{0}}, {WorkerId{1}});  net.heal();  net.kill(WorkerId{1});
//
// Thread safety: none; all calls come from the thread that drives the SimRuntime. The network must outlive
// the use of its transports.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <weft/distributed/sim/sim_runtime.h>
#include <weft/distributed/transport/transport.h>

namespace weft::rpc {

/// A fault for the messages that match. Rules are tested in the order of their addition; every
/// matching rule applies.
struct FaultRule {
  enum class Action { kDrop, kDelay, kDuplicate };
  std::optional<uint8_t> kind{};  ///< only messages of this kind; none: any
  std::optional<WorkerId> from{};
  std::optional<WorkerId> to{};
  int skip = 0;              ///< number of matches that pass first
  int count = -1;            ///< number of faults after the skipped matches; negative: no limit
  double probability = 1.0;  ///< probability that a match becomes a fault, by seed
  Action action = Action::kDrop;
  Duration delay{};                                        ///< for kDelay: added to the latency
  std::function<bool(const std::string& header)> match{};  ///< further condition; empty: none
};

/// Options of a simulated network; times are virtual.
struct SimNetOptions {
  Duration latency = std::chrono::microseconds(50);
  /// added to the latency: uniform in [0, jitter), by seed; it reorders messages
  Duration jitter = std::chrono::microseconds(50);
  bool fifo = false;               ///< keep the order between two workers
  double drop = 0, duplicate = 0;  ///< probability for each message, by seed
  double bytes_per_second = 0;     ///< bandwidth of each direction of a pair; 0: no limit
  Duration break_notice = std::chrono::milliseconds(1);  ///< delay of kBroken after the kill of a worker
  Duration silence_notice = std::chrono::seconds(10);    ///< delay of kBroken after a partition
  Duration connect_timeout = std::chrono::seconds(5);    ///< time until kUnreachable
  WireLimits limits{};
};

/// The network. It connects the transports of simulated workers and injects the faults.
class WEFT_API SimNetwork {
 public:
  explicit SimNetwork(SimRuntime& runtime, SimNetOptions options = {});
  ~SimNetwork();

  /// Makes a transport for worker `id`. The default `address` is "sim:<id>". An `incarnation` of 0 is drawn
  /// from the seed. Throws: RpcError that names an address already in use.
  std::shared_ptr<Transport> attach(WorkerId id, Receiver& receiver, std::string address = {},
                                    Incarnation incarnation = {});

  /// Adds a fault rule; clear_rules removes all of them.
  void add_rule(FaultRule rule);
  void clear_rules();
  /// Changes the probabilities of dropped and duplicated messages from now on.
  void set_faults(double drop, double duplicate);

  /// Drops all messages between the two sides, without an error, until heal().
  void partition(std::vector<WorkerId> one, std::vector<WorkerId> other);
  /// Ends all partitions.
  void heal();

  /// Kills a worker: its transport drops all sends and gets no more callbacks. Its address is free again.
  void kill(WorkerId id);
  /// The same for the transport at an address, if several transports have the same id.
  void kill_at(const std::string& address);

  /// Delivers raw bytes as one frame from `from` to `to`, for tests of malformed input.
  void inject(WorkerId from, WorkerId to, std::string frame);

  class Core;  ///< defined in sim_transport.cpp

 private:
  std::shared_ptr<Core> core_;
};

}  // namespace weft::rpc
