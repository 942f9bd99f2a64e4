// The emulated device memory: one range of addresses that only kernels and the runtime's copies may touch, each block between guard zones.
#pragma once

#include <cstddef>

namespace weft::cuda::simt {

/// While one lives, device memory can be read and written; otherwise touching it is a segmentation fault, as on the machine. Nests.
struct DeviceAccess {
  DeviceAccess();
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
};
/// Whether that still holds: a program that has used more than a few MiB leaves its memory open, since closing costs time by the page.
bool closes_memory();

/// Throws: Fault that names the kernel when a guard zone was written to.
void check_guards(const char* kernel);
/// Makes guard zones whole again after a planted fault.
void repair_guards();
bool is_device_memory(const void* p);
/// Blocks that are allocated now.
int live_blocks();

}  // namespace weft::cuda::simt
