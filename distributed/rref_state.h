// What stands behind an RRef<T>, without the T: one worker's hold on a value, and the requests made through it. Inner part of rref.h;
// the maps and the protocol are in references.h and references.cpp.
#pragma once

#include <deque>
#include <memory>
#include <source_location>
#include <string>

#include <weft/distributed/agent.h>
#include <weft/distributed/rref_id.h>

namespace weft::rpc::detail {

class References;

/// Where a reference came from, for leak reports. The texts are literals or names of registered functions.
struct Site {
  const char* what = "";
  const char* file = nullptr;
  uint32_t line = 0;
};
WEFT_API std::string to_string(const Site& site);

/// A hold on a value. Shared by all copies of an RRef on this worker; its destructor lets go of the value and neither blocks nor throws.
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
  /// Done when the value exists, or with the error in its place.
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

/// Makes the owner's reference to a value that is there.
WEFT_API StatePtr own(std::shared_ptr<void> value, const ValueType* type, Site site);
/// The value on its owner. Waits until it is made, `limit` as in CallOptions. Throws: RpcError off the owner, naming the ids; ValueError
/// when the value is not of the type; the error of its creation; Timeout.
WEFT_API std::shared_ptr<void> owned_value(const RRefState& state, const ValueType* type,
                                           std::optional<Duration> limit);
WEFT_API bool confirmed_by_owner(const RRefState& state);
WEFT_API ForkId fork_of(const RRefState& state);
WEFT_API std::string describe(const RRefState* state);
[[noreturn]] WEFT_API void throw_empty();

/// A request to the owner through a reference: Kind::kFetch or Kind::kMethod. The reference lives until the request is settled.
class WEFT_API Use {
 public:
  /// Throws: the error that makes the reference unusable (Timeout of its creation, OwnerLost, deleted by shutdown).
  Use(const StatePtr& state, Kind kind, const FunctionEntry* function);
  Encoder& out() { return *out_; }
  Agent& agent() { return *agent_; }
  const StatePtr& state() const { return state_; }
  void send(std::optional<Duration> timeout, std::unique_ptr<ReplySink> sink);
  /// The error of a request as the user of a reference sees it: PeerLost of the owner is OwnerLost.
  static std::exception_ptr translate(const RRefState& state, std::exception_ptr error);

 private:
  StatePtr state_;
  std::shared_ptr<Agent> agent_;
  Kind kind_;
  const char* what_;
  Message message_;
  std::optional<Encoder> out_;
};

/// A request to make a value remotely.
class WEFT_API Creation {
 public:
  /// By a function or constructor on `to`. Throws: ValueError for an unknown worker; RpcError without an agent.
  Creation(const To& to, const FunctionEntry& function, Site site);
  /// By a method of a value, where that value is. Throws: as Use.
  Creation(const StatePtr& target, const FunctionEntry& function, std::optional<Duration> timeout, Site site);
  ~Creation();
  Encoder& out() { return *out_; }
  /// Sends it. Throws: nothing that the reference could tell later.
  StatePtr start();

 private:
  void open(WorkerId owner, const FunctionEntry& function, Site site);
  std::shared_ptr<References> references_;
  std::shared_ptr<Agent> agent_;
  StatePtr target_, state_;
  std::optional<Duration> timeout_;
  const char* what_ = nullptr;
  Message message_;
  std::optional<Encoder> out_;
};

/// Writes a reference into a message, and reads one: steps 4 to 8 of references.cpp.
WEFT_API void encode_reference(Encoder& out, const StatePtr& state);
WEFT_API StatePtr decode_reference(Decoder& in, const ValueType* type);

}  // namespace weft::rpc::detail
