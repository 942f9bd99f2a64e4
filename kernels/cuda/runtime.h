// The few calls of the CUDA runtime that the backend makes, as plain functions. device/runtime.cpp is the real thing; tests/support/simt has one that
// runs on the host, with guard zones around each block, for the emulated kernels. All throw CudaError, which names the call and
// the driver's text, unless a line says otherwise.
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
  size_t shared_memory = 0;  ///< bytes that a block may have, where it asks (simt.h)
};

/// Number of devices. Throws: DeviceError that says which of driver and device is missing.
int device_count();
Properties properties(int device);
/// The calling thread's device from here on.
void set_device(int device);
/// Whether the kernels run on the host (the emulation): launches are then complete on return.
bool emulated();

// Memory. allocate returns null when the device is full, and throws for anything else.
void* allocate(size_t bytes);
void release(void* p);
void* allocate_pinned(size_t bytes);  ///< host memory that a device reaches too; null when there is none
void release_pinned(void* p);
/// In stream order; any of device, pinned and pageable memory, other devices' too. Pageable memory makes it wait.
void copy(void* to, const void* from, size_t bytes, Stream stream);
void fill(void* to, int byte, size_t bytes, Stream stream);
/// The current device, `device`, reaches the memory of `peer` directly from here on; nothing where the machine cannot.
void enable_peer_access(int device, int peer);
/// Bytes free and in all on the current device.
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
void wait(Stream stream, Event event);  ///< what is issued to stream from now on comes after the event
void synchronize_event(Event event);
bool finished_event(Event event);
double elapsed_ms(Event from, Event to);

// Graphs: what is issued to a stream between begin and end is recorded, not run.
void begin_capture(Stream stream);
Graph end_capture(Stream stream);
bool capturing(Stream stream);
void launch_graph(Graph graph, Stream stream);
void delete_graph(Graph graph);

// Memory of another process on this host.
using IpcHandle = std::array<unsigned char, 64>;
IpcHandle export_memory(void* block);  ///< `block` as allocate returned it
void* open_memory(const IpcHandle& handle);
void close_memory(void* block);

}  // namespace weft::cuda::runtime
