// A key-value store for the rendezvous: one worker serves it, all use it (as PyTorch's TCPStore). Requests
// and replies are messages of a Transport, so it runs over gRPC and over the simulated network. A client
// resends a request until the answer or the deadline. The server remembers its answer to each (client,
// number), so a repeated `add` counts once.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include <weft/distributed/runtime/sync.h>
#include <weft/distributed/transport/transport.h>

namespace weft::rpc {

/// A wait ended by its abort key. The text is the value of that key.
class WEFT_API Aborted : public RpcError {
 public:
  using RpcError::RpcError;
};

/// The process that serves the store has ended.
class WEFT_API HostEnded : public RpcError {
 public:
  using RpcError::RpcError;
};

/// Thread safety: every member may be called from any thread. Members with a deadline block for their answer
/// and throw Timeout at the deadline. They never throw PeerLost.
class WEFT_API Store {
 public:
  virtual ~Store() = default;
  /// Sets the value of a key.
  virtual void set(const std::string& key, const std::string& value, TimePoint deadline) = 0;
  /// Adds to a number that is 0 at first; returns the sum.
  virtual int64_t add(const std::string& key, int64_t delta, TimePoint deadline) = 0;
  /// Blocks until all keys are set and returns their values. Throws: Aborted, with the value of `abort_key`
  /// as text, if that key is set first.
  virtual std::vector<std::string> wait(const std::vector<std::string>& keys, const std::string& abort_key,
                                        TimePoint deadline) = 0;
  /// The current values of the keys; none for a key that is not set.
  virtual std::vector<std::optional<std::string>> peek(const std::vector<std::string>& keys,
                                                       TimePoint deadline) = 0;

  /// Last will of this process: when it ends before `done` is set, the server sets `done`, and `key` unless
  /// that is set. In turn a server that ends fails the calls of this client with HostEnded. Both need one
  /// host, where the kernel tells the end of a process; elsewhere this has no effect.
  virtual void set_at_end(const std::string& key, const std::string& value, const std::string& done,
                          TimePoint deadline) = 0;

  /// set() as the last request of a client, to a server that ends after the last request of all clients. It
  /// also returns when a server that had answered before is gone, since the answer may be lost with it.
  virtual void set_last(const std::string& key, const std::string& value, TimePoint deadline) = 0;
  /// Closes this end. Blocks until the answers under way have been read, at most for `linger`. No
  /// request may follow.
  virtual void close(Duration linger) = 0;

  /// Blocks until the key is set and returns its value.
  std::string get(const std::string& key, TimePoint deadline) { return wait({key}, "", deadline).front(); }
};

/// Makes the transport for a receiver.
using TransportFactory = std::function<std::shared_ptr<Transport>(Receiver&)>;

/// Makes the serving store. It serves clients through its transport until destroyed. Throws: the factory's
/// error (a port in use).
WEFT_API std::unique_ptr<Store> make_store_server(Runtime& runtime, const TransportFactory& factory);

/// Makes a client of the store that worker 0 serves at `server`. The client stays with the first store that
/// answers; its requests never reach a later store at that address. Errors name the store by `where`.
WEFT_API std::unique_ptr<Store> make_store_client(Runtime& runtime, const TransportFactory& factory,
                                                  PeerAddress server, std::string where);

}  // namespace weft::rpc
