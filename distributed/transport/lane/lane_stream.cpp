// The same-host lane: frames on a connected socket. The reader asks for the place of the next payload bytes
// and reads there; all else goes through one buffer of the engine. A long sequence of messages is delivered
// in turns, as over gRPC, so that it delays other links' messages by one turn. Bytes of the other end are
// checked before use: a length over the limit ends the link.
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include <weft/distributed/transport/inner/lane.h>

namespace weft::rpc::inner {
namespace {

constexpr char kLaneLost[] = "the connection was lost";
constexpr char kLaneEnded[] = "the peer ended the stream";

constexpr size_t kPiecesPerWrite = 64;
/// Room for payload bytes from which on few bytes are read beside it: those behind it are the next frame's.
constexpr size_t kLargeRoom = 64 << 10, kBesideLargeRoom = 4 << 10;
/// Files that may wait for their records: the next one may come with the end of a record.
constexpr size_t kWaitingFiles = 4;

}  // namespace

bool LaneEngine::write(Link& link, Frame frame, bool now) {
  auto& l = static_cast<LaneLink&>(link);
  l.out = std::move(frame);
  for (size_t i = 0; i < kLengthBytes; ++i)
    l.length[i] = static_cast<char>(static_cast<uint64_t>(l.out.bytes) >> (8 * i));
  l.piece = l.offset = 0;
  int error = 0;
  if (now && push(l, error)) return true;
  MutexLock lock(l.mutex);
  if (error != 0) break_off(l, error);
  l.writing = true;
  watch(l);
  return false;
}

void LaneEngine::refuse(Link& link, Frame frame) {
  auto& l = static_cast<LaneLink&>(link);
  write(link, std::move(frame), true);
  MutexLock lock(l.mutex);
  l.refused = true;
}

bool LaneEngine::push(LaneLink& l, int& error) {
  while (true) {
    std::array<iovec, kPiecesPerWrite> parts;
    size_t n = 0, asked = 0;
    const File* file = nullptr;
    for (size_t i = l.piece; i <= l.out.pieces.size() && n < parts.size(); ++i) {
      const Piece* const piece = i == 0 ? nullptr : &l.out.pieces[i - 1];
      if (piece != nullptr && piece->file != nullptr && (i > l.piece || l.offset == 0)) {
        if (n > 0) break;  // a file goes with the first byte of a write
        file = piece->file.get();
      }
      const bool own = piece != nullptr && piece->keep == nullptr;
      const void* const data = piece == nullptr ? l.length.data() : own ? piece->own.data() : piece->data;
      const size_t bytes = piece == nullptr ? kLengthBytes : own ? piece->own.size() : piece->bytes;
      const size_t skip = i == l.piece ? l.offset : 0;
      parts[n++] = {static_cast<char*>(const_cast<void*>(data)) + skip, bytes - skip};
      asked += bytes - skip;
    }
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = n;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    if (file != nullptr) {
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      cmsghdr* const head = CMSG_FIRSTHDR(&message);
      *head = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
      const int fd = file->get();
      std::memcpy(CMSG_DATA(head), &fd, sizeof fd);
    }
    const ssize_t result = sendmsg(l.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (result < 0) {
      if (errno == EINTR) continue;
      // The poll thread notices a lost connection by itself; it first reads the bytes that have come.
      const bool waits = errno == EAGAIN || errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN;
      if (!waits) {
        error = errno;
        if (file != nullptr) shared_->pause_passing();  // the next link goes without for a while
      }
      return false;
    }
    auto sent = static_cast<size_t>(result);
    const bool whole = sent == asked;
    for (size_t i = 0; i < n && sent >= parts[i].iov_len; ++i) {
      sent -= parts[i].iov_len;
      ++l.piece;
      l.offset = 0;
    }
    l.offset += sent;
    if (!whole) return false;  // the socket is full
    if (l.piece <= l.out.pieces.size()) continue;
    l.out.recycle();
    return true;
  }
}

/// The poll thread ends the link, unless it has already been asked to.
void LaneEngine::break_off(LaneLink& l, int error) {
  if (l.cancelled.exchange(true)) return;
  try {
    l.why = str("writing: ", std::strerror(error));
  } catch (const std::bad_alloc&) {
    l.why = kNoMemory;
  }
  call(l);
}

void LaneEngine::handle(LaneLink& link, uint32_t events) {
  if ((events & EPOLLOUT) != 0 && !flush(link)) return;
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) == 0) return;
  const bool hung_up = (events & (EPOLLHUP | EPOLLERR)) != 0;
  if (link.cancelled) return;  // it was called
  if (link.deaf || link.read_ended) {
    if (hung_up) end(link, kLaneLost);
  } else if (link.rest.empty()) {
    receive(link, hung_up);
  }
}

bool LaneEngine::flush(LaneLink& link) {
  bool over = false;
  {
    MutexLock lock(link.mutex);
    if (link.cancelled || !link.writing) return true;
    int error = 0;
    if (!push(link, error)) {
      if (error != 0) break_off(link, error);
      return true;
    }
    link.writing = false;
    over = link.refused;
  }
  if (over) {
    end(link, kLaneEnded);
    return false;
  }
  events_.on_written(link);  // it may write again
  MutexLock lock(link.mutex);
  watch(link);
  return true;
}

void LaneEngine::receive(LaneLink& link, bool hung_up) {
  const TimePoint begin = runtime_.now();
  while (true) {
    std::span<char> room;
    if (link.greeted && link.in_frame) {
      room = events_.room(link);
      room = room.first(std::min(room.size(), link.left));
    }
    std::array<iovec, 2> parts;
    size_t n = 0, asked = room.size();
    if (!room.empty()) parts[n++] = {room.data(), room.size()};
    parts[n++] = {read_.data(), room.size() >= kLargeRoom ? kBesideLargeRoom : read_.size()};
    asked += parts[n - 1].iov_len;
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = n;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control;
    const bool takes_files = shared_ != nullptr && link.greeted;
    if (takes_files) {  // one; without room the kernel drops those that the other end passes
      if (spare_.get() < 0 && !lacks_file_) spare_ = File(fcntl(wake_, F_DUPFD_CLOEXEC, 0));
      message.msg_control = control.data();
      message.msg_controllen = CMSG_LEN(sizeof(int));
    }
    const ssize_t result = recvmsg(link.fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (result < 0 && errno == EINTR) continue;
    if (result < 0 && errno == EAGAIN) break;
    if (result < 0) return end(link, kLaneLost);
    if (result == 0) return end_of_stream(link, hung_up);
    if (takes_files)
      if (const char* const wrong = keep_file(link, message)) return end(link, wrong);
    const auto got = static_cast<size_t>(result), placed = std::min(got, room.size());
    if (placed > 0 && !pass(link, room.data(), placed)) return;
    if (got > placed && !deliver(link, read_.data(), got - placed)) return;
    if (!files_are_named(link)) return;
    if (got < asked || !link.rest.empty() || runtime_.now() - begin >= kBulkTurn) break;
  }
  if (link.greeted && link.in_frame) events_.on_waiting(link);
}

const char* LaneEngine::keep_file(LaneLink& link, const msghdr& message) {
  int fd = -1;
  bool came = false;
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr;
       c = CMSG_NXTHDR(const_cast<msghdr*>(&message), c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    std::memcpy(&fd, CMSG_DATA(c), sizeof fd);
    came = true;
  }
  const bool cut = (message.msg_flags & MSG_CTRUNC) != 0;  // alone: this process has no number free for it
  if (!came && !cut) return nullptr;
  lacks_file_ = !came;
  if (lacks_file_) spare_ = File();  // it comes once more
  link.files.push_back(File(fd));
  if (came && cut) return "wire: several files came at once";
  return link.files.size() > kWaitingFiles ? "wire: more files came than records name" : nullptr;
}

/// False: a file has come, the records with it are read, and none has named it. The link is gone.
bool LaneEngine::files_are_named(LaneLink& link) {
  if (link.files.empty() || link.in_frame || link.begin_bytes > 0 || !link.rest.empty()) return true;
  end(link, "wire: a file came that no record names");
  return false;
}

bool LaneEngine::deliver(LaneLink& link, const char* data, size_t n) {
  TimePoint now = runtime_.now();
  const TimePoint begin = now;
  for (size_t at = 0; at < n;) {
    if (!link.in_frame) {
      const size_t take = std::min(n - at, kLengthBytes - link.begin_bytes);
      std::memcpy(link.begin.data() + link.begin_bytes, data + at, take);
      link.begin_bytes += take;
      at += take;
      if (link.begin_bytes == kLengthBytes && !read_length(link)) return false;
      continue;
    }
    const size_t most = std::min(n - at, link.left);
    if (!link.greeted) {
      link.hello.append(data + at, most);
      link.left -= most;
      at += most;
      if (link.left == 0 && !greet(link)) return false;
      continue;
    }
    const size_t take = std::min(most, std::max(link.piece_size, kSmallPiece));
    if (!pass(link, data + at, take)) return false;
    at += take;
    const TimePoint before = std::exchange(now, runtime_.now());
    if (now - before > kPieceTime) link.piece_size = std::max(take / 2, kSmallPiece);
    else if (take == link.piece_size) link.piece_size = std::min(take * 2, kLargePiece);
    else link.piece_size = std::max(link.piece_size, kSmallPiece);
    if (at < n && now - begin >= (at < kBulkBytes ? kTurn : kBulkTurn)) {
      link.rest.assign(data + at, n - at);
      unread_.push_back(&link);
      return true;
    }
  }
  return true;
}

bool LaneEngine::read_length(LaneLink& link) {
  link.begin_bytes = 0;
  size_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i)
    length |= static_cast<size_t>(static_cast<unsigned char>(link.begin[i])) << (8 * i);
  const size_t most = link.greeted ? static_cast<size_t>(kMaxFrameBytes) : kMaxHello;
  if (length > most) {
    end(link, str("wire: a frame of ", length, " bytes, at most ", most, " are allowed"));
    return false;
  }
  link.left = length;
  link.in_frame = true;
  if (length > 0) return true;
  return link.greeted ? pass(link, nullptr, 0) : greet(link);
}

/// Bytes of the frame that is read.
bool LaneEngine::pass(LaneLink& link, const char* data, size_t n) {
  link.left -= n;
  link.in_frame = link.left > 0;
  if ((n == 0 || events_.on_bytes(link, data, n, false)) &&
      (link.in_frame || events_.on_bytes(link, nullptr, 0, true)))
    return true;
  stop(link);
  return false;
}

/// The hello has come.
bool LaneEngine::greet(LaneLink& link) {
  link.in_frame = false;
  link.greeted = true;
  if (!events_.on_accepted(link, std::exchange(link.hello, {}))) {
    stop(link);
    return false;
  }
  unlimit(link);
  return true;
}

/// Nothing more is read from a link that was refused or cancelled. The other end has a limited time to read
/// the refusal.
void LaneEngine::stop(LaneLink& link) {
  bool over = false;
  {
    MutexLock lock(link.mutex);
    link.deaf = true;
    over = link.refused && !link.writing;
    if (!over) watch(link);
  }
  if (over) return end(link, kLaneEnded);
  limit(link);
}

void LaneEngine::end_of_stream(LaneLink& link, bool hung_up) {
  const bool broken = link.in_frame || link.begin_bytes > 0;
  bool over = hung_up || broken || !link.accepted || !link.greeted;
  bool finished = false;
  {
    MutexLock lock(link.mutex);
    finished = link.finished;
    link.read_ended = true;
    if (!over) watch(link);
  }
  if (over) return end(link, finished && !broken ? kLaneEnded : kLaneLost);
  events_.on_read_end(link);
  {
    MutexLock lock(link.mutex);
    over = link.finished;
  }
  if (over) end(link, kLaneEnded);
}

void LaneEngine::take_turn() {
  LaneLink& link = *unread_.front();
  unread_.pop_front();
  guard(link, [&] {
    const std::string rest = std::exchange(link.rest, {});
    if (!deliver(link, rest.data(), rest.size()) || !files_are_named(link)) return;
    if (link.rest.empty()) link.turns = 0;
    else if (++link.turns >= kYieldAfter) std::this_thread::yield();
  });
}

}  // namespace weft::rpc::inner
