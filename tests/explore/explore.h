// Runs schedules over simulated workers, compares the values of their programs with the oracle, and shrinks
// the failing ones.
#pragma once

#include <functional>
#include <memory>

#include <weft/distributed/launch/store.h>
#include <weft/distributed/transport/transport.h>

#include "explore/plan.h"

namespace weft::explore {

/// Sends a message as a worker.
using Send = std::function<void(rpc::WorkerId to, uint8_t kind, std::string header)>;

/// A planted fault: a guarantee of the library is broken from outside, between the network and
/// the agents. The explorer must notice.
struct Planted {
  const char* name;
  const char* guarantee;
  /// The receiver of a worker's messages in place of its agent; null: the agent itself.
  std::function<std::unique_ptr<rpc::Receiver>(rpc::Receiver& agent, Send send)> before{};
  /// The store of a worker of an elastic group in place of its client; null: the client itself.
  std::function<std::shared_ptr<rpc::Store>(std::shared_ptr<rpc::Store> client)> store{};
  /// Microseconds after a successor's start at which the living are told of a loss of that name; 0: never.
  int64_t late_loss_us = 0;
  int64_t lease_s = 2;
  bool nested_waits = false;  ///< the nested calls of a burst wait for credit
};
const std::vector<Planted>& planted_faults();

/// The end of a schedule.
struct Outcome {
  std::string failure;  ///< empty: all guarantees held
  uint64_t hash = 0;    ///< of the order of all events
  int messages = 0;
  bool completed = false;  ///< every program ended without an error
  bool hurt = false;       ///< some program ended with an error
};
Outcome run(const Plan& plan, const Planted* planted = nullptr);

/// Leaves out steps and faults while the schedule still fails.
Plan shrink(Plan plan, const Planted* planted = nullptr);

/// The outcomes of many schedules.
struct Report {
  uint64_t schedules = 0, completed = 0, hurt = 0, messages = 0;
  uint64_t failed_seed = 0;
  std::string
      failure;  ///< of the first failing schedule: its text, the shrunk trace, the command to repeat it
  bool failed() const { return !failure.empty(); }
};
struct Range {
  uint64_t seed = 1, schedules = 1000;
  int workers = 0;  ///< 0: by the seed
};
/// Stops at the first failure.
Report explore(const Range& range, const Planted* planted = nullptr);
/// Iterates over the first `depth` messages of a small program. For each it tries all combinations of loss,
/// doubling and delay of the next `width` messages. It also kills, replaces, cuts off for half a lease and
/// isolates for longer than a lease each worker at that message. `elastic`: the workers form an elastic
/// group. Each is cut off from the store, from the others and from all, and the store dies; nothing is lost,
/// doubled or delayed.
Report explore_all(uint64_t seed, int workers, int depth, int width, bool elastic = false);

}  // namespace weft::explore
