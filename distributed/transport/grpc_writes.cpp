// The writes of the gRPC transport: frames of queued messages on the first connection of a peer, and the end
// of a connection in order. A frame for which there is no memory breaks its connection.
#include <weft/distributed/transport/inner/grpc_peers.h>

#include <algorithm>
#include <new>

namespace weft::rpc::inner {

namespace {
/// bytes of small messages in one frame
constexpr int64_t kSmallFrame = 256 << 10;
/// frames that a sending thread writes, its own among them
constexpr int kFramesPerCall = 8;
static_assert(kSmallFrame > 2 * kSmallMessage && kSmallFrame < kMaxFrameBytes / 2);
}  // namespace

Frame GrpcTransport::next_frame(Peer& peer, Connection& c) {
  Frame frame;
  c.writing_bytes = c.writing_messages = 0;
  const auto count = [&](const OutCursor& cursor) {
    c.writing_bytes += cursor.message->queued;
    ++c.writing_messages;
  };
  // A large message moves on with each frame: the other side waits a limited time for its next byte. A frame
  // of small ones is made in a moment: the thread that makes it serves other peers too.
  while (!peer.small.empty()) {
    auto& cursor = peer.small.front();
    if (cursor.message->bytes + 64 > kSmallFrame - frame.bytes) break;
    try {
      append_message(frame, cursor);
    } catch (const std::bad_alloc&) {  // it goes whole with the next connection
      cursor = {std::move(cursor.message)};
      throw;
    }
    count(cursor);
    recycle(std::move(cursor.message));
    peer.small.pop_front();
  }
  if (!c.partial && !peer.bulk.empty()) {
    c.partial = std::move(peer.bulk.front());
    peer.bulk.pop_front();
    if (memory_ != nullptr)
      peer.counters.bytes_sent += static_cast<uint64_t>(memory_->refer(c.shares, *c.partial, frame));
  }
  if (c.partial) {
    if (append_message(frame, *c.partial, std::min(frame.room(), options_.bulk_frame_bytes))) {
      count(*c.partial);
      c.partial.reset();
    }
  }
  peer.counters.bytes_sent += static_cast<uint64_t>(frame.bytes);
  peer.counters.messages_sent += static_cast<uint64_t>(c.writing_messages);
  return frame;
}

void GrpcTransport::pump(Peer& peer) {
  bool now = true;
  for (int frames = 1; !peer.up.empty(); ++frames) {
    const std::shared_ptr<Connection> c = peer.up.front();
    if (c->writing || c->finishing) return;
    Link& link = *link_of(*c);
    bool written = false;
    try {
      Frame frame = next_frame(peer, *c);
      if (frame.bytes == 0) return;
      if (link.engine.writes_alone()) {  // it does not throw
        c->writing = true;
        ++c->calls;
        peer.mutex.unlock();
        written = link.engine.write(link, std::move(frame), now);
        peer.mutex.lock();
        --c->calls;
      } else {
        written = write(*c, link, std::move(frame), now);
      }
    } catch (const std::bad_alloc&) {
      c->finishing = true;
      link.engine.cancel(link, kNoMemory);
      return;
    }
    if (!written || !wrote(peer, *c)) return;
    // this thread writes one frame of a large message, and a few of others', and the poll thread the rest
    now = !c->partial && frames < kFramesPerCall;
  }
}

bool GrpcTransport::wrote(Peer& peer, Connection& c) {
  c.writing = false;
  took_off(peer, std::exchange(c.writing_bytes, 0), std::exchange(c.writing_messages, 0));
  if (c.read_ended || (c.outgoing && c.ending)) {
    finish_if_idle(c);
  } else if (closed_.load() && peer.counters.queued_messages == 0) {
    end_if_idle(c);
  } else {
    return true;
  }
  return false;
}

bool GrpcTransport::write(Connection& c, Link& link, Frame frame, bool now) {
  c.writing = true;
  if (!link.engine.write(link, std::move(frame), now)) return false;
  c.writing = false;
  return true;
}

void GrpcTransport::finish_if_idle(Connection& c) {
  if (c.writing || c.finishing) return;
  c.finishing = true;
  Link& link = *link_of(c);
  link.engine.finish(link);
}

/// Ends a connection after the other side has read everything. gRPC keeps a client's stream until the
/// server has read it, but a server's process may exit with unsent bytes. So a server asks the client to
/// end the stream.
void GrpcTransport::end_if_idle(Connection& c) {
  if (c.outgoing || c.read_ended) return finish_if_idle(c);
  if (c.writing || c.finishing || std::exchange(c.ending, true)) return;
  write(c, *link_of(c), frame_of(encode_text(RecordType::kBye, "the peer closed its transport")));
}

void GrpcTransport::on_written(Link& link) {
  auto& c = *static_cast<Connection*>(link.owner.get());
  const std::shared_ptr<Peer> peer = c.peer;
  if (peer == nullptr) return;
  MutexLock lock(peer->mutex);
  if (wrote(*peer, c) && !peer->up.empty() && peer->up.front().get() == &c) pump(*peer);
}

}  // namespace weft::rpc::inner
