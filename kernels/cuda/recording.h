// What a recorded graph keeps beside its kernels. A replay runs them with the arguments of the recording, so whatever differs from replay to replay
// lies in device memory: how often the graph was replayed (device_key.h), and the functors of recorded optimizer steps, which are made anew on the
// host and sent ahead of each replay. Tables that stay as they are (list.h) are sent once, when the recording ends.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include <weft/kernels/cuda/runtime.h>
#include <weft/kernels/step.h>

namespace weft::cuda {

struct Recording {
  struct Table {
    char* device;            ///< a block of the allocator, not of the pool
    std::vector<char> host;  ///< empty once it is sent
  };
  struct Step {
    char* device;              ///< its functors
    size_t bytes;              ///< of all
    std::vector<size_t> each;  ///< offset of each
    NextStep next;
  };
  runtime::Graph graph = nullptr;
  runtime::Stream origin = nullptr;
  void* pool = nullptr;         ///< of the allocator
  uint32_t* replays = nullptr;  ///< how many there were; on the device
  bool draws = false;           ///< some kernel reads `replays`
  std::deque<Table> tables;     ///< grows while others are filled
  std::vector<Step> steps;
  std::map<runtime::Stream, runtime::Event>
      replays_on;  ///< the streams it was replayed on; an event behind the last replay there
};

}  // namespace weft::cuda
