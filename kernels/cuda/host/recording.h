// The data of a recorded graph besides its kernels. A replay runs them with the recorded arguments, so values
// that differ between replays are in device memory. These are the number of replays (device_key.h) and the
// functors of recorded optimizer steps, which the host computes and sends before each replay. Constant tables
// (list.h) are sent once, at the end of the recording.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include <weft/kernels/cuda/host/runtime.h>
#include <weft/kernels/step.h>

namespace weft::cuda {

struct Recording {
  struct Table {
    char* device;            ///< a block of the allocator, not of the pool
    std::vector<char> host;  ///< empty after it is sent
  };
  struct Step {
    char* device;              ///< its functors
    size_t bytes;              ///< of all functors
    std::vector<size_t> each;  ///< offset of each functor
    NextStep next;
  };
  runtime::Graph graph = nullptr;
  runtime::Stream origin = nullptr;
  void* pool = nullptr;         ///< of the allocator
  uint32_t* replays = nullptr;  ///< number of replays so far; on the device
  bool draws = false;           ///< a kernel reads `replays`
  std::deque<Table> tables;     ///< a deque, since references to tables stay valid while it grows
  std::vector<Step> steps;
  /// the streams of its replays, with an event after the last replay on each
  std::map<runtime::Stream, runtime::Event> replays_on;
};

}  // namespace weft::cuda
