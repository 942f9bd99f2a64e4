// Fused optimizer steps: the table of one launch. A parameter that a graph still holds is read in place and
// written to a new block. A pack has 16 bytes, and 8 of a parameter and gradient of a half type.
#include <weft/kernels/cuda/host/list.h>
#include <weft/kernels/cuda/step_cuda.h>

namespace weft::cuda {

namespace {

using step_cuda::Row;

/// Elements per block, a multiple of 16, for as many blocks as fill the device.
int64_t chunk_length(int64_t total) {
  int64_t length = 1024;
  while (length < 32768 && total / length > 4096) length *= 2;
  return length;
}

bool at_border(const StepTensor& t, int states) {
  const auto fits = [](const void* p, uintptr_t bytes) {
    return reinterpret_cast<uintptr_t>(p) % bytes == 0;
  };
  const uintptr_t own = t.master ? 8 : 16;
  bool all = fits(t.param, own) && fits(t.out, own) && fits(t.grad, own) && fits(t.master, 16);
  for (int k = 0; k < states; ++k) all = all && fits(t.state[k], 16);
  return all;
}

}  // namespace

void CudaBackend::step(Context& c, const StepKernel& kernel, DType dtype, std::span<const StepTensor> tensors,
                       const NextStep& next, const double* skip) {
  const StepCuda& form = step_cuda_form(kernel);
  enter();
  int64_t total = 0, count = 0;
  for (const StepTensor& t : tensors) total += t.numel;
  if (total == 0) return;
  const int64_t length = chunk_length(total);
  for (const StepTensor& t : tensors) count += blocks_for(t.numel, length);
  const size_t rows_bytes = aligned_to_16(tensors.size() * sizeof(Row)),
               chunk_bytes = aligned_to_16(static_cast<size_t>(count) * sizeof(step_cuda::Chunk)),
               functor_bytes = aligned_to_16(form.functor_bytes);
  Table table(*this, c, rows_bytes + chunk_bytes + tensors.size() * functor_bytes);
  auto* const rows = reinterpret_cast<Row*>(table.host());
  auto* chunk = reinterpret_cast<step_cuda::Chunk*>(table.host() + rows_bytes);
  char* const functors = table.host() + rows_bytes + chunk_bytes;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const StepTensor& t = tensors[i];
    rows[i] = {t.param,
               t.out ? t.out : t.param,
               t.grad,
               t.master,
               {},
               t.numel,
               static_cast<int64_t>(i * functor_bytes),
               at_border(t, form.state_count)};
    for (int k = 0; k < form.state_count; ++k) rows[i].state[k] = t.state[k];
    std::memcpy(functors + i * functor_bytes, t.hyper, form.functor_bytes);
    for (int64_t k = 0; k < blocks_for(t.numel, length); ++k)
      *chunk++ = {static_cast<int32_t>(i), static_cast<int32_t>(k)};
  }
  table.send();
  const char* const device = table.device();
  if (next && table.recording()) {
    Recording::Step recorded{
        table.device() + rows_bytes + chunk_bytes, tensors.size() * functor_bytes, {}, next};
    for (size_t i = 0; i < tensors.size(); ++i) recorded.each.push_back(i * functor_bytes);
    table.recording()->steps.push_back(std::move(recorded));
  }
  form.launch(
      stream_of(c), kernel.name, dtype,
      {reinterpret_cast<const Row*>(device), reinterpret_cast<const step_cuda::Chunk*>(device + rows_bytes),
       reinterpret_cast<const unsigned char*>(device + rows_bytes + chunk_bytes), skip,
       tensors.front().factor, count, length});
}

}  // namespace weft::cuda
