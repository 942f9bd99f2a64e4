// The connections of the gRPC transport: attempts, events, breaks. The steps follow the includes.
// grpc_handshake.cpp has the checks of step 2, grpc_writes.cpp the frames, grpc_link.cpp the calls of gRPC.
#include <weft/distributed/transport/inner/grpc_peers.h>

#include <algorithm>
#include <new>
#include <thread>

// An allocation may fail in any event. It ends its connection at most: a break, whose messages under way are
// lost. A queue that finds no memory for a new connection waits for the next send.
//
// The steps of a connection:
//  1. The first send to a peer without a connection opens a link. The hello comes with it, as metadata of the
//     stream. So the listener reads nothing from a stream before it has welcomed it.
//  2. The listener checks wire version, target, cookie, certificate name, key and life. It answers welcome,
//     or reject with a reason, or bye with a reason. After a bye the connecting side tries again, since a
//     member may be added late. It reports the reason of each failed attempt to its receiver at once.
//  3. Each side reports kUp when its first connection to the other is made. Messages flow both ways on it.
//     Two workers that connect at once get two connections; each sends on its first one and both read from
//     both.
//  4. A break drops the messages under way. Queued messages open a new link.
//  5. Without a connection within the timeout, the queue is dropped and kUnreachable reported. The next
//     send begins again at 1.
//  6. The side that opened a stream ends it; the other side asks for that with a bye record. All earlier
//     messages have then been read.

namespace weft::rpc::inner {

namespace {
/// before the second attempt to connect; it doubles four times
constexpr Duration kRetryPause = std::chrono::milliseconds(20);
/// looks at a listener without a cookie, over about two seconds, after which none is expected to come
constexpr int kUnprovenLooks = 10;

/// "worker 1 at 127.0.0.1:4711", with all its addresses.
std::string address_text(const Peer& peer) WEFT_REQUIRES(peer.mutex) {
  std::string where;
  for (const auto& a : peer.address.addresses) where += (where.empty() ? "" : ", ") + a;
  return str("worker ", peer.id, " at ", where);
}
}  // namespace

/// Decoded records of one connection.
class GrpcTransport::Sink final : public DecoderSink {
 public:
  Sink(GrpcTransport& transport, Connection& connection) : t_(transport), c_(connection) {}
  void on_hello(RecordType type, Hello hello) override { t_.greet(c_, type, hello); }
  void on_text(RecordType type, std::string text) override {
    if (type == RecordType::kReject && c_.outgoing) {
      c_.reject = text;
      throw WireError(text);
    }
    c_.bye = text;
    if (!c_.outgoing || !c_.peer) return;
    MutexLock lock(c_.peer->mutex);
    c_.ending = true;
    t_.finish_if_idle(c_);
  }
  Block allocate(uint8_t kind, const std::string& header, int64_t bytes, int32_t device) override {
    if (!c_.peer) throw WireError("wire: a message before the welcome");
    return t_.receiver_.allocate(c_.peer->id, kind, header, bytes, device);
  }
  void on_segment(RecordType type, uint32_t number) override {
    if (!c_.peer || !c_.segments) return DecoderSink::on_segment(type, number);
    if (type == RecordType::kForget) return c_.segments->forget(number);
    std::optional<File> file;
    {
      MutexLock lock(c_.mutex);
      if (c_.link != nullptr) file = c_.link->take_file();
    }
    c_.segments->add(number, std::move(file));
  }
  Block borrow(uint32_t number, int64_t bytes) override {
    if (!c_.peer || !c_.segments) return DecoderSink::borrow(number, bytes);
    return c_.segments->borrow(number, bytes);
  }
  Block take(uint8_t kind, const std::string& header, Block lent, int32_t device) override {
    return t_.receiver_.take(c_.peer->id, kind, header, std::move(lent), device);
  }
  void on_part(uint8_t kind, int64_t held, int64_t bytes) override {
    t_.receiver_.on_part(kind, held, bytes);
  }
  void on_part_end(uint8_t kind, int64_t held) override { t_.receiver_.on_part_end(kind, held); }
  void on_message(uint8_t kind, std::string header, std::vector<Block> payloads) override {
    if (!c_.peer) throw WireError("wire: a message before the welcome");
    int64_t bytes = static_cast<int64_t>(header.size());
    for (const auto& p : payloads) bytes += p.bytes;
    if (c_.peer->ignored) return;
    c_.peer->messages_received.fetch_add(1, std::memory_order_relaxed);
    c_.peer->bytes_received.fetch_add(static_cast<uint64_t>(bytes), std::memory_order_relaxed);
    t_.receiver_.on_message(
        {c_.peer->id, c_.incarnation, kind, std::move(header), std::move(payloads), {}, c_.names});
  }
  void on_unread(uint8_t kind, std::string header, std::exception_ptr error) override {
    if (c_.peer->ignored) return;
    t_.receiver_.on_unread({c_.peer->id, c_.incarnation, kind, std::move(header), {}, std::move(error)});
  }

 private:
  GrpcTransport& t_;
  Connection& c_;
};

std::shared_ptr<Connection> GrpcTransport::new_connection(Link* link, bool outgoing) {
  auto c = std::make_shared<Connection>(options_.progress_timeout);
  c->outgoing = outgoing;
  c->sink = std::make_unique<Sink>(*this, *c);
  c->decoder = std::make_unique<Decoder>(options_.limits, *c->sink);
  MutexLock lock(c->mutex);
  c->link = link;
  return c;
}

void GrpcTransport::cancel(Connection& c, const std::string& reason) {
  MutexLock lock(c.mutex);
  if (c.link != nullptr) c.link->engine.cancel(*c.link, reason);
}

void GrpcTransport::begin_connecting(const std::shared_ptr<Peer>& peer) {
  if (peer->give_up.value != 0) return;
  const Duration limit = peer->was_up ? options_.reconnect_timeout : options_.connect_timeout;
  peer->give_up = later(runtime_->now() + limit, [this, peer] {
    give_up(peer, PeerState::kUnreachable, "no connection within the timeout");
  });
  peer->attempts = peer->unproven_looks = 0;
  peer->failure.clear();
  try {
    connect(peer);
  } catch (...) {  // no memory
    runtime_->cancel(std::exchange(peer->give_up, {}));
    throw;
  }
}

void GrpcTransport::connect(const std::shared_ptr<Peer>& peer) {
  try {
    open_link(peer);
  } catch (const std::bad_alloc&) {
    peer->connecting.reset();
    again_soon(peer);
    note_failure(peer, peer->address.incarnation, kNoMemory);
  }
}

void GrpcTransport::open_link(const std::shared_ptr<Peer>& peer) {
  LinkTarget target;
  try {
    target = choose(peer->address);
  } catch (const Error& e) {
    return give_up_soon(peer, PeerState::kUnreachable, e.what());
  }
  Hello hello = own_hello(*peer, peer->address.incarnation, target.lane);
  if (target.port != 0) {
    const auto cookie = find_cookie(target.port);
    if (!cookie && !options_.insecure) {  // the listener may come yet
      const auto user = listening_user(target.port);
      if (user && *user != geteuid())
        return give_up_soon(peer, PeerState::kRejected,
                            str("a process of user ", *user, " listens there, this is user ", geteuid()));
      if (speaks_tls(target.port)) return give_up_soon(peer, PeerState::kRejected, kNeedsTls);
      peer->unproven_looks = user ? peer->unproven_looks + 1 : 0;
      if (peer->unproven_looks > kUnprovenLooks && !peer->was_up) {
        peer->failure.clear();
        return give_up_soon(
            peer, PeerState::kRejected,
            "a process of this user listens there, but its folder of sockets is not this one's, "
            "as in another container: share the folder (XDG_RUNTIME_DIR), or set tls or "
            "insecure = true at both ends");
      }
      again_soon(peer);
      return note_failure(
          peer, peer->address.incarnation,
          "no process of this user listens there, or its folder of sockets is not this one's");
    }
    peer->unproven_looks = 0;
    hello.cookie = cookie.value_or("");
  }
  auto c = new_connection(nullptr, true);
  c->peer = peer;
  c->expected = peer->address.incarnation;
  if (hello.features & kTakesSegments) c->segments = lane_->make_passed();
  peer->connecting = c;
  c->writing = true;
  LinkEngine& engine = target.lane ? static_cast<LinkEngine&>(*lane_) : grpc_;
  Link* link = engine.connect(
      target, c, options_.first_frame ? *options_.first_frame : encode_hello(RecordType::kHello, hello));
  MutexLock lock(c->mutex);
  c->link = link;
}

void GrpcTransport::again_soon(const std::shared_ptr<Peer>& peer) {
  const Duration pause = kRetryPause * (1 << std::min(peer->attempts++, 4));
  later(runtime_->now() + pause, [this, peer] { try_again(peer); });
}

void GrpcTransport::give_up_soon(const std::shared_ptr<Peer>& peer, PeerState state, const std::string& why) {
  runtime_->cancel(std::exchange(peer->give_up, {}));
  peer->give_up = later(runtime_->now(), [this, peer, state, why] { give_up(peer, state, why); });
}

void GrpcTransport::give_up(const std::shared_ptr<Peer>& peer, PeerState state, const std::string& why) {
  MutexLock told(telling_);
  MutexLock lock(peer->mutex);
  peer->give_up = {};
  if (!peer->up.empty()) return;
  auto c = std::exchange(peer->connecting, nullptr);
  auto dropped = drop_queue(*peer);
  const Incarnation expected = peer->address.incarnation;
  const std::string last = peer->failure.empty() ? "" : "; the last attempt: " + peer->failure;
  const std::string whom = address_text(*peer);
  lock.unlock();
  if (c != nullptr) cancel(*c, why);
  tell(peer->id, expected, state, str(whom, ": ", why, last));
}

void GrpcTransport::note_failure(const std::shared_ptr<Peer>& peer, Incarnation expected,
                                 std::string_view why) noexcept {
  if (peer->failure == why) return;
  try {
    later(runtime_->now(),
          [this, peer, expected, text = std::string(why)] { tell_failure(peer, expected, text); });
    peer->failure = why;
  } catch (const std::exception&) {  // no memory: the next attempt may report it
  }
}

void GrpcTransport::tell_failure(const std::shared_ptr<Peer>& peer, Incarnation expected,
                                 const std::string& why) {
  MutexLock told(telling_);
  MutexLock lock(peer->mutex);
  if (peer->give_up.value == 0 || !peer->up.empty()) return;  // connected meanwhile, or given up
  const std::string text = str(address_text(*peer), ": ", why);
  lock.unlock();
  NoBlockScope scope("a transport callback");
  try {
    receiver_.on_failed_attempt(peer->id, expected, text);
  } catch (const std::exception&) {  // as in tell()
  }
}

bool GrpcTransport::on_accepted(Link& link, const std::string& hello) {
  std::shared_ptr<Connection> c;
  try {
    c = new_connection(&link, false);
    c->proof = link.proof;
    link.owner = c;
  } catch (const std::bad_alloc&) {
    link.engine.cancel(link, kNoMemory);
    return false;
  }
  NoBlockScope scope("a transport callback");
  try {
    c->decoder->feed(hello.data(), hello.size());
    c->decoder->end_frame();
    if (c->peer == nullptr) throw WireError("wire: a stream without a hello");
    return true;
  } catch (const std::bad_alloc&) {
    c->later = true;
    refuse(*c, link, kNoMemory);
    return false;
  } catch (const std::exception& e) {
    refuse(*c, link, e.what());
    return false;
  }
}

void GrpcTransport::greet(Connection& c, RecordType type, const Hello& hello) {
  admission_.check_hello(c, type, hello);
  auto peer = c.outgoing ? c.peer : options_.admit_strangers ? find_or_make(hello.id) : find(hello.id);
  if (peer == nullptr) peer = std::make_shared<Peer>(hello.id);  // for the refusal alone
  std::vector<std::shared_ptr<Connection>> old;
  TimerId timer;
  bool first = false;
  MutexLock told(telling_);
  {
    MutexLock lock(peer->mutex);
    admission_.check_peer(c, *peer, hello);
    MutexLock own(c.mutex);
    if (c.link == nullptr) return;
    auto self = std::static_pointer_cast<Connection>(c.link->owner);
    first = peer->up.empty();
    // A life connects again only when it has lost the connection that it had made before.
    if (!c.outgoing) {
      for (auto& other : peer->up)
        if (!other->outgoing) old.push_back(other);
    }
    c.peer = peer;
    c.incarnation = hello.incarnation;
    if (hello.key != 0) peer->shown_key = hello.key, peer->shown_by = hello.incarnation;
    const bool in_lane = lane_ && &c.link->engine == lane_.get();
    if (in_lane && memory_ != nullptr && (hello.features & kTakesSegments)) c.shares = memory_->open();
    if (c.proof.secure && options_.tls && options_.tls->check_names)
      c.names = std::make_shared<const std::vector<std::string>>(c.proof.names);
    if (old.empty()) {
      peer->up.push_back(self);
    } else {
      peer->up.insert(peer->up.begin(), self);
    }
    peer->was_up = true;
    peer->silent_ends = 0;
    ++peer->counters.connects;
    if (peer->connecting == self) peer->connecting.reset();
    timer = std::exchange(peer->give_up, {});
    if (!c.outgoing) {
      const Hello mine = own_hello(*peer, hello.incarnation, in_lane);
      if (mine.features & kTakesSegments) c.segments = lane_->make_passed();
      write(c, *c.link, frame_of(encode_hello(RecordType::kWelcome, mine)));
    }
  }
  if (!c.outgoing && listener_) listener_->prove(c.proof.peer);
  if (timer.value != 0) runtime_->cancel(timer);
  for (auto& other : old) cancel(*other, "the peer has connected again");
  if (first) tell(peer->id, hello.incarnation, PeerState::kUp, "");
  told.unlock();
  MutexLock lock(peer->mutex);
  pump(*peer);
}

std::span<char> GrpcTransport::room(Link& link) {
  NoBlockScope scope("a transport callback");
  try {
    return static_cast<Connection*>(link.owner.get())->decoder->room();
  } catch (const std::exception&) {  // on_bytes meets the same error
    return {};
  }
}

void GrpcTransport::on_waiting(Link& link) { note_progress(link.owner); }

bool GrpcTransport::on_bytes(Link& link, const void* data, size_t n, bool last) {
  auto& c = *static_cast<Connection*>(link.owner.get());
  if (c.incarnation.value == 0) c.proof = link.proof;  // before the welcome
  NoBlockScope scope("a transport callback");
  try {
    if (last) {
      c.decoder->end_frame();
      note_progress(link.owner);
    } else {
      c.decoder->feed(data, n);
    }
    return true;
  } catch (const std::bad_alloc&) {
    c.later = true;
    refuse(c, link, kNoMemory);
    return false;
  } catch (const std::exception& e) {
    refuse(c, link, e.what());
    return false;
  }
}

void GrpcTransport::note_progress(const std::shared_ptr<void>& owner) {
  auto& c = *static_cast<Connection*>(owner.get());
  const TimePoint now = runtime_->now();
  if (c.progress.note(*c.decoder, now))
    watch_progress(std::static_pointer_cast<Connection>(owner), now + options_.progress_timeout);
}

/// Ends a connection whose incomplete message gets no byte. One timer per connection.
void GrpcTransport::watch_progress(const std::shared_ptr<Connection>& c, TimePoint when) {
  later(when, [this, weak = std::weak_ptr(c), when] {
    const auto held = weak.lock();
    if (held == nullptr) return;
    const TimePoint next = held->progress.due(runtime_->now(), when);
    if (next == kNever) return;
    if (next != TimePoint()) return watch_progress(held, next);
    cancel(*held, str("no byte of an incomplete message came for ",
                      std::chrono::duration<double>(options_.progress_timeout).count(), " s"));
  });
}

void GrpcTransport::refuse(Connection& c, Link& link, std::string_view why) {
  std::optional<MutexLock> lock;
  if (c.peer != nullptr) lock.emplace(c.peer->mutex);
  const bool again = c.later || (c.peer != nullptr && !c.outgoing);  // it may come again
  if (c.outgoing || c.writing || c.finishing) return link.engine.cancel(link, why);
  c.finishing = true;
  try {
    if (c.bye.empty()) c.bye = why;
    const RecordType type = again ? RecordType::kBye : RecordType::kReject;
    link.engine.refuse(link, frame_of(encode_text(type, std::string(why))));
  } catch (const std::bad_alloc&) {
    link.engine.cancel(link, why);
  }
}

void GrpcTransport::on_read_end(Link& link) {
  auto& c = *static_cast<Connection*>(link.owner.get());
  if (c.peer == nullptr) {
    link.engine.cancel(link, "the stream ended before its hello");
    return;
  }
  MutexLock lock(c.peer->mutex);
  c.read_ended = true;
  if (!c.outgoing) finish_if_idle(c);
}

void GrpcTransport::on_closed(Link& link, const std::string& link_reason) {
  auto c = std::static_pointer_cast<Connection>(link.owner);
  link.owner.reset();
  if (c == nullptr) return;  // there was no memory for it
  c->decoder->abandon();
  c->segments.reset();
  if (c->peer == nullptr) {
    MutexLock lock(c->mutex);
    c->link = nullptr;
    return;
  }
  const std::shared_ptr<Peer> peer = c->peer;
  std::optional<OutCursor> cut;  // destroyed after the lock, as `after` is
  After after;
  bool broken = false;
  MutexLock told(telling_);
  try {
    MutexLock lock(peer->mutex);
    while (c->calls > 0) {  // a thread writes to the link
      lock.unlock();
      std::this_thread::yield();
      lock.lock();
    }
    {
      MutexLock own(c->mutex);
      c->link = nullptr;
    }
    broken = std::erase(peer->up, c) > 0 && peer->up.empty();
    if (broken) ++peer->counters.breaks;
    const bool mine = peer->connecting == c;
    if (mine) {
      peer->connecting.reset();
      ++peer->counters.refusals;
    }
    cut.swap(c->partial);
    took_off(*peer, c->writing_bytes + (cut ? cut->message->queued : 0), c->writing_messages + (cut ? 1 : 0));
    if (broken) after.state = PeerState::kBroken;  // from here on there may be no memory
    after.reason = !c->reject.empty() ? c->reject : !c->bye.empty() ? c->bye : link_reason;
    go_on(peer, *c, mine, after);
    lock.unlock();
    if (after.stop_timer.value != 0) runtime_->cancel(after.stop_timer);
    if (after.stranger) forget_stranger(peer);
    const Incarnation who = after.state == PeerState::kRejected ? c->expected : c->incarnation;
    if (after.state) tell(peer->id, who, *after.state, after.reason);
  } catch (const std::exception&) {  // the next send connects, or the end of the attempts is reported
    if (broken) tell(peer->id, c->incarnation, PeerState::kBroken, kNoMemory);
  }
  if (closed_.load()) idle_.set();
}

void GrpcTransport::go_on(const std::shared_ptr<Peer>& peer, Connection& c, bool mine, After& after) {
  if (c.reject.empty() && c.bye.empty() && mine && admission_.is_final(*peer, after.reason))
    c.reject = after.reason;
  if (const uint64_t shares = std::exchange(c.shares, 0); shares != 0) {
    memory_->close(shares);
    for (OutCursor& waiting : peer->bulk)  // they go whole, and the memory is no longer counted
      if (waiting.message->placed_for == shares) waiting.message->placed.clear();
  }
  if (mine && !c.reject.empty() && peer->up.empty()) {
    after.state = PeerState::kRejected;
    after.dropped = drop_queue(*peer);
    after.stop_timer = std::exchange(peer->give_up, {});
  } else if (!closed_.load() && peer->member && peer->up.empty()) {
    if (mine && peer->give_up.value != 0) {  // an early failure: try again soon
      again_soon(peer);
      note_failure(peer, c.expected, after.reason);
    } else if (!peer->small.empty() || !peer->bulk.empty()) {
      begin_connecting(peer);
    }
  } else if (!closed_.load() && !peer->up.empty()) {
    pump(*peer);  // send the messages that waited for the lost connection
  } else if (!peer->member && peer->up.empty()) {
    after.dropped = drop_queue(*peer);
    after.stranger = true;
  }
}

void GrpcTransport::try_again(const std::shared_ptr<Peer>& peer) {
  MutexLock lock(peer->mutex);
  if (closed_.load() || peer->give_up.value == 0 || peer->connecting != nullptr || !peer->up.empty()) return;
  connect(peer);
}

}  // namespace weft::rpc::inner
