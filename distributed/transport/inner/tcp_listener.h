// The TCP listener of a worker. It accepts connections, and hands one over to gRPC once its first bytes have
// come. A connection is unproven until its hello was welcomed. The number of unproven connections and the
// time of each are bounded. Beyond the number the listener closes one of the address that has the most: a
// random one of the older half. A flood then leaves each member that comes a chance, which closing the oldest
// would not. So strangers hold a bounded number of connections, and no proven one is ever closed here.
// gRPC needs much more time for a connection than the listener. Therefore it gets a bounded number of those
// of strangers in a second, and in a flood that lasts a part of them. The others wait. Beyond a number the
// oldest of these is closed, unseen by gRPC. One that waits alone has its turn at once. Every second turn is
// for the address with the fewest connections. A proven one gives its turn back.
// Internal to the gRPC transport; it needs no gRPC header.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <weft/distributed/runtime/runtime.h>
#include <weft/distributed/runtime/sync.h>
#include <weft/distributed/transport/address.h>
#include <weft/distributed/transport/transport.h>
#include <weft/kernels/macros.h>

namespace weft::rpc::inner {

/// Options of a TcpListener.
struct ListenerOptions {
  size_t max_unproven = 256;                         ///< at least 1
  Duration prove_within = std::chrono::seconds(10);  ///< then an unproven connection is closed
  Duration user_timeout = std::chrono::seconds(10);  ///< as TCP_USER_TIMEOUT of all connections
  size_t max_waiting = 16;                           ///< connections that wait for gRPC; at least 1
  int takes_at_once = 64;  ///< connections that gRPC gets without a pause; at least 1
  Duration take_pause = std::chrono::milliseconds(4);  ///< beyond that, one in this time, if none is proven
  int arrivals_per_take = 2;                           ///< but one of so many that speak, over two seconds
  bool tls = false;  ///< a client that does not begin with TLS only gets an error in plain HTTP
};

/// The other end of a TCP connection. An IPv4 address is in its IPv6 form.
struct TcpOrigin {
  std::array<uint8_t, 16> address{};
  uint16_t port = 0;
  bool operator==(const TcpOrigin&) const = default;
};
/// The origin in gRPC's text for the other end of a call, "ipv4:127.0.0.1:80" or "ipv6:[::1]:80"; none for
/// other texts.
std::optional<TcpOrigin> origin_of(const std::string& peer);

/// The number of unproven connections that this process can afford of those asked for: at most an eighth of
/// its files.
size_t most_unproven(size_t asked);

/// Thread safety: prove and counters from any thread, the others by one thread.
class WEFT_API TcpListener {
 public:
  /// Takes a connected socket over, which does not block. It is called on the listener's thread.
  using Take = std::function<void(int listener, int connection)>;

  /// Listens at the address; port 0 is chosen by the system. Connections wait until start(). Throws: RpcError
  /// that names the address.
  TcpListener(const HostPort& at, const ListenerOptions& options);
  ~TcpListener() { close(); }
  TcpListener(const TcpListener&) = delete;

  uint16_t port() const { return port_; }

  /// Starts the thread that accepts. Throws: Overloaded when the system gives no thread.
  void start(Runtime& runtime, Take take);
  /// Joins that thread. New connections then wait.
  void stop();
  /// Stops, and closes the sockets and the unproven connections.
  void close();

  /// The connection of this call's other end is proven: it is no longer bounded.
  void prove(const std::string& peer);
  UnprovenCounters counters() const;

 private:
  enum class State {
    kSilent,  // no byte has come
    kReady,   // bytes have come, and gRPC takes it when its turn comes
    kTaken,   // gRPC has a copy of its descriptor
    kTold,    // it spoke plainly to a port of TLS, and has the answer to read
  };
  struct Held {
    int fd = -1;  // the connection's first descriptor
    State state = State::kSilent;
    int listener = -1;
    TcpOrigin from;
    TimePoint since{};
  };
  using HeldById = std::map<uint64_t, Held>;  // by age

  void listen(const HostPort& at);
  bool listen_at(const void* address, size_t size, int family);
  void close_sockets();
  void serve();
  void wake() const;
  void accept_from(int listener);
  void on_event(uint64_t id, uint32_t events);
  /// Counts a connection that speaks, for the pause between turns.
  void note_arrival(TimePoint now) WEFT_REQUIRES(mutex_);
  /// Hands a connection over whose first bytes have come. False: none waits, or its turn has not come.
  bool take_next();
  /// Milliseconds until the oldest unproven connection is late or the next turn comes; -1: none is there.
  int patience() const;
  /// Closes the oldest of those that wait beyond their number.
  void close_surplus();
  void close_late();
  /// Closes a random one of the older half of the address that has the most. False: none is there.
  bool close_one() WEFT_REQUIRES(mutex_);
  /// Removes it from the table; `ends`: and closes the connection.
  HeldById::iterator remove(HeldById::iterator at, bool ends) WEFT_REQUIRES(mutex_);

  const ListenerOptions options_;
  uint16_t port_ = 0;
  std::vector<int> sockets_;
  int poll_ = -1, wake_ = -1;
  Runtime* runtime_ = nullptr;
  Take take_;
  std::unique_ptr<Service> service_;
  std::atomic<bool> stopping_{false};
  mutable Mutex mutex_;
  HeldById held_ WEFT_GUARDED_BY(mutex_);
  std::map<std::array<uint8_t, 16>, size_t> each_ WEFT_GUARDED_BY(mutex_);  // connections of each address
  uint64_t next_ WEFT_GUARDED_BY(mutex_) = 0;
  size_t ready_ WEFT_GUARDED_BY(mutex_) = 0;       // connections in that state
  TimePoint next_take_ WEFT_GUARDED_BY(mutex_){};  // no turn before this time
  Duration pause_ WEFT_GUARDED_BY(mutex_){};       // from one turn to the next
  uint64_t turn_ WEFT_GUARDED_BY(mutex_) = 0;      // the number of turns
  TimePoint last_ WEFT_GUARDED_BY(mutex_){};       // at which a connection spoke
  double arrivals_ WEFT_GUARDED_BY(mutex_) = 0;    // that spoke, each of less weight with time
  uint64_t closed_ WEFT_GUARDED_BY(mutex_) = 0;
};

}  // namespace weft::rpc::inner
