// Kernels of which each breaks one limit of planted.txt, so that scripts/check_kernels.py must name it. None
// of them is ever launched.
#include <cuda_runtime.h>

extern "C" {

/// Breaks none: two loads are issued before the first is used, in a loop.
__global__ void planted_sound(const float4* __restrict__ x, float4* __restrict__ y, int n) {
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < n; i += 64) {
    const float4 a = x[i], b = x[i + 32];
    y[i] = make_float4(a.x * 2, a.y * 2, a.z * 2, a.w * 2);
    y[i + 32] = make_float4(b.x * 2, b.y * 2, b.z * 2, b.w * 2);
  }
}

/// All of 96 numbers are loaded before the first is stored.
__global__ void planted_registers(const float4* x, float4* y) {
  float4 all[24];
#pragma unroll
  for (int i = 0; i < 24; ++i) all[i] = x[i * 32 + threadIdx.x];
#pragma unroll
  for (int i = 0; i < 24; ++i) y[i * 32 + threadIdx.x] = all[23 - i];
}

/// A variable indexes an array of 32 numbers, once.
__global__ void planted_stack(const float4* x, float* y, int which) {
  float4 all[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) all[i] = x[i * 32 + threadIdx.x];
  float* const each = reinterpret_cast<float*>(all);
  each[which & 31] = 0;
  y[threadIdx.x] = each[which + 1 & 31] + each[which + 5 & 31];
}

/// The same in a loop, with a stack that the table allows.
__global__ void planted_loops(const float4* x, float* y, const int* which, int n) {
  float4 all[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) all[i] = x[i * 32 + threadIdx.x];
#pragma unroll 1
  for (int i = 0; i < n; ++i) y[i * 32] = reinterpret_cast<const float*>(all)[which[i] & 31];
}

/// Numbers of 4 bytes.
__global__ void planted_loads(const float* x, float* y) {
  y[threadIdx.x] = x[threadIdx.x] * 2;
  y[threadIdx.x + 32] = x[threadIdx.x + 32] * 2;
}

/// The second load may read the memory that is written before it, so it comes after the first one's use.
__global__ void planted_ahead(const float4* x, float4* y) {
  const float4 a = x[threadIdx.x];
  y[threadIdx.x] = make_float4(a.x * 2, a.y * 2, a.z * 2, a.w * 2);
  const float4 b = x[threadIdx.x + 32];
  y[threadIdx.x + 32] = make_float4(b.x * 2, b.y * 2, b.z * 2, b.w * 2);
}

/// Has two loads ahead, and its row has one.
__global__ void planted_loose(const float4* x, float4* y) {
  const float4 a = x[threadIdx.x], b = x[threadIdx.x + 32];
  y[threadIdx.x] = make_float4(a.x * 2, a.y * 2, a.z * 2, a.w * 2);
  y[threadIdx.x + 32] = make_float4(b.x * 2, b.y * 2, b.z * 2, b.w * 2);
}

/// The same, and its row allows more.
__global__ void planted_allowed(const float4* x, float4* y) {
  const float4 a = x[threadIdx.x], b = x[threadIdx.x + 32];
  y[threadIdx.x] = make_float4(a.x * 2, a.y * 2, a.z * 2, a.w * 2);
  y[threadIdx.x + 32] = make_float4(b.x * 2, b.y * 2, b.z * 2, b.w * 2);
}

/// Its factor is a double.
__global__ void planted_double(const float4* x, float4* y, double factor) {
  const float4 a = x[threadIdx.x], b = x[threadIdx.x + 32];
  const float by = static_cast<float>(factor);
  y[threadIdx.x] = make_float4(a.x * by, a.y * by, a.z * by, a.w * by);
  y[threadIdx.x + 32] = make_float4(b.x * by, b.y * by, b.z * by, b.w * by);
}

/// Has no row.
__global__ void unplanned(float* y) { y[threadIdx.x] = 0; }

}  // extern "C"
