// Streams of devices and the hand-overs between threads. Work that a thread gives a device goes to the thread's current stream, and two streams
// know nothing of each other; a value that passes from one thread to another (a Future, a message, a backward pass) must carry along how far
// its maker's streams had come. Where every thread uses the default streams, as handlers do unless they choose otherwise, and in a program
// without devices, all of this is a load and a comparison.
// Thread safety: marks are plain values once made; scopes concern the calling thread or fiber.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <weft/kernels/accelerator.h>

namespace weft::rpc {

/// Where the current streams of a thread stood: an event on each that is not its device's default one. One that the thread records a graph on has
/// no event: its work runs when the graph is replayed.
class WEFT_API StreamMark {
 public:
  /// Null when all of the calling thread's streams are default ones.
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

/// What the calling thread issues from now on comes after what the maker of the mark had issued. Null: a thread on the default streams.
/// Throws: CudaError while the calling thread records a graph, which cannot come after work outside of it; the recording goes on.
WEFT_API void join_streams(const StreamMark* mark);

/// A thread's current streams that are not default ones; `recorded`: with those that it records a graph on.
using Streams = std::vector<std::pair<Accelerator*, void*>>;
WEFT_API Streams current_streams(bool recorded = true);

/// Makes streams current for a scope; those not named are default ones. Nothing waits for anything.
class WEFT_API StreamScope {
 public:
  explicit StreamScope(const Streams& streams = {});
  ~StreamScope();
  StreamScope(const StreamScope&) = delete;

 private:
  Streams before_;
};

/// A scope on the default streams: they go on after the thread's own ones, and these after them at its end. Throws: CudaError as join_streams.
class WEFT_API DefaultStreams {
 public:
  DefaultStreams();
  ~DefaultStreams();
  DefaultStreams(const DefaultStreams&) = delete;

 private:
  Streams before_;
  StreamScope scope_;
};

/// Lets the current streams of the open devices follow fibers and waits. Called when an agent is made.
void register_stream_states();

}  // namespace weft::rpc
