// A key-value store: one process serves it, all use it (as PyTorch's TCPStore). The rendezvous is built on
// it. Requests and replies are messages of a Transport, so the store runs over gRPC and over the simulated
// network. A client resends a request until the answer or the deadline. The server remembers its answers to
// requests that change a key until the client has read them, so a repeated `add` counts once.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <weft/distributed/runtime/sync.h>
#include <weft/distributed/transport/transport.h>

namespace weft::rpc {

/// A wait that its abort key ended. The text is the value of that key.
class WEFT_API Aborted : public RpcError {
 public:
  using RpcError::RpcError;
};

/// The process that serves the store has ended, and it has no log from which another process could continue.
class WEFT_API HostEnded : public RpcError {
 public:
  using RpcError::RpcError;
};

/// A request would take the store beyond one of its StoreLimits. The text names the limit.
class WEFT_API StoreFull : public RpcError {
 public:
  using RpcError::RpcError;
};

/// Thread safety: every member may be called from any thread. Members with a deadline block for their answer
/// and throw Timeout at the deadline. A change may then still happen, unless a later request of this client
/// has reached the store. They never throw PeerLost. Changes throw StoreFull at the store's limits. If the
/// store can never be reached, as with a certificate of another authority, an RpcError with the reason is
/// thrown at once. After hold() or set_at_end(), the end of a server without a log is HostEnded. It is
/// noticed if the kernel reports it or another store answers at the address.
class WEFT_API Store {
 public:
  virtual ~Store() = default;
  /// Sets the value of a key. A lease of the key ends.
  virtual void set(const std::string& key, const std::string& value, TimePoint deadline) = 0;
  /// Sets the value if the present one equals `expected` (none: the key is not set); a lease of the key then
  /// ends. Returns false if another value is present. A resent request counts once and gets the same answer.
  virtual bool compare_and_set(const std::string& key, const std::optional<std::string>& expected,
                               const std::string& value, TimePoint deadline) = 0;
  /// Removes the value of the key, and ends its lease.
  virtual void unset(const std::string& key, TimePoint deadline) = 0;
  /// Blocks until the value differs from `known` and returns it; none: the key is not set. Values between
  /// two watches may be missed.
  virtual std::optional<std::string> watch(const std::string& key, const std::optional<std::string>& known,
                                           TimePoint deadline) = 0;
  /// Sets the key under a lease: the store unsets it once `lease` has passed since the last hold() of the
  /// key. The holder renews by the same call. Throws: ValueError, with the present value, while the key is
  /// held with another value. ValueError for a lease that is not positive.
  virtual void hold(const std::string& key, const std::string& value, Duration lease, TimePoint deadline) = 0;
  /// False: the store has no log and the kernel does not report the end of its process. A long silence then
  /// counts as its end. Known from the first hold() or set_at_end() on; true until then.
  virtual bool may_come_back() const { return true; }
  /// Adds to a number that is 0 at first; returns the sum. A lease of the key ends. Throws: ValueError for a
  /// value that is no number, and for a sum that does not fit.
  virtual int64_t add(const std::string& key, int64_t delta, TimePoint deadline) = 0;
  /// Blocks until all keys are set and returns their values. Throws: Aborted, with the value of `abort_key`
  /// as text, if that key is set first. StoreFull for values beyond
  /// StoreLimits::answer_bytes.
  virtual std::vector<std::string> wait(const std::vector<std::string>& keys, const std::string& abort_key,
                                        TimePoint deadline) = 0;
  /// The current values of the keys; none for a key that is not set. Throws: StoreFull, as wait.
  virtual std::vector<std::optional<std::string>> peek(const std::vector<std::string>& keys,
                                                       TimePoint deadline) = 0;

  /// Last will of this process: when it ends before `done` is set, the server sets `done`, and `key` unless
  /// that is set. A later will of this client for `key` replaces it. It works on the server's host only,
  /// where the kernel reports the end of a process; elsewhere it has no effect. A server with a log may come
  /// back, without the wills of its former life.
  virtual void set_at_end(const std::string& key, const std::string& value, const std::string& done,
                          TimePoint deadline) = 0;

  /// set() as the last request of a client, to a server that ends after the last request of all clients. It
  /// also returns when a server that has answered before has ended, since the answer may be lost with it.
  virtual void set_last(const std::string& key, const std::string& value, TimePoint deadline) = 0;
  /// Closes this end of the store. Blocks until the answers under way have been read, at most for `linger`.
  /// No request may follow.
  virtual void close(Duration linger) = 0;

  /// Blocks until the key is set and returns its value.
  std::string get(const std::string& key, TimePoint deadline) { return wait({key}, "", deadline).front(); }
};

/// Makes the transport for a receiver.
using TransportFactory = std::function<std::shared_ptr<Transport>(Receiver&)>;

/// Limits of a serving store.
struct StoreLimits {
  size_t key_bytes = size_t{64} << 10;    ///< bytes of one key
  size_t value_bytes = size_t{16} << 20;  ///< bytes of one value
  size_t keys = 1 << 20;                  ///< number of all keys; also of all last wills
  size_t bytes = size_t{1} << 30;         ///< bytes of all keys and values; also of all last wills
  size_t open_requests = 1 << 16;         ///< of one client: waits and unread answers; also last wills
  /// bytes of the values in one answer of wait() or peek(); a single value may have any size. The transport's
  /// WireLimits::max_header_bytes must be larger.
  size_t answer_bytes = size_t{128} << 20;
};

/// Options of a serving store.
struct StoreOptions {
  StoreLimits limits{};
  /// A file with every change, on the disk before its answer; empty: none. A store that is served again from
  /// it has all keys, and its clients continue. The lease of each held key then begins anew.
  std::string log{};
  /// the log is rewritten without past values once it has grown by this much and has doubled
  size_t log_growth = size_t{4} << 20;
  /// Keys with values that are set before the first client connects.
  std::vector<std::pair<std::string, std::string>> first_keys{};
};

/// Makes the serving store. It serves clients through its transport until destroyed. Throws: the factory's
/// error, as for a port in use. IoError for a log that another store uses, that is damaged before its last
/// record, or that cannot be written. After a write to the log has failed, every request gets an RpcError.
WEFT_API std::unique_ptr<Store> make_store_server(Runtime& runtime, const TransportFactory& factory,
                                                  const StoreOptions& options = {});

/// Makes a client of the store that worker 0 serves at `server`. The client belongs to the first store that
/// answers. A later store at that address executes none of its requests, unless it has the same log. Errors
/// name the store by `where`.
WEFT_API std::unique_ptr<Store> make_store_client(Runtime& runtime, const TransportFactory& factory,
                                                  PeerAddress server, std::string where);

}  // namespace weft::rpc
