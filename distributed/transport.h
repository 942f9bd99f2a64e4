// One-way messages between workers: a kind byte, a header of bytes and payloads that are never copied into it. What a message
// means, replies, retries and duplicates are the Agent's. Two implementations: gRPC (grpc_transport.h) and the simulated
// network (sim_transport.h), which loses, doubles, delays and reorders by seed.
//
// How it is used:
//   struct Mine : Receiver { ... };                     // allocate, on_message, on_peer: all short, none may block
//   auto t = make_grpc_transport(rt, options, receiver); // listens; t->addresses() has the real port
//   t->add_peer(WorkerId{1}, {.addresses = {"10.0.0.2:4711"}});
//   t->send(WorkerId{1}, kind, header, std::move(payloads));
//   ... t->close();                                     // bounded; no callback runs after it returned
//
// What is promised: a message arrives whole or not at all, with the sender's id and incarnation as the first frame of its
// connection gave them. It may be lost when a connection breaks (on_peer says so), and small messages overtake large ones; the real
// transport never doubles one, but callers must not build on that: the simulated one does. A peer that connects to us becomes
// known by that (its hello carries its addresses), and replies use its connection. send() to our own id loops back.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <weft/distributed/ids.h>
#include <weft/distributed/runtime.h>

namespace weft::rpc {

inline constexpr uint32_t kWireVersion = 1;
inline constexpr int64_t kMaxFrameBytes = int64_t{4} << 20;
/// A payload that stays in host memory; one for a GPU has its index >= 0.
inline constexpr int32_t kHostDevice = -1;

/// A transport's send queue to one peer is full. Throw-away condition: wait_writable, then send again.
class WEFT_API Overloaded : public RpcError {
 public:
  using RpcError::RpcError;
};
/// A message over max_message_bytes, or other misuse of the wire.
class WEFT_API WireError : public RpcError {
 public:
  using RpcError::RpcError;
};

/// Whatever keeps memory alive: calls `fn(arg)` once, at destruction. Move-only, no allocation.
/// Thread safety: as a plain value; the last owner may be a transport thread, so `fn` must be callable there and must not block.
class Release {
 public:
  Release() = default;
  Release(void (*fn)(void*), void* arg) : fn_(fn), arg_(arg) {}
  /// Keeps a shared pointer.
  template <class T> static Release keep(std::shared_ptr<T> owner) {
    return Release([](void* p) { delete static_cast<std::shared_ptr<T>*>(p); },
                   new std::shared_ptr<T>(std::move(owner)));
  }
  Release(Release&& other) noexcept : fn_(std::exchange(other.fn_, nullptr)), arg_(other.arg_) {}
  Release& operator=(Release&& other) noexcept {
    if (this != &other) {
      reset();
      fn_ = std::exchange(other.fn_, nullptr);
      arg_ = other.arg_;
    }
    return *this;
  }
  ~Release() { reset(); }
  void reset() {
    if (fn_ != nullptr) std::exchange(fn_, nullptr)(arg_);
  }
  /// Gives the obligation away as it came.
  std::pair<void (*)(void*), void*> take() { return {std::exchange(fn_, nullptr), arg_}; }

 private:
  void (*fn_)(void*) = nullptr;
  void* arg_ = nullptr;
};

/// A contiguous piece of memory that travels beside the header. The bytes must not change until `release` has run.
struct Payload {
  const void* data = nullptr;
  int64_t bytes = 0;
  int32_t device =
      kHostDevice;  ///< the receiver's device that it goes on to: a hint for its allocator, `data` is host memory in any case
  Release release{};
};

/// Memory for an arriving payload, from Receiver::allocate. `data` is kept alive by `release`.
struct Block {
  void* data = nullptr;
  int64_t bytes = 0;
  int32_t device = kHostDevice;  ///< as the sender's Payload had it
  Release release{};
};

/// A message that has arrived whole.
struct Inbound {
  WorkerId from;
  Incarnation incarnation;
  uint8_t kind = 0;
  std::string header;
  std::vector<Block> payloads;
};

/// Where a peer stands.
enum class PeerState {
  kUp,  ///< a connection is made; `incarnation` is who answered
  kBroken,  ///< the connection broke: messages under way may be lost; it is being made again if there is more to send
  kUnreachable,  ///< no connection within connect_timeout: what was queued is dropped; the next send tries anew
  kRejected,  ///< the peer (or we) refused the hello: wire version, incarnation or id do not fit; what was queued is dropped
};
WEFT_API const char* to_string(PeerState state);

/// Where messages go. The transport calls it from its own threads, one call at a time per connection; calls must be short, must
/// not block and must not throw (an exception closes the connection it came from).
class WEFT_API Receiver {
 public:
  virtual ~Receiver() = default;

  /// Memory for payload `index` of a message of `kind` from `from`; `header` is already whole. The total has been checked against
  /// max_message_bytes before. Throws freely: the message is then refused and its connection closed.
  virtual Block allocate(WorkerId from, uint8_t kind, const std::string& header, int64_t bytes,
                         int32_t device) = 0;

  /// A message, whole.
  virtual void on_message(Inbound message) = 0;

  /// A peer's connection changed. `reason` is text for people.
  virtual void on_peer(WorkerId peer, Incarnation incarnation, PeerState state,
                       const std::string& reason) = 0;
};

/// How a peer is reached.
struct PeerAddress {
  /// "host:port", "unix:/path", "unix-abstract:name" (same host) or "sim:...". The first that suits is used: a unix address only
  /// if `host_key` equals ours.
  std::vector<std::string> addresses{};
  /// Names a machine's network namespace (boot id and namespace); equal means unix sockets reach it. Empty: unknown.
  std::string host_key{};
  /// Who must answer; 0 means anybody. Another one answering is kRejected.
  Incarnation incarnation{};
};

/// Counters of one peer (debug info).
struct PeerCounters {
  uint64_t messages_sent = 0, messages_received = 0, bytes_sent = 0, bytes_received = 0;
  uint64_t connects = 0, breaks = 0;
  int64_t queued_bytes = 0, queued_messages = 0;
};

/// What a message and a queue may hold; the same for every transport.
struct WireLimits {
  int64_t max_message_bytes = int64_t{16} << 30;  ///< header and payloads of one message, both ways
  int64_t max_header_bytes = int64_t{256} << 20;  ///< header alone
  int64_t max_payloads = 1 << 20;                 ///< payloads in one message
  int64_t max_queued_bytes = int64_t{4}
                             << 30;       ///< per peer; one message is always accepted on an empty queue
  int64_t max_queued_messages = 1 << 20;  ///< per peer
};

/// Sends and delivers messages for one worker. Thread safety: every member from any thread; none blocks but wait_writable and close.
class WEFT_API Transport {
 public:
  virtual ~Transport() = default;

  /// Who we are.
  virtual WorkerId id() const = 0;
  virtual Incarnation incarnation() const = 0;

  /// How others reach us: listening addresses with real port numbers, and our host key. Part of the hello and of a rendezvous.
  virtual PeerAddress addresses() const = 0;

  /// Tells where `peer` lives, or that it has moved (a changed address or incarnation drops its old connection). Connects lazily.
  /// Throws: ValueError for an address that cannot be parsed; RpcError for a non-loopback address without TLS or insecure = true.
  virtual void add_peer(WorkerId peer, PeerAddress address) = 0;

  /// Drops the connection and what is queued; later messages from it are ignored until add_peer.
  virtual void remove_peer(WorkerId peer) = 0;

  /// Queues one message and returns; delivery is as promised above. `kind` is for the Agent and for fault rules.
  /// Throws: WireError over the limits; PeerLost for a peer never added; Overloaded when its queue is full; RpcError when closed.
  /// The payloads are released in each of these cases too.
  virtual void send(WorkerId peer, uint8_t kind, std::string header, std::vector<Payload> payloads = {}) = 0;

  /// Waits until the peer's queue has room. False: `deadline` came first. Blocks: not from callbacks.
  virtual bool wait_writable(WorkerId peer, TimePoint deadline) = 0;

  /// What has passed to and from one peer.
  virtual PeerCounters counters(WorkerId peer) const = 0;

  /// Sends what is queued to connected peers that do not close too, and waits until they have read it, for at most `linger`; then ends all
  /// connections and threads.
  /// No callback runs after it returned. Idempotent.
  virtual void close(Duration linger = std::chrono::seconds(2)) = 0;
};

}  // namespace weft::rpc
