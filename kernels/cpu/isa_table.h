// One table of function pointers per instruction set. The files in kernels/cpu/isa are compiled once for each set, with
// WEFT_ISA_NS naming the namespace that all their code lives in, and each file fills its part of the table:
//   namespace weft::kernels::WEFT_ISA_NS { void fill_softmax(IsaTable& t) { t.softmax = softmax; ... } }
// A new file adds its name to WEFT_ISA_FILES. Nothing with external linkage outside WEFT_ISA_NS may be instantiated there (no
// std::vector, no std::string): the linker would keep one copy for all sets. The entries are Backend's methods less Context.
#pragma once

#include <weft/kernels/backend.h>

namespace weft::kernels {

using V = const View&;

struct IsaTable {
  const char* name = "";

  void (*unary)(Unary, Scalar s, Scalar t, V x, V y) = nullptr;
  void (*binary)(Binary, Scalar s, Scalar t, V a, V b, V y) = nullptr;
  void (*ternary)(Ternary, Scalar s, V a, V b, V c, V y) = nullptr;
  void (*where)(V cond, V a, V b, V y) = nullptr;
  void (*copy)(V x, V y) = nullptr;
  void (*fill)(Scalar value, V y) = nullptr;
  void (*arange)(Scalar start, Scalar step, V y) = nullptr;

  void (*reduce)(Reduce, V x, V y) = nullptr;
  void (*arg_reduce)(bool largest, int dim, V x, V values, V indices) = nullptr;
  void (*mean_var)(int64_t correction, V x, V mean, V var) = nullptr;
  void (*cumulate)(Reduce, int dim, V x, V y) = nullptr;
  void (*sort)(bool descending, V x, V values, V indices) = nullptr;

  void (*softmax)(bool log, V x, V y) = nullptr;
  void (*softmax_backward)(bool log, V y, V dy, V dx) = nullptr;
  void (*logsumexp)(V x, V y) = nullptr;
  void (*cross_entropy)(V x, V target, V weight, int64_t ignore, double smoothing, V loss, V lse) = nullptr;
  void (*cross_entropy_backward)(V x, V lse, V target, V weight, int64_t ignore, double smoothing, V g,
                                 V dx) = nullptr;
  void (*layer_norm)(V x, V weight, V bias, double eps, V y, V mean, V rstd) = nullptr;
  void (*layer_norm_backward)(V x, V weight, V mean, V rstd, V dy, V dx, V dweight, V dbias) = nullptr;

  void (*matmul)(double alpha, V a, V b, double beta, V bias, V c) = nullptr;

  void (*take_rows)(V x, V index, V y) = nullptr;
  void (*add_rows)(V index, V dy, int64_t skip, V dx) = nullptr;
  void (*gather)(int dim, V x, V index, V y) = nullptr;
  void (*scatter)(bool add, int dim, V index, V src, V y) = nullptr;
  int64_t (*count_nonzero)(V x) = nullptr;
  void (*nonzero)(V x, V out) = nullptr;
  void (*triangle)(bool upper, int64_t k, V x, V y) = nullptr;

  void (*uniform)(PhiloxKey, double low, double high, V y) = nullptr;
  void (*normal)(PhiloxKey, double mean, double stddev, V y) = nullptr;
  void (*bernoulli)(PhiloxKey, V p, V y) = nullptr;
  void (*random_int)(PhiloxKey, int64_t low, int64_t high, V y) = nullptr;
  void (*dropout)(PhiloxKey, double p, V x, V y) = nullptr;
  void (*multinomial)(PhiloxKey, bool replacement, V p, V indices) = nullptr;

  void (*rnn_forward)(const RnnLayer&, const RnnInputs&, const RnnOutputs&) = nullptr;
  void (*rnn_backward)(const RnnLayer&, const RnnInputs&, const RnnOutputs&, V dy, V dhn, V dcn,
                       const RnnGrads&) = nullptr;

  void (*step)(const StepKernel&, DType, std::span<const StepTensor>) = nullptr;
  void (*powers)(double p, std::span<const View> xs, double* out) = nullptr;
  void (*scale)(double factor, std::span<const View> xs) = nullptr;
};

// One name per file in kernels/cpu/isa: it defines fill_<name>.
#define WEFT_ISA_FILES(X)                                                                                  \
  X(copy)                                                                                                  \
  X(unary) X(binary) X(ternary) X(reduce) X(scan) X(index) X(random) X(matmul) X(softmax) X(cross_entropy) \
      X(layer_norm) X(rnn_forward) X(rnn_backward) X(step)

#define WEFT_DECLARE_FILL(file) void fill_##file(IsaTable&);
namespace isa_base {
WEFT_ISA_FILES(WEFT_DECLARE_FILL)
}
namespace isa_avx2 {
WEFT_ISA_FILES(WEFT_DECLARE_FILL)
}
namespace isa_avx512 {
WEFT_ISA_FILES(WEFT_DECLARE_FILL)
}
#undef WEFT_DECLARE_FILL

/// The table in use. Throws: ValueError when WEFT_ISA names an unknown set or one that the machine lacks.
const IsaTable& isa_table();

}  // namespace weft::kernels
