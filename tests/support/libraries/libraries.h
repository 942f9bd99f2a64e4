// cuBLASLt, cuDNN and a few calls of the CUDA runtime in the emulation, so that kernels/cuda/device/ runs as it is written: the functions of NVIDIA's
// headers, as far as weft calls them, on the memory, streams and recordings of tests/support/simt. A library may choose an algorithm, a layout or a
// workspace where its documentation leaves it free; what it documents as an error is that status, and what it leaves undefined is a Fault.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <weft/kernels/dtype.h>

namespace weft::cuda::libraries {

/// How cuBLASLt says that it has no algorithm.
enum class Refusal { kNone, kNotSupported, kInvalidValue, kArchMismatch, kNoAlgorithm, kBadState };

/// For the calls that follow, on every thread.
struct Settings {
  Refusal epilogues = Refusal::kNone;  ///< of cuBLASLt's products with bias or relu
  Refusal halves = Refusal::kNone;     ///< of its products of float16 and bfloat16
  Refusal products = Refusal::kNone;   ///< of all
  std::string fails;                   ///< name of a cuDNN function that returns CUDNN_STATUS_INTERNAL_ERROR
  std::string refuses;                 ///< name of one that returns CUDNN_STATUS_NOT_SUPPORTED
  std::string full;                    ///< name of one, or cublasLtCreate, that finds no memory
  int64_t full_calls = 0;              ///< in its next so many calls
  bool on_host = false;                ///< it was the host's
};
Settings& settings();

/// Calls so far that were not refused.
struct Counts {
  int64_t heuristics = 0, products = 0, epilogues = 0,
          split = 0;  ///< of products: with an epilogue, with a sum in parts
  int64_t rnn_inference = 0, rnn_training = 0, rnn_backward_data = 0, rnn_backward_weights = 0;
  int64_t rnn_layers = 0;     ///< that the forwards ran, both directions of one counted as two
  int64_t weight_blocks = 0;  ///< gates whose place among the weights was asked for
  int64_t dropout_sizes = 0;  ///< times that the size of dropout's states was asked for
  int64_t live = 0;           ///< descriptors that were made and not destroyed
};
Counts& counts();

/// Whether `full` names the function and counts this call.
bool finds_no_memory(const char* call);
/// Whether the calling thread may allocate device memory: not while it records, save in relaxed mode. Spoils the recording.
bool may_allocate(const char* call);
/// Whether the calling thread's cudaGetLastError would tell of memory that was not found.
bool left_out_of_memory();
/// Runs `work` where the stream has it, with device memory open, and looks for writes beside blocks afterwards.
void issue(void* stream, const char* name, std::function<void()> work);
/// Throws: Fault when p is no device memory or no multiple of `alignment`.
void expect_device(const void* p, size_t alignment, const char* what);

/// `n` elements as double, `stride` elements apart, and back, rounded to the type.
std::vector<double> load(DType type, const void* p, int64_t n, int64_t stride = 1);
void store(DType type, void* p, const double* from, int64_t n);
double rounded(DType type, double v);

}  // namespace weft::cuda::libraries
