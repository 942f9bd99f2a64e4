// Order of device work across threads. A thread's device work goes to its current stream, and streams are
// not ordered among each other. So a value that passes between threads (a Future, a message, a backward
// pass) carries a mark of its maker's streams. Handlers use the default streams unless they choose others.
// With default streams only, and in a program without devices, the cost is one load and one comparison.
// Thread safety: a mark is a plain value once made; scopes affect the calling thread or fiber.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <weft/kernels/accelerator.h>

namespace weft::rpc {

/// A mark of a thread's current streams: an event on each stream that is not its device's default stream.
/// A stream that records a graph has no event, since its work runs when the graph is replayed.
class WEFT_API StreamMark {
 public:
  /// Marks the calling thread's current streams; null when all are default streams.
  static std::unique_ptr<const StreamMark> now();
  ~StreamMark();
  StreamMark(const StreamMark&) = delete;

 private:
  friend void join_streams(const StreamMark* mark);
  struct Entry {
    Accelerator* device;
    void* stream;
    void* event;
  };
  StreamMark() = default;
  std::vector<Entry> entries_;
};

/// Makes the calling thread's current streams wait for the work before the mark. Null: the mark of a thread
/// on the default streams. Throws: CudaError while the calling thread records a graph, since a graph cannot
/// wait for outside work; the recording continues.
WEFT_API void join_streams(const StreamMark* mark);

/// The calling thread's current streams that are not default streams. `recorded`: include streams that
/// record a graph.
using Streams = std::vector<std::pair<Accelerator*, void*>>;
WEFT_API Streams current_streams(bool recorded = true);

/// Makes streams current for a scope; on all other devices the default stream. It adds no waits.
class WEFT_API StreamScope {
 public:
  explicit StreamScope(const Streams& streams = {});
  ~StreamScope();
  StreamScope(const StreamScope&) = delete;

 private:
  Streams before_;
};

/// A scope on the default streams. At its begin they wait for the thread's streams; at its end the thread's
/// streams wait for them. Throws: CudaError as join_streams.
class WEFT_API DefaultStreams {
 public:
  DefaultStreams();
  ~DefaultStreams();
  DefaultStreams(const DefaultStreams&) = delete;

 private:
  Streams before_;
  StreamScope scope_;
};

/// Makes the current streams of the open devices follow fibers and waits. Agent::create calls it.
void register_stream_states();

}  // namespace weft::rpc
