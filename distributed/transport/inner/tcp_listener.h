// The TCP listener of a worker. It accepts connections, and hands one over to gRPC once its first bytes have
// come. A connection is unproven until its hello was welcomed. The number of unproven connections and the
// time of each are bounded. Beyond the number the listener closes one of the address that has the most: a
// random one of the older half. A flood then leaves each member that comes a chance, which closing the oldest
// would not. So strangers hold a bounded number of connections, and no proven one is ever closed here.
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
  bool tls = false;  ///< a client that does not begin with TLS is told so, in plain HTTP, and goes no further
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
  struct Held {
    int fd = -1;         // the connection's first descriptor; gRPC gets a copy after the first byte
    bool silent = true;  // no byte has come, and nobody has taken it
    bool told = false;   // it spoke plainly to a port of TLS, and has the answer to read
    int listener = -1;
    TcpOrigin from;
    TimePoint since{};
  };
  using HeldById = std::map<uint64_t, Held>;  // by age

  void listen(const HostPort& at);
  bool listen_at(const void* address, size_t size, int family);
  void close_sockets();
  void serve();
  void accept_from(int listener);
  void on_event(uint64_t id, uint32_t events);
  /// Milliseconds until the oldest unproven connection is late; -1: none is there.
  int patience() const;
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
  uint64_t next_ WEFT_GUARDED_BY(mutex_) = 0;
  uint64_t closed_ WEFT_GUARDED_BY(mutex_) = 0;
};

}  // namespace weft::rpc::inner
