// Calls of etcd over gRPC's core API: messages are bytes here. One thread takes the events of the completion
// queue; its functions are short and only set events.
#include <weft/distributed/launch/inner/etcd_calls.h>

#include <etcd.pb.h>
#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/slice.h>
#include <grpc/support/time.h>

#include <atomic>

#include <weft/distributed/transport/address.h>
#include <weft/distributed/transport/inner/grpc_ends.h>
#include <weft/distributed/transport/inner/unprotected.h>
#include <weft/tensor/io/inner/file_io.h>

namespace weft::rpc::inner {
namespace {

constexpr Duration kEtcdPatience = std::chrono::seconds(3);  // for one member's answer
constexpr char kEtcdWatch[] = "/etcdserverpb.Watch/Watch";

grpc_byte_buffer* etcd_buffer(const std::string& bytes) {
  grpc_slice slice = grpc_slice_from_copied_buffer(bytes.data(), bytes.size());
  grpc_byte_buffer* buffer = grpc_raw_byte_buffer_create(&slice, 1);
  grpc_slice_unref(slice);
  return buffer;
}
std::string etcd_bytes(grpc_byte_buffer* buffer) {
  grpc_byte_buffer_reader reader;
  if (!grpc_byte_buffer_reader_init(&reader, buffer)) return {};
  grpc_slice slice = grpc_byte_buffer_reader_readall(&reader);
  std::string bytes(reinterpret_cast<const char*>(GRPC_SLICE_START_PTR(slice)), GRPC_SLICE_LENGTH(slice));
  grpc_slice_unref(slice);
  grpc_byte_buffer_reader_destroy(&reader);
  return bytes;
}

grpc_channel_credentials* etcd_credentials(const std::optional<TlsOptions>& tls) {
  if (!tls) return grpc_insecure_credentials_create();
  const auto read = [](const std::string& text, const std::string& file) {
    if (!text.empty() || file.empty()) return text;
    return weft::detail::read_file("tls", file);
  };
  const std::string ca = read(tls->ca, tls->ca_file), key = read(tls->key, tls->key_file),
                    certificate = read(tls->certificate, tls->certificate_file);
  grpc_ssl_pem_key_cert_pair pair{key.c_str(), certificate.c_str()};
  return grpc_ssl_credentials_create(ca.empty() ? nullptr : ca.c_str(), key.empty() ? nullptr : &pair,
                                     nullptr, nullptr);
}

/// The function that the queue's thread runs for an event. It may delete the tag. The writes of
/// the starting thread happen before it: the queue orders both, and the flag shows that to the thread
/// sanitizer.
class EtcdTag {
 public:
  void started() { started_.store(true, std::memory_order_release); }
  void ended() {
    if (started_.load(std::memory_order_acquire)) run();
  }

 protected:
  virtual void run() = 0;
  ~EtcdTag() = default;

 private:
  std::atomic<bool> started_{false};
};

/// A call of gRPC with the memory of its batches.
struct EtcdCall {
  EtcdCall(grpc_channel* channel, grpc_completion_queue* queue, const char* method, gpr_timespec deadline,
           const std::string& request)
      : call(grpc_channel_create_call(channel, nullptr, GRPC_PROPAGATE_DEFAULTS, queue,
                                      grpc_slice_from_static_string(method), nullptr, deadline, nullptr)),
        sent(etcd_buffer(request)) {
    grpc_metadata_array_init(&first);
    grpc_metadata_array_init(&last);
  }
  EtcdCall(const EtcdCall&) = delete;
  ~EtcdCall() {
    grpc_call_unref(call);
    grpc_byte_buffer_destroy(sent);
    grpc_byte_buffer_destroy(received);
    grpc_metadata_array_destroy(&first);
    grpc_metadata_array_destroy(&last);
    grpc_slice_unref(details);
  }
  static grpc_op op(grpc_op_type type) {
    grpc_op made{};
    made.op = type;
    return made;
  }
  grpc_op send_message() {
    grpc_op made = op(GRPC_OP_SEND_MESSAGE);
    made.data.send_message.send_message = sent;
    return made;
  }
  grpc_op receive_first() {
    grpc_op made = op(GRPC_OP_RECV_INITIAL_METADATA);
    made.data.recv_initial_metadata.recv_initial_metadata = &first;
    return made;
  }
  grpc_op receive_message() {
    grpc_op made = op(GRPC_OP_RECV_MESSAGE);
    made.data.recv_message.recv_message = &received;
    return made;
  }
  grpc_op receive_status() {
    grpc_op made = op(GRPC_OP_RECV_STATUS_ON_CLIENT);
    made.data.recv_status_on_client.trailing_metadata = &last;
    made.data.recv_status_on_client.status = &code;
    made.data.recv_status_on_client.status_details = &details;
    return made;
  }
  void start(const std::vector<grpc_op>& ops, EtcdTag& tag) {
    tag.started();
    if (grpc_call_start_batch(call, ops.data(), ops.size(), &tag, nullptr) != GRPC_CALL_OK)
      throw RpcError("etcd: a call could not be started");
  }
  grpc_call* const call;
  grpc_byte_buffer *sent, *received = nullptr;
  grpc_metadata_array first, last;
  grpc_status_code code = GRPC_STATUS_UNKNOWN;
  grpc_slice details = grpc_empty_slice();
};

/// A call with one answer. The queue keeps it until its end.
struct EtcdUnary final : EtcdTag, std::enable_shared_from_this<EtcdUnary> {
  EtcdUnary(Runtime& runtime, grpc_channel* channel, grpc_completion_queue* queue, const char* method,
            gpr_timespec deadline, const std::string& request)
      : call(channel, queue, method, deadline, request), done(runtime, "an answer of etcd") {}
  void start() {
    self = shared_from_this();
    call.start({EtcdCall::op(GRPC_OP_SEND_INITIAL_METADATA), call.send_message(),
                EtcdCall::op(GRPC_OP_SEND_CLOSE_FROM_CLIENT), call.receive_first(), call.receive_message(),
                call.receive_status()},
               *this);
  }
  void run() override {
    const auto kept = std::move(self);
    done.set();
  }
  EtcdCall call;
  Event done;
  std::shared_ptr<EtcdUnary> self{};
};

/// A stream with one watch. After its start only the queue's thread works on it, until `ended` is set.
class EtcdStream {
 public:
  EtcdStream(Runtime& runtime, grpc_channel* channel, grpc_completion_queue* queue,
             const std::string& request, std::shared_ptr<Event> changed)
      : ended(runtime, "the end of a watch at etcd"),
        call(channel, queue, kEtcdWatch, gpr_inf_future(GPR_CLOCK_REALTIME), request),
        changed_(std::move(changed)) {
    call.start({call.receive_status()}, over_);
    call.start({EtcdCall::op(GRPC_OP_SEND_INITIAL_METADATA), call.send_message()}, over_);
    call.start({call.receive_first(), call.receive_message()}, read_);
  }
  Event ended;
  EtcdCall call;

 private:
  struct Over final : EtcdTag {
    explicit Over(EtcdStream& of) : stream(of) {}
    void run() override { stream.one_over(); }
    EtcdStream& stream;
  };
  struct Read final : EtcdTag {
    explicit Read(EtcdStream& of) : stream(of) {}
    void run() override { stream.read(); }
    EtcdStream& stream;
  };
  void one_over() {
    if (--open_ > 0) return;
    changed_->set();
    ended.set();
  }
  void read() {
    if (call.received == nullptr) {
      changed_->set();
      return one_over();
    }
    if (has_event(etcd_bytes(call.received))) changed_->set();
    grpc_byte_buffer_destroy(std::exchange(call.received, nullptr));
    call.start({call.receive_message()}, read_);
  }
  static bool has_event(const std::string& reply) {
    etcd::WatchResponse read;
    return !read.ParseFromString(reply) || read.canceled() || !read.events().empty();
  }
  Over over_{*this};
  Read read_{*this};
  int open_ = 3;  // batches
  const std::shared_ptr<Event> changed_;
};

class GrpcEtcd final : public EtcdCalls {
 public:
  GrpcEtcd(Runtime& runtime, const std::string& addresses, const EtcdOptions& options) : runtime_(runtime) {
    grpc_init();
    try {
      open(addresses, options);
      queue_ = grpc_completion_queue_create_for_next(nullptr);
      poller_ = runtime_.start_service("etcd", [queue = queue_] { poll(queue); });
    } catch (...) {
      close();
      throw;
    }
  }
  ~GrpcEtcd() override { close(); }

  EtcdStatus call(const char* method, const std::string& request, std::string& reply,
                  TimePoint deadline) override {
    const size_t member = member_.load();
    const Duration left = std::clamp<Duration>(deadline - runtime_.now(), Duration::zero(), kEtcdPatience);
    const gpr_timespec end =
        gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_nanos(left.count(), GPR_TIMESPAN));
    const auto one = std::make_shared<EtcdUnary>(runtime_, channels_[member], queue_, method, end, request);
    one->start();
    one->done.wait();  // gRPC ends it at its deadline
    if (one->call.code == GRPC_STATUS_OK && one->call.received != nullptr) {
      reply = etcd_bytes(one->call.received);
      return {};
    }
    const grpc_slice& details = one->call.details;
    const EtcdStatus status{one->call.code == GRPC_STATUS_OK ? GRPC_STATUS_INTERNAL : one->call.code,
                            std::string(reinterpret_cast<const char*>(GRPC_SLICE_START_PTR(details)),
                                        GRPC_SLICE_LENGTH(details))};
    size_t failed = member;
    if (status.again()) member_.compare_exchange_strong(failed, (member + 1) % channels_.size());
    return status;
  }

  std::unique_ptr<EtcdWatch> watch(std::vector<std::string> requests,
                                   std::shared_ptr<Event> changed) override {
    auto watching = std::make_unique<Watching>();
    for (const auto& request : requests)
      watching->streams.push_back(
          std::make_unique<EtcdStream>(runtime_, channels_[member_.load()], queue_, request, changed));
    return watching;
  }

 private:
  struct Watching final : EtcdWatch {
    ~Watching() override {
      for (auto& stream : streams) grpc_call_cancel(stream->call.call, nullptr);
      for (auto& stream : streams) {
        try {
          stream->ended.wait();
        } catch (const Error&) {  // the runtime has stopped; the queue may still use the stream
          static_cast<void>(stream.release());
        }
      }
    }
    std::vector<std::unique_ptr<EtcdStream>> streams;
  };

  void open(const std::string& addresses, const EtcdOptions& options) {
    inner::tell_unprotected("etcd at " + addresses, options.tls, options.insecure,
                            "read and change all keys");
    bool resolved = false;
    std::string why;
    for (size_t at = 0; at <= addresses.size();) {
      const size_t end = std::min(addresses.find(',', at), addresses.size());
      const std::string one = addresses.substr(at, end - at);
      const HostPort host = parse_host_port(one);
      if (!options.tls && !options.insecure && !is_loopback_host(host.host))
        throw RpcError(str("etcd at ", one, " needs credentials: set tls, or insecure = true"));
      if (!resolved) {  // a member may be away, but not all of them
        why = is_loopback_host(host.host) ? "" : why_unresolved(host.host);
        resolved = why.empty();
      }
      grpc_channel_credentials* const credentials = etcd_credentials(options.tls);
      std::vector<grpc_arg> settings;
      for (const auto& [key, value] : {std::pair(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, -1),
                                       {GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000},
                                       {GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1},
                                       {GRPC_ARG_ENABLE_HTTP_PROXY, 0},
                                       {GRPC_ARG_ENABLE_RETRIES, 0}}) {
        settings.push_back({.type = GRPC_ARG_INTEGER, .key = const_cast<char*>(key), .value = {}});
        settings.back().value.integer = value;
      }
      const grpc_channel_args arguments{settings.size(), settings.data()};
      channels_.push_back(
          grpc_channel_create(("dns:///" + to_string(host)).c_str(), credentials, &arguments));
      grpc_channel_credentials_release(credentials);
      at = end + 1;
    }
    if (!resolved) throw RpcError(str("etcd at ", addresses, ": no host can be resolved: ", why));
  }
  static void poll(grpc_completion_queue* queue) {
    while (true) {
      grpc_event event{};
      next_event(queue, kLongestWait, event);
      if (event.type == GRPC_QUEUE_SHUTDOWN) return;
      if (event.type == GRPC_OP_COMPLETE) static_cast<EtcdTag*>(event.tag)->ended();
    }
  }
  void close() {
    if (queue_ != nullptr) grpc_completion_queue_shutdown(queue_);
    poller_.reset();  // waits for its end
    for (auto* channel : channels_) grpc_channel_destroy(channel);
    if (queue_ != nullptr) grpc_completion_queue_destroy(queue_);
    grpc_shutdown();
  }

  Runtime& runtime_;
  std::vector<grpc_channel*> channels_;
  std::atomic<size_t> member_{0};
  grpc_completion_queue* queue_ = nullptr;
  std::unique_ptr<Service> poller_;
};

}  // namespace

std::unique_ptr<EtcdCalls> make_etcd_calls(Runtime& runtime, const std::string& addresses,
                                           const EtcdOptions& options) {
  return std::make_unique<GrpcEtcd>(runtime, addresses, options);
}

}  // namespace weft::rpc::inner
