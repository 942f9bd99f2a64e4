// The tiny store of a rendezvous: keys and values kept by one worker, used by all. Requests and replies are messages of a Transport,
// so it runs over gRPC and over the simulated network alike. Every request carries (client, number) and is resent until it is
// answered or its deadline has come; the server answers a repeated one from its memory, so `add` counts once.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include <weft/distributed/sync.h>
#include <weft/distributed/transport.h>

namespace weft::rpc {

/// A wait that its abort key has ended; the text is that key's value.
class WEFT_API Aborted : public RpcError {
 public:
  using RpcError::RpcError;
};

/// Thread safety: every member from any thread; those with a deadline block and throw Timeout when it comes, PeerLost never.
class WEFT_API Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::string& value, TimePoint deadline) = 0;
  /// Adds to a number that begins at 0; returns the sum.
  virtual int64_t add(const std::string& key, int64_t delta, TimePoint deadline) = 0;
  /// Waits until all keys are set and returns their values. If `abort_key` is set first: throws Aborted with its value as the text.
  virtual std::vector<std::string> wait(const std::vector<std::string>& keys, const std::string& abort_key,
                                        TimePoint deadline) = 0;
  /// The values that are there now.
  virtual std::vector<std::optional<std::string>> peek(const std::vector<std::string>& keys,
                                                       TimePoint deadline) = 0;

  std::string get(const std::string& key, TimePoint deadline) { return wait({key}, "", deadline).front(); }
};

/// Makes the transport once its receiver exists.
using TransportFactory = std::function<std::shared_ptr<Transport>(Receiver&)>;

/// The store of the worker that keeps it; serves others through its transport until destroyed.
/// Throws: what the factory throws (a port in use).
WEFT_API std::unique_ptr<Store> make_store_server(Runtime& runtime, const TransportFactory& factory);

/// The store kept by worker 0 at `server`. `where` names it in errors.
WEFT_API std::unique_ptr<Store> make_store_client(Runtime& runtime, const TransportFactory& factory,
                                                  PeerAddress server, std::string where);

}  // namespace weft::rpc
