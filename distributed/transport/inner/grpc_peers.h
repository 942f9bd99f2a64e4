// The class of the gRPC transport: its peers, their queues and connections. grpc_transport.cpp has the
// public functions, grpc_connection.cpp the events of links, grpc_writes.cpp the frames. Internal; it needs
// no gRPC header.
//
// Locks. `mutex_` guards the map of peers; each peer's mutex guards its queue and connections;
// `Connection::mutex` guards only its link pointer. Lock order: a peer's mutex, then a connection's;
// neither is held when mutex_ is taken, and a peer's mutex may be taken under it. The Receiver is called
// without any of them. The two engines have events at once. So `telling_` is held, before all others, from a
// change of a peer's state until its report to the Receiver. So reports keep their order.
#pragma once

#include <array>
#include <deque>
#include <unordered_map>

#include <weft/distributed/runtime/sync.h>
#include <weft/distributed/transport/address.h>
#include <weft/distributed/transport/grpc_transport.h>
#include <weft/distributed/transport/inner/frame.h>
#include <weft/distributed/transport/inner/grpc_link.h>
#include <weft/distributed/transport/inner/progress.h>
#include <weft/distributed/transport/inner/same_host.h>
#include <weft/distributed/transport/inner/table_by_id.h>
#include <weft/distributed/transport/inner/tcp_listener.h>
#include <weft/distributed/transport/inner/user_folder.h>

namespace weft::rpc::inner {

struct Connection;

inline constexpr char kNeedsTls[] = "that port speaks TLS, and this side has no certificates: set tls";

/// Another worker: its address, queue and connections.
struct Peer : std::enable_shared_from_this<Peer> {
  explicit Peer(WorkerId w) : id(w) {}
  const WorkerId id;
  Mutex mutex;
  PeerAddress address WEFT_GUARDED_BY(mutex);
  bool member WEFT_GUARDED_BY(mutex) = false;            // added; else a stranger, kept while it is connected
  bool gone WEFT_GUARDED_BY(mutex) = false;              // a stranger that is no longer in the map
  std::vector<Incarnation> past WEFT_GUARDED_BY(mutex);  // the last lives that have a successor
  std::atomic<bool> ignored{false};  // changes under the mutex; readers of its messages take none
  std::atomic<uint64_t> messages_received{0}, bytes_received{0};
  // Keys in the hellos: this side's for the peer, and the one that a life of the peer has shown.
  uint64_t own_key WEFT_GUARDED_BY(mutex) = 0, shown_key WEFT_GUARDED_BY(mutex) = 0;
  Incarnation shown_by WEFT_GUARDED_BY(mutex);
  bool was_up WEFT_GUARDED_BY(mutex) = false;
  std::vector<std::shared_ptr<Connection>> up WEFT_GUARDED_BY(mutex);
  std::shared_ptr<Connection> connecting WEFT_GUARDED_BY(mutex);
  TimerId give_up WEFT_GUARDED_BY(mutex);         // set during connection attempts
  int attempts WEFT_GUARDED_BY(mutex) = 0;        // that have failed since then
  int unproven_looks WEFT_GUARDED_BY(mutex) = 0;  // in a row at a listener of this user without a cookie
  int silent_ends WEFT_GUARDED_BY(mutex) =
      0;  // of attempts in a row, after the TLS handshake and without a word
  std::string failure WEFT_GUARDED_BY(mutex);  // the reason of the last one that has failed since then
  std::deque<OutCursor> small WEFT_GUARDED_BY(mutex), bulk WEFT_GUARDED_BY(mutex);
  PeerCounters counters WEFT_GUARDED_BY(mutex);
  std::vector<Event*> writers WEFT_GUARDED_BY(mutex);
};

/// One link and its handshake, decoder and current writes.
struct Connection {
  explicit Connection(Duration progress_timeout) : progress(progress_timeout) {}
  Mutex mutex;
  Link* link WEFT_GUARDED_BY(mutex) = nullptr;  // null once closed
  bool outgoing = false;

  // Used by the poll thread of its engine only.
  std::unique_ptr<DecoderSink> sink;
  std::unique_ptr<Decoder> decoder;
  std::string reject;                        // reason of either side to refuse the handshake
  bool later = false;                        // the refusal may end: the other side may try again
  std::string bye;                           // reason of the other side to end the connection
  PeerProof proof;                           // of the other side
  std::unique_ptr<PassedSegments> segments;  // of the other side, if this side has stated that it takes them

  Progress progress;

  // Written on the poll thread before the connection is in its peer's list.
  std::shared_ptr<Peer> peer;
  Incarnation incarnation;
  Incarnation expected;                                   // outgoing: of the peer, in the hello; 0: any
  std::shared_ptr<const std::vector<std::string>> names;  // as Inbound::names
  uint64_t shares = 0;  // the link's number in the SharedMemory; 0: the other side takes no segments

  // Guarded by the peer's mutex, once the connection has a peer.
  bool writing = false;
  int calls = 0;  // threads inside LinkEngine::write without the lock; on_closed waits for them
  bool read_ended = false;
  bool ending = false;  // the accepting side has asked the connecting side to end it
  bool finishing = false;
  std::optional<OutCursor> partial;  // a partly sent large message
  int64_t writing_bytes = 0, writing_messages = 0;
};

/// Lets timers run only while the transport is open.
class Gate {
 public:
  explicit Gate(Runtime& runtime) : empty_(runtime, "the transport's last timer") {}
  bool enter() {
    MutexLock lock(mutex_);
    if (closed_) return false;
    ++inside_;
    return true;
  }
  void leave() {
    MutexLock lock(mutex_);
    if (--inside_ == 0 && closed_) empty_.set();
  }
  struct Inside {  ///< leaves at its end
    Gate& gate;
    ~Inside() { gate.leave(); }
  };
  void close(TimePoint deadline) {
    {
      MutexLock lock(mutex_);
      closed_ = true;
      if (inside_ == 0) return;
    }
    empty_.wait_until(deadline);
  }

 private:
  Mutex mutex_;
  bool closed_ WEFT_GUARDED_BY(mutex_) = false;
  int inside_ WEFT_GUARDED_BY(mutex_) = 0;
  Event empty_;
};

/// The rules of a handshake. Each check throws WireError for the end of the connection.
class Admission {
 public:
  /// Keeps the references. `secret` may be set later: the cookie's text, which hellos over TCP need.
  Admission(const GrpcOptions& options, const Incarnation& incarnation, const std::string& secret,
            const GrpcEngine& grpc)
      : options_(options), incarnation_(incarnation), secret_(secret), grpc_(grpc) {}

  /// Before the peer is looked up.
  void check_hello(Connection& c, RecordType type, const Hello& hello) const;
  /// Before the connection joins the peer's list.
  void check_peer(Connection& c, const Peer& peer, const Hello& hello) const WEFT_REQUIRES(peer.mutex);

  /// Adds to the reason of a failed attempt. True: trying again cannot help.
  bool is_final(Peer& peer, std::string& reason) const WEFT_REQUIRES(peer.mutex);

 private:
  void check_proof(Connection& c, const Hello& hello) const;
  void check_life(Connection& c, const Peer& peer, const Hello& hello) const WEFT_REQUIRES(peer.mutex);
  void check_name(Connection& c, const Peer& peer) const WEFT_REQUIRES(peer.mutex);
  void check_key(Connection& c, const Peer& peer, const Hello& hello) const WEFT_REQUIRES(peer.mutex);
  /// Ends the handshake with an error. `for_now`: the connecting side may try again.
  [[noreturn]] static void turn_away(Connection& c, const std::string& why, bool for_now = false);

  const GrpcOptions& options_;
  const Incarnation& incarnation_;
  const std::string& secret_;
  const GrpcEngine& grpc_;  // for trouble with the own certificate
};

class GrpcTransport final : public Transport, private LinkEvents {
 public:
  GrpcTransport(std::shared_ptr<Runtime> runtime, GrpcOptions options, Receiver& receiver);
  ~GrpcTransport() override { GrpcTransport::close(Duration::zero()); }

  WorkerId id() const override { return options_.id; }
  Incarnation incarnation() const override { return incarnation_; }
  PeerAddress addresses() const override { return own_; }

  void add_peer(WorkerId id, PeerAddress address) override;
  void remove_peer(WorkerId id) override;
  void send(WorkerId id, uint8_t kind, std::string header, std::vector<Payload> payloads) override;
  bool wait_writable(WorkerId id, TimePoint deadline) override;
  PeerCounters counters(WorkerId id) const override;
  UnprovenCounters unproven() const override;
  SharedMemoryCounters shared_memory() const override;
  void close(Duration linger) override;

 private:
  // --- listening and addresses ---

  void listen_tcp();
  void mark_tls_port(uint16_t port);

  /// The lane's address, if it is usable, else the first usable one. Throws: ValueError, RpcError.
  LinkTarget choose(const PeerAddress& address) const;
  LinkTarget to_tcp(const HostPort& at, const std::string& name) const;
  /// `shares`: on a link that can have shared memory.
  Hello own_hello(const Peer& peer, Incarnation expected, bool shares) const WEFT_REQUIRES(peer.mutex);
  static Frame frame_of(const std::string& bytes) {
    Frame frame;
    frame.append_own(bytes.data(), bytes.size());
    return frame;
  }

  // --- peers ---

  std::shared_ptr<Peer> find(WorkerId id) const;
  std::shared_ptr<Peer> find_or_make(WorkerId id);
  /// Removes a stranger without connections from the map.
  void forget_stranger(const std::shared_ptr<Peer>& peer);
  std::vector<std::shared_ptr<Peer>> all_peers() const;
  bool has_room(const Peer& peer) const WEFT_REQUIRES(peer.mutex);
  /// Throws as send() where it takes no message for the peer now. `counted`: one that counts in the queue.
  void check_takes(const Peer& peer, bool counted = false) const WEFT_REQUIRES(peer.mutex);
  void took_off(Peer& peer, int64_t bytes, int64_t messages) WEFT_REQUIRES(peer.mutex);
  void forget_writer(Peer& peer, Event& event);
  /// Empties a queue; the messages are destroyed by the caller, outside the lock.
  std::vector<OutCursor> drop_queue(Peer& peer) WEFT_REQUIRES(peer.mutex);
  void tell(WorkerId peer, Incarnation incarnation, PeerState state, const std::string& reason);

  /// Runs `fn` on the timer thread, unless the transport has closed by then.
  template <class Fn> TimerId later(TimePoint when, Fn fn) {
    return runtime_->call_at(when, [gate = gate_, fn = std::move(fn)]() mutable {
      if (!gate->enter()) return;
      const Gate::Inside inside{*gate};
      fn();
    });
  }

  // --- connections ---

  std::shared_ptr<Connection> new_connection(Link* link, bool outgoing);
  void cancel(Connection& c, const std::string& reason);

  /// Starts connection attempts to a peer, unless some are running.
  void begin_connecting(const std::shared_ptr<Peer>& peer) WEFT_REQUIRES(peer->mutex);
  void begin_connecting(Peer& peer) WEFT_REQUIRES(peer.mutex) WEFT_NO_THREAD_SAFETY_ANALYSIS {
    begin_connecting(peer.shared_from_this());
  }
  void connect(const std::shared_ptr<Peer>& peer) WEFT_REQUIRES(peer->mutex);
  void open_link(const std::shared_ptr<Peer>& peer) WEFT_REQUIRES(peer->mutex);
  /// Tries again after a pause, which grows.
  void again_soon(const std::shared_ptr<Peer>& peer) WEFT_REQUIRES(peer->mutex);
  /// Reports `state` to the receiver, in a separate callback.
  void give_up_soon(const std::shared_ptr<Peer>& peer, PeerState state, const std::string& why)
      WEFT_REQUIRES(peer->mutex);
  void give_up(const std::shared_ptr<Peer>& peer, PeerState state, const std::string& why);
  /// Keeps the reason of a failed attempt, and reports a new reason to the receiver in a separate callback.
  void note_failure(const std::shared_ptr<Peer>& peer, Incarnation expected, std::string_view why) noexcept
      WEFT_REQUIRES(peer->mutex);
  void tell_failure(const std::shared_ptr<Peer>& peer, Incarnation expected, const std::string& why);

  /// The next queued messages, as far as they fit. It counts them as being written.
  Frame next_frame(Peer& peer, Connection& c) WEFT_REQUIRES(peer.mutex);
  /// Puts queued messages on the first connection if it is free. It may give up the lock for a while; the
  /// caller keeps the peer. Without memory for a frame it breaks the connection.
  void pump(Peer& peer) WEFT_REQUIRES(peer.mutex);
  /// Ends the write of a frame. True: the connection goes on.
  bool wrote(Peer& peer, Connection& c) WEFT_REQUIRES(peer.mutex);
  /// Writes a frame, as LinkEngine::write. Under the peer's mutex.
  static bool write(Connection& c, Link& link, Frame frame, bool now = true);
  /// For a connection in its peer's list, under the peer's mutex. on_closed removes it from that list first.
  static Link* link_of(Connection& c) WEFT_NO_THREAD_SAFETY_ANALYSIS { return c.link; }

  void finish_if_idle(Connection& c);
  void end_if_idle(Connection& c);

  // --- events of links (poll threads) ---

  bool on_accepted(Link& link, const std::string& hello) override;
  std::span<char> room(Link& link) override;
  bool on_bytes(Link& link, const void* data, size_t n, bool last) override;
  void on_waiting(Link& link) override;

  void note_progress(const std::shared_ptr<void>& owner);
  void watch_progress(const std::shared_ptr<Connection>& c, TimePoint when);

  /// Ends a connection after malformed input, and sends the reason if possible.
  void refuse(Connection& c, Link& link, std::string_view why);
  void on_written(Link& link) override;
  void on_read_end(Link& link) override;
  void on_closed(Link& link, const std::string& link_reason) override;
  struct After {  ///< the end of a connection
    std::optional<PeerState> state{};
    std::string reason{};
    std::vector<OutCursor> dropped{};
    TimerId stop_timer{};
    bool stranger = false;
  };
  /// The queue of a peer after the end of a connection. `mine`: it was this side's attempt.
  void go_on(const std::shared_ptr<Peer>& peer, Connection& c, bool mine, After& after)
      WEFT_REQUIRES(peer->mutex);
  void try_again(const std::shared_ptr<Peer>& peer);

  class Sink;  ///< decoded records of one connection

  /// Handles a hello (from the connecting side) or a welcome (from the listening side).
  void greet(Connection& c, RecordType type, const Hello& hello);
  void loop_back(uint8_t kind, std::string header, std::vector<Payload> payloads);

  const std::shared_ptr<Runtime> runtime_;
  const GrpcOptions options_;
  Receiver& receiver_;
  const Incarnation incarnation_;
  const std::shared_ptr<Gate> gate_;
  PeerAddress own_;
  std::atomic<bool> closed_{false};
  Event idle_;
  Mutex telling_;
  mutable Mutex mutex_;
  std::unordered_map<WorkerId, std::shared_ptr<Peer>> peers_ WEFT_GUARDED_BY(mutex_);
  TableById<Peer> members_;  // those of peers_ that were members once: they stay there
  Mutex close_mutex_;
  bool ended_ WEFT_GUARDED_BY(close_mutex_) = false;
  std::optional<SocketFile> socket_;  // outlives the listeners
  std::optional<TcpListener> listener_;
  std::optional<CookieFile> cookie_, tls_mark_;  // of the TCP listener; they go before it
  std::string secret_;                           // the cookie's text, which hellos need; empty: none
  GrpcEngine grpc_;
  const Admission admission_{options_, incarnation_, secret_, grpc_};
  std::shared_ptr<SharedMemory> memory_;  // null: there is no lane, or the option is 0
  std::unique_ptr<Lane> lane_;
};

}  // namespace weft::rpc::inner
