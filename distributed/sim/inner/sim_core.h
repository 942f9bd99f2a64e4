// The nodes and links of a simulated network, and the path of a message through them: send, connect,
// transmit with faults, arrive, decode. sim_transport.cpp has the public classes on top.
#pragma once

#include <algorithm>
#include <map>
#include <set>

#include <weft/distributed/sim/sim_transport.h>
#include <weft/distributed/transport/inner/frame.h>

namespace weft::rpc {

struct SimNode;

/// A node's state of another node.
struct SimPeer {
  PeerAddress address;
  bool known = false;
  bool ignored = false;  // removed: its messages are dropped
  PeerCounters counters;
  TimePoint link_free{};                                    // end of the last transmission
  TimePoint last_arrival{};                                 // for fifo
  TimerId give_up;                                          // running connect attempt
  std::string failure;                                      // why its last try has failed
  std::vector<std::shared_ptr<inner::OutMessage>> waiting;  // until the link is up
  std::vector<Event*> writers;
};

struct SimNode : std::enable_shared_from_this<SimNode> {
  WorkerId id;
  Incarnation incarnation;
  std::string address;
  Receiver* receiver = nullptr;
  bool alive = true;
  std::map<WorkerId, SimPeer> peers;
  std::map<WorkerId, SimNode*>
      links;  // links that are up, ordered by id, so that a replay has the same order
};

class SimNetwork::Core : public std::enable_shared_from_this<SimNetwork::Core> {
 public:
  Core(SimRuntime& rt, SimNetOptions o) : runtime(rt), options(o) {}

  struct Rule {
    FaultRule rule;
    int seen = 0;
    int applied = 0;
  };

  SimRuntime& runtime;
  SimNetOptions options;
  std::vector<std::shared_ptr<SimNode>> nodes;  // also dead ones, since messages under way refer to them
  std::map<std::string, SimNode*> by_address;
  std::vector<Rule> rules;
  std::vector<std::pair<std::set<WorkerId>, std::set<WorkerId>>> cuts;
  uint64_t epoch = 0;  // counts partitions and heals
  uint64_t next_message = 1;

  double chance() { return static_cast<double>(runtime.random() >> 11) * 0x1.0p-53; }

  bool cut(WorkerId a, WorkerId b) const {
    for (const auto& [one, other] : cuts) {
      if ((one.count(a) && other.count(b)) || (one.count(b) && other.count(a))) return true;
    }
    return false;
  }

  Duration way() {
    Duration d = options.latency;
    if (options.jitter > Duration::zero())
      d += Duration(static_cast<int64_t>(chance() * static_cast<double>(options.jitter.count())));
    return d;
  }

  void tell(SimNode& node, WorkerId peer, Incarnation incarnation, PeerState state,
            const std::string& reason) {
    if (!node.alive) return;
    runtime.trace(str("peer ", node.id, " sees ", peer, ": ", to_string(state), " ", reason));
    auto found = node.peers.find(peer);
    if (found != node.peers.end())
      ++(state == PeerState::kUp ? found->second.counters.connects : found->second.counters.breaks);
    try {
      node.receiver->on_peer(peer, incarnation, state, reason);
    } catch (const std::exception& e) {
      runtime.trace(str("on_peer of ", node.id, " threw ", e.what()));
    }
  }

  /// The reason of a failed attempt, which is not reported twice.
  void tell_failure(SimNode& node, WorkerId to, const std::string& why) {
    SimPeer& peer = node.peers[to];
    if (std::exchange(peer.failure, why) == why) return;
    try {
      node.receiver->on_failed_attempt(to, peer.address.incarnation, why);
    } catch (const std::exception& e) {
      runtime.trace(str("on_failed_attempt of ", node.id, " threw ", e.what()));
    }
  }

  /// Runs `fn` after a delay if the node is still alive. Callbacks always run on a timer, never inside
  /// a user's call.
  template <class Fn> void later(const std::shared_ptr<SimNode>& node, Duration after, Fn fn) {
    runtime.call_at(runtime.now() + after, [self = shared_from_this(), node, fn = std::move(fn)]() mutable {
      if (node->alive) fn();
    });
  }

  static bool linked(const SimNode& a, const SimNode& b) {
    auto found = a.links.find(b.id);
    return found != a.links.end() && found->second == &b;
  }

  void unlink(SimNode& a, SimNode& b, const std::string& reason, Duration notice) {
    if (!linked(a, b)) return;
    a.links.erase(b.id);
    b.links.erase(a.id);
    for (auto [node, other] : {std::pair(&a, &b), std::pair(&b, &a)}) {
      if (!node->alive) continue;
      auto held = node->shared_from_this();
      later(held, notice, [this, held, id = other->id, inc = other->incarnation, reason] {
        tell(*held, id, inc, PeerState::kBroken, reason);
      });
    }
  }

  void drop_waiting(SimPeer& peer) {
    for (const auto& m : peer.waiting) peer.counters.queued_bytes -= m->bytes;
    peer.counters.queued_messages -= static_cast<int64_t>(peer.waiting.size());
    peer.waiting.clear();
    wake(peer);
  }
  static void wake(SimPeer& peer) {
    for (Event* e : std::exchange(peer.writers, {})) e->set();
  }
  /// One attempt to reach a peer; queued messages wait for it.
  void connect(const std::shared_ptr<SimNode>& node, WorkerId to) {
    SimPeer& peer = node->peers[to];
    if (peer.give_up.value != 0) return;
    const TimePoint end = runtime.now() + options.connect_timeout;
    peer.failure.clear();
    peer.give_up = runtime.call_at(end, [self = shared_from_this(), node, to] {
      if (!node->alive) return;
      SimPeer& p = node->peers[to];
      p.give_up = {};
      self->drop_waiting(p);
      self->tell(*node, to, p.address.incarnation, PeerState::kUnreachable,
                 str("no answer from worker ", to, " within the connect timeout",
                     p.failure.empty() ? "" : "; the last attempt: ", p.failure));
    });
    try_connect(node, to, peer.give_up);
  }

  void try_connect(const std::shared_ptr<SimNode>& node, WorkerId to, TimerId attempt) {
    later(node, way() + way(), [this, node, to, attempt] {
      SimPeer& peer = node->peers[to];
      if (peer.give_up.value != attempt.value) return;
      SimNode* other = nullptr;
      for (const auto& address : peer.address.addresses) {
        auto found = by_address.find(address);
        if (found != by_address.end()) other = found->second;
      }
      // unreachable now, or not known there yet: try again until connect_timeout
      const std::string why = other == nullptr          ? str("nobody listens at the address of worker ", to)
                              : cut(node->id, to)       ? str("no answer from worker ", to)
                              : !expects(*other, *node) ? str("worker ", to, " was told of another life")
                                                        : std::string();
      if (!why.empty()) {
        tell_failure(*node, to, why);
        runtime.call_at(runtime.now() + options.connect_timeout / 20,
                        [self = shared_from_this(), node, to, attempt] {
                          if (node->alive) self->try_connect(node, to, attempt);
                        });
        return;
      }
      const Incarnation want = peer.address.incarnation;
      if (other->id != to || (want.value != 0 && want != other->incarnation)) {
        runtime.cancel(peer.give_up);
        peer.give_up = {};
        drop_waiting(peer);
        tell(*node, to, want, PeerState::kRejected,
             other->id != to ? str("worker ", other->id, " answered, worker ", to, " was expected")
                             : str("another life of worker ", to, " was expected"));
        return;
      }
      up(node, other->shared_from_this());
    });
  }

  /// False: `one` knows another life of that worker.
  static bool expects(const SimNode& one, const SimNode& caller) {
    const auto found = one.peers.find(caller.id);
    if (found == one.peers.end()) return true;
    const Incarnation told = found->second.address.incarnation;
    return told.value == 0 || told == caller.incarnation;
  }

  void up(const std::shared_ptr<SimNode>& a, const std::shared_ptr<SimNode>& b) {
    if (!linked(*a, *b)) {
      for (auto [x, y] : {std::pair(a, b), std::pair(b, a)}) {  // end a link to an older node of that id
        auto old = x->links.find(y->id);
        if (old != x->links.end() && old->second != y.get())
          unlink(*x, *old->second, "another worker took its place", Duration::zero());
        x->links[y->id] = y.get();
      }
      learn(*b, *a);
      if (a != b) tell(*b, a->id, a->incarnation, PeerState::kUp, "");
      tell(*a, b->id, b->incarnation, PeerState::kUp, "");
    }
    for (auto [x, y] : {std::pair(a, b), std::pair(b, a)}) flush(x, y);
  }

  void learn(SimNode& node, const SimNode& other) {
    SimPeer& peer = node.peers[other.id];
    if (peer.known) return;
    peer.known = true;
    peer.address = {{other.address}, "sim", {}};
  }

  void flush(const std::shared_ptr<SimNode>& node, const std::shared_ptr<SimNode>& other) {
    SimPeer& peer = node->peers[other->id];
    if (peer.give_up.value != 0) runtime.cancel(std::exchange(peer.give_up, {}));
    for (auto& m : std::exchange(peer.waiting, {})) transmit(node, other, std::move(m));
    wake(peer);
  }

  void send(const std::shared_ptr<SimNode>& node, WorkerId to, uint8_t kind, std::string header,
            std::vector<Payload> payloads) {
    auto found = node->peers.find(to);
    if (found == node->peers.end() || !found->second.known)
      throw PeerLost(str("worker ", to), str("send: worker ", to, " is not known here"));
    SimPeer& peer = found->second;
    if (!full_room(peer)) {
      throw Overloaded(str("send: the queue to worker ", to, " holds ", peer.counters.queued_bytes,
                           " bytes in ", peer.counters.queued_messages, " messages"));
    }
    auto message = inner::make_out_message(kind, std::move(header), std::move(payloads), options.limits);
    peer.counters.queued_bytes += message->bytes;
    ++peer.counters.queued_messages;
    auto link = node->links.find(to);
    if (link != node->links.end())
      return transmit(node, link->second->shared_from_this(), std::move(message));
    peer.waiting.push_back(std::move(message));
    connect(node, to);
  }

  bool full_room(const SimPeer& peer) const {
    return peer.counters.queued_messages == 0 ||
           (peer.counters.queued_bytes < options.limits.max_queued_bytes &&
            peer.counters.queued_messages < options.limits.max_queued_messages);
  }

  /// Sends a message on an existing link: applies the faults and sets a timer for each copy.
  void transmit(const std::shared_ptr<SimNode>& node, const std::shared_ptr<SimNode>& other,
                std::shared_ptr<inner::OutMessage> message) {
    SimPeer& peer = node->peers[other->id];
    const uint64_t number = next_message++;
    const std::string name = str("#", number, " ", node->id, "->", other->id, " kind ", int{message->kind});
    runtime.trace(str("send ", name, " ", message->bytes, " bytes"));

    bool dropped = chance() < options.drop;
    int copies = chance() < options.duplicate ? 2 : 1;
    Duration extra{};
    const size_t header_at = inner::kBeginBytes + inner::kTableRow * message->payloads.size();
    for (auto& r : rules) {
      const FaultRule& f = r.rule;
      if ((f.kind && *f.kind != message->kind) || (f.from && *f.from != node->id) ||
          (f.to && *f.to != other->id))
        continue;
      if (f.match && !f.match(message->head.substr(header_at))) continue;
      if (r.seen++ < f.skip || (f.count >= 0 && r.applied >= f.count) || chance() >= f.probability) continue;
      ++r.applied;
      if (f.action == FaultRule::Action::kDrop) dropped = true;
      if (f.action == FaultRule::Action::kDuplicate) copies = 2;
      if (f.action == FaultRule::Action::kDelay) extra += f.delay;
    }

    inner::Hello hello;
    hello.id = node->id;
    hello.incarnation = node->incarnation;
    hello.addresses = {node->address};
    auto frames = std::make_shared<std::vector<std::string>>();
    frames->push_back(inner::encode_hello(inner::RecordType::kHello, hello));
    inner::OutCursor cursor{message};
    for (bool whole = false; !whole;) {
      inner::Frame frame;
      whole = inner::append_message(frame, cursor);
      frames->push_back(frame.flat());
    }
    const int64_t bytes = message->bytes;
    message.reset();  // releases the payloads: the frames have copies of the bytes

    TimePoint start = std::max(runtime.now(), peer.link_free);
    if (options.bytes_per_second > 0) {
      start += Duration(static_cast<int64_t>(static_cast<double>(bytes) / options.bytes_per_second * 1e9));
      peer.link_free = start;
    }
    auto sent = [self = shared_from_this(), node, to = other->id, bytes] {
      SimPeer& p = node->peers[to];
      p.counters.queued_bytes -= bytes;
      --p.counters.queued_messages;
      ++p.counters.messages_sent;
      p.counters.bytes_sent += static_cast<uint64_t>(bytes);
      self->wake(p);
    };
    if (options.bytes_per_second > 0) {
      runtime.call_at(start, std::move(sent));
    } else {
      sent();
    }
    if (dropped) {
      runtime.trace(str("drop ", name));
      return;
    }
    for (int i = 0; i < copies; ++i) {
      TimePoint at = start + way() + extra;
      if (options.fifo) at = std::max(at, peer.last_arrival + Duration(1));
      peer.last_arrival = at;
      runtime.call_at(at, [self = shared_from_this(), node, other, frames, bytes, name] {
        self->arrive(node, other, *frames, bytes, name);
      });
    }
  }

  void arrive(const std::shared_ptr<SimNode>& from, const std::shared_ptr<SimNode>& to,
              const std::vector<std::string>& frames, int64_t bytes, const std::string& name) {
    if (!to->alive || !linked(*from, *to) || cut(from->id, to->id)) {
      runtime.trace(str("lost ", name));
      return;
    }
    SimPeer& peer = to->peers[from->id];
    if (peer.ignored) return;
    runtime.trace(str("deliver ", name));
    ++peer.counters.messages_received;
    peer.counters.bytes_received += static_cast<uint64_t>(bytes);
    decode(*from, *to, frames);
  }

  void decode(SimNode& from, SimNode& to, const std::vector<std::string>& frames) {
    struct Sink final : inner::DecoderSink {
      Receiver& receiver;
      WorkerId id;
      Incarnation incarnation;
      explicit Sink(Receiver& r) : receiver(r) {}
      void on_hello(inner::RecordType, inner::Hello hello) override {
        id = hello.id;
        incarnation = hello.incarnation;
      }
      void on_text(inner::RecordType, std::string) override {}
      Block allocate(uint8_t kind, const std::string& header, int64_t bytes, int32_t device) override {
        return receiver.allocate(id, kind, header, bytes, device);
      }
      void on_part(uint8_t kind, int64_t held, int64_t bytes) override {
        receiver.on_part(kind, held, bytes);
      }
      void on_part_end(uint8_t kind, int64_t held) override { receiver.on_part_end(kind, held); }
      void on_message(uint8_t kind, std::string header, std::vector<Block> payloads) override {
        receiver.on_message({id, incarnation, kind, std::move(header), std::move(payloads)});
      }
      void on_unread(uint8_t kind, std::string header, std::exception_ptr error) override {
        receiver.on_unread({id, incarnation, kind, std::move(header), {}, std::move(error)});
      }
    };
    Sink sink(*to.receiver);
    inner::Decoder decoder(options.limits, sink);
    try {
      for (const auto& frame : frames) {
        decoder.feed(frame.data(), frame.size());
        decoder.end_frame();
      }
    } catch (const std::exception& e) {
      runtime.trace(str("refused by ", to.id, ": ", e.what()));
      unlink(from, to, str("the connection was closed: ", e.what()), Duration::zero());
    }
  }

  void leave(SimNode& node, const std::string& reason, Duration notice) {
    node.alive = false;
    by_address.erase(node.address);
    for (auto [id, other] : std::map(node.links)) unlink(node, *other, reason, notice);
    for (auto& [id, peer] : node.peers) {
      if (peer.give_up.value != 0) runtime.cancel(std::exchange(peer.give_up, {}));
      drop_waiting(peer);
    }
  }
};

}  // namespace weft::rpc
