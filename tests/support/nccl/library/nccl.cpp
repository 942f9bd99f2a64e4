// NCCL on the emulated device, between processes of one machine. This file is a shared library, opened like
// NCCL. A communicator is a file without a name, which each process maps. Each rank has a slot there. A
// collective goes chunk by chunk: a rank fills its slot, waits for the slots of the others, and takes the
// result from them. Where the documentation leaves freedom, this library uses it. Each chunk is summed from
// another rank on. Calls stay in progress while they wait, and calls that differ wait for ever. The root of a
// broadcast is done with a chunk before the others have come to it.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <type_traits>

#include <weft/distributed/collectives/inner/nccl_library.h>
#include <weft/kernels/dtype.h>
#include "support/nccl/settings.h"
#include "support/simt/graph.h"
#include "support/simt/memory.h"
#include "support/simt/streams.h"

namespace weft::dist::inner::nccl {

namespace {

namespace simt = cuda::simt;

constexpr int kMostRanks = 16;
constexpr size_t kChunk = size_t{1} << 16;
constexpr uint64_t kSign = 0x5745'4654'4E43'434C;

/// A collective, as all ranks must make it. They are compared byte by byte.
struct Call {
  enum Kind : int32_t { kAllReduce, kBroadcast, kAllGather } kind;
  Type type;
  int64_t op_or_root;
  uint64_t count;
};
static_assert(std::has_unique_object_representations_v<Call>);
struct Slot {
  std::atomic<int32_t> here;
  std::atomic<uint64_t> written, read;  ///< numbers of chunks
  Call call;
  char data[kChunk];
};
struct Shared {
  std::atomic<uint64_t> sign;
  Slot ranks[kMostRanks];
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

/// The contents of a UniqueId.
struct Name {
  uint64_t sign;
  int32_t process, file;
};

DType dtype_of_code(Type type) {
  switch (type) {
    case Type::kInt32: return kInt32;
    case Type::kInt64: return kInt64;
    case Type::kFloat16: return kFloat16;
    case Type::kBfloat16: return kBFloat16;
    case Type::kFloat32: return kFloat32;
    case Type::kFloat64: return kFloat64;
    default: return kUInt8;
  }
}
bool is_known(Type type) {
  return type != Type::kInt8 && type != Type::kUint32 && type != Type::kUint64 && type >= Type::kInt8 &&
         type <= Type::kBfloat16;
}

template <class T> T join(Op op, T a, T b) {
  using Wide = std::conditional_t<sizeof(T) == 2, float, T>;
  const Wide x = static_cast<Wide>(a), y = static_cast<Wide>(b);
  switch (op) {
    case Op::kProd: return static_cast<T>(x * y);
    case Op::kMax: return x < y ? b : a;
    case Op::kMin: return y < x ? b : a;
    default: return static_cast<T>(x + y);
  }
}

}  // namespace

/// A process's end of a communicator. Work that is deferred keeps it alive.
struct State {
  Shared* shared = nullptr;
  int file = -1, rank = 0, size = 0, device = 0;
  uint64_t chunks = 0;  ///< that it has taken part in
  std::atomic<Result> progress{Result::kInProgress};
  std::atomic<bool> aborted{false};
  bool finalized = false;

  ~State() {
    if (shared) munmap(shared, sizeof(Shared));
    if (file >= 0) close(file);
  }
  /// Waits until it holds. False: the communicator was aborted.
  template <class F> bool wait(F&& holds) const {
    while (!holds()) {
      if (aborted) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    return !aborted;
  }
  template <class F> bool wait_for_all(F&& holds) const {
    return wait([&] {
      return std::all_of(shared->ranks, shared->ranks + size, [&](const Slot& s) { return holds(s); });
    });
  }
  bool run(const Call& call, const void* from, void* to);
  bool run_chunk(const Call& call, const char* from, char* to, size_t begin, size_t bytes, size_t all);
};

struct Communicator {
  std::shared_ptr<State> state = std::make_shared<State>();
  std::thread worker{};  ///< the call in progress
};

bool State::run(const Call& call, const void* from, void* to) {
  const size_t all = call.count * static_cast<size_t>(size_of(dtype_of_code(call.type)));
  for (size_t begin = 0; begin < all; begin += kChunk)
    if (!run_chunk(call, static_cast<const char*>(from), static_cast<char*>(to), begin,
                   std::min(kChunk, all - begin), all))
      return false;
  const simt::DeviceAccess open;
  simt::check_guards("nccl");
  return true;
}

bool State::run_chunk(const Call& call, const char* from, char* to, size_t begin, size_t bytes, size_t all) {
  const uint64_t turn = ++chunks;
  Slot& mine = shared->ranks[rank];
  if (!wait_for_all([&](const Slot& s) { return s.read + 1 >= turn; })) return false;
  {
    const simt::DeviceAccess open;
    std::memcpy(mine.data, from + begin, bytes);
  }
  mine.call = call;
  mine.written = turn;
  const bool from_root = call.kind == Call::kBroadcast;
  const int first_rank = from_root ? static_cast<int>(call.op_or_root) : 0;
  const int last_rank = from_root ? first_rank : size - 1;
  const auto has_written = [&](const Slot& s) { return s.written >= turn; };
  if (!wait([&] {
        return std::all_of(shared->ranks + first_rank, shared->ranks + last_rank + 1, has_written);
      }))
    return false;
  for (int r = first_rank; r <= last_rank; ++r)
    if (std::memcmp(&shared->ranks[r].call, &call, sizeof call) != 0) return wait([] { return false; });
  {
    const simt::DeviceAccess open;
    if (call.kind == Call::kBroadcast) {
      std::memcpy(to + begin, shared->ranks[call.op_or_root].data, bytes);
    } else if (call.kind == Call::kAllGather) {
      for (int r = 0; r < size; ++r)
        std::memcpy(to + static_cast<size_t>(r) * all + begin, shared->ranks[r].data, bytes);
    } else {
      dispatch(dtype_of_code(call.type), [&]<class T>(TypeTag<T>) {
        if constexpr (!std::is_same_v<T, bool>) {
          T* const out = reinterpret_cast<T*>(to + begin);
          const auto of = [&](int r) { return reinterpret_cast<const T*>(shared->ranks[r].data); };
          const int first = static_cast<int>(turn % static_cast<uint64_t>(size));
          for (size_t i = 0; i < bytes / sizeof(T); ++i) {
            T sum = of(first)[i];
            for (int k = 1; k < size; ++k)
              sum = join(static_cast<Op>(call.op_or_root), sum, of((first + k) % size)[i]);
            out[i] = sum;
          }
        }
      });
    }
  }
  mine.read = turn;
  return true;
}

namespace {

bool in_progress(const Communicator* c) { return c->state->progress == Result::kInProgress; }

/// Goes on beside the caller.
void start(Communicator& c, std::function<bool(State&)> work) {
  if (c.worker.joinable()) c.worker.join();
  c.state->progress = Result::kInProgress;
  c.worker = std::thread([state = c.state, work = std::move(work)] {
    if (work(*state)) state->progress = Result::kSuccess;
  });
}

Result collective(Communicator* c, const Call& call, const void* from, void* to, void* stream) {
  if (!c || in_progress(c) || c->state->finalized) return Result::kInvalidUsage;
  if (!is_known(call.type) || !simt::is_device_memory(from) || !simt::is_device_memory(to) ||
      simt::current_device() != c->state->device || simt::recording_of(stream))
    return Result::kInvalidArgument;
  ++test::nccl_counts().queued;
  const auto work = [call, from, to](State& state) {
    const bool done = test::nccl_settings().takes_no_part || state.run(call, from, to);
    if (done) ++test::nccl_counts().run;
    return done;
  };
  if (simt::deferring()) {
    simt::issue(c->state->device, stream, [state = c->state, work] { work(*state); });
    return Result::kSuccess;
  }
  start(*c, work);
  return Result::kInProgress;
}

void end(Communicator* c) {
  if (c->worker.joinable()) c->worker.join();
  delete c;
}

}  // namespace

extern "C" {

Result ncclGetVersion(int* version) {
  *version = 22703;
  return Result::kSuccess;
}
const char* ncclGetErrorString(Result result) {
  switch (result) {
    case Result::kSuccess: return "no error";
    case Result::kSystemError: return "unhandled system error";
    case Result::kInternalError: return "internal error";
    case Result::kInvalidArgument: return "invalid argument";
    case Result::kInvalidUsage: return "invalid usage";
    case Result::kRemoteError: return "remote process exited or there was a network error";
    default: return "another error";
  }
}
const char* ncclGetLastError(Communicator*) { return "emulated"; }

Result ncclGetUniqueId(UniqueId* id) {
  const int file = memfd_create("weft nccl", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, sizeof(Shared)) != 0) return Result::kSystemError;
  std::random_device random;
  const Name name{kSign ^ random(), getpid(), file};
  if (pwrite(file, &name.sign, sizeof name.sign, 0) != sizeof name.sign) return Result::kSystemError;
  std::memcpy(id->internal, &name, sizeof name);
  return Result::kSuccess;
}

Result ncclCommInitRankConfig(Communicator** made, int size, UniqueId id, int rank, Config* config) {
  if (!made || !config || config->magic != 0xCAFEBEEF || config->size < 24 || config->version < 21400 ||
      config->blocking != 0 || size < 1 || size > kMostRanks || rank < 0 || rank >= size)
    return Result::kInvalidArgument;
  Name name;
  std::memcpy(&name, id.internal, sizeof name);
  const std::string path = "/proc/" + std::to_string(name.process) + "/fd/" + std::to_string(name.file);
  auto c = std::make_unique<Communicator>();
  State& state = *c->state;
  state.file = name.process == getpid() ? name.file : open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (state.file < 0) return Result::kSystemError;
  void* const p = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, state.file, 0);
  if (p == MAP_FAILED) return Result::kSystemError;
  state.shared = static_cast<Shared*>(p);
  if (state.shared->sign != name.sign) return Result::kRemoteError;
  state.rank = rank, state.size = size, state.device = simt::current_device();
  *made = c.release();
  start(**made, [](State& s) {
    if (!test::nccl_settings().stays_away) s.shared->ranks[s.rank].here = 1;
    const bool all = s.wait_for_all([](const Slot& slot) { return slot.here != 0; });
    if (all) ++test::nccl_counts().formed;
    return all;
  });
  return Result::kInProgress;
}

Result ncclCommGetAsyncError(Communicator* c, Result* state) {
  if (!c || !state) return Result::kInvalidArgument;
  const Result error = test::nccl_settings().error;
  *state = error == Result::kSuccess ? c->state->progress.load() : error;
  return Result::kSuccess;
}
Result ncclCommFinalize(Communicator* c) {
  if (!c || in_progress(c) || c->state->finalized) return Result::kInvalidUsage;
  c->state->finalized = true;
  return Result::kSuccess;
}
Result ncclCommDestroy(Communicator* c) {
  if (!c || !c->state->finalized) return Result::kInvalidUsage;
  ++test::nccl_counts().destroyed;
  end(c);
  return Result::kSuccess;
}
Result ncclCommAbort(Communicator* c) {
  if (!c) return Result::kInvalidArgument;
  c->state->aborted = true;
  ++test::nccl_counts().aborted;
  end(c);
  return Result::kSuccess;
}

Result ncclAllReduce(const void* from, void* to, size_t n, Type type, Op op, Communicator* c, void* stream) {
  return collective(c, {Call::kAllReduce, type, static_cast<int64_t>(op), n}, from, to, stream);
}
Result ncclBroadcast(const void* from, void* to, size_t n, Type type, int root, Communicator* c,
                     void* stream) {
  if (c && (root < 0 || root >= c->state->size)) return Result::kInvalidArgument;
  return collective(c, {Call::kBroadcast, type, root, n}, from, to, stream);
}
Result ncclAllGather(const void* from, void* to, size_t n, Type type, Communicator* c, void* stream) {
  return collective(c, {Call::kAllGather, type, 0, n}, from, to, stream);
}

}  // extern "C"

#define WEFT_NCCL_SAME(name, ...) static_assert(std::is_same_v<decltype(name), name##_t>);
WEFT_NCCL_CALLS(WEFT_NCCL_SAME)
#undef WEFT_NCCL_SAME

}  // namespace weft::dist::inner::nccl
