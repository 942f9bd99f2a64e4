// Links on gRPC's core API (calls, batches of operations, one completion queue). The rules of a link's
// lifetime and of its payloads follow the includes.
#include <weft/distributed/transport/inner/grpc_link.h>

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/slice.h>
#include <grpc/support/alloc.h>
#include <grpcpp/alarm.h>
#include <grpcpp/completion_queue.h>

#include <cstring>

#include <weft/distributed/transport/address.h>
#include <weft/distributed/transport/inner/grpc_slices.h>

// Lifetime of a link: each started batch increments `pending`, each event of the queue decrements it. The
// status batch (client: receive status; server: receive close) is the first to start and the last to end.
// When it has ended and nothing is pending, on_closed is called and the link deleted. The poll thread starts
// batches, or a writer that holds its own lock before on_closed; so `calls` is never used after that.
//
// Payloads go out as slices over the sender's memory. gRPC drops a slice once the socket has it; the last
// drop releases the message. The Decoder copies incoming slices once, into the receiver's memory. A
// connection has one stream for as long as it lives; one without a stream is closed.

namespace weft::rpc::inner {
namespace {

constexpr char kMethod[] = "/weft.Transport/Stream";
constexpr char kHelloKey[] = "weft-hello-bin";
/// for all metadata of a stream; a hello has at most 16 KiB
constexpr int64_t kMaxMetadataBytes = 24 << 10;

enum Kind { kRead, kWrite, kStatus, kFinish, kAccept, kServerDown, kKick };

using QueueTag = grpc::internal::CompletionQueueTag;

/// The tag of a batch in gRPC's completion queue. The alarm's event has a tag of grpc++, from which the queue
/// gets this one; so these tags derive from the same class.
struct Tag final : QueueTag {
  Tag(Link* l, Kind k) : link(l), kind(k) {}
  bool FinalizeResult(void** tag, bool*) override {
    *tag = this;
    return true;
  }
  Link* link;
  Kind kind;
};
void* as_tag(Tag& tag) { return static_cast<QueueTag*>(&tag); }
Tag* from_tag(void* tag) {
  bool ok = true;
  void* ours = nullptr;
  static_cast<QueueTag*>(tag)->FinalizeResult(&ours, &ok);
  return static_cast<Tag*>(ours);
}

/// Initialises gRPC once and for ever; gRPC starts and ends its own threads on demand.
void init_grpc() {
  static const bool once = (grpc_init(), true);
  (void)once;
}

std::string to_text(const grpc_slice& slice) {
  return std::string(reinterpret_cast<const char*>(GRPC_SLICE_START_PTR(slice)), GRPC_SLICE_LENGTH(slice));
}

grpc_arg int_arg(const char* key, int64_t value) {
  grpc_arg arg;
  arg.type = GRPC_ARG_INTEGER;
  arg.key = const_cast<char*>(key);
  arg.value.integer = static_cast<int>(std::min<int64_t>(value, INT32_MAX));
  return arg;
}
grpc_arg text_arg(const char* key, const char* value) {  // `value` must outlive the use
  grpc_arg arg;
  arg.type = GRPC_ARG_STRING;
  arg.key = const_cast<char*>(key);
  arg.value.string = const_cast<char*>(value);
  return arg;
}

int64_t to_ms(Duration d) { return std::chrono::duration_cast<std::chrono::milliseconds>(d).count(); }

grpc_op make_op(grpc_op_type type) {
  grpc_op op;
  std::memset(&op, 0, sizeof op);
  op.op = type;
  return op;
}

}  // namespace

struct LinkCalls {
  explicit LinkCalls(Link* link)
      : read{link, kRead}, write{link, kWrite}, status{link, kStatus}, finish{link, kFinish} {
    grpc_metadata_array_init(&initial);
    grpc_metadata_array_init(&trailing);
  }
  ~LinkCalls() {
    if (outgoing != nullptr) grpc_byte_buffer_destroy(outgoing);
    if (incoming != nullptr) grpc_byte_buffer_destroy(incoming);
    grpc_metadata_array_destroy(&initial);
    grpc_metadata_array_destroy(&trailing);
    grpc_slice_unref(details);
    if (call != nullptr) grpc_call_unref(call);
    if (channel != nullptr) grpc_channel_destroy(channel);
  }
  grpc_channel* channel = nullptr;
  grpc_call* call = nullptr;
  grpc_byte_buffer* outgoing = nullptr;
  grpc_byte_buffer* incoming = nullptr;
  grpc_metadata_array initial, trailing;
  grpc_slice details = grpc_empty_slice();
  grpc_status_code code = GRPC_STATUS_OK;
  int cancelled = 0;
  Tag read, write, status, finish;
  std::atomic<int> pending{0};
  bool closed = false;  // the status has come; used by the poll thread only, like `told`
  bool told = false;    // on_closed was called
  bool known = false;   // an outgoing link's proof was taken
  std::atomic<bool> initial_sent{false};
  Mutex mutex;
  std::string why WEFT_GUARDED_BY(mutex);  // this side's reason for a cancel
};

Link::Link(bool is_accepted) : accepted(is_accepted), calls(std::make_unique<LinkCalls>(this)) {}
Link::~Link() = default;

struct LinkEngine::Grpc {
  GrpcOptions options;
  std::optional<TlsFiles> tls;
  std::vector<grpc_arg> client_args, server_args;
  grpc_completion_queue* queue = nullptr;
  grpc_server* server = nullptr;
  grpc_channel_credentials* plain_client = nullptr;
  bool listening = false;
  bool server_down = true;
  Tag accept{nullptr, kAccept}, down{nullptr, kServerDown}, kick{nullptr, kKick};
  std::unique_ptr<grpc::CompletionQueue> owner;  // of `queue`; the alarm needs this class
  std::unique_ptr<grpc::Alarm> alarm;
  grpc_call* new_call = nullptr;
  grpc_call_details new_details;
  grpc_metadata_array new_metadata;
  ~Grpc() {
    if (server != nullptr) grpc_server_destroy(server);
    alarm.reset();
    owner.reset();
    if (plain_client != nullptr) grpc_channel_credentials_release(plain_client);
    grpc_call_details_destroy(&new_details);
    grpc_metadata_array_destroy(&new_metadata);
  }
};

LinkEngine::LinkEngine(Runtime& runtime, const GrpcOptions& options, LinkEvents& events)
    : runtime_(runtime), events_(events), grpc_(new Grpc) {
  init_grpc();
  auto& g = *grpc_;
  grpc_call_details_init(&g.new_details);
  grpc_metadata_array_init(&g.new_metadata);
  g.options = options;
  if (options.tls) g.tls.emplace(*options.tls);
  g.plain_client = grpc_insecure_credentials_create();
  const std::vector<grpc_arg> both = {
      int_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, kMaxFrameBytes),
      int_arg(GRPC_ARG_KEEPALIVE_TIME_MS, to_ms(options.keepalive_time)),
      int_arg(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, to_ms(options.keepalive_timeout)),
      int_arg(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1),
      int_arg(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0),
      text_arg(GRPC_ARG_OPTIMIZATION_TARGET, "latency"),
  };
  g.client_args = both;
  g.client_args.insert(g.client_args.end(), {
                                                int_arg(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 20),
                                                int_arg(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 2000),
                                                int_arg(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 250),
                                                int_arg(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1),
                                                int_arg(GRPC_ARG_ENABLE_RETRIES, 0),
                                                int_arg(GRPC_ARG_ENABLE_HTTP_PROXY, 0),
                                                int_arg(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1),
                                            });
  g.server_args = both;
  g.server_args.insert(g.server_args.end(),
                       {
                           int_arg(GRPC_ARG_ALLOW_REUSEPORT, 0),
                           int_arg(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1000),
                           int_arg(GRPC_ARG_MAX_CONCURRENT_STREAMS, 1),
                           int_arg(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes),
                           int_arg(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, to_ms(options.handshake_timeout)),
                           int_arg(GRPC_ARG_MAX_CONNECTION_IDLE_MS, to_ms(options.handshake_timeout)),
                       });
  g.queue = grpc_completion_queue_create_for_next(nullptr);
  g.owner = std::make_unique<grpc::CompletionQueue>(g.queue);
  g.alarm = std::make_unique<grpc::Alarm>();
  const grpc_channel_args args{g.server_args.size(), g.server_args.data()};
  g.server = grpc_server_create(&args, nullptr);
  grpc_server_register_completion_queue(g.server, g.queue, nullptr);
}

LinkEngine::~LinkEngine() {
  if (polling_ != nullptr) shutdown();
  if (grpc_->server == nullptr) return;
  grpc_server_shutdown_and_notify(grpc_->server, grpc_->queue, as_tag(grpc_->down));  // never started
  drain();
}

/// Shuts the queue down and empties it.
void LinkEngine::drain() {
  grpc_completion_queue_shutdown(grpc_->queue);
  while (true) {
    const grpc_event event =
        grpc_completion_queue_next(grpc_->queue, gpr_inf_future(GPR_CLOCK_REALTIME), nullptr);
    if (event.type == GRPC_QUEUE_SHUTDOWN) return;
    if (event.type == GRPC_OP_COMPLETE) from_tag(event.tag);
  }
}

int LinkEngine::listen(const std::string& address, bool secure) {
  auto& g = *grpc_;
  grpc_server_credentials* credentials =
      secure ? server_credentials(*g.tls) : grpc_insecure_server_credentials_create();
  const int port = grpc_server_add_http2_port(g.server, address.c_str(), credentials);
  grpc_server_credentials_release(credentials);
  if (port == 0)
    throw RpcError(
        str("cannot listen on ", address, ": the port is in use, or the host is not one of this machine's"));
  g.listening = true;
  return is_unix_address(address) ? 0 : port;
}

void LinkEngine::start() {
  auto& g = *grpc_;
  g.server_down = false;
  grpc_server_start(g.server);
  if (g.listening) request_call();
  polling_ = runtime_.start_poller("grpc", *this, g.options.shared_poller);
}

void LinkEngine::request_call() {
  auto& g = *grpc_;
  g.new_call = nullptr;
  handoff();
  grpc_server_request_call(g.server, &g.new_call, &g.new_details, &g.new_metadata, g.queue, g.queue,
                           as_tag(g.accept));
}

void LinkEngine::add(Link* link) {
  MutexLock lock(mutex_);
  links_.insert(link);
}

Link* LinkEngine::connect(const LinkTarget& target, std::shared_ptr<void> owner, const std::string& hello) {
  auto& g = *grpc_;
  auto* link = new Link(false);
  link->owner = std::move(owner);
  auto& c = *link->calls;
  std::vector<grpc_arg> settings = g.client_args;
  if (!target.name.empty())
    settings.push_back(text_arg(GRPC_SSL_TARGET_NAME_OVERRIDE_ARG, target.name.c_str()));
  const grpc_channel_args args{settings.size(), settings.data()};
  auto* const secure = target.secure ? client_credentials(*g.tls->current()) : nullptr;
  c.channel = grpc_channel_create(target.address.c_str(), secure != nullptr ? secure : g.plain_client, &args);
  if (secure != nullptr) grpc_channel_credentials_release(secure);
  c.call = grpc_channel_create_call(c.channel, nullptr, GRPC_PROPAGATE_DEFAULTS, g.queue,
                                    grpc_slice_from_static_string(kMethod), nullptr,
                                    gpr_inf_future(GPR_CLOCK_REALTIME), nullptr);
  c.pending = 3;
  add(link);
  bool stopped = false;
  {
    MutexLock lock(mutex_);
    stopped = stopping_;
  }
  grpc_op status = make_op(GRPC_OP_RECV_STATUS_ON_CLIENT);
  status.data.recv_status_on_client = {&c.trailing, &c.code, &c.details, nullptr};
  grpc_metadata first{grpc_slice_from_static_string(kHelloKey),
                      grpc_slice_from_copied_buffer(hello.data(), hello.size()),
                      {}};
  grpc_op out = make_op(GRPC_OP_SEND_INITIAL_METADATA);
  out.data.send_initial_metadata.count = hello.empty() ? 0 : 1;
  out.data.send_initial_metadata.metadata = &first;
  grpc_op in[2] = {make_op(GRPC_OP_RECV_INITIAL_METADATA), make_op(GRPC_OP_RECV_MESSAGE)};
  in[0].data.recv_initial_metadata.recv_initial_metadata = &c.initial;
  in[1].data.recv_message.recv_message = &c.incoming;
  grpc_call* call = c.call;
  grpc_call_ref(call);  // the link may end before all batches have started
  handoff();
  grpc_call_start_batch(call, &status, 1, as_tag(c.status), nullptr);
  grpc_call_start_batch(call, &out, 1, as_tag(c.write), nullptr);
  grpc_slice_unref(first.value);
  grpc_call_start_batch(call, in, 2, as_tag(c.read), nullptr);
  if (stopped) grpc_call_cancel(call, nullptr);
  grpc_call_unref(call);
  return link;
}

/// Adds the (empty) metadata that an accepted link must send first.
static size_t begin_sending(Link& link, grpc_op* ops) {
  if (!link.accepted || link.calls->initial_sent.exchange(true)) return 0;
  ops[0] = make_op(GRPC_OP_SEND_INITIAL_METADATA);
  return 1;
}

void LinkEngine::write(Link& link, Frame frame) {
  auto& c = *link.calls;
  if (c.outgoing != nullptr) grpc_byte_buffer_destroy(c.outgoing);
  c.outgoing = to_buffer(std::move(frame));
  ++c.pending;
  grpc_op ops[2];
  size_t n = begin_sending(link, ops);
  ops[n] = make_op(GRPC_OP_SEND_MESSAGE);
  ops[n++].data.send_message.send_message = c.outgoing;
  handoff();
  grpc_call_start_batch(c.call, ops, n, as_tag(c.write), nullptr);
}

void LinkEngine::finish(Link& link) {
  auto& c = *link.calls;
  ++c.pending;
  grpc_op ops[2];
  size_t n = begin_sending(link, ops);
  ops[n++] = make_op(link.accepted ? GRPC_OP_SEND_STATUS_FROM_SERVER : GRPC_OP_SEND_CLOSE_FROM_CLIENT);
  handoff();
  grpc_call_start_batch(c.call, ops, n, as_tag(c.finish), nullptr);
}

void LinkEngine::refuse(Link& link, Frame frame) {
  auto& c = *link.calls;
  if (c.outgoing != nullptr) grpc_byte_buffer_destroy(c.outgoing);
  c.outgoing = to_buffer(std::move(frame));
  ++c.pending;
  grpc_op ops[3];
  size_t n = begin_sending(link, ops);
  ops[n] = make_op(GRPC_OP_SEND_MESSAGE);
  ops[n++].data.send_message.send_message = c.outgoing;
  grpc_slice details = grpc_slice_from_static_string("refused");
  ops[n] = make_op(GRPC_OP_SEND_STATUS_FROM_SERVER);
  ops[n].data.send_status_from_server.status = GRPC_STATUS_FAILED_PRECONDITION;
  ops[n++].data.send_status_from_server.status_details = &details;
  handoff();
  grpc_call_start_batch(c.call, ops, n, as_tag(c.finish), nullptr);
}

void LinkEngine::cancel(Link& link, const std::string& reason) {
  {
    MutexLock lock(link.calls->mutex);
    if (link.calls->why.empty()) link.calls->why = reason;
  }
  grpc_call_cancel(link.calls->call, nullptr);
}

void LinkEngine::read(Link& link) {
  auto& c = *link.calls;
  ++c.pending;
  grpc_op op = make_op(GRPC_OP_RECV_MESSAGE);
  op.data.recv_message.recv_message = &c.incoming;
  handoff();
  grpc_call_start_batch(c.call, &op, 1, as_tag(c.read), nullptr);
}

/// Passes a received frame on, slice by slice, and reads the next.
void LinkEngine::deliver(Link& link) {
  auto& c = *link.calls;
  grpc_byte_buffer* buffer = std::exchange(c.incoming, nullptr);
  if (buffer == nullptr) {
    events_.on_read_end(link);
    return;
  }
  if (!link.accepted && !std::exchange(c.known, true)) link.proof = proof_of(c.call);
  bool more = false;
  grpc_byte_buffer_reader reader;
  if (grpc_byte_buffer_reader_init(&reader, buffer) != 0) {
    more = true;
    grpc_slice* slice = nullptr;
    while (more && grpc_byte_buffer_reader_peek(&reader, &slice) != 0) {
      more = events_.on_bytes(link, GRPC_SLICE_START_PTR(*slice), GRPC_SLICE_LENGTH(*slice), false);
    }
    if (more) more = events_.on_bytes(link, nullptr, 0, true);
    grpc_byte_buffer_reader_destroy(&reader);
  }
  grpc_byte_buffer_destroy(buffer);
  if (more) read(link);
}

void LinkEngine::handle(Link& link, int kind, bool ok) {
  auto& c = *link.calls;
  if (kind == kRead) {
    if (ok) deliver(link);
  } else if (kind == kWrite) {
    if (ok) events_.on_written(link);
  } else if (kind == kStatus) {
    c.closed = true;
  }
  if (--c.pending > 0 || !c.closed) return;
  if (!std::exchange(c.told, true)) {
    std::string reason;
    {
      MutexLock lock(c.mutex);
      reason = c.why;
    }
    if (reason.empty() && !link.accepted && c.code != GRPC_STATUS_OK) reason = to_text(c.details);
    if (reason.empty()) reason = c.cancelled != 0 ? "the connection was lost" : "the peer ended the stream";
    events_.on_closed(link, reason);
    // a writer started a batch before on_closed: the event of that batch comes here again
    if (c.pending.load() > 0) return;
  }
  {
    MutexLock lock(mutex_);
    links_.erase(&link);
  }
  delete &link;
}

bool LinkEngine::poll(TimePoint deadline) {
  auto& g = *grpc_;
  gpr_timespec limit = gpr_inf_future(GPR_CLOCK_MONOTONIC);
  if (deadline != kNever) {
    const int64_t left = std::max<int64_t>(0, (deadline - runtime_.now()).count());
    limit = gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_nanos(left, GPR_TIMESPAN));
  }
  const grpc_event event = grpc_completion_queue_next(g.queue, limit, nullptr);
  handoff();
  if (event.type == GRPC_QUEUE_SHUTDOWN) return false;
  if (event.type == GRPC_OP_COMPLETE) {
    auto* tag = from_tag(event.tag);
    if (tag->kind == kKick) {
      kicked_.store(false);
      return true;
    }
    if (tag->kind == kServerDown) {
      g.server_down = true;
    } else if (tag->kind == kAccept) {
      if (event.success != 0) accept();
    } else {
      handle(*tag->link, tag->kind, event.success != 0);
    }
  }
  MutexLock lock(mutex_);
  if (!stopping_ || !g.server_down || !links_.empty()) return true;
  ended_ = true;
  lock.unlock();
  drain();
  return false;
}

/// Sets an alarm in the past, whose event comes at once.
void LinkEngine::kick() {
  MutexLock lock(mutex_);
  if (ended_ || kicked_.exchange(true)) return;
  grpc_->alarm->Set(grpc_->owner.get(), gpr_time_0(GPR_CLOCK_MONOTONIC), &grpc_->kick);
}

void LinkEngine::accept() {
  auto& g = *grpc_;
  auto* link = new Link(true);
  auto& c = *link->calls;
  c.call = std::exchange(g.new_call, nullptr);
  const bool ours = to_text(g.new_details.method) == kMethod;
  grpc_call_details_destroy(&g.new_details);
  grpc_call_details_init(&g.new_details);
  std::string hello;
  for (size_t i = 0; i < g.new_metadata.count; ++i)
    if (to_text(g.new_metadata.metadata[i].key) == kHelloKey)
      hello = to_text(g.new_metadata.metadata[i].value);
  g.new_metadata.count = 0;
  add(link);
  c.pending = 1;
  link->proof = proof_of(c.call);
  grpc_op op = make_op(GRPC_OP_RECV_CLOSE_ON_SERVER);
  op.data.recv_close_on_server.cancelled = &c.cancelled;
  grpc_call_start_batch(c.call, &op, 1, as_tag(c.status), nullptr);
  if (!ours) hello.clear();
  if (events_.on_accepted(*link, hello)) read(*link);
  request_call();
}

void LinkEngine::shutdown() {
  if (polling_ == nullptr) return;
  {
    MutexLock lock(mutex_);
    if (!stopping_) {
      stopping_ = true;
      for (Link* link : links_) cancel(*link, "the transport was closed");
    }
  }
  grpc_server_shutdown_and_notify(grpc_->server, grpc_->queue, as_tag(grpc_->down));
  grpc_server_cancel_all_calls(grpc_->server);
  polling_->join();
  polling_.reset();
  grpc_server_destroy(std::exchange(grpc_->server, nullptr));
  grpc_->alarm.reset();
  grpc_->owner.reset();
}

}  // namespace weft::rpc::inner
