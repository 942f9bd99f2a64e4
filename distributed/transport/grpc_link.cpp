// Links on gRPC's core API (calls, batches of operations, one completion queue). The rules of a link's
// lifetime and of its payloads follow the includes.
#include <weft/distributed/transport/inner/grpc_link.h>

#include <grpc/byte_buffer.h>
#include <grpc/grpc.h>
#include <grpc/slice.h>
#include <grpcpp/alarm.h>
#include <grpcpp/completion_queue.h>

#include <algorithm>
#include <deque>
#include <new>
#include <thread>

#include <weft/distributed/transport/inner/grpc_slices.h>

// Lifetime of a link: each started batch increments `pending`, each event of the queue decrements it. The
// status batch (client: receive status; server: receive close) is the first to start and the last to end.
// When it has ended and nothing is pending, on_closed is called and the link deleted. The poll thread starts
// batches, or a writer that holds its own lock before on_closed; so `calls` is never used after that.
//
// Payloads go out as slices over the sender's memory. gRPC drops a slice once the socket has it; the last
// drop releases the message. The Decoder copies incoming slices once, into the receiver's memory. A
// connection has one stream for as long as it lives; one without a stream is closed. An event without memory
// ends its link alone.

namespace weft::rpc::inner {
namespace {

constexpr char kMethod[] = "/weft.Transport/Stream";
constexpr char kHelloKey[] = "weft-hello-bin";
constexpr int kEventsPerTurn = 8;

enum Kind { kRead, kWrite, kStatus, kFinish, kAccept, kServerDown, kKick };
using QueueTag = grpc::internal::CompletionQueueTag;

/// The tag of a batch in gRPC's completion queue. The alarm's event has a tag of grpc++, from which the queue
/// gets this one; so these tags derive from the same class.
struct Tag final : QueueTag {
  Tag(GrpcLink* l, Kind k) : link(l), kind(k) {}
  bool FinalizeResult(void** tag, bool*) override {
    *tag = this;
    return true;
  }
  GrpcLink* link;
  Kind kind;
};
void* as_tag(Tag& tag) { return static_cast<QueueTag*>(&tag); }
Tag* from_tag(void* tag) {
  void* ours = nullptr;
  static_cast<QueueTag*>(tag)->FinalizeResult(&ours, nullptr);
  return static_cast<Tag*>(ours);
}

grpc_op make_op(grpc_op_type type) {
  grpc_op op{};
  op.op = type;
  return op;
}

}  // namespace

struct LinkCalls {
  explicit LinkCalls(GrpcLink* link)
      : read{link, kRead}, write{link, kWrite}, status{link, kStatus}, finish{link, kFinish} {
    grpc_metadata_array_init(&initial);
    grpc_metadata_array_init(&trailing);
  }
  ~LinkCalls() {
    if (outgoing != nullptr) grpc_byte_buffer_destroy(outgoing);
    grpc_metadata_array_destroy(&initial);
    grpc_metadata_array_destroy(&trailing);
    grpc_slice_unref(details);
    if (call != nullptr) grpc_call_unref(call);
    if (channel != nullptr) grpc_channel_destroy(channel);
  }
  grpc_channel* channel = nullptr;
  grpc_call* call = nullptr;
  grpc_byte_buffer* outgoing = nullptr;
  BufferReader incoming;
  size_t piece = kSmallPiece;
  int turns = 0;  // of this frame
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

GrpcLink::GrpcLink(LinkEngine& engine, bool is_accepted)
    : Link(engine, is_accepted), calls(std::make_unique<LinkCalls>(this)) {}
GrpcLink::~GrpcLink() = default;

static LinkCalls& calls_of(Link& link) { return *static_cast<GrpcLink&>(link).calls; }

/// The reason of the end of a link that is closed.
static std::string reason_of(Link& link) {
  LinkCalls& c = calls_of(link);
  MutexLock lock(c.mutex);
  if (!c.why.empty()) return c.why;
  if (!link.accepted && c.code != GRPC_STATUS_OK && GRPC_SLICE_LENGTH(c.details) > 0)
    return to_text(c.details);
  return c.cancelled != 0 ? "the connection was lost" : "the peer ended the stream";
}

struct GrpcEngine::Grpc {
  GrpcOptions options;
  std::optional<TlsFiles> tls;
  grpc_completion_queue* queue = nullptr;
  std::optional<GrpcServer> server;
  bool listening = false;
  bool server_down = true;
  Tag accept{nullptr, kAccept}, down{nullptr, kServerDown}, kick{nullptr, kKick};
  std::unique_ptr<grpc::CompletionQueue> owner;  // of `queue`; the alarm needs this class
  std::unique_ptr<grpc::Alarm> alarm;
  grpc_call* new_call = nullptr;
  grpc_call_details new_details;
  grpc_metadata_array new_metadata;
  std::optional<Spinner> spinner;
  std::deque<GrpcLink*> unread;  // links with a frame that is delivered in part; used by the poll thread only
  int events = 0;                // since the last turn of one of them
  ~Grpc() {
    server.reset();
    alarm.reset();
    owner.reset();
    grpc_call_details_destroy(&new_details);
    grpc_metadata_array_destroy(&new_metadata);
  }
};

GrpcEngine::GrpcEngine(Runtime& runtime, const GrpcOptions& options, LinkEvents& events)
    : runtime_(runtime), events_(events), grpc_(new Grpc) {
  [[maybe_unused]] static const bool once = (grpc_init(), keep_freed_blocks(), true);
  auto& g = *grpc_;
  grpc_call_details_init(&g.new_details);
  grpc_metadata_array_init(&g.new_metadata);
  g.options = options;
  g.spinner.emplace(longest_spin(options.spin));
  if (options.tls) g.tls.emplace(*options.tls);
  g.queue = grpc_completion_queue_create_for_next(nullptr);
  g.owner = std::make_unique<grpc::CompletionQueue>(g.queue);
  g.alarm = std::make_unique<grpc::Alarm>();
  g.server.emplace(options, g.queue);
}

GrpcEngine::~GrpcEngine() {
  if (polling_ != nullptr) shutdown();
  if (!grpc_->server) return;
  grpc_server_shutdown_and_notify(grpc_->server->get(), grpc_->queue, as_tag(grpc_->down));  // never started
  drain();
}

/// Shuts the queue down and empties it.
void GrpcEngine::drain() {
  grpc_completion_queue_shutdown(grpc_->queue);
  while (true) {
    grpc_event event{};
    next_event(grpc_->queue, kLongestWait, event);
    if (event.type == GRPC_QUEUE_SHUTDOWN) return;
    if (event.type == GRPC_OP_COMPLETE) from_tag(event.tag);
  }
}

void GrpcEngine::listen(const std::string& unix_address) {
  grpc_->server->listen(unix_address);
  grpc_->listening = true;
}

void GrpcEngine::expect_connections() {
  grpc_->server->expect_connections(grpc_->tls ? &*grpc_->tls : nullptr);
  grpc_->listening = true;
}

std::string GrpcEngine::certificate_trouble() const { return grpc_->tls ? grpc_->tls->trouble() : ""; }

void GrpcEngine::take(int listener, int connection) { grpc_->server->take(listener, connection); }

void GrpcEngine::start() {
  auto& g = *grpc_;
  g.server_down = false;
  grpc_server_start(g.server->get());
  if (g.listening) request_call();
  polling_ = runtime_.start_poller("grpc", *this, g.options.shared_poller);
}

void GrpcEngine::request_call() {
  auto& g = *grpc_;
  g.new_call = nullptr;
  handoff_.pass();
  grpc_server_request_call(g.server->get(), &g.new_call, &g.new_details, &g.new_metadata, g.queue, g.queue,
                           as_tag(g.accept));
}

/// False: the engine is ending.
bool GrpcEngine::add(GrpcLink* link) {
  MutexLock lock(mutex_);
  links_.insert(link);
  return !stopping_;
}

Link* GrpcEngine::connect(const LinkTarget& target, std::shared_ptr<void> owner, const std::string& hello) {
  auto& g = *grpc_;
  auto made = std::make_unique<GrpcLink>(*this, false);
  GrpcLink* const link = made.get();
  link->owner = std::move(owner);
  auto& c = *link->calls;
  const auto tls = target.secure ? g.tls->current() : nullptr;
  c.channel = make_channel(target.address, target.name, tls.get(), g.options);
  c.call = grpc_channel_create_call(c.channel, nullptr, GRPC_PROPAGATE_DEFAULTS, g.queue,
                                    grpc_slice_from_static_string(kMethod), nullptr,
                                    gpr_inf_future(GPR_CLOCK_REALTIME), nullptr);
  c.pending = 3;
  const bool stopped = !add(link);
  static_cast<void>(made.release());
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
  in[1].data.recv_message.recv_message = c.incoming.place();
  grpc_call* call = c.call;
  grpc_call_ref(call);  // the link may end before all batches have started
  handoff_.pass();
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
  if (!link.accepted || calls_of(link).initial_sent.exchange(true)) return 0;
  ops[0] = make_op(GRPC_OP_SEND_INITIAL_METADATA);
  return 1;
}

/// The begin of a batch that sends a frame.
static size_t send_frame(Link& link, Frame frame, grpc_op* ops) {
  auto& c = calls_of(link);
  if (c.outgoing != nullptr) grpc_byte_buffer_destroy(std::exchange(c.outgoing, nullptr));
  c.outgoing = to_buffer(std::move(frame));
  ++c.pending;
  size_t n = begin_sending(link, ops);
  ops[n] = make_op(GRPC_OP_SEND_MESSAGE);
  ops[n++].data.send_message.send_message = c.outgoing;
  return n;
}

bool GrpcEngine::write(Link& link, Frame frame, bool) {
  auto& c = calls_of(link);
  grpc_op ops[2];
  const size_t n = send_frame(link, std::move(frame), ops);
  handoff_.pass();
  grpc_call_start_batch(c.call, ops, n, as_tag(c.write), nullptr);
  return false;
}

void GrpcEngine::finish(Link& link) {
  auto& c = calls_of(link);
  ++c.pending;
  grpc_op ops[2];
  size_t n = begin_sending(link, ops);
  ops[n++] = make_op(link.accepted ? GRPC_OP_SEND_STATUS_FROM_SERVER : GRPC_OP_SEND_CLOSE_FROM_CLIENT);
  handoff_.pass();
  grpc_call_start_batch(c.call, ops, n, as_tag(c.finish), nullptr);
}

void GrpcEngine::refuse(Link& link, Frame frame) {
  auto& c = calls_of(link);
  grpc_op ops[3];
  size_t n = send_frame(link, std::move(frame), ops);
  grpc_slice details = grpc_slice_from_static_string("refused");
  ops[n] = make_op(GRPC_OP_SEND_STATUS_FROM_SERVER);
  ops[n].data.send_status_from_server.status = GRPC_STATUS_FAILED_PRECONDITION;
  ops[n++].data.send_status_from_server.status_details = &details;
  handoff_.pass();
  grpc_call_start_batch(c.call, ops, n, as_tag(c.finish), nullptr);
}

void GrpcEngine::cancel(Link& link, std::string_view reason) {
  auto& c = calls_of(link);
  {
    MutexLock lock(c.mutex);
    if (c.why.empty()) set_reason(c.why, reason);
  }
  grpc_call_cancel(c.call, nullptr);
}

void GrpcEngine::read(GrpcLink& link) {
  auto& c = *link.calls;
  ++c.pending;
  grpc_op op = make_op(GRPC_OP_RECV_MESSAGE);
  op.data.recv_message.recv_message = c.incoming.place();
  handoff_.pass();
  grpc_call_start_batch(c.call, &op, 1, as_tag(c.read), nullptr);
}

/// Passes a received frame on for one turn, and reads the next one after its end. False: bytes are left.
bool GrpcEngine::deliver(GrpcLink& link) {
  auto& c = *link.calls;
  if (c.incoming.empty()) {
    events_.on_read_end(link);
    return true;
  }
  bool more = true;
  if (!c.incoming.begun()) {
    if (!link.accepted && !std::exchange(c.known, true)) link.proof = proof_of(c.call);
    c.turns = 0;
    more = c.incoming.begin();
  }
  TimePoint now = runtime_.now();
  const TimePoint begin = now;
  size_t bytes = 0;
  while (more) {
    const std::span<const uint8_t> left = c.incoming.rest();
    if (left.empty()) {
      more = events_.on_bytes(link, nullptr, 0, true);
      break;
    }
    const size_t n = std::min(left.size(), c.piece);
    more = events_.on_bytes(link, left.data(), n, false);
    c.incoming.skip(n);
    const TimePoint before = std::exchange(now, runtime_.now());
    if (now - before > kPieceTime) c.piece = std::max(c.piece / 2, kSmallPiece);
    else if (n == c.piece) c.piece = std::min(c.piece * 2, kLargePiece);
    bytes += n;
    if (more && now - begin >= (bytes < kBulkBytes ? kTurn : kBulkTurn)) return false;
  }
  c.incoming.end();
  if (more) read(link);
  return true;
}

/// Runs an event of a link. Without memory for it the link ends.
template <class F> void GrpcEngine::guard(GrpcLink& link, const F& event) {
  try {
    event();
  } catch (const std::exception& e) {
    cancel(link, e.what());
  }
}

void GrpcEngine::handle(GrpcLink& link, int kind, bool ok) {
  if (kind == kRead && ok && !deliver_turn(link)) return;
  if (kind == kWrite && ok) guard(link, [&] { events_.on_written(link); });
  if (kind == kStatus) link.calls->closed = true;
  done(link);
}

/// True: the read has ended. False: bytes are left for another turn, and `pending` counts the read.
bool GrpcEngine::deliver_turn(GrpcLink& link) {
  bool waits = false;
  guard(link, [&] {
    if (deliver(link)) return;
    grpc_->unread.push_back(&link);
    waits = true;
  });
  return !waits;
}

/// A turn of the link that has waited longest with a part of a frame.
void GrpcEngine::take_turn() {
  grpc_->events = 0;
  GrpcLink* const link = grpc_->unread.front();
  grpc_->unread.pop_front();
  if (deliver_turn(*link)) return done(*link);
  if (++link->calls->turns >= kYieldAfter) std::this_thread::yield();
}

/// After an event of a link. The last one deletes it.
void GrpcEngine::done(GrpcLink& link) {
  auto& c = *link.calls;
  if (--c.pending > 0 || !c.closed) return;
  if (!std::exchange(c.told, true)) {
    std::string reason = kNoMemory;
    guard(link, [&] { reason = reason_of(link); });
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

bool GrpcEngine::poll(TimePoint deadline) {
  auto& g = *grpc_;
  grpc_event event{};
  if (g.unread.empty()) next_event(g.queue, *g.spinner, runtime_, deadline, event);
  else event = grpc_completion_queue_next(g.queue, gpr_time_0(GPR_CLOCK_MONOTONIC), nullptr);
  handoff_.pass();
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
  if (!g.unread.empty() && (event.type == GRPC_QUEUE_TIMEOUT || ++g.events >= kEventsPerTurn)) take_turn();
  if (!g.server_down) return true;  // so an event of a running engine takes no lock here
  MutexLock lock(mutex_);
  if (!stopping_ || !links_.empty()) return true;
  ended_ = true;
  lock.unlock();
  drain();
  return false;
}

/// Sets an alarm in the past, whose event comes at once.
void GrpcEngine::kick() {
  MutexLock lock(mutex_);
  if (ended_ || kicked_.exchange(true)) return;
  grpc_->alarm->Set(grpc_->owner.get(), gpr_time_0(GPR_CLOCK_MONOTONIC), &grpc_->kick);
}

void GrpcEngine::accept() {
  auto& g = *grpc_;
  grpc_call* const call = std::exchange(g.new_call, nullptr);
  std::unique_ptr<GrpcLink> made;
  GrpcLink* link = nullptr;
  std::string hello;
  try {
    made = std::make_unique<GrpcLink>(*this, true);
    made->calls->call = call;
    made->calls->pending = 1;
    if (to_text(g.new_details.method) == kMethod)
      for (size_t i = 0; i < g.new_metadata.count; ++i)
        if (to_text(g.new_metadata.metadata[i].key) == kHelloKey)
          hello = to_text(g.new_metadata.metadata[i].value);
    made->proof = proof_of(call);
    add(made.get());  // shutdown() may cancel it from here on
    link = made.release();
  } catch (const std::bad_alloc&) {  // for this stream; the next one may find some
    grpc_call_cancel(call, nullptr);
    if (made == nullptr) grpc_call_unref(call);
  }
  grpc_call_details_destroy(&g.new_details);
  grpc_call_details_init(&g.new_details);
  g.new_metadata.count = 0;
  if (link != nullptr) begin(*link, hello);
  request_call();
}

/// The first events of an accepted link.
void GrpcEngine::begin(GrpcLink& link, const std::string& hello) {
  auto& c = *link.calls;
  grpc_op op = make_op(GRPC_OP_RECV_CLOSE_ON_SERVER);
  op.data.recv_close_on_server.cancelled = &c.cancelled;
  grpc_call_start_batch(c.call, &op, 1, as_tag(c.status), nullptr);
  guard(link, [&] {
    if (events_.on_accepted(link, hello)) read(link);
  });
}

void GrpcEngine::shutdown() {
  if (polling_ == nullptr) return;
  {
    MutexLock lock(mutex_);
    if (!stopping_) {
      stopping_ = true;
      for (GrpcLink* link : links_) cancel(*link, "the transport was closed");
    }
  }
  grpc_server_shutdown_and_notify(grpc_->server->get(), grpc_->queue, as_tag(grpc_->down));
  grpc_server_cancel_all_calls(grpc_->server->get());
  polling_->join();
  polling_.reset();
  grpc_->server.reset();
  grpc_->alarm.reset();
  grpc_->owner.reset();
}

}  // namespace weft::rpc::inner
