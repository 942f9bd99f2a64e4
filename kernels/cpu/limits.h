// The processors and memory that this process may use, from its affinity mask, the machine's memory and its
// control group. Control groups are read in /sys/fs/cgroup, where Linux mounts them by convention. The size
// of the last-level cache stands beside them.
#pragma once

#include <cstdint>
#include <string>

#include <weft/kernels/error.h>

namespace weft::kernels {

/// Number of threads that can run at once, at least 1. It is the smaller of the processors in the affinity
/// mask and the quota, rounded up. The quota is that of the control group (version 1 or 2) or one above it.
/// `root` is a prefix of /proc and /sys.
WEFT_API int usable_cpus(const std::string& root = {});
/// Bytes: the smaller of the machine's memory and the limit of the control group or one above it.
WEFT_API int64_t usable_memory(const std::string& root = {});
/// Bytes of the last-level cache, held within 8 and 64 MiB; 32 MiB if the machine does not report it.
WEFT_API int64_t cache_bytes(const std::string& root = {});
/// The number of bytes in an environment variable; `otherwise` where it is unset or empty. Throws: ValueError
/// naming the variable for other text.
WEFT_API int64_t bytes_of_environment(const char* name, int64_t otherwise);

}  // namespace weft::kernels
