// The engine over NCCL, for the device of a process. Its communicator never blocks: a call that waits for
// other processes stays in progress. So each wait here is a loop with a deadline, and it ends when another
// thread closes the engine. Collectives are queued on one stream, where they wait for the other devices.
#include <weft/distributed/collectives/inner/engine.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <weft/distributed/collectives/inner/nccl_library.h>
#include <weft/distributed/runtime/sync.h>
#include <weft/distributed/transport/address.h>
#include <weft/kernels/accelerator.h>

namespace weft::dist::inner {
namespace {

using nccl::Result;

/// At most, for the end of a communicator that has nothing more to do.
constexpr rpc::Duration kFinish = std::chrono::seconds(10);

nccl::Type type_of(DType dtype) {
  switch (dtype) {
    case kBool: break;
    case kUInt8: return nccl::Type::kUint8;
    case kInt32: return nccl::Type::kInt32;
    case kInt64: return nccl::Type::kInt64;
    case kFloat16: return nccl::Type::kFloat16;
    case kBFloat16: return nccl::Type::kBfloat16;
    case kFloat32: return nccl::Type::kFloat32;
    case kFloat64: return nccl::Type::kFloat64;
  }
  throw DTypeError(str("NCCL: takes no ", dtype));
}

nccl::Op op_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kProduct: return nccl::Op::kProd;
    case ReduceOp::kMin: return nccl::Op::kMin;
    case ReduceOp::kMax: return nccl::Op::kMax;
    default: return nccl::Op::kSum;
  }
}

class NcclEngine final : public Engine {
 public:
  NcclEngine(const EngineOptions& options, void* stream, const nccl::UniqueId& id)
      : options_(options), stream_(stream), nccl_(nccl::library()) {
    constexpr const char* kCall = "ncclCommInitRankConfig";
    nccl::Config config;
    config.blocking = 0;
    try {
      {
        const rpc::MutexLock lock(mutex_);
        throw_failure(nccl_.ncclCommInitRankConfig(&communicator_, options.size, id, options.rank, &config),
                      kCall);
      }
      settle(kCall, options.init_timeout);
    } catch (...) {
      NcclEngine::close();
      throw;
    }
  }
  ~NcclEngine() override {
    try {
      finish();
    } catch (const std::exception&) {
      NcclEngine::close();
    }
  }

  void all_reduce(void* data, size_t count, DType dtype, ReduceOp op) override {
    const nccl::Type type = type_of(dtype);
    issue("ncclAllReduce", count, [&](nccl::Communicator* c) {
      return nccl_.ncclAllReduce(data, data, count, type, op_of(op), c, stream_);
    });
  }
  void broadcast(void* data, size_t bytes, int src) override {
    issue("ncclBroadcast", bytes, [&](nccl::Communicator* c) {
      return nccl_.ncclBroadcast(data, data, bytes, nccl::Type::kUint8, src, c, stream_);
    });
  }
  void all_gather(const void* mine, size_t bytes, void* all) override {
    issue("ncclAllGather", bytes, [&](nccl::Communicator* c) {
      return nccl_.ncclAllGather(mine, all, bytes, nccl::Type::kUint8, c, stream_);
    });
  }
  void check() override { state("NCCL"); }
  void close() noexcept override {
    if (nccl::Communicator* const last = take()) nccl_.ncclCommAbort(last);
  }

 private:
  /// The communicator, for its end: no other thread finds it from now on.
  nccl::Communicator* take() {
    const rpc::MutexLock lock(mutex_);
    return std::exchange(communicator_, nullptr);
  }
  nccl::Communicator* communicator() const WEFT_REQUIRES(mutex_) {
    if (communicator_ == nullptr) throw ConnectionLost(-1, "this process has closed its connections");
    return communicator_;
  }
  void throw_failure(Result result, const char* call) const WEFT_REQUIRES(mutex_) {
    if (result == Result::kSuccess || result == Result::kInProgress) return;
    std::string text = str(call, ": ", nccl_.ncclGetErrorString(result));
    if (const char* const more = nccl_.ncclGetLastError(communicator_); more != nullptr && *more != '\0')
      text += str(" (", more, ")");
    if (result == Result::kRemoteError) throw ConnectionLost(-1, text);
    throw CudaError(text);
  }
  Result state(const char* call) {
    const rpc::MutexLock lock(mutex_);
    Result now = Result::kInternalError;
    throw_failure(nccl_.ncclCommGetAsyncError(communicator(), &now), "ncclCommGetAsyncError");
    throw_failure(now, call);
    return now;
  }

  template <class F> void issue(const char* name, size_t count, F&& call) {
    if (count == 0) return;
    {
      const rpc::MutexLock lock(mutex_);
      throw_failure(call(communicator()), name);
    }
    settle(name, options_.timeout);
  }
  /// Returns when the library has queued the call's work.
  void settle(const char* call, rpc::Duration limit) {
    const rpc::TimePoint end = options_.runtime->now() + limit;
    for (rpc::Duration pause{}; state(call) == Result::kInProgress;) {
      const rpc::Duration left = end - options_.runtime->now();
      if (left.count() <= 0)
        throw Timeout(str(call, ": no answer from the others within ",
                          std::chrono::duration_cast<std::chrono::milliseconds>(limit).count(), " ms"));
      pause = std::min<rpc::Duration>(pause + std::chrono::microseconds(20), std::chrono::milliseconds(1));
      options_.runtime->sleep_for(std::min(pause, left));
    }
  }
  void finish() {
    {
      const rpc::MutexLock lock(mutex_);
      if (communicator_ == nullptr) return;
      throw_failure(nccl_.ncclCommFinalize(communicator_), "ncclCommFinalize");
    }
    settle("ncclCommFinalize", std::min(options_.timeout, kFinish));
    if (nccl::Communicator* const last = take()) nccl_.ncclCommDestroy(last);
  }

  const EngineOptions options_;
  void* const stream_;
  const nccl::Library& nccl_;
  rpc::Mutex mutex_;
  nccl::Communicator* communicator_ WEFT_GUARDED_BY(mutex_) = nullptr;
};

/// The library chooses its interface once in a process, and avoids the loopback one. A group there must not
/// open ports elsewhere, so the first one decides, unless the user has.
void choose_interface(const EngineOptions& options) {
  constexpr const char* kVariable = "NCCL_SOCKET_IFNAME";
  const bool local = rpc::is_loopback_host(options.host);
  static const bool stays_local = [&] {
    if (!local || std::getenv(kVariable) != nullptr) return false;
    setenv(kVariable, "=lo", 0);
    return true;
  }();
  if (stays_local && !local && options.size > 1)
    throw DeviceError(
        str("NCCL of this process keeps to the loopback interface, as its first group did, and "
            "cannot reach the host '",
            options.host, "'; set ", kVariable, " or make that group first"));
}

}  // namespace

std::string meet_for_nccl(const EngineOptions& options, Device device, const std::vector<std::string>& names,
                          Meeting* meeting) {
  std::string mine = "+";  // this process can take part; rank 0 adds the name of the communicator
  try {
    accelerator(device);
    choose_interface(options);
    const nccl::Library& nccl = nccl::library();
    if (options.rank == 0) {
      nccl::UniqueId id{};
      if (const Result result = nccl.ncclGetUniqueId(&id); result != Result::kSuccess)
        throw DeviceError(str("ncclGetUniqueId: ", nccl.ncclGetErrorString(result)));
      mine.append(id.internal, sizeof id.internal);
    }
  } catch (const Error& e) {
    mine = str("-", e.what());
  }
  if (meeting) meeting->set(str("nccl/", options.rank), mine);
  std::string first;
  for (int r = 0; r < options.size; ++r) {
    const std::string its = meeting ? meeting->get(str("nccl/", r)) : mine;
    if (its.empty() || its.front() != '+') {
      const std::string who = r == options.rank ? "" : str(names[static_cast<size_t>(r)], ": ");
      throw DeviceError(str("new_group: ", who, its.empty() ? its : its.substr(1)));
    }
    if (r == 0) first = its.substr(1);
  }
  if (first.size() != sizeof(nccl::UniqueId)) throw RpcError("new_group: rank 0 gives no name for NCCL");
  return first;
}

std::unique_ptr<Engine> make_nccl(const EngineOptions& options, void* stream, const std::string& id) {
  nccl::UniqueId name{};
  std::memcpy(name.internal, id.data(), std::min(id.size(), sizeof name.internal));
  return std::make_unique<NcclEngine>(options, stream, name);
}

}  // namespace weft::dist::inner
