// One-way messages between workers: a kind byte, a header of bytes, and payloads that are not copied into the
// header. The Agent adds meaning, replies, retries and duplicate suppression. Two implementations: gRPC
// (grpc_transport.h) and the simulated network (sim_transport.h). The simulated one drops, duplicates, delays
// and reorders messages by seed.
//
// How it is used:
//   struct Mine : Receiver { ... };    // allocate, on_message, on_peer: short, must not block
//   auto t = make_grpc_transport(rt, options, receiver); // listens; t->addresses() has the real port
//   t->add_peer(WorkerId{1}, {.addresses = {"10.0.0.2:4711"}});
//   t->send(WorkerId{1}, kind, header, std::move(payloads));
//   ... t->close();                                     // bounded; no callback runs after it returned
//
// Guarantees: a message arrives whole or not at all, with the sender's id and incarnation from the first
// words of its connection (the hello). A break may lose messages; on_peer reports the break. An attempt to
// connect that is refused or fails is repeated, and on_failed_attempt reports the reason.
// Small messages overtake large ones. Callers must expect duplicates: the gRPC transport makes none, the
// simulated transport does. send() to the own id loops back. The gRPC transport accepts only members, which
// are the peers of add_peer, unless it admits strangers (grpc_transport.h). The simulated transport accepts
// all workers.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <weft/distributed/runtime/runtime.h>
#include <weft/distributed/transport/ids.h>

namespace weft::rpc {

inline constexpr uint32_t kWireVersion = 6;
inline constexpr int64_t kMaxFrameBytes = int64_t{4} << 20;
/// An incomplete message may hold fewer than this many payload bytes that on_part has not reported.
inline constexpr int64_t kUncountedBytes = int64_t{1} << 20;
/// Device index of a payload for host memory; GPUs have indices >= 0.
inline constexpr int32_t kHostDevice = -1;

/// A message over the limits of WireLimits, or a message that cannot be decoded.
class WEFT_API WireError : public RpcError {
 public:
  using RpcError::RpcError;
};

/// Owns a piece of memory: calls `fn(arg)` once, at destruction. Move-only; it does not allocate.
/// Thread safety: as a plain value. A transport thread may be the last owner, so `fn` must be callable on any
/// thread and must not block.
class Release {
 public:
  Release() = default;
  Release(void (*fn)(void*), void* arg) : fn_(fn), arg_(arg) {}
  /// A Release that keeps a shared pointer.
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
  /// Gives up ownership and returns the function and its argument.
  std::pair<void (*)(void*), void*> take() { return {std::exchange(fn_, nullptr), arg_}; }

 private:
  void (*fn_)(void*) = nullptr;
  void* arg_ = nullptr;
};

/// Most bytes that a transport puts before the header of a message without payloads.
inline constexpr size_t kHeaderRoom = 32;

/// Contiguous memory that is sent beside the header. The bytes must not change until `release` has run.
struct Payload {
  const void* data = nullptr;
  int64_t bytes = 0;
  /// target device at the receiver, a hint for its allocator; `data` itself is always host memory
  int32_t device = kHostDevice;
  Release release{};
};

/// Memory for an arriving payload, from Receiver::allocate. `release` keeps `data` alive.
struct Block {
  void* data = nullptr;
  int64_t bytes = 0;
  int32_t device = kHostDevice;  ///< as in the sender's Payload
  Release release{};
  /// The memory is shared with the sender's process, which must not write to it until `release` has run.
  bool shared = false;
};

/// A message that has arrived whole.
struct Inbound {
  WorkerId from;
  Incarnation incarnation;
  uint8_t kind = 0;
  std::string header;
  std::vector<Block> payloads;
  std::exception_ptr unread{};  ///< for on_unread: the error of `allocate`
  /// The alternative names in the certificate of the sender's connection. Null: there was no certificate, the
  /// connection is a unix socket, or names are not checked.
  std::shared_ptr<const std::vector<std::string>> names{};
};

/// State of the connection to a peer.
enum class PeerState {
  kUp,  ///< connected; `incarnation` is the answering process's
  /// the connection broke and messages under way may be lost; the transport reconnects if more is queued
  kBroken,
  /// no connection within connect_timeout: the queue is dropped; the next send tries again
  kUnreachable,
  /// one end refused the hello for good (another wire version, life or worker): the queue is dropped;
  /// `incarnation` is the expected one
  kRejected,
};
/// "up", "broken", "unreachable" or "rejected".
WEFT_API const char* to_string(PeerState state);

/// Receives messages. The transport calls it from its own threads, one call at a time per connection.
/// Calls must be short and must not block or throw, except `allocate`; an exception closes the connection.
class WEFT_API Receiver {
 public:
  virtual ~Receiver() = default;

  /// Memory of `bytes` for the next payload of a message of `kind` from `from`. `header` is complete.
  /// The total has been checked against max_message_bytes. May throw: a WireError closes the connection.
  /// After any other error the message's payloads are dropped as they arrive, and on_unread follows.
  virtual Block allocate(WorkerId from, uint8_t kind, const std::string& header, int64_t bytes,
                         int32_t device) = 0;

  /// The same for a payload that has arrived whole in memory shared with the sender (GrpcOptions). Returns
  /// the memory for the message: `lent`, whose `release` gives it back to the sender, or other memory with
  /// the bytes. The default copies the bytes to memory of `allocate`.
  virtual Block take(WorkerId from, uint8_t kind, const std::string& header, Block lent, int32_t device);

  /// Called before `bytes` more of a message's payloads are stored; `held` bytes of the message were reported
  /// before. Messages with less than kUncountedBytes are not reported. May throw, as allocate does.
  virtual void on_part(uint8_t kind, int64_t held, int64_t bytes) {
    static_cast<void>(kind), static_cast<void>(held), static_cast<void>(bytes);
  }
  /// The message to which the `held` bytes belong is no longer incomplete. It is whole, and on_message
  /// follows, or it is dropped.
  virtual void on_part_end(uint8_t kind, int64_t held) { static_cast<void>(kind), static_cast<void>(held); }

  /// A complete message.
  virtual void on_message(Inbound message) = 0;

  /// A message whose payloads found no memory: header, error and no payload. The connection goes on.
  virtual void on_unread(Inbound message) { static_cast<void>(message); }

  /// A peer's connection changed to `state`. `reason` is text for messages and logs.
  virtual void on_peer(WorkerId peer, Incarnation incarnation, PeerState state,
                       const std::string& reason) = 0;

  /// An attempt to connect to `peer` was refused or failed, for that reason. The next one follows: the state
  /// and the queue stay as they are. Called at the first such attempt and whenever the reason changes, until
  /// on_peer. `incarnation` is the expected one.
  virtual void on_failed_attempt(WorkerId peer, Incarnation incarnation, const std::string& reason) {
    static_cast<void>(peer), static_cast<void>(incarnation), static_cast<void>(reason);
  }
};

/// Addresses of a peer.
struct PeerAddress {
  /// "host:port", "unix:/path" (same host) or "sim:...". The first usable address is taken. A unix address is
  /// usable only if both ends have the same `host_key` and this end sees a socket of its user there. An
  /// address that ends with ".lane" is for the same-host lane, and precedes the other addresses.
  std::vector<std::string> addresses{};
  /// Key of a machine's network namespace (boot id and namespace). Unix sockets connect only workers with
  /// equal keys. Empty: unknown.
  std::string host_key{};
  /// Incarnation expected to answer; 0: any. Any other incarnation is kRejected.
  Incarnation incarnation{};
  /// Name of the worker, which its certificate must have under TLS; empty: unknown. It is not sent.
  std::string name{};
};

/// Counters of one peer (debug info).
struct PeerCounters {
  uint64_t messages_sent = 0, messages_received = 0, bytes_sent = 0, bytes_received = 0;
  uint64_t connects = 0, breaks = 0;
  uint64_t refusals = 0;  ///< connections of this side that ended before a welcome
  int64_t queued_bytes = 0, queued_messages = 0;
  bool connected = false;
};

/// Counters of incoming connections whose hello was not welcomed (debug info).
struct UnprovenCounters {
  int64_t open = 0;
  uint64_t closed = 0;  ///< closed by the limits of number and time
};

/// Counters of payloads through memory shared with processes of the same host (debug info).
struct SharedMemoryCounters {
  int64_t bytes = 0;      ///< of shared memory that this side has made and keeps
  uint64_t payloads = 0;  ///< payloads sent through it
  /// Payloads large enough for shared memory that went through the socket. no_room: a limit of bytes or
  /// segments was reached. no_memory: the system gave no memory or file. not_taken: the peer takes no
  /// segments, or was not connected yet.
  uint64_t no_room = 0, no_memory = 0, not_taken = 0;
};

/// Limits of a message and of a send queue, the same for every transport.
struct WireLimits {
  int64_t max_message_bytes = int64_t{16} << 30;  ///< header and payloads of one message, sent or received
  int64_t max_header_bytes = int64_t{256} << 20;  ///< the header alone
  int64_t max_payloads = 1 << 20;                 ///< payloads in one message
  /// bytes in the queue of one peer; an empty queue accepts one message of any size
  int64_t max_queued_bytes = int64_t{4} << 30;
  int64_t max_queued_messages = 1 << 20;  ///< messages in the queue of one peer
};

/// Sends and delivers messages for one worker. Thread safety: every member may be called from any thread.
/// Only wait_writable and close block.
class WEFT_API Transport {
 public:
  virtual ~Transport() = default;

  /// Id and incarnation of this worker.
  virtual WorkerId id() const = 0;
  virtual Incarnation incarnation() const = 0;

  /// The addresses of this worker for its peers: listening addresses with real port numbers, and the host
  /// key. The hello and the rendezvous carry them.
  virtual PeerAddress addresses() const = 0;

  /// Makes `peer` a member with that address. A changed address or incarnation drops the old connection.
  /// Connects at the first send. Throws: ValueError for an address that cannot be parsed; RpcError for a
  /// non-loopback address without TLS or insecure = true.
  virtual void add_peer(WorkerId peer, PeerAddress address) = 0;

  /// Drops the connection and the queue of `peer`. Later messages from it are ignored until add_peer.
  virtual void remove_peer(WorkerId peer) = 0;

  /// Queues one message and returns; see the guarantees at the head. The transport does not interpret `kind`.
  /// Throws, with the payloads released: WireError over the limits. PeerLost for a peer never added.
  /// Overloaded when the peer's queue is full: call wait_writable, then send again. RpcError after close.
  /// A header string with kHeaderRoom bytes of spare capacity saves an allocation.
  virtual void send(WorkerId peer, uint8_t kind, std::string header, std::vector<Payload> payloads = {}) = 0;

  /// Blocks until the peer's queue has room. False: `deadline` came first. Must not be called from callbacks.
  virtual bool wait_writable(WorkerId peer, TimePoint deadline) = 0;

  /// The counters of one peer.
  virtual PeerCounters counters(WorkerId peer) const = 0;
  /// The counters of unproven connections; zero if the transport counts none.
  virtual UnprovenCounters unproven() const { return {}; }
  /// The counters of shared memory; zero if the transport uses none.
  virtual SharedMemoryCounters shared_memory() const { return {}; }

  /// Blocks for at most `linger` until connected peers have read their queues; it does not wait for peers
  /// that also close. Then it ends all connections and threads. No callback runs after the return.
  /// Idempotent.
  virtual void close(Duration linger = std::chrono::seconds(2)) = 0;
};

}  // namespace weft::rpc
