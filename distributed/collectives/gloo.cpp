// The engine over Gloo: rings of TCP connections. This is the one file with Gloo's headers; it is compiled
// without them where Gloo was not found. Gloo calls back to a store for addresses, which is the Meeting here.
// Gloo writes to its sockets without MSG_NOSIGNAL, so SIGPIPE is blocked around each call and in its thread.
// Its errors have no types for their causes, so a timeout is recognised by its text. The end of a connection
// wakes no wait whose bytes are under way. So each transfer has a separate buffer here, and a timer lets long
// waits check their connection.
#include <weft/distributed/collectives/inner/engine.h>

#ifdef WEFT_WITH_GLOO
#include <netdb.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <ctime>
#include <deque>
#include <type_traits>

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/broadcast.h>
#include <gloo/rendezvous/context.h>
#include <gloo/transport/context.h>
#include <gloo/transport/tcp/device.h>

#include <weft/distributed/runtime/sync.h>
#include <weft/distributed/transport/address.h>
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

// ---- waits that notice the end of their connection

using Buffer = gloo::transport::UnboundBuffer;

/// Interrupts the wait under way from time to time.
class Watch : public std::enable_shared_from_this<Watch> {
 public:
  explicit Watch(rpc::Runtime& runtime) : runtime_(runtime) {}
  Watch(const Watch&) = delete;

  /// While one lives, `interrupt` of `buffer` is called every kLook on the timer thread.
  class Scope {
   public:
    Scope(Watch& watch, Buffer& buffer, void (Buffer::*interrupt)()) : watch_(watch) {
      watch_.set(&buffer, interrupt);
    }
    ~Scope() { watch_.set(nullptr, nullptr); }
    Scope(const Scope&) = delete;

   private:
    Watch& watch_;
  };

 private:
  static constexpr milliseconds kLook{100};

  void set(Buffer* buffer, void (Buffer::*interrupt)()) {
    rpc::MutexLock lock(mutex_);
    buffer_ = buffer;
    interrupt_ = interrupt;
    if (buffer_ != nullptr && !armed_) arm();
  }
  void arm() WEFT_REQUIRES(mutex_) {
    armed_ = true;
    runtime_.call_at(runtime_.now() + kLook, [self = shared_from_this()] { self->look(); });
  }
  void look() {
    rpc::MutexLock lock(mutex_);
    armed_ = false;
    if (buffer_ == nullptr) return;
    (buffer_->*interrupt_)();
    arm();
  }

  rpc::Runtime& runtime_;
  rpc::Mutex mutex_;
  Buffer* buffer_ WEFT_GUARDED_BY(mutex_) = nullptr;
  void (Buffer::*interrupt_)() WEFT_GUARDED_BY(mutex_) = nullptr;
  bool armed_ WEFT_GUARDED_BY(mutex_) = false;
};

/// The connections of a group, with buffers whose waits are watched.
class WatchedContext final : public gloo::transport::Context {
 public:
  WatchedContext(std::shared_ptr<gloo::transport::Context> inner, rpc::Runtime& runtime)
      : Context(inner->rank, inner->size),
        inner_(std::move(inner)),
        runtime_(runtime),
        watch_(std::make_shared<Watch>(runtime)) {
    nowhere_ = getPair(rank == 0 ? 1 : 0)->address().bytes();
    std::fill_n(nowhere_.begin(), sizeof(sa_family_t), '\0');
  }

  std::unique_ptr<gloo::transport::Pair>& getPair(int r) override { return inner_->getPair(r); }
  std::unique_ptr<gloo::transport::Pair>& createPair(int r) override { return inner_->createPair(r); }
  std::unique_ptr<Buffer> createUnboundBuffer(void* data, size_t bytes) override;

  void end_waits_at(rpc::TimePoint end) { end_ = end; }

  /// A connection that has ended throws its error at every call. A living one refuses to connect to an
  /// address without a family, and stays as it is.
  bool has_ended(int r) {
    try {
      getPair(r)->connect(nowhere_);
      return false;
    } catch (const gloo::InvalidOperationException&) {
      return false;
    } catch (const std::exception&) {
      return true;
    }
  }

 private:
  class Transfers;
  const std::shared_ptr<gloo::transport::Context> inner_;
  rpc::Runtime& runtime_;
  const std::shared_ptr<Watch> watch_;
  std::vector<char> nowhere_;
  rpc::TimePoint end_ = rpc::kNever;  ///< of all waits
};

/// A buffer of a collective. It waits for its transfers in their order.
class WatchedContext::Transfers final : public Buffer {
 public:
  Transfers(WatchedContext& context, void* data, size_t bytes) : Buffer(data, bytes), context_(context) {}

  void send(int to, uint64_t slot, size_t offset, size_t bytes) override {
    begin(sends_, to, offset, bytes).send(to, slot, 0, sends_.back().inner->size);
  }
  void recv(int from, uint64_t slot, size_t offset, size_t bytes) override {
    begin(receives_, from, offset, bytes).recv(from, slot, 0, receives_.back().inner->size);
  }
  void recv(std::vector<int>, uint64_t, size_t, size_t) override {
    throw RpcError("a receive from any process: no collective here has one");
  }
  bool waitRecv(int*, milliseconds timeout) override {
    return wait(receives_, timeout, &Buffer::waitRecv, &Buffer::abortWaitRecv);
  }
  bool waitSend(int*, milliseconds timeout) override {
    return wait(sends_, timeout, &Buffer::waitSend, &Buffer::abortWaitSend);
  }
  void abortWaitRecv() override {}
  void abortWaitSend() override {}

 private:
  struct One {
    int peer;
    std::unique_ptr<Buffer> inner;
  };
  Buffer& begin(std::deque<One>& all, int peer, size_t offset, size_t bytes) {
    if (bytes == kUnspecifiedByteCount) bytes = size - offset;
    all.push_back({peer, context_.inner_->createUnboundBuffer(static_cast<char*>(ptr) + offset, bytes)});
    return *all.back().inner;
  }

  bool wait(std::deque<One>& all, milliseconds timeout, bool (Buffer::*wait)(int*, milliseconds),
            void (Buffer::*interrupt)()) {
    const One one = std::move(all.front());
    all.pop_front();
    const rpc::TimePoint end = std::min<rpc::TimePoint>(context_.runtime_.now() + timeout, context_.end_);
    while (true) {
      {
        const Watch::Scope scope(*context_.watch_, *one.inner, interrupt);
        const auto left = std::chrono::duration_cast<milliseconds>(end - context_.runtime_.now());
        if ((one.inner.get()->*wait)(nullptr, std::max(left, milliseconds(0)))) return true;
      }
      if (!context_.has_ended(one.peer)) continue;
      try {  // its last bytes may have come
        while (!(one.inner.get()->*wait)(nullptr, milliseconds(0))) {
        }
        return true;
      } catch (const std::exception& e) {
        throw ConnectionLost(one.peer, str("it ended in the middle of a transfer; ", e.what()));
      }
    }
  }

  WatchedContext& context_;
  std::deque<One> sends_, receives_;
};

std::unique_ptr<Buffer> WatchedContext::createUnboundBuffer(void* data, size_t bytes) {
  return std::make_unique<Transfers>(*this, data, bytes);
}

/// All connections of a process.
class Mesh final : public gloo::rendezvous::Context {
 public:
  using gloo::rendezvous::Context::Context;
  void watch(rpc::Runtime& runtime) {
    watched_ = std::make_shared<WatchedContext>(transportContext_, runtime);
    transportContext_ = watched_;
  }
  void end_waits_at(rpc::TimePoint end) { watched_->end_waits_at(end); }
  /// The first rank whose connection has ended; negative: none.
  int first_lost() {
    for (int r = 0; r < size; ++r)
      if (r != rank && watched_->has_ended(r)) return r;
    return -1;
  }

 private:
  std::shared_ptr<WatchedContext> watched_;
};

/// At the first address of the host that this machine has. Gloo gets numbers, since it takes each name for
/// one that is known.
std::shared_ptr<gloo::transport::Device> device_at(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  std::string why = "it has no address that fits";
  if (const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found); error != 0)
    why = gai_strerror(error);
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> all(found, [](addrinfo* a) {
    if (a != nullptr) freeaddrinfo(a);
  });
  for (const addrinfo* one = all.get(); one != nullptr; one = one->ai_next) {
    std::array<char, NI_MAXHOST> text{};
    if (getnameinfo(one->ai_addr, one->ai_addrlen, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0)
      continue;
    if (rpc::is_loopback_host(host) && !rpc::is_loopback_host(text.data())) continue;
    try {
      gloo::transport::tcp::attr where;
      where.hostname = text.data();
      return gloo::transport::tcp::CreateDevice(where);
    } catch (const std::exception& e) {
      why = e.what();
    }
  }
  throw RpcError(str("Gloo cannot use the host '", host, "': ", why));
}

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
/// True for a NaN, which Min and Max pass on, as in PyTorch's minimum.
template <class T> bool is_nan(T a) { return a != a; }  // NOLINT(misc-redundant-expression)

struct Min {
  template <class T> T operator()(T a, T b) const { return b < a || is_nan(b) ? b : a; }
};
struct Max {
  template <class T> T operator()(T a, T b) const { return a < b || is_nan(b) ? b : a; }
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
    std::shared_ptr<gloo::transport::Device> device = device_at(options.host);
    const auto context = std::make_shared<Mesh>(options.rank, options.size);
    context->setTimeout(whole(options.init_timeout / 5));  // Gloo waits five times as long to connect
    MeetingStore store(meeting);
    try {
      context->connectFullMesh(store, device);
      meet_connected(meeting);
    } catch (const Error&) {  // of the meeting
      throw;
    } catch (const std::exception& e) {
      throw_as_ours(e, -1, options.init_timeout);
    }
    context->watch(*options.runtime);
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
  void end_calls_at(rpc::TimePoint end) override { context_->end_waits_at(end); }
  void check() override {
    const SigpipeBlocked quiet;
    if (const int lost = context_->first_lost(); lost >= 0) throw ConnectionLost(lost, "it is closed");
  }
  void close() noexcept override {
    try {
      const SigpipeBlocked quiet;
      context_->closeConnections();
    } catch (const std::exception&) {  // closed as far as can be
    }
  }

 private:
  /// Returns once all processes have all connections. Gloo's thread ends the process when a connection is
  /// reset while it is being accepted. An abort() of the first process to connect would cause that.
  void meet_connected(Meeting& meeting) const {
    meeting.set(str("connected/", options_.rank), "");
    for (int r = 0; r < options_.size; ++r) meeting.get(str("connected/", r));
  }
  static milliseconds whole(rpc::Duration d) {
    return std::max(std::chrono::duration_cast<milliseconds>(d), milliseconds(1));
  }
  milliseconds limit() const { return whole(options_.timeout); }

  [[noreturn]] static void throw_as_ours(const std::exception& e, int lost, rpc::Duration waited) {
    const std::string text = e.what();
    // Not "Connection timed out", which the system reports for a peer whose machine is gone.
    if (text.find("Timed out") != std::string::npos || text.find("imeout") != std::string::npos)
      throw Timeout(str("no answer from the others within ", whole(waited).count(), " ms"));
    throw ConnectionLost(lost, text);
  }

  template <class F> void guarded(F&& call) {
    const SigpipeBlocked quiet;
    try {
      call();
    } catch (const ConnectionLost&) {
      throw;
    } catch (const std::exception& e) {
      throw_as_ours(e, context_->first_lost(), options_.timeout);
    }
  }

  const EngineOptions options_;
  std::shared_ptr<Mesh> context_;
};

}  // namespace

std::unique_ptr<Engine> make_gloo(const EngineOptions& options, Meeting& meeting) {
  return std::make_unique<GlooEngine>(options, meeting);
}

}  // namespace inner
#endif

}  // namespace weft::dist
