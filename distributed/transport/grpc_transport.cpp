// The public side of the gRPC transport: addresses, peers, sending, closing. Connections are in
// grpc_connection.cpp, gRPC's streams in grpc_link.cpp.
#include <weft/distributed/transport/grpc_transport.h>

#include <sys/resource.h>
#include <unistd.h>

#include <cstring>
#include <new>

#include <weft/distributed/transport/address.h>
#include <weft/distributed/transport/inner/grpc_peers.h>

namespace weft::rpc {
namespace inner {
namespace {

/// remembered past lives of a worker
constexpr size_t kPastLives = 8;

/// A number that cannot be guessed: a life's, and the key of a life for one peer.
uint64_t secret_number() {
  uint64_t number = 0;
  if (getentropy(&number, sizeof number) != 0) throw RpcError("the system has no random number");
  return number;
}

/// Lets this process have as many files as it may. Each connection is one, and gRPC stops listening for good
/// when a connection finds none left.
void raise_file_limit() {
  static const bool once = [] {
    rlimit files{};
    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur == files.rlim_max) return false;
    files.rlim_cur = files.rlim_max;
    return setrlimit(RLIMIT_NOFILE, &files) == 0;
  }();
  (void)once;
}

bool has_lane(const GrpcOptions& o) { return has_same_host_lane() && o.unix_socket && o.same_host_lane; }

/// One poller is shared with waiting threads: that of the lane, where there is one.
GrpcOptions options_of_grpc(GrpcOptions options) {
  if (has_lane(options)) options.shared_poller = false;
  return options;
}

}  // namespace

GrpcTransport::GrpcTransport(std::shared_ptr<Runtime> runtime, GrpcOptions options, Receiver& receiver)
    : runtime_(std::move(runtime)),
      options_(std::move(options)),
      receiver_(receiver),
      incarnation_{options_.incarnation.value != 0 ? options_.incarnation.value : (secret_number() | 1)},
      gate_(std::make_shared<Gate>(*runtime_)),
      idle_(*runtime_, "the end of the transport's sends"),
      grpc_(*runtime_, options_of_grpc(options_), *this) {
  raise_file_limit();
  own_.host_key = host_key();
  own_.incarnation = incarnation_;
  if (options_.unix_socket) {
    socket_.emplace();
    const std::string address = "unix:" + socket_->path();
    grpc_.listen(address);
    own_.addresses.push_back(address);
    if (has_lane(options_)) {
      lane_ = make_lane(*runtime_, options_, *this, socket_->lane_path());
      memory_ = lane_->memory();
      own_.addresses.push_back("unix:" + socket_->lane_path());
    }
  }
  if (!options_.listen.empty()) listen_tcp();
  if (lane_) lane_->start();
  grpc_.start();
  if (listener_) listener_->start(*runtime_, [this](int listener, int fd) { grpc_.take(listener, fd); });
}

void GrpcTransport::add_peer(WorkerId id, PeerAddress address) {
  choose(address);  // throws for an unusable address
  while (true) {
    auto peer = find_or_make(id);
    std::vector<std::shared_ptr<Connection>> old;
    MutexLock lock(peer->mutex);
    if (peer->gone) continue;
    const bool moved = peer->member && peer->address.addresses != address.addresses;
    const Incarnation past = peer->address.incarnation, next = address.incarnation;
    for (auto& c : peer->up) {
      if ((moved && c->outgoing) || (next.value != 0 && c->incarnation != next)) old.push_back(c);
    }
    if (peer->connecting != nullptr && (moved || (next.value != 0 && peer->connecting->expected != next)))
      old.push_back(peer->connecting);
    if (past.value != 0 && next.value != 0 && past != next) {
      if (peer->past.size() == kPastLives) peer->past.erase(peer->past.begin());
      peer->past.push_back(past);
    }
    peer->address = std::move(address);
    peer->member = true;
    peer->ignored = false;
    members_.set(id, peer.get());
    if (peer->own_key == 0) peer->own_key = secret_number() | 1;
    lock.unlock();
    for (auto& c : old) cancel(*c, "the peer has moved");
    return;
  }
}

void GrpcTransport::remove_peer(WorkerId id) {
  auto peer = find(id);
  if (peer == nullptr) return;
  MutexLock lock(peer->mutex);
  peer->member = false;
  peer->ignored = true;
  auto old = peer->up;
  if (peer->connecting != nullptr) old.push_back(peer->connecting);
  auto dropped = drop_queue(*peer);
  const TimerId timer = std::exchange(peer->give_up, {});
  lock.unlock();
  runtime_->cancel(timer);
  for (auto& c : old) cancel(*c, "the peer was removed");
}

void GrpcTransport::send(WorkerId id, uint8_t kind, std::string header, std::vector<Payload> payloads) {
  if (id == options_.id) return loop_back(kind, std::move(header), std::move(payloads));
  std::shared_ptr<Peer> stranger;
  Peer* peer = members_.find(id);
  if (peer == nullptr) peer = (stranger = find(id)).get();
  if (peer == nullptr) throw PeerLost(str("worker ", id), str("send: worker ", id, " is not known here"));
  auto message = make_out_message(kind, std::move(header), std::move(payloads), options_.limits);
  MutexLock lock(peer->mutex);
  check_takes(*peer);
  peer->counters.queued_bytes += message->queued;
  ++peer->counters.queued_messages;
  if (memory_ != nullptr && SharedMemory::suits(*message)) {
    const uint64_t link = peer->up.empty() ? 0 : peer->up.front()->shares;
    if (link != 0) {
      lock.unlock();  // the message counts: the end of this worker waits for it
      try {
        memory_->place(link, *message);
      } catch (const std::bad_alloc&) {  // the payloads go through the socket
      }
      lock.lock();
      if (peer->up.empty() || peer->up.front()->shares != link) message->placed.clear();
      try {
        check_takes(*peer, true);
      } catch (...) {
        took_off(*peer, message->queued, 1);
        throw;
      }
    } else {
      memory_->count_not_taken(*message);
    }
  }
  auto& queue = message->channel == 0 ? peer->small : peer->bulk;
  const int64_t queued = message->queued;
  bool in_queue = false;
  try {
    queue.push_back({std::move(message)});
    in_queue = true;
    if (!peer->up.empty()) pump(*peer);
    else begin_connecting(*peer);
  } catch (const std::bad_alloc&) {  // of one of these, or of begin_connecting: pump does not throw
    if (in_queue) queue.pop_back();
    took_off(*peer, queued, 1);
    throw;
  }
}

void GrpcTransport::check_takes(const Peer& peer, bool counted) const {
  if (closed_.load() && !(counted && !peer.up.empty())) throw RpcError("send: the transport is closed");
  if (peer.ignored || (!peer.member && peer.up.empty()))
    throw PeerLost(str("worker ", peer.id), str("send: worker ", peer.id, " is not known here"));
  if (!counted && !has_room(peer)) {
    throw Overloaded(str("send: the queue to worker ", peer.id, " holds ", peer.counters.queued_bytes,
                         " bytes in ", peer.counters.queued_messages, " messages"));
  }
}

bool GrpcTransport::wait_writable(WorkerId id, TimePoint deadline) {
  auto peer = find(id);
  if (peer == nullptr) return true;
  while (true) {
    Event event(*runtime_, "room in a send queue");
    {
      MutexLock lock(peer->mutex);
      if (closed_.load() || has_room(*peer)) return true;
      peer->writers.push_back(&event);
    }
    bool in_time = false;
    try {
      in_time = event.wait_until(deadline);
    } catch (...) {
      forget_writer(*peer, event);
      throw;
    }
    forget_writer(*peer, event);
    if (!in_time) return false;
  }
}

PeerCounters GrpcTransport::counters(WorkerId id) const {
  auto peer = find(id);
  if (peer == nullptr) return {};
  MutexLock lock(peer->mutex);
  PeerCounters counters = peer->counters;
  counters.messages_received = peer->messages_received;
  counters.bytes_received = peer->bytes_received;
  counters.connected = !peer->up.empty();
  return counters;
}

UnprovenCounters GrpcTransport::unproven() const {
  UnprovenCounters all = listener_ ? listener_->counters() : UnprovenCounters();
  if (lane_) {
    const UnprovenCounters local = lane_->counters();
    all.open += local.open;
    all.closed += local.closed;
  }
  return all;
}

SharedMemoryCounters GrpcTransport::shared_memory() const {
  return memory_ == nullptr ? SharedMemoryCounters() : memory_->counters();
}

void GrpcTransport::listen_tcp() {
  HostPort at = parse_host_port(options_.listen);
  if (options_.tls && !options_.tls->require_client_certificate && !options_.insecure)
    throw RpcError(
        "tls: without certificates of the others anybody can connect: set insecure = true as well");
  if (!options_.tls && !options_.insecure && !is_loopback_host(at.host)) {
    const std::string unknown = is_wildcard_host(at.host) ? "" : why_unresolved(at.host);
    throw RpcError(str("cannot listen on ", options_.listen,
                       unknown.empty() ? str(" without credentials: set tls, or insecure = true")
                                       : str(": the host '", at.host, "' has no address: ", unknown)));
  }
  if (options_.max_unproven < 1)
    throw ValueError(str("max_unproven is ", options_.max_unproven, ", it must be at least 1"));
  grpc_.expect_connections();
  listener_.emplace(at, ListenerOptions{.max_unproven = static_cast<size_t>(options_.max_unproven),
                                        .prove_within = options_.handshake_timeout,
                                        .user_timeout = options_.keepalive_timeout,
                                        .tls = options_.tls.has_value()});
  at.port = listener_->port();
  if (!options_.tls && !options_.insecure) {
    cookie_.emplace(at.port);
    secret_ = cookie_->cookie();
  }
  if (options_.tls) mark_tls_port(at.port);
  if (!options_.advertise_host.empty()) {
    at.host = options_.advertise_host;
  } else if (is_wildcard_host(at.host)) {
    at.host = first_interface_address();
  }
  own_.addresses.push_back(to_string(at));
}

/// Tells plain clients of this user to set TLS. Without a folder for the mark they find out more slowly.
void GrpcTransport::mark_tls_port(uint16_t port) {
  try {
    tls_mark_.emplace(port, FolderChoice::of_process(), true);
  } catch (const RpcError&) {  // TLS needs no folder
  }
}

LinkTarget GrpcTransport::choose(const PeerAddress& address) const {
  std::string why = "it has no address";
  std::optional<LinkTarget> chosen, hidden;
  for (const auto& a : address.addresses) {
    if (is_unix_address(a)) {
      if (!options_.unix_socket || (!address.host_key.empty() && address.host_key != own_.host_key)) continue;
      // a container may share the network and not the folder, and a dead peer's socket is gone
      const std::string path = a.substr(5);
      const auto user = socket_user(path);
      const bool seen = user == geteuid();
      if (user && !seen) {
        why = str("the socket ", path, " belongs to user ", *user, ", this is user ", geteuid());
        continue;
      }
      if (is_lane_address(a)) {  // nobody speaks gRPC there
        if (lane_ && seen) return {.address = path, .lane = true};
        continue;
      }
      if (!chosen && seen) chosen = {a, false};
      if (!hidden) hidden = {a, false};
      continue;
    }
    const HostPort at = parse_host_port(a);
    if (at.port == 0) throw ValueError(str("address '", a, "': port 0 cannot be connected to"));
    if (!options_.tls && !options_.insecure && !is_loopback_host(at.host)) {
      const std::string unknown = why_unresolved(at.host);
      why = unknown.empty() ? str("connecting to ", a, " needs credentials: set tls, or insecure = true")
                            : str("the host '", at.host, "' of ", a, " has no address: ", unknown);
      continue;
    }
    if (!chosen) chosen = to_tcp(at, address.name);
  }
  if (!chosen) chosen = hidden;
  if (!chosen) throw RpcError("cannot reach the peer: " + why);
  return *chosen;
}

LinkTarget GrpcTransport::to_tcp(const HostPort& at, const std::string& name) const {
  LinkTarget target{.address = "dns:///" + to_string(at), .secure = options_.tls.has_value()};
  if (!target.secure) {
    target.port = is_loopback_host(at.host) ? at.port : 0;
  } else if (options_.tls->check_names && !name.empty() && name.find(':') == std::string::npos) {
    target.name = name;  // gRPC takes a colon for the begin of a port
  } else {
    target.name = options_.tls->server_name;
  }
  return target;
}

Hello GrpcTransport::own_hello(const Peer& peer, Incarnation expected, bool shares) const {
  return {.version = options_.wire_version,
          .features = shares && memory_ != nullptr ? kTakesSegments : 0,
          .id = options_.id,
          .incarnation = incarnation_,
          .target = peer.id,
          .target_incarnation = expected,
          .key = options_.hello_key.value_or(peer.own_key),
          .host_key = own_.host_key,
          .addresses = own_.addresses};
}

std::shared_ptr<Peer> GrpcTransport::find(WorkerId id) const {
  MutexLock lock(mutex_);
  auto found = peers_.find(id);
  return found == peers_.end() ? nullptr : found->second;
}

std::shared_ptr<Peer> GrpcTransport::find_or_make(WorkerId id) {
  MutexLock lock(mutex_);
  auto& peer = peers_[id];
  if (peer == nullptr) peer = std::make_shared<Peer>(id);
  return peer;
}

void GrpcTransport::forget_stranger(const std::shared_ptr<Peer>& peer) {
  MutexLock lock(mutex_);
  MutexLock own(peer->mutex);
  if (peer->member || peer->ignored || peer->gone || !peer->up.empty()) return;
  peer->gone = true;
  peers_.erase(peer->id);
}

std::vector<std::shared_ptr<Peer>> GrpcTransport::all_peers() const {
  MutexLock lock(mutex_);
  std::vector<std::shared_ptr<Peer>> all;
  for (const auto& entry : peers_) all.push_back(entry.second);
  return all;
}

bool GrpcTransport::has_room(const Peer& peer) const {
  return peer.counters.queued_messages == 0 ||
         (peer.counters.queued_bytes < options_.limits.max_queued_bytes &&
          peer.counters.queued_messages < options_.limits.max_queued_messages);
}

void GrpcTransport::took_off(Peer& peer, int64_t bytes, int64_t messages) {
  peer.counters.queued_bytes -= bytes;
  peer.counters.queued_messages -= messages;
  if (has_room(peer)) {
    for (Event* e : std::exchange(peer.writers, {})) e->set();
  }
  if (closed_.load() && peer.counters.queued_messages == 0) idle_.set();
}

void GrpcTransport::forget_writer(Peer& peer, Event& event) {
  MutexLock lock(peer.mutex);
  std::erase(peer.writers, &event);
}

std::vector<OutCursor> GrpcTransport::drop_queue(Peer& peer) {
  std::vector<OutCursor> dropped;
  dropped.reserve(peer.small.size() + peer.bulk.size());
  int64_t bytes = 0;
  for (auto* queue : {&peer.small, &peer.bulk}) {
    for (auto& cursor : *queue) {
      bytes += cursor.message->queued;
      dropped.push_back(std::move(cursor));
    }
    queue->clear();
  }
  took_off(peer, bytes, static_cast<int64_t>(dropped.size()));
  return dropped;
}

void GrpcTransport::tell(WorkerId peer, Incarnation incarnation, PeerState state, const std::string& reason) {
  NoBlockScope scope("a transport callback");
  try {
    receiver_.on_peer(peer, incarnation, state, reason);
  } catch (const std::exception&) {  // on_peer must not throw; the error is dropped
  }
}

/// Sends a message to this worker itself: copies it like the wire; the timer thread delivers it.
void GrpcTransport::loop_back(uint8_t kind, std::string header, std::vector<Payload> payloads) {
  auto message = make_out_message(kind, header, std::move(payloads), options_.limits);
  if (closed_.load()) throw RpcError("send: the transport is closed");
  later(runtime_->now(), [this, kind, header = std::move(header), message = std::move(message)]() mutable {
    NoBlockScope scope("a transport callback");
    try {
      Inbound inbound{options_.id, incarnation_, kind, std::move(header), {}};
      for (const auto& p : message->payloads) {
        Block block;
        if (p.bytes > 0) {
          try {
            block = receiver_.allocate(options_.id, kind, inbound.header, p.bytes, p.device);
          } catch (const WireError&) {
            throw;
          } catch (...) {
            inbound.unread = std::current_exception();
            inbound.payloads.clear();
            break;
          }
          block.bytes = p.bytes;
          std::memcpy(block.data, p.data, static_cast<size_t>(p.bytes));
        }
        inbound.payloads.push_back(std::move(block));
      }
      message.reset();
      inbound.unread ? receiver_.on_unread(std::move(inbound)) : receiver_.on_message(std::move(inbound));
    } catch (const std::exception&) {  // refused: lost like a message on a closed connection
    }
  });
}

void GrpcTransport::close(Duration linger) {
  MutexLock once(close_mutex_);
  if (std::exchange(ended_, true)) return;
  closed_.store(true);
  const TimePoint deadline = runtime_->now() + linger;
  const auto wait_until = [&](auto done) {
    while (runtime_->now() < deadline) {
      idle_.reset();
      if (done()) return;
      try {
        if (!idle_.wait_until(deadline)) return;
      } catch (const Error&) {  // the runtime has stopped: waiting is impossible
        return;
      }
    }
  };
  const auto peers = all_peers();
  wait_until([&] {  // 1. send the queues of connected peers
    for (auto& peer : peers) {
      MutexLock lock(peer->mutex);
      if (!peer->up.empty() && peer->counters.queued_messages > 0) return false;
    }
    return true;
  });
  if (linger > Duration::zero()) {  // 2. end the streams in order, after their last messages were read
    for (auto& peer : peers) {
      MutexLock lock(peer->mutex);
      for (auto& c : peer->up) end_if_idle(*c);
    }
    wait_until([&] {
      for (auto& peer : peers) {
        MutexLock lock(peer->mutex);
        if (!peer->up.empty()) return false;
      }
      return true;
    });
  }
  // 3. wait for running timers of this transport: they are short, but a thread may be suspended
  gate_->close(runtime_->now() + std::chrono::minutes(1));
  if (listener_) listener_->stop();
  cookie_.reset();
  tls_mark_.reset();
  if (listener_) listener_->close();
  grpc_.shutdown();
  if (lane_) lane_->shutdown();
  socket_.reset();
  for (auto& peer : peers) {
    std::vector<OutCursor> dropped;
    MutexLock lock(peer->mutex);
    dropped = drop_queue(*peer);
    runtime_->cancel(std::exchange(peer->give_up, {}));
    for (Event* e : std::exchange(peer->writers, {})) e->set();
    peer->up.clear();
    peer->connecting.reset();
    lock.unlock();
  }
}

}  // namespace inner

std::shared_ptr<Transport> make_grpc_transport(std::shared_ptr<Runtime> runtime, GrpcOptions options,
                                               Receiver& receiver) {
  if (options.id.value < 0)
    throw ValueError(str("make_grpc_transport: worker id ", options.id, " is below 0"));
  if (options.shared_memory_bytes < 0 || options.shared_memory_bytes > inner::kMostSegmentBytes)
    throw ValueError(str("make_grpc_transport: shared_memory_bytes is ", options.shared_memory_bytes,
                         ", it must be 0 to ", inner::kMostSegmentBytes));
  return std::make_shared<inner::GrpcTransport>(std::move(runtime), std::move(options), receiver);
}

}  // namespace weft::rpc
