// The same-host lane: links between processes of one host and one user, over unix stream sockets. They cost a
// message one system call at each end, where gRPC has its own framing, queue and locks. Internal to the gRPC
// transport.
//
// The stream in each direction is a sequence of frames, each behind its length (u32, little endian). The
// first frame of the connecting side is its hello. A frame is at most kMaxFrameBytes long, and a hello
// kMaxHello. The kernel reports the user of the other end (SO_PEERCRED); another user's connection is closed
// at once. The number and time of connections without a welcomed hello are bounded as those of the TCP port
// are.
//
// A frame may pass a file, which the kernel delivers with the first byte of its record. Files come one at a
// time, and records name them in their order. A file that no record names ends the link. A process at its
// limit of files drops one that comes. So files come twice, and the first drop makes room for the second.
//
// An event for which there is no memory ends its link alone.
//
// A write is tried at once on the calling thread, straight from the pieces of the frame. The poll thread
// writes the rest when the socket has room. It reads payloads straight to their place where the decoder has
// one.
#pragma once

#include <sys/socket.h>

#include <array>
#include <atomic>
#include <deque>
#include <list>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include <weft/distributed/runtime/sync.h>
#include <weft/distributed/transport/inner/frame.h>
#include <weft/distributed/transport/inner/same_host.h>
#include <weft/distributed/transport/inner/shared_memory.h>
#include <weft/distributed/transport/inner/spinner.h>

namespace weft::rpc::inner {

/// The longest hello, as a frame.
inline constexpr size_t kMaxHello = 24 << 10;
/// Bytes of the length before each frame.
inline constexpr size_t kLengthBytes = 4;

/// A connected socket and its frames in both directions.
class LaneLink final : public Link {
 public:
  /// `socket` belongs to the link; -1: it could not be connected.
  LaneLink(LinkEngine& its_engine, bool is_accepted, int socket);
  ~LaneLink() override;
  std::optional<File> take_file() override;

  const int fd;

  // The frame that is being written. It belongs to the thread in write(), which takes no lock if the socket
  // takes all of it. While `writing` it belongs to the poll thread.
  Frame out;
  std::array<char, kLengthBytes> length{};  // of it
  size_t piece = 0;                         // 0: the length; then the pieces of the frame
  size_t offset = 0;                        // bytes of that piece that are written

  Mutex mutex;
  bool writing WEFT_GUARDED_BY(mutex) = false;  // the poll thread writes the rest of the frame
  uint32_t watched WEFT_GUARDED_BY(mutex) = 0;  // events that the poll waits for
  bool finished WEFT_GUARDED_BY(mutex) = false;
  bool refused WEFT_GUARDED_BY(mutex) = false;
  // These change under the mutex. The poll thread reads them without it.
  std::atomic<bool> deaf{false}, read_ended{false}, cancelled{false};  // deaf: nothing more is read
  std::string why WEFT_GUARDED_BY(mutex);                              // this side's reason for a cancel

  // Guarded by the engine's mutex: the link's place in the list of those that were called. It needs no memory
  // then.
  std::list<LaneLink*> place{this};
  const std::list<LaneLink*>::iterator node = place.begin();
  bool called = false;

  // Used by the poll thread only.
  bool greeted;       // messages may come: an accepted link has sent its hello
  std::string hello;  // of an accepted link, as far as it has come
  std::array<char, kLengthBytes> begin{};
  size_t begin_bytes = 0;
  bool in_frame = false;
  size_t left = 0;   // bytes of the frame that have not come
  std::string rest;  // bytes that were read and are not delivered yet
  size_t piece_size;
  int turns = 0;           // that `rest` has had
  std::deque<File> files;  // that have come and no record has named yet
};

/// Thread safety: as Lane.
class LaneEngine final : public Lane, private Poller {
 public:
  /// As make_lane.
  LaneEngine(Runtime& runtime, const GrpcOptions& options, LinkEvents& events, const std::string& path);
  ~LaneEngine() override;
  LaneEngine(const LaneEngine&) = delete;

  void start() override;
  UnprovenCounters counters() const override { return {unproven_.load(), closed_.load()}; }
  std::shared_ptr<SharedMemory> memory() const override { return shared_; }
  std::unique_ptr<PassedSegments> make_passed() const override;

  Link* connect(const LinkTarget& target, std::shared_ptr<void> owner, const std::string& hello) override;
  bool write(Link& link, Frame frame, bool now) override;
  bool writes_alone() const override { return true; }
  void finish(Link& link) override;
  void refuse(Link& link, Frame frame) override;
  void cancel(Link& link, std::string_view reason) override;
  void shutdown() override;

 private:
  bool poll(TimePoint deadline) override;
  void kick() override { wake(); }

  // --- lane.cpp: the poll thread, and the begin and end of links ---

  int patience(TimePoint deadline);
  void wake();
  /// The poll thread looks at the link soon.
  void call(LaneLink& link);
  LaneLink* next_called();
  void serve_called();
  /// Runs an event of a link. Without memory for it the link ends.
  template <class F> void guard(LaneLink& link, const F& event) {
    try {
      event();
    } catch (const std::exception& e) {
      end(link, e.what());
    }
  }
  void accept();
  void let_in(File socket);
  std::unique_ptr<LaneLink> make_link(bool accepted, File socket);
  /// Ends a random one of the older half of the links without a welcome. False: there is none.
  bool close_one();
  void close_late();
  void limit(LaneLink& link);
  void unlimit(LaneLink& link);
  /// The last event of a link, which is deleted.
  void end(LaneLink& link, std::string_view reason) noexcept;
  bool end_all();
  /// Waits for the events that the link needs now.
  void watch(LaneLink& link) WEFT_REQUIRES(link.mutex);

  // --- lane_stream.cpp: frames; false: the link may be gone ---

  /// Writes as much as the socket takes. True: the frame is written. `error`: a number that ends the link.
  bool push(LaneLink& link, int& error);
  void break_off(LaneLink& link, int error) WEFT_REQUIRES(link.mutex);
  void handle(LaneLink& link, uint32_t events);
  bool flush(LaneLink& link);
  void receive(LaneLink& link, bool hung_up);
  /// Takes a file that came with bytes. An error text: the other end broke a rule.
  const char* keep_file(LaneLink& link, const msghdr& message);
  bool files_are_named(LaneLink& link);
  /// Bytes of any frames, for one turn; others are kept for the next turn.
  bool deliver(LaneLink& link, const char* data, size_t n);
  bool read_length(LaneLink& link);
  bool pass(LaneLink& link, const char* data, size_t n);
  bool greet(LaneLink& link);
  void stop(LaneLink& link);
  void end_of_stream(LaneLink& link, bool hung_up);
  void take_turn();

  Runtime& runtime_;
  LinkEvents& events_;
  const GrpcOptions options_;
  const std::shared_ptr<MadeSegments> shared_;  // null: there is no shared memory
  const size_t max_unproven_;
  int listener_ = -1, poll_ = -1, wake_ = -1;
  std::atomic<bool> woken_{false};
  Mutex mutex_;  // taken under a link's
  std::unordered_set<LaneLink*> links_ WEFT_GUARDED_BY(mutex_);
  std::list<LaneLink*> called_ WEFT_GUARDED_BY(mutex_);  // of their own places
  std::atomic<bool> any_called_{false};                  // changes under the mutex; a poll reads it without
  std::atomic<bool> stopping_{false};

  // Used by the poll thread only.
  std::vector<std::pair<LaneLink*, TimePoint>> limited_;  // links without a welcome, by the time of their end
  std::deque<LaneLink*> unread_;                          // links with a rest
  TimePoint accept_at_ = kNever;                          // no file was free: tries again then
  Spinner spinner_;
  std::vector<char> read_;
  File spare_{};             // keeps a number for a file that finds no other one, and comes again
  bool lacks_file_ = false;  // the last file that came has found none

  std::atomic<int64_t> unproven_{0};
  std::atomic<uint64_t> closed_{0};
  std::unique_ptr<Service> polling_;
};

}  // namespace weft::rpc::inner
