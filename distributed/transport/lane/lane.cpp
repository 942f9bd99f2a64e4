// The same-host lane: its sockets, the poll thread, and the begin and end of links. lane_stream.cpp reads and
// writes frames. Links end on the poll thread only; other threads wake it for that. A socket is closed after
// on_closed has returned, when no thread can write to it: its number may at once belong to another file.
#include <weft/distributed/transport/inner/lane.h>

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <optional>

#include <weft/distributed/transport/inner/known_segments.h>
#include <weft/distributed/transport/inner/tcp_listener.h>

namespace weft::rpc::inner {
namespace {

constexpr size_t kReadBytes = 64 << 10;
/// Socket buffers; the kernel takes less where its limit is lower. Larger ones move more bytes per wake-up.
constexpr int kSendBuffer = 1 << 20;
constexpr size_t kEventsPerPoll = 16;
constexpr int kAcceptsPerPoll = 32;  // then the events of links have their turn
constexpr Duration kNoFilesPause = std::chrono::milliseconds(50);

/// The engine that this thread polls now.
thread_local const void* polled_here = nullptr;

class PolledHere {
 public:
  explicit PolledHere(const void* engine) : before_(std::exchange(polled_here, engine)) {}
  ~PolledHere() { polled_here = before_; }
  PolledHere(const PolledHere&) = delete;

 private:
  const void* const before_;
};

std::optional<sockaddr_un> socket_address(const std::string& path) {
  sockaddr_un at{};
  at.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof at.sun_path) return std::nullopt;
  std::memcpy(at.sun_path, path.data(), path.size());
  return at;
}

/// The user of the process at the other end; none if the kernel does not report it.
std::optional<uid_t> user_of(int fd) {
  ucred other{};
  socklen_t size = sizeof other;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &other, &size) != 0) return std::nullopt;
  return other.uid;
}

void enlarge(int fd) { setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &kSendBuffer, sizeof kSendBuffer); }

/// A connected socket; -1, with the reason: there is none.
int connect_to(const std::string& path, std::string& why) {
  const auto at = socket_address(path);
  File file(at ? socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0) : -1);
  const int fd = file.get();
  if (fd < 0 || ::connect(fd, reinterpret_cast<const sockaddr*>(&*at), sizeof *at) != 0) {
    why = str("connecting to ", path, ": ",
              !at               ? "the path is too long"
              : errno == EAGAIN ? "too many connections wait there"
                                : std::strerror(errno));
  } else if (user_of(fd) != geteuid()) {
    why = str("connecting to ", path, ": a process of another user listens there");
  } else {
    enlarge(fd);
    return file.release();
  }
  return -1;
}

}  // namespace

LaneLink::LaneLink(LinkEngine& its_engine, bool is_accepted, int socket)
    : Link(its_engine, is_accepted), fd(socket), greeted(!is_accepted), piece_size(0) {
  proof.peer = "unix:";
  proof.local = true;
}

LaneLink::~LaneLink() {
  if (fd >= 0) close(fd);
}

std::optional<File> LaneLink::take_file() {
  if (files.empty()) return std::nullopt;
  std::optional<File> first(std::move(files.front()));
  files.pop_front();
  return first;
}

LaneEngine::LaneEngine(Runtime& runtime, const GrpcOptions& options, LinkEvents& events,
                       const std::string& path)
    : runtime_(runtime),
      events_(events),
      options_(options),
      shared_(options.shared_memory_bytes > 0 ? std::make_shared<MadeSegments>(options.shared_memory_bytes)
                                              : nullptr),
      max_unproven_(most_unproven(static_cast<size_t>(std::max(1, options.max_unproven)))),
      spinner_(longest_spin(options.spin)),
      read_(kReadBytes) {
  const auto at = socket_address(path);
  listener_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  poll_ = epoll_create1(EPOLL_CLOEXEC);
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  epoll_event listens{}, wakes{};
  listens.events = wakes.events = EPOLLIN;
  listens.data.ptr = &listener_;
  wakes.data.ptr = &wake_;
  if (!at || listener_ < 0 || poll_ < 0 || wake_ < 0 ||
      bind(listener_, reinterpret_cast<const sockaddr*>(&*at), sizeof *at) != 0 ||
      listen(listener_, SOMAXCONN) != 0 || epoll_ctl(poll_, EPOLL_CTL_ADD, listener_, &listens) != 0 ||
      epoll_ctl(poll_, EPOLL_CTL_ADD, wake_, &wakes) != 0) {
    const std::string why = at ? std::strerror(errno) : "the path is too long";
    for (const int fd : {listener_, poll_, wake_})
      if (fd >= 0) close(fd);
    throw RpcError(str("cannot listen on unix:", path, ": ", why));
  }
  if (shared_ != nullptr) spare_ = File(fcntl(wake_, F_DUPFD_CLOEXEC, 0));
}

LaneEngine::~LaneEngine() {
  shutdown();
  MutexLock lock(mutex_);
  for (LaneLink* link : links_) delete link;  // of a connect after the end
  for (const int fd : {listener_, poll_, wake_}) close(fd);
}

std::unique_ptr<PassedSegments> LaneEngine::make_passed() const { return std::make_unique<KnownSegments>(); }

void LaneEngine::start() { polling_ = runtime_.start_poller("lane", *this, options_.shared_poller); }

void LaneEngine::shutdown() {
  if (polling_ == nullptr) return;
  stopping_ = true;
  wake();
  polling_->join();
  polling_.reset();
}

std::unique_ptr<LaneLink> LaneEngine::make_link(bool accepted, File socket) {
  auto link = std::make_unique<LaneLink>(*this, accepted, socket.get());
  socket.release();
  return link;
}

Link* LaneEngine::connect(const LinkTarget& target, std::shared_ptr<void> owner, const std::string& hello) {
  std::string why;
  Frame frame;
  frame.append_own(hello.data(), hello.size());
  auto made = make_link(false, File(connect_to(target.address, why)));
  LaneLink* const link = made.get();
  link->owner = std::move(owner);
  {
    MutexLock lock(mutex_);
    links_.insert(link);
  }
  static_cast<void>(made.release());
  if (link->fd < 0) {
    MutexLock lock(link->mutex);
    link->why = std::move(why);
    link->cancelled = true;
    call(*link);
    return link;
  }
  epoll_event none{};
  none.data.ptr = link;
  epoll_ctl(poll_, EPOLL_CTL_ADD, link->fd, &none);
  write(*link, std::move(frame), false);
  return link;
}

void LaneEngine::finish(Link& link) {
  auto& l = static_cast<LaneLink&>(link);
  MutexLock lock(l.mutex);
  l.finished = true;
  ::shutdown(l.fd, SHUT_WR);
  if (l.read_ended) call(l);
}

void LaneEngine::cancel(Link& link, std::string_view reason) {
  auto& l = static_cast<LaneLink&>(link);
  MutexLock lock(l.mutex);
  if (l.why.empty()) set_reason(l.why, reason);
  if (l.cancelled.exchange(true)) return;
  if (l.fd >= 0) ::shutdown(l.fd, SHUT_RDWR);
  call(l);
}

void LaneEngine::call(LaneLink& link) {
  {
    MutexLock lock(mutex_);
    if (!std::exchange(link.called, true)) called_.splice(called_.end(), link.place, link.node);
    any_called_ = true;
  }
  wake();
}

/// The link that was called first; null: none is left.
LaneLink* LaneEngine::next_called() {
  if (!any_called_) return nullptr;  // a call that comes now wakes the next poll
  MutexLock lock(mutex_);
  any_called_ = !called_.empty();
  if (called_.empty()) return nullptr;
  LaneLink* const link = called_.front();
  link->place.splice(link->place.end(), called_, link->node);
  link->called = false;
  return link;
}

/// Ends the current wait of the poll thread, or the next one. That thread itself need not be woken: it looks
/// at all that was called before it waits again.
void LaneEngine::wake() {
  if (polled_here == this || woken_.exchange(true)) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_, &one, sizeof one);
}

bool LaneEngine::poll(TimePoint deadline) {
  const PolledHere here(this);
  std::array<epoll_event, kEventsPerPoll> events;
  const auto wait = [&](int limit) {
    return epoll_wait(poll_, events.data(), static_cast<int>(events.size()), limit);
  };
  const int limit = patience(deadline);
  const int n = limit == 0 ? wait(0)
                           : spinner_.poll([&] { return wait(0); }, [&] { return wait(limit); },
                                           [&] { return runtime_.now(); });
  for (int i = 0; i < n; ++i) {
    const epoll_event& event = events[static_cast<size_t>(i)];
    if (event.data.ptr == &wake_) {
      uint64_t count = 0;
      [[maybe_unused]] const ssize_t read = ::read(wake_, &count, sizeof count);
      woken_.store(false);
    } else if (event.data.ptr == &listener_) {
      accept();
    } else {
      LaneLink& link = *static_cast<LaneLink*>(event.data.ptr);
      guard(link, [&] { handle(link, event.events); });  // no other link ends in it
    }
  }
  if (!unread_.empty()) take_turn();
  serve_called();
  if (!limited_.empty()) close_late();
  if (accept_at_ != kNever && runtime_.now() >= accept_at_) accept();
  return !stopping_ || !end_all();
}

/// Milliseconds until the deadline, or until a link without a welcome is late; -1: for ever.
int LaneEngine::patience(TimePoint deadline) {
  if (!unread_.empty()) return 0;
  TimePoint until = std::min(deadline, accept_at_);
  if (!limited_.empty()) until = std::min(until, limited_.front().second);
  if (until == kNever) return -1;
  const Duration wait = until - runtime_.now();
  const int64_t ms = std::chrono::ceil<std::chrono::milliseconds>(wait).count();
  return static_cast<int>(std::clamp<int64_t>(ms, 0, INT_MAX));
}

/// Ends the links that were cancelled, or finished in both directions.
void LaneEngine::serve_called() {
  while (LaneLink* const link = next_called()) {
    bool over = false;
    {
      MutexLock lock(link->mutex);
      over = link->cancelled || (link->finished && link->read_ended);
    }
    if (over) end(*link, "the peer ended the stream");
  }
}

void LaneEngine::accept() {
  for (int i = 0; i < kAcceptsPerPoll; ++i) {
    const int fd = accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
      File socket(fd);
      try {
        if (user_of(fd) == geteuid()) let_in(std::move(socket));
      } catch (const std::bad_alloc&) {  // for this connection
      }
      continue;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    const bool no_file = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
    if (no_file && close_one()) return;  // its file is free at the next poll
    epoll_event listens{};
    listens.events = no_file ? 0u : static_cast<uint32_t>(EPOLLIN);
    listens.data.ptr = &listener_;
    if (no_file || accept_at_ != kNever) epoll_ctl(poll_, EPOLL_CTL_MOD, listener_, &listens);
    accept_at_ = no_file ? runtime_.now() + kNoFilesPause : kNever;
    return;
  }
}

void LaneEngine::let_in(File socket) {
  enlarge(socket.get());
  auto made = make_link(true, std::move(socket));
  LaneLink* const link = made.get();
  while (limited_.size() >= max_unproven_) close_one();
  limit(*link);
  try {
    MutexLock lock(mutex_);
    links_.insert(link);
  } catch (const std::bad_alloc&) {
    unlimit(*link);
    throw;
  }
  static_cast<void>(made.release());
  epoll_event none{};
  none.data.ptr = link;
  epoll_ctl(poll_, EPOLL_CTL_ADD, link->fd, &none);
  MutexLock lock(link->mutex);
  watch(*link);
}

bool LaneEngine::close_one() {
  if (limited_.empty()) return false;
  LaneLink* const link = limited_[runtime_.random() % ((limited_.size() + 1) / 2)].first;
  cancel(*link, "too many connections without a hello");  // it ends at the end of this poll
  unlimit(*link);
  closed_.fetch_add(1);
  return true;
}

void LaneEngine::close_late() {
  while (!limited_.empty() && limited_.front().second <= runtime_.now()) {
    closed_.fetch_add(1);
    end(*limited_.front().first, "no hello came in time");
  }
}

void LaneEngine::limit(LaneLink& link) {
  unlimit(link);
  limited_.emplace_back(&link, runtime_.now() + options_.handshake_timeout);
  unproven_.store(static_cast<int64_t>(limited_.size()));
}

void LaneEngine::unlimit(LaneLink& link) {
  std::erase_if(limited_, [&](const auto& entry) { return entry.first == &link; });
  unproven_.store(static_cast<int64_t>(limited_.size()));
}

void LaneEngine::end(LaneLink& link, std::string_view reason) noexcept {
  std::string why;
  {
    MutexLock lock(link.mutex);
    why.swap(link.why);
  }
  if (why.empty()) set_reason(why, reason);
  unlimit(link);
  std::erase(unread_, &link);
  if (link.fd >= 0) epoll_ctl(poll_, EPOLL_CTL_DEL, link.fd, nullptr);
  if (link.owner != nullptr) events_.on_closed(link, why);
  {
    MutexLock lock(mutex_);
    if (link.called) link.place.splice(link.place.end(), called_, link.node);
    links_.erase(&link);
  }
  delete &link;
}

/// True: no link is left.
bool LaneEngine::end_all() {
  size_t left = 0;
  {
    MutexLock lock(mutex_);
    left = links_.size();
  }
  for (; left > 0; --left) {
    LaneLink* link = nullptr;
    {
      MutexLock lock(mutex_);
      link = *links_.begin();
    }
    end(*link, "the transport was closed");
  }
  MutexLock lock(mutex_);
  return links_.empty();
}

void LaneEngine::watch(LaneLink& link) {
  const uint32_t reads = link.deaf || link.read_ended ? 0u : static_cast<uint32_t>(EPOLLIN);
  const uint32_t writes = link.writing ? static_cast<uint32_t>(EPOLLOUT) : 0u;
  if (std::exchange(link.watched, reads | writes) == (reads | writes)) return;
  epoll_event event{};
  event.events = reads | writes;
  event.data.ptr = &link;
  epoll_ctl(poll_, EPOLL_CTL_MOD, link.fd, &event);
}

std::unique_ptr<Lane> make_lane(Runtime& runtime, const GrpcOptions& options, LinkEvents& events,
                                const std::string& path) {
  return std::make_unique<LaneEngine>(runtime, options, events, path);
}

}  // namespace weft::rpc::inner

bool weft::rpc::has_same_host_lane() { return true; }
