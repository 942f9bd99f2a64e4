// The simulated rendezvous: rank 0 serves the store on the network; every other rank attaches its own client.
// The client's id lies above those of workers, so both may attach to one network.
#include <weft/distributed/sim/sim_rendezvous.h>

namespace weft::rpc {

std::unique_ptr<Rendezvous> make_sim_rendezvous(SimRuntime& runtime, SimNetwork& network, int rank,
                                                int world_size, const std::string& group) {
  if (rank < 0 || rank >= world_size)
    throw ValueError(str("make_sim_rendezvous: rank ", rank, " is not in 0..", world_size - 1));
  const std::string where = "sim:store:" + group;
  std::unique_ptr<Store> store;
  if (rank == 0) {
    store = make_store_server(
        runtime, [&](Receiver& receiver) { return network.attach(WorkerId{0}, receiver, where); });
  } else {
    const WorkerId id{static_cast<int32_t>(runtime.random() & 0x3fffffff) | 0x40000000};
    store = make_store_client(
        runtime, [&](Receiver& receiver) { return network.attach(id, receiver, str("sim:client:", id)); },
        PeerAddress{.addresses = {where}}, where);
  }
  return make_rendezvous_over(runtime, rank, world_size, std::move(store));
}

}  // namespace weft::rpc
