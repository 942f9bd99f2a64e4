// The calls of the CUDA runtime that the backend needs, as plain functions. toolkit/runtime.cpp implements
// them with the CUDA runtime. For emulated kernels, tests/support/simt implements them on the host, with
// guard zones around each block. Unless a comment states otherwise, all throw CudaError with the name of the
// call and the driver's text.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace weft::cuda::runtime {

using Stream = void*;  // cudaStream_t; null is the device's default stream
using Event = void*;   // cudaEvent_t
using Graph = void*;   // cudaGraphExec_t

struct Properties {
  std::string name;
  int major = 0, minor = 0;  ///< compute capability
  int processors = 0;        ///< streaming multiprocessors
  size_t memory = 0;         ///< bytes
  size_t shared_memory = 0;  ///< bytes that a block may request (simt.h)
};

/// Number of devices. Throws: DeviceError that names the missing driver or device.
int device_count();
Properties properties(int device);
/// Sets the calling thread's device.
void set_device(int device);
int current_device();
/// Whether the kernels run on the host (the emulation): launches are then complete on return.
bool emulated();

// Memory. allocate returns null if the device is full, and throws for other failures.
void* allocate(size_t bytes);
void release(void* p);
void* allocate_pinned(size_t bytes);  ///< host memory that devices access; null if there is none
void release_pinned(void* p);
/// Copies in stream order between any device, pinned and pageable memory. With pageable memory it waits.
void copy(void* to, const void* from, size_t bytes, Stream stream);
void fill(void* to, int byte, size_t bytes, Stream stream);
/// Enables direct access of the current device, `device`, to the memory of `peer`; does nothing if the
/// machine does not support it.
void enable_peer_access(int device, int peer);
/// Free and total bytes of the current device.
void memory_info(size_t* available, size_t* total);

// Streams and events.
Stream new_stream(bool high_priority);
void delete_stream(Stream stream);
void synchronize(Stream stream);
void synchronize_device();
bool finished(Stream stream);
Event new_event(bool timing);
void delete_event(Event event);
void record(Event event, Stream stream);
void wait(Stream stream, Event event);  ///< later work on the stream runs after the event
void synchronize_event(Event event);
bool finished_event(Event event);
double elapsed_ms(Event from, Event to);

// Graphs: work issued to a stream between begin and end is recorded, not run.
void begin_capture(Stream stream);
Graph end_capture(Stream stream);
bool capturing(Stream stream);
bool capture_failed(Stream stream);  ///< a call that is not permitted has spoilt the stream's recording
void launch_graph(Graph graph, Stream stream);
void delete_graph(Graph graph);

// NVTX ranges of the calling thread, which nest.
void push_range(const char* name) noexcept;
void pop_range() noexcept;

// Memory of another process on this host.
using IpcHandle = std::array<unsigned char, 64>;
IpcHandle export_memory(void* block);  ///< `block` as allocate returned it
void* open_memory(const IpcHandle& handle);
void close_memory(void* block);

}  // namespace weft::cuda::runtime
