// The type-erased part of RRef<T>: the shared state of one worker's reference, and the requests made through
// it. Internal to rref.h; references.h lists the tables, references.cpp has the protocol.
// Thread safety: all free functions may be called from any thread; a Use or Creation belongs to one thread.
#pragma once

#include <deque>
#include <memory>
#include <source_location>
#include <string>

#include <weft/distributed/rpc/agent.h>
#include <weft/distributed/rref/rref_id.h>

namespace weft::rpc::detail {

class References;

/// Origin of a reference, for leak reports. The texts are literals or names of registered functions.
struct Site {
  const char* what = "";
  const char* file = nullptr;
  uint32_t line = 0;
};
WEFT_API std::string to_string(const Site& site);

/// State of a reference, shared by all copies of an RRef on this worker. Its destructor releases the
/// reference; it does not block or throw.
class WEFT_API RRefState : public std::enable_shared_from_this<RRefState> {
 public:
  virtual ~RRefState() = default;
  RRefState(const RRefState&) = delete;
  RRefState& operator=(const RRefState&) = delete;

  const std::shared_ptr<References> references;
  const RRefId id;
  const WorkerInfo owner;
  const bool is_owner;
  const Site site;
  /// Done when the value exists; fails with the error of its creation.
  const Future<void> created;

 protected:
  RRefState(std::shared_ptr<References> refs, RRefId rref, WorkerInfo of, bool owned, Site from,
            Future<void> made)
      : references(std::move(refs)),
        id(rref),
        owner(std::move(of)),
        is_owner(owned),
        site(from),
        created(std::move(made)) {}
};
using StatePtr = std::shared_ptr<RRefState>;

/// Makes the owner's reference to an existing value. Throws: RpcError without an agent.
WEFT_API StatePtr own(std::shared_ptr<void> value, const ValueType* type, Site site);
/// The value, on its owner. Blocks until it is made, with `limit` as CallOptions::timeout. Throws:
/// RpcError with the ids on another worker; ValueError for a value of another type; the error of
/// its creation; Timeout.
WEFT_API std::shared_ptr<void> owned_value(const RRefState& state, const ValueType* type,
                                           std::optional<Duration> limit);
WEFT_API bool confirmed_by_owner(const RRefState& state);
/// The owner's life, to which requests through the reference go.
WEFT_API Life owner_life(const RRefState& state);
WEFT_API ForkId fork_of(const RRefState& state);
WEFT_API std::string describe(const RRefState* state);
[[noreturn]] WEFT_API void throw_empty();

/// A request to the owner through a reference: Kind::kFetch or Kind::kMethod. It keeps the reference until
/// the request is settled.
class WEFT_API Use {
 public:
  /// Throws: the error that makes the reference unusable: Timeout of its creation, OwnerLost, or RpcError
  /// after its deletion by a shutdown.
  Use(const StatePtr& state, Kind kind, const FunctionEntry* function);
  Encoder& out() { return *out_; }
  Agent& agent() { return *agent_; }
  const StatePtr& state() const { return state_; }
  CallId send(std::optional<Duration> timeout, std::unique_ptr<ReplySink> sink);
  /// Translates the error of a request for the user of a reference: PeerLost of the owner becomes OwnerLost.
  /// An RpcError through a reference that has failed becomes the error of its creation.
  static std::exception_ptr translate(const RRefState& state, std::exception_ptr error);

 private:
  StatePtr state_;
  std::shared_ptr<Agent> agent_;
  Kind kind_;
  const char* what_;
  Message message_;
  std::optional<Encoder> out_;
};

/// A request to create a remote value.
class WEFT_API Creation {
 public:
  /// Creation by a function or constructor on `to`. Throws: ValueError for an unknown worker; RpcError
  /// without an agent.
  Creation(const To& to, const FunctionEntry& function, Site site);
  /// Creation by a method of a value, on the value's owner. Throws: as Use.
  Creation(const StatePtr& target, const FunctionEntry& function, std::optional<Duration> timeout, Site site);
  ~Creation();
  Encoder& out() { return *out_; }
  /// Sends the request. Errors of the creation stay in the reference.
  StatePtr start();

 private:
  void open(Life owner, const FunctionEntry& function, Site site);
  std::shared_ptr<References> references_;
  std::shared_ptr<Agent> agent_;
  StatePtr target_, state_;
  std::optional<Duration> timeout_;
  const char* what_ = nullptr;
  Message message_;
  std::optional<Encoder> out_;
};

/// Writes a reference into a message, and reads one (references.cpp, steps 4 to 8).
WEFT_API void encode_reference(Encoder& out, const StatePtr& state);
WEFT_API StatePtr decode_reference(Decoder& in, const ValueType* type);

}  // namespace weft::rpc::detail
