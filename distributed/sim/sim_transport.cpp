// The simulated network. A link (an unordered pair of nodes) is up from its first handshake until an end
// dies, closes or is cut off for long. A message is checked against the limits and encoded to frames behind a
// hello. Rules and probabilities decide its faults, and each copy gets a timer. On arrival the receiver's
// Decoder decodes it. A broken link loses its messages under way. sim_core.h has nodes and links.
#include <weft/distributed/sim/sim_transport.h>

#include <weft/distributed/sim/inner/sim_core.h>

namespace weft::rpc {
namespace {

class SimTransport final : public Transport {
 public:
  SimTransport(std::shared_ptr<SimNetwork::Core> core, std::shared_ptr<SimNode> node)
      : core_(std::move(core)), node_(std::move(node)) {}
  ~SimTransport() override { SimTransport::close(Duration::zero()); }

  WorkerId id() const override { return node_->id; }
  Incarnation incarnation() const override { return node_->incarnation; }
  PeerAddress addresses() const override { return {{node_->address}, "sim", node_->incarnation}; }

  void add_peer(WorkerId peer, PeerAddress address) override {
    if (address.addresses.empty()) throw ValueError(str("add_peer: worker ", peer, " has no address"));
    for (const auto& a : address.addresses) {
      if (a.rfind("sim:", 0) != 0)
        throw ValueError(str("add_peer: '", a, "' is no address of the simulated network"));
    }
    SimPeer& p = node_->peers[peer];
    auto link = node_->links.find(peer);
    const bool other_life = address.incarnation.value != 0 && link != node_->links.end() &&
                            link->second->incarnation != address.incarnation;
    const bool moved = p.known && (p.address.addresses != address.addresses || other_life);
    p.address = std::move(address);
    p.known = true;
    p.ignored = false;
    if (moved) drop_link(peer, "the peer has moved");
  }

  void remove_peer(WorkerId peer) override {
    auto found = node_->peers.find(peer);
    if (found == node_->peers.end()) return;
    found->second.known = false;
    found->second.ignored = true;
    if (found->second.give_up.value != 0) core_->runtime.cancel(std::exchange(found->second.give_up, {}));
    core_->drop_waiting(found->second);
    drop_link(peer, "the peer was removed");
  }

  void send(WorkerId peer, uint8_t kind, std::string header, std::vector<Payload> payloads) override {
    if (closed_) throw RpcError("send: the transport is closed");
    if (!node_->alive) return;  // a killed worker's sends vanish
    core_->send(node_, peer, kind, std::move(header), std::move(payloads));
  }

  bool wait_writable(WorkerId peer, TimePoint deadline) override {
    while (true) {
      auto found = node_->peers.find(peer);
      if (closed_ || found == node_->peers.end() || core_->full_room(found->second)) return true;
      Event event(core_->runtime, "room in a send queue");
      found->second.writers.push_back(&event);
      bool in_time = false;
      try {
        in_time = event.wait_until(deadline);
      } catch (...) {
        forget(peer, &event);
        throw;
      }
      forget(peer, &event);
      if (!in_time) return false;
    }
  }

  PeerCounters counters(WorkerId peer) const override {
    auto found = node_->peers.find(peer);
    if (found == node_->peers.end()) return {};
    PeerCounters counters = found->second.counters;
    counters.connected = node_->links.count(peer) > 0;
    return counters;
  }

  void close(Duration linger) override {
    if (std::exchange(closed_, true)) return;
    if (node_->alive && linger > Duration::zero()) {  // the messages under way arrive first
      try {
        core_->runtime.sleep_for(std::min(linger, core_->options.latency + core_->options.jitter));
      } catch (const std::exception&) {  // the runtime has stopped, or this is a callback that must not wait
      }
    }
    if (node_->alive) {
      core_->runtime.trace(str("close ", node_->id));
      core_->leave(*node_, "the peer has closed its transport", core_->options.latency);
    }
    node_->receiver = nullptr;
  }

 private:
  void drop_link(WorkerId peer, const std::string& reason) {
    auto link = node_->links.find(peer);
    if (link != node_->links.end()) core_->unlink(*node_, *link->second, reason, core_->options.latency);
  }
  void forget(WorkerId peer, Event* event) {
    auto& writers = node_->peers[peer].writers;
    writers.erase(std::remove(writers.begin(), writers.end(), event), writers.end());
  }

  std::shared_ptr<SimNetwork::Core> core_;
  std::shared_ptr<SimNode> node_;
  bool closed_ = false;
};

}  // namespace

SimNetwork::SimNetwork(SimRuntime& runtime, SimNetOptions options)
    : core_(std::make_shared<Core>(runtime, options)) {}
SimNetwork::~SimNetwork() = default;

std::shared_ptr<Transport> SimNetwork::attach(WorkerId id, Receiver& receiver, std::string address,
                                              Incarnation incarnation) {
  if (address.empty()) address = str("sim:", id);
  if (core_->by_address.count(address) != 0)
    throw RpcError(str("simulated network: address ", address, " is already in use"));
  auto node = std::make_shared<SimNode>();
  node->id = id;
  node->incarnation = incarnation.value != 0 ? incarnation : Incarnation{core_->runtime.random() | 1};
  node->address = address;
  node->receiver = &receiver;
  core_->nodes.push_back(node);
  core_->by_address[address] = node.get();
  SimPeer& self = node->peers[id];
  self.known = true;
  self.address = {{address}, "sim", {}};
  core_->runtime.trace(str("attach ", id, " at ", address));
  return std::make_shared<SimTransport>(core_, std::move(node));
}

void SimNetwork::add_rule(FaultRule rule) { core_->rules.push_back({std::move(rule)}); }
void SimNetwork::clear_rules() { core_->rules.clear(); }
void SimNetwork::set_faults(double drop, double duplicate) {
  core_->options.drop = drop, core_->options.duplicate = duplicate;
}

void SimNetwork::partition(std::vector<WorkerId> one, std::vector<WorkerId> other) {
  core_->runtime.trace("partition");
  core_->cuts.emplace_back(std::set<WorkerId>(one.begin(), one.end()),
                           std::set<WorkerId>(other.begin(), other.end()));
  const uint64_t epoch = ++core_->epoch;
  core_->runtime.call_at(core_->runtime.now() + core_->options.silence_notice, [core = core_, epoch] {
    if (core->epoch != epoch) return;  // healed or partitioned again meanwhile
    for (auto& a : core->nodes)
      for (auto [id, b] : std::map(a->links))
        if (core->cut(a->id, id)) core->unlink(*a, *b, "no sign of life on the connection", Duration::zero());
  });
}

void SimNetwork::heal() {
  core_->runtime.trace("heal");
  core_->cuts.clear();
  ++core_->epoch;
}

void SimNetwork::kill(WorkerId id) {
  core_->runtime.trace(str("kill ", id));
  for (auto& node : core_->nodes)
    if (node->alive && node->id == id)
      core_->leave(*node, "the connection was reset", core_->options.break_notice);
}

void SimNetwork::kill_at(const std::string& address) {
  core_->runtime.trace("kill " + address);
  const auto found = core_->by_address.find(address);
  if (found != core_->by_address.end() && found->second->alive)
    core_->leave(*found->second, "the connection was reset", core_->options.break_notice);
}

void SimNetwork::inject(WorkerId from, WorkerId to, std::string frame) {
  SimNode *source = nullptr, *target = nullptr;
  for (auto& node : core_->nodes) {
    if (node->alive && node->id == from) source = node.get();
    if (node->alive && node->id == to) target = node.get();
  }
  if (source == nullptr || target == nullptr)
    throw ValueError(str("inject: worker ", from, " or ", to, " is not on the network"));
  core_->runtime.trace(str("inject ", from, "->", to, " ", frame.size(), " bytes"));
  core_->decode(*source, *target, {std::move(frame)});
}

}  // namespace weft::rpc
