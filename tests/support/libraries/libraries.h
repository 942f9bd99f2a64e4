// Emulation of cuBLASLt, cuDNN and some calls of the CUDA runtime, so that kernels/cuda/toolkit/ runs
// unchanged. It has the functions of NVIDIA's headers that weft calls, on the memory, streams and recordings
// of tests/support/simt. Where its documentation leaves a choice of algorithm, layout or workspace, a library
// chooses freely. Documented errors return their status; undefined behaviour is a Fault.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <weft/kernels/dtype.h>

namespace weft::cuda::libraries {

/// The ways in which cuBLASLt refuses a product.
enum class Refusal { kNone, kNotSupported, kInvalidValue, kArchMismatch, kNoAlgorithm, kBadState };

/// Settings of the calls that follow, on every thread.
struct Settings {
  Refusal epilogues = Refusal::kNone;  ///< for cuBLASLt's products with an epilogue
  Refusal halves = Refusal::kNone;     ///< for its products of float16 and bfloat16
  Refusal products = Refusal::kNone;   ///< for all products
  /// Names of cuDNN's functions; of cudnnBackendFinalize also "cudnnBackendFinalize: graph" and ": plan", of
  /// cudnnBackendGetAttribute ": engines" (there are none) and ": ordered" (no engine repeats its bits).
  std::string fails;              ///< name of one that returns CUDNN_STATUS_INTERNAL_ERROR
  std::string refuses;            ///< name of one that returns CUDNN_STATUS_NOT_SUPPORTED
  std::string full;               ///< name of one, or cublasLtCreate, that finds no memory
  int64_t full_calls = 0;         ///< number of its next calls that find none
  int64_t found = 1;              ///< cuDNN's number of engines for a graph, and of an engine's notes
  int64_t extra_work = 0;         ///< bytes of workspace that cuDNN's attention needs besides
  bool on_host = false;           ///< host memory is missing, not device memory
  bool new_handles_wait = false;  ///< cuDNN waits for the device in the first calls on a handle
};
Settings& settings();

/// Numbers of successful calls.
struct Counts {
  /// cuBLASLt: choices of an algorithm; products; products with an epilogue; products with a sum in parts
  int64_t heuristics = 0, products = 0, epilogues = 0, split = 0;
  uint32_t last_epilogue = 0;  ///< of cuBLASLt's last product
  int64_t rnn_inference = 0, rnn_training = 0, rnn_backward_data = 0, rnn_backward_weights = 0;
  int64_t rnn_layers = 0;     ///< layers run by forward; two directions count as two
  int64_t weight_blocks = 0;  ///< queries for the place of a gate's weights; each copy of weights makes them
  const void* last_weights = nullptr;  ///< the weight space of cuDNN's last forward or backward
  const void* last_sums = nullptr;     ///< that of its last gradients of weights
  int64_t dropout_sizes = 0;           ///< queries for the size of dropout's states
  int64_t attention_plans = 0, attention_forward = 0, attention_backward = 0;
  int64_t live = 0;         ///< descriptors made and not destroyed
  int64_t graph_nodes = 0;  ///< the same of graphs
};
Counts& counts();

/// True if `full` names the function; counts this call.
bool finds_no_memory(const char* call);
/// True if the calling thread may allocate device memory. It may not while it records, except in relaxed
/// mode; the attempt invalidates the recording.
bool may_allocate(const char* call);
/// True if the calling thread's cudaGetLastError would report an allocation failure.
bool left_out_of_memory();
/// Runs `work` in stream order with device memory open, then checks for writes outside of blocks.
void issue(void* stream, const char* name, std::function<void()> work);
/// Throws: Fault when p is not device memory or not a multiple of `alignment`.
void expect_device(const void* p, size_t alignment, const char* what);

/// Loads `n` elements as double, `stride` elements apart; stores them, rounded to the type.
std::vector<double> load(DType type, const void* p, int64_t n, int64_t stride = 1);
void store(DType type, void* p, const double* from, int64_t n);
double rounded(DType type, double v);

}  // namespace weft::cuda::libraries
