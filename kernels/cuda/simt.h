// The form of CUDA kernels, those of kernels/cuda/ops and a user's own. A kernel body is a plain struct: its
// members are the arguments, and its call operator runs on each thread. A Thread gives the thread's indices
// and the synchronisation with other threads.
//
//   struct Sum {
//     const float* x; float* y; int64_t n;
//     WEFT_DEVICE void operator()(Thread t) const { ... t.sync(); ... }
//   };
//   launch(stream, "sum", {.blocks = 8, .threads = 256, .shared = 256 * sizeof(float)}, Sum{x, y, n});
//
// A body has no launch syntax and no built-in variables. So the same file is compiled twice: by nvcc for the
// device, and by the host compiler (WEFT_SIMT) for the tests. These run each body on the CPU under an
// emulation of blocks, warps and shared memory (tests/support/simt). The rules for a body:
//   - Blocks are one-dimensional, `threads` is a multiple of 32; a grid has `blocks` times `rows` blocks.
//   - Shared memory has `shared` bytes, is 16-byte aligned and uninitialised. launch() requests more than
//     kPlainShared bytes from the device.
//   - sync() and the warp operations (sync_warp, shuffle_*, ballot, multiply_add) are reached by all threads
//     of the block or warp, or by none.
//   - A body with `static constexpr bool kIndependent = true` uses none of them.
//   - sync_grid() is reached by all threads of the grid or by none, and launch_together() starts the body. It
//     takes at most as many blocks as the device holds at once (blocks_together).
// A body may declare `static constexpr int kThreads`, the largest number of threads of a block (default
// 1024). It may also declare `kBlocks`, the number of such blocks that a processor should hold at once. The
// compiler limits registers by them.
#pragma once

#include <cstddef>
#include <cstdint>

#include <weft/kernels/cuda/trace.h>
#include <weft/kernels/dtype.h>
#include <weft/kernels/error.h>

namespace weft::cuda {

/// The size of a launch. A launch of zero blocks or rows does nothing.
struct Grid {
  int64_t blocks = 1;  ///< up to 2^31 - 1
  int64_t rows = 1;    ///< up to 65535
  int threads = 256;   ///< a multiple of 32, up to 1024
  size_t shared = 0;   ///< bytes, up to the device's limit per block (shared_memory in runtime.h)
};

inline constexpr int kWarp = 32;
/// Bytes of shared memory that a block may use without a request to the device.
inline constexpr size_t kPlainShared = 48 << 10;
/// Largest number of devices of a program.
inline constexpr int kMaxDevices = 128;
/// ceil(n / d).
constexpr int64_t blocks_for(int64_t n, int64_t d) { return (n + d - 1) / d; }
/// The blocks of a launch with a block for each piece of work; blocks loop only beyond the limit of a grid.
/// On an H200 that was faster than as many blocks as the device holds at once, each of which loops.
constexpr int64_t one_round(int64_t needed) { return needed < INT32_MAX ? needed : INT32_MAX; }

}  // namespace weft::cuda

// WEFT_UNROLL: before a loop of fixed length whose arrays should be in registers, or whose reads should all
// be in flight at once. WEFT_ROLLED: before a loop that should not be unrolled, because it is compiled in
// many places.
#if defined(__CUDACC__)
#define WEFT_UNROLL _Pragma("unroll")
#define WEFT_ROLLED _Pragma("unroll 1")
#else
#define WEFT_UNROLL
#define WEFT_ROLLED
#endif

#if defined(WEFT_SIMT)

#define WEFT_DEVICE
#include <support/simt/thread.h>
namespace weft::cuda {
class Thread;
inline void fence_to_host(const Thread&) {}
}  // namespace weft::cuda

#elif !defined(__CUDACC__)

// Host files use Grid, and launch nothing.
#define WEFT_DEVICE
namespace weft::cuda {
class Thread;
template <class Body> int64_t blocks_of_processor(const char* name, int threads, size_t shared);
}  // namespace weft::cuda

#else

#include <cooperative_groups.h>
#include <cuda_runtime.h>

#include <atomic>
#include <map>
#include <mutex>
#include <tuple>

#define WEFT_DEVICE __device__

namespace weft::cuda {

class Thread {
 public:
  __device__ int id() const { return static_cast<int>(threadIdx.x); }
  __device__ int count() const { return static_cast<int>(blockDim.x); }
  __device__ int lane() const { return static_cast<int>(threadIdx.x) % kWarp; }
  __device__ int warp() const { return static_cast<int>(threadIdx.x) / kWarp; }
  __device__ int64_t block() const { return blockIdx.x; }
  __device__ int64_t blocks() const { return gridDim.x; }
  __device__ int64_t row() const { return blockIdx.y; }
  __device__ int64_t rows() const { return gridDim.y; }
  /// Position of this thread among all threads of its row of blocks, and their number.
  __device__ int64_t global() const { return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; }
  __device__ int64_t globals() const { return static_cast<int64_t>(gridDim.x) * blockDim.x; }

  /// Waits for the whole block; memory written before is visible after.
  __device__ void sync() const { __syncthreads(); }
  /// The same for the warp.
  __device__ void sync_warp() const { __syncwarp(); }
  /// The same for all blocks of a launch_together(). Its fences are of the whole device, so a plain load
  /// afterwards sees the other blocks' earlier writes to device memory.
  __device__ void sync_grid() const { cooperative_groups::this_grid().sync(); }
  /// The block's shared memory.
  template <class T> __device__ T* shared() const {
    extern __shared__ __align__(16) unsigned char weft_shared[];
    return reinterpret_cast<T*>(weft_shared);
  }

  /// Another lane's value; T of 4 or 8 bytes.
  template <class T> __device__ T shuffle(T v, int lane) const { return __shfl_sync(0xffffffffu, v, lane); }
  template <class T> __device__ T shuffle_xor(T v, int mask) const {
    return __shfl_xor_sync(0xffffffffu, v, mask);
  }
  /// lanes below `by` keep v
  template <class T> __device__ T shuffle_up(T v, int by) const { return __shfl_up_sync(0xffffffffu, v, by); }
  template <class T> __device__ T shuffle_down(T v, int by) const {
    return __shfl_down_sync(0xffffffffu, v, by);
  }
  /// Bit i: the predicate of lane i.
  __device__ uint32_t ballot(bool p) const { return __ballot_sync(0xffffffffu, p); }

  /// d += a b of the warp by its tensor cores. a [16, 16] and b [16, 8] are of H, which is Half or BFloat16;
  /// d is [16, 8]. Compute capability 8.0 and later; on earlier devices it does nothing. A word holds two
  /// numbers, the first one in its low half. With g = lane / 4 and c = lane % 4 * 2 a lane has
  ///   a  (g, c .. c + 1), (g + 8, c .. c + 1), (g, c + 8 .. c + 9), (g + 8, c + 8 .. c + 9)
  ///   b  (c .. c + 1, g), (c + 8 .. c + 9, g)
  ///   d  (g, c), (g, c + 1), (g + 8, c), (g + 8, c + 1)
  template <class H>
  __device__ void multiply_add(const uint32_t (&a)[4], const uint32_t (&b)[2], float (&d)[4]) const {
#if __CUDA_ARCH__ >= 800
    if constexpr (dtype_of<H> == DType::kFloat16)
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
          "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    else
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
          "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
  }

  /// Return the previous value; T: int32_t, uint32_t, unsigned long long (all), int (exchange, max).
  template <class T> __device__ T atomic_add(T* p, T v) const { return atomicAdd(p, v); }
  template <class T> __device__ T atomic_max(T* p, T v) const { return atomicMax(p, v); }
  template <class T> __device__ T atomic_cas(T* p, T expected, T v) const {
    return atomicCAS(p, expected, v);
  }
};

/// The host sees this thread's earlier writes no later than its later ones.
__device__ inline void fence_to_host(const Thread&) { __threadfence_system(); }

namespace inner {
template <class Body> constexpr int most_threads() {
  if constexpr (requires { Body::kThreads; }) return Body::kThreads;
  else return 1024;
}
template <class Body> constexpr int resident_blocks() {
  if constexpr (requires { Body::kBlocks; }) return Body::kBlocks;
  else return 1;
}
template <class Body>
__global__ void __launch_bounds__(most_threads<Body>(), resident_blocks<Body>()) run(const Body body) {
  body(Thread{});
}
/// Throws: CudaError that names the kernel.
inline void check(const char* name, cudaError_t status) {
  if (status == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());  // so that no later launch finds it
  throw CudaError(str(name, ": ", cudaGetErrorString(status), " (", cudaGetErrorName(status), ")"));
}
inline void check_launch(const char* name) { check(name, cudaGetLastError()); }
/// Allows launches of the kernel on the current device to use all shared memory that the device gives a
/// block. `allowed` has one flag per device for this kernel: the first launch makes the request, later ones
/// only read the flag. Two requests at once are harmless. It issues nothing to a stream, so it may run while
/// a graph is recorded.
inline void allow_shared(const char* name, const void* kernel, std::atomic<bool>* allowed) {
  int device = 0, most = 0;
  check(name, cudaGetDevice(&device));
  if (allowed[device].load(std::memory_order_acquire)) return;
  check(name, cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  check(name, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most));
  allowed[device].store(true, std::memory_order_release);
}
/// The same for a body and the shared memory that a launch of it uses.
template <class Body> void allow_shared(const char* name, size_t shared) {
  if (shared <= kPlainShared) return;
  static std::atomic<bool> allowed[kMaxDevices];
  allow_shared(name, reinterpret_cast<const void*>(&run<Body>), allowed);
}
}  // namespace inner

/// Starts the kernel on a stream. Throws: CudaError that names it.
template <class Body> void launch(void* stream, const char* name, const Grid& grid, const Body& body) {
  if (grid.blocks <= 0 || grid.rows <= 0) return;
  // only the emulation uses it
  if constexpr (requires { Body::kIndependent; }) static_cast<void>(Body::kIndependent);
  inner::allow_shared<Body>(name, grid.shared);
  const TraceSpan span(name, stream);
  const dim3 shape(static_cast<unsigned>(grid.blocks), static_cast<unsigned>(grid.rows));
  inner::run<Body>
      <<<shape, static_cast<unsigned>(grid.threads), grid.shared, static_cast<cudaStream_t>(stream)>>>(body);
  inner::check_launch(name);
}

/// The most blocks of a body that a processor of the current device holds at once, by its registers, threads
/// and `shared` bytes. It issues nothing to a stream. The runtime is asked once for each device and size.
template <class Body> int64_t blocks_of_processor(const char* name, int threads, size_t shared) {
  static std::mutex mutex;
  static std::map<std::tuple<int, int, size_t>, int> known;
  int device = 0;
  inner::check(name, cudaGetDevice(&device));
  const std::lock_guard lock(mutex);
  const std::tuple key(device, threads, shared);
  if (const auto at = known.find(key); at != known.end()) return at->second;
  int blocks = 0;
  inner::allow_shared<Body>(name, shared);
  inner::check(name,
               cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, inner::run<Body>, threads, shared));
  return known[key] = blocks;  // not before: a call that failed is made again
}

/// The same for the device; 0 if it starts no blocks together.
template <class Body> int64_t blocks_together(const char* name, int threads, size_t shared) {
  int device = 0, can = 0, processors = 0;
  inner::check(name, cudaGetDevice(&device));
  inner::check(name, cudaDeviceGetAttribute(&can, cudaDevAttrCooperativeLaunch, device));
  inner::check(name, cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  return can ? processors * blocks_of_processor<Body>(name, threads, shared) : 0;
}

/// Starts a kernel whose blocks run at the same time, so that they may wait for each other (sync_grid). It
/// may be part of a recorded graph. Throws: CudaError that names the kernel, also if the device does not hold
/// all blocks.
template <class Body>
void launch_together(void* stream, const char* name, const Grid& grid, const Body& body) {
  if (grid.blocks <= 0 || grid.rows <= 0) return;
  inner::allow_shared<Body>(name, grid.shared);
  const TraceSpan span(name, stream);
  cudaLaunchAttribute together{};
  together.id = cudaLaunchAttributeCooperative;
  together.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(grid.blocks), static_cast<unsigned>(grid.rows));
  config.blockDim = dim3(static_cast<unsigned>(grid.threads));
  config.dynamicSmemBytes = grid.shared;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &together, config.numAttrs = 1;
  inner::check(name, cudaLaunchKernelEx(&config, inner::run<Body>, body));
}

}  // namespace weft::cuda

#endif
