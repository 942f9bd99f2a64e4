// The engine over Gloo: rings of TCP connections. This is the one file with Gloo's headers; it is compiled
// without them where Gloo was not found. Gloo calls back to a store for addresses, which is the Meeting here.
// Gloo writes to its sockets without MSG_NOSIGNAL, so SIGPIPE is blocked around each call and in its thread.
// Its errors have no types for their causes: a timeout is told by its text, and the lost process by a try of
// each connection.
#include <weft/distributed/collectives/inner/engine.h>

#ifdef WEFT_WITH_GLOO
#include <csignal>
#include <ctime>
#include <type_traits>

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/broadcast.h>
#include <gloo/rendezvous/context.h>
#include <gloo/transport/tcp/device.h>
#endif

namespace weft::dist {

#ifndef WEFT_WITH_GLOO

bool is_gloo_available() { return false; }

std::unique_ptr<inner::Engine> inner::make_gloo(const EngineOptions&, Meeting&) {
  return nullptr;  // new_group has refused the call
}

#else

bool is_gloo_available() { return true; }

namespace inner {
namespace {

using std::chrono::milliseconds;

/// Keeps SIGPIPE from the process while this thread, or one that it starts, writes to a closed connection.
class SigpipeBlocked {
 public:
  SigpipeBlocked() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigset_t waiting;
    sigpending(&waiting);
    was_pending_ = sigismember(&waiting, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~SigpipeBlocked() {
    const timespec now{};
    if (!was_pending_)
      while (sigtimedwait(&pipe_, nullptr, &now) == SIGPIPE) {
      }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  SigpipeBlocked(const SigpipeBlocked&) = delete;

 private:
  sigset_t pipe_{}, before_{};
  bool was_pending_ = false;
};

class MeetingStore final : public gloo::rendezvous::Store {
 public:
  explicit MeetingStore(Meeting& meeting) : meeting_(meeting) {}
  void set(const std::string& key, const std::vector<char>& data) override {
    meeting_.set(key, std::string(data.begin(), data.end()));
  }
  std::vector<char> get(const std::string& key) override {
    const std::string value = meeting_.get(key);
    return {value.begin(), value.end()};
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) meeting_.get(key);
  }
  /// The meeting has a deadline of its own.
  void wait(const std::vector<std::string>& keys, const milliseconds&) override { wait(keys); }

 private:
  Meeting& meeting_;
};

// ---- element-wise functions

/// Integers wrap round, as in the kernels.
template <class T>
using Arithmetic =
    typename std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>, std::type_identity<T>>::type;

struct Sum {
  template <class T> T operator()(T a, T b) const {
    return static_cast<T>(static_cast<Arithmetic<T>>(a) + static_cast<Arithmetic<T>>(b));
  }
};
struct Product {
  template <class T> T operator()(T a, T b) const {
    return static_cast<T>(static_cast<Arithmetic<T>>(a) * static_cast<Arithmetic<T>>(b));
  }
};
struct Min {
  template <class T> T operator()(T a, T b) const { return b < a ? b : a; }
};
struct Max {
  template <class T> T operator()(T a, T b) const { return a < b ? b : a; }
};

template <class T, class Op> void combine(void* out, const void* a, const void* b, size_t n) {
  for (size_t i = 0; i < n; ++i)
    static_cast<T*>(out)[i] = Op{}(static_cast<const T*>(a)[i], static_cast<const T*>(b)[i]);
}

template <class T> gloo::AllreduceOptions::Func function_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kProduct: return combine<T, Product>;
    case ReduceOp::kMin: return combine<T, Min>;
    case ReduceOp::kMax: return combine<T, Max>;
    default: return combine<T, Sum>;
  }
}

// ---- the engine

class GlooEngine final : public Engine {
 public:
  GlooEngine(const EngineOptions& options, Meeting& meeting) : options_(options) {
    const SigpipeBlocked quiet;
    gloo::transport::tcp::attr where;
    where.hostname = options.host;
    std::shared_ptr<gloo::transport::Device> device;
    try {
      device = gloo::transport::tcp::CreateDevice(where);
    } catch (const std::exception& e) {
      throw RpcError(str("Gloo cannot use the host '", options.host, "': ", e.what()));
    }
    const auto context = std::make_shared<gloo::rendezvous::Context>(options.rank, options.size);
    context->setTimeout(whole(options.init_timeout / 5));  // Gloo waits five times as long to connect
    MeetingStore store(meeting);
    try {
      context->connectFullMesh(store, device);
    } catch (const Error&) {  // of the meeting
      throw;
    } catch (const std::exception& e) {
      throw_as_ours(e, -1, options.init_timeout);
    }
    context_ = context;
  }

  void all_reduce(void* data, size_t count, DType dtype, ReduceOp op) override {
    guarded([&] {
      gloo::AllreduceOptions call(context_);
      call.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
      call.setTimeout(limit());
      dispatch(dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        if constexpr (!std::is_same_v<T, bool>) {
          call.setOutput(static_cast<T*>(data), count);
          call.setReduceFunction(function_of<T>(op));
        }
      });
      gloo::allreduce(call);
    });
  }
  void broadcast(void* data, size_t bytes, int src) override {
    guarded([&] {
      gloo::BroadcastOptions call(context_);
      call.setOutput(static_cast<char*>(data), bytes);
      call.setRoot(src);
      call.setTimeout(limit());
      gloo::broadcast(call);
    });
  }
  void all_gather(const void* mine, size_t bytes, void* all) override {
    guarded([&] {
      gloo::AllgatherOptions call(context_);
      call.setInput(static_cast<char*>(const_cast<void*>(mine)), bytes);
      call.setOutput(static_cast<char*>(all), bytes * static_cast<size_t>(options_.size));
      call.setTimeout(limit());
      gloo::allgather(call);
    });
  }
  void close() noexcept override {
    try {
      const SigpipeBlocked quiet;
      context_->closeConnections();
    } catch (const std::exception&) {  // closed as far as can be
    }
  }

 private:
  static milliseconds whole(rpc::Duration d) {
    return std::max(std::chrono::duration_cast<milliseconds>(d), milliseconds(1));
  }
  milliseconds limit() const { return whole(options_.timeout); }

  [[noreturn]] static void throw_as_ours(const std::exception& e, int lost, rpc::Duration waited) {
    const std::string text = e.what();
    if (text.find("imed out") != std::string::npos || text.find("imeout") != std::string::npos)
      throw Timeout(str("no answer from the others within ", whole(waited).count(), " ms"));
    throw ConnectionLost(lost, text);
  }

  template <class F> void guarded(F&& call) {
    const SigpipeBlocked quiet;
    try {
      call();
    } catch (const std::exception& e) {
      throw_as_ours(e, first_lost(), options_.timeout);
    }
  }

  /// The first rank whose connection takes no further receive; negative: none.
  int first_lost() noexcept {
    constexpr uint64_t kUnusedSlot = uint64_t{0xff} << 56;
    for (int rank = 0; rank < options_.size; ++rank) {
      if (rank == options_.rank) continue;
      try {
        context_->createUnboundBuffer(nullptr, 0)->recv(rank, kUnusedSlot);
      } catch (const std::exception&) {
        return rank;
      }
    }
    return -1;
  }

  const EngineOptions options_;
  std::shared_ptr<gloo::Context> context_;
};

}  // namespace

std::unique_ptr<Engine> make_gloo(const EngineOptions& options, Meeting& meeting) {
  return std::make_unique<GlooEngine>(options, meeting);
}

}  // namespace inner
#endif

}  // namespace weft::dist
