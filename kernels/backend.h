// The seam between tensors and devices: one abstract Backend, one object per device. Every operation takes a Context and Views
// whose sizes the caller has already checked; outputs are allocated by the caller. An operation left out of a backend does
// not compile. Unless a line says "+=", an output is overwritten. Floating work runs in the type of the output; the half types
// compute in float. A View whose data is null stands for "not wanted" (outputs) or "absent" (inputs) where a line says so.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include <weft/kernels/device.h>
#include <weft/kernels/pointwise.h>
#include <weft/kernels/scalar.h>
#include <weft/kernels/step.h>
#include <weft/kernels/view.h>

namespace weft {

/// How one call runs: the stream (null: the device's default), and whether order of sums must not depend on timing.
struct Context {
  void* stream = nullptr;
};

enum class Reduce : uint8_t { kSum, kProd, kMax, kMin, kAny, kAll, kSumAbs, kSumSquares, kMaxAbs };
enum class RnnMode : uint8_t { kLstm, kGru, kTanh, kRelu };

/// Key of a counter-based draw: element i of a call uses Philox4x32-10 block (offset + i / 4), lane i % 4, under key `seed`,
/// whatever the device or the thread count. 64-bit values (float64, int64) use two lanes of block offset + i / 2.
struct PhiloxKey {
  uint64_t seed = 0;
  uint64_t offset = 0;
};

/// One direction of one recurrent layer over a whole sequence. Gate order: LSTM i f g o, GRU r z n; G gates of H rows.
struct RnnLayer {
  RnnMode mode = RnnMode::kLstm;
  bool reverse = false;  ///< runs from the last step to the first
  int gates() const { return mode == RnnMode::kLstm ? 4 : mode == RnnMode::kGru ? 3 : 1; }
  /// Width of the usual `reserve` in units of H per (t, n): what forward keeps for backward.
  int reserve_width() const { return mode == RnnMode::kLstm ? 6 : mode == RnnMode::kGru ? 4 : 1; }
};

struct RnnInputs {
  View x;           ///< [T, N, I]
  View h0;          ///< [N, H]
  View c0;          ///< [N, H], LSTM only
  View w_ih, w_hh;  ///< [G*H, I], [G*H, H]
  View b_ih, b_hh;  ///< [G*H] or absent
};
struct RnnOutputs {
  View y;        ///< [T, N, H], may be strided (half of a bidirectional output)
  View hn, cn;   ///< [N, H]; cn LSTM only
  View reserve;  ///< of the sizes that Backend::rnn_reserve names; absent when no backward will follow
};
struct RnnGrads {
  View dx, dh0, dc0, dw_ih, dw_hh, db_ih, db_hh;  ///< each as its input; absent = not wanted; overwritten
};

/// Layers of one kind over one another, each in one direction or in both: its output is then the forward's H columns and the reverse's. Cell
/// l * directions + d is direction d of layer l.
struct RnnStack {
  RnnMode mode = RnnMode::kLstm;
  int64_t layers = 1;
  bool both = false;
  double dropout = 0;      ///< on the output of every layer but the last
  PhiloxKey key = {};      ///< of this call's dropout, which need not draw as Backend::dropout does
  uint64_t key_epoch = 0;  ///< Generator::epoch of the key's generator
  int64_t directions() const { return both ? 2 : 1; }
  int64_t cells() const { return layers * directions(); }
};
struct RnnWeights {
  View w_ih, w_hh;  ///< [G*H, columns of the layer's input], [G*H, H]
  View b_ih, b_hh;  ///< [G*H] or absent
};
struct RnnStackInputs {
  View x;       ///< [T, N, I]
  View h0, c0;  ///< [cells, N, H]; c0 LSTM only
  std::span<const RnnWeights> cells;
};
struct RnnStackOutputs {
  View y;       ///< [T, N, directions * H]
  View hn, cn;  ///< [cells, N, H]; cn LSTM only
  View weights,
      reserve;  ///< of rank 1, with what Backend::rnn_stack names; absent when no backward will follow
};
struct RnnStackGrads {
  View dx, dh0, dc0;                  ///< absent = not wanted; overwritten
  std::span<const RnnWeights> cells;  ///< in each the same
};
/// Elements of x's dtype that a stack keeps for its backward: the weights in the backend's own form, and the rest.
struct RnnStackRoom {
  int64_t weights = 0, reserve = 0;
};

class WEFT_API Backend {
 public:
  virtual ~Backend() = default;
  virtual Device device() const = 0;

  // Memory. Blocks are 64-byte aligned and cached; `bytes` is what was asked for.
  virtual void* allocate(size_t bytes) = 0;
  virtual void deallocate(void* p, size_t bytes) noexcept = 0;
  /// Bytes between this device and the host (both directions), complete on return.
  virtual void copy_from_host(Context&, const void* host, void* device, size_t bytes) = 0;
  virtual void copy_to_host(Context&, const void* device, void* host, size_t bytes) = 0;

  // Pointwise (pointwise.h). Sizes equal; strides free (0 = broadcast). x and y may be the same memory.
  virtual void unary(Context&, Unary op, Scalar s, Scalar t, View x, View y) = 0;
  virtual void binary(Context&, Binary op, Scalar s, Scalar t, View a, View b, View y) = 0;
  virtual void ternary(Context&, Ternary op, Scalar s, View a, View b, View c, View y) = 0;
  virtual void where(Context&, View cond /*bool*/, View a, View b, View y) = 0;
  /// y = x converted to y's dtype, any strides; x may be broadcast.
  virtual void copy(Context&, View x, View y) = 0;
  virtual void fill(Context&, Scalar value, View y) = 0;
  virtual void arange(Context&, Scalar start, Scalar step, View y /*[n]*/) = 0;

  // Reductions. y has x's rank with reduced dims of size 1; empty sums are 0, empty products 1.
  virtual void reduce(Context&, Reduce op, View x, View y) = 0;
  /// values and indices (int64) have size 1 at `dim`; the first of equal values wins. `values` may be absent.
  virtual void arg_reduce(Context&, bool largest, int dim, View x, View values, View indices) = 0;
  /// Mean and unbiased-or-not variance over the last dim: x [R, K] -> mean, var [R], two passes.
  virtual void mean_var(Context&, int64_t correction, View x, View mean, View var) = 0;
  virtual void cumulate(Context&, Reduce op /*kSum, kProd*/, int dim, View x, View y) = 0;
  /// Sorted along the last dim of x [R, K], stable; values [R, k], indices int64 [R, k]; k <= K (k < K: top-k).
  virtual void sort(Context&, bool descending, View x, View values, View indices) = 0;

  // Rows: x [R, K].
  virtual void softmax(Context&, bool log, View x, View y) = 0;
  /// dx from y = softmax(x) (or log_softmax) and dy.
  virtual void softmax_backward(Context&, bool log, View y, View dy, View dx) = 0;
  virtual void logsumexp(Context&, View x, View y /*[R]*/) = 0;
  /// With p[r, k] = lse[r] - x[r, k] (minus the log-probability) and w = weight or 1:
  /// loss[r] = (1 - smoothing) * w[target] * p[r, target] + smoothing / K * sum_k w[k] * p[r, k]; 0 where target == ignore.
  /// One pass over x. Throws: IndexError for a target outside [0, K).
  virtual void cross_entropy(Context&, View x, View target /*int64 [R]*/, View weight /*[K] or absent*/,
                             int64_t ignore, double smoothing, View loss /*[R]*/, View lse /*[R]*/) = 0;
  /// dx[r, k] = g[r] * d loss[r] / d x[r, k] in one pass; g[r] may be broadcast (stride 0).
  virtual void cross_entropy_backward(Context&, View x, View lse, View target, View weight, int64_t ignore,
                                      double smoothing, View g, View dx) = 0;
  virtual void layer_norm(Context&, View x, View weight, View bias /*[K] or absent*/, double eps, View y,
                          View mean, View rstd /*[R]*/) = 0;
  virtual void layer_norm_backward(Context&, View x, View weight, View mean, View rstd, View dy, View dx,
                                   View dweight, View dbias) = 0;

  // Matrix product: c = alpha * a b + beta * c (+ bias over rows when present), or the positive part of that (relu, floating types). Rank 2 [M,K][K,N], or rank 3 batched (stride 0
  // broadcasts a batch). Any strides; one of the last two should be 1 to avoid a copy.
  virtual void matmul(Context&, double alpha, View a, View b, double beta, View bias /*[N] or absent*/,
                      View c, bool relu = false) = 0;

  // Indexing. index is int64 or int32; Throws: IndexError for an index out of range, naming it and the size.
  /// y[i, :] = x[index[i], :], x [V, K], y [n, K].
  virtual void take_rows(Context&, View x, View index, View y) = 0;
  /// dx[index[i], :] += dy[i, :], in order of i; rows with index == skip are left out.
  virtual void add_rows(Context&, View index, View dy, int64_t skip, View dx) = 0;
  /// y[.., i, ..] = x[.., index[.., i, ..], ..] along dim; index and y have equal sizes.
  virtual void gather(Context&, int dim, View x, View index, View y) = 0;
  /// y[.., index[.., i, ..], ..] = src (or += src), in order of i; index and src have equal sizes.
  virtual void scatter(Context&, bool add, int dim, View index, View src, View y) = 0;
  /// Number of non-zero elements, and their coordinates: out int64 [count, ndim] in row-major order.
  virtual int64_t count_nonzero(Context&, View x) = 0;
  virtual void nonzero(Context&, View x, View out) = 0;
  /// y = x with the part above (upper = false: keeps the lower triangle) diagonal k set to 0; last two dims.
  virtual void triangle(Context&, bool upper, int64_t k, View x, View y) = 0;

  // Random numbers (PhiloxKey above).
  virtual void uniform(Context&, PhiloxKey, double low, double high, View y) = 0;
  virtual void normal(Context&, PhiloxKey, double mean, double stddev, View y) = 0;
  virtual void bernoulli(Context&, PhiloxKey, View p /*same sizes, may be broadcast*/, View y) = 0;
  virtual void random_int(Context&, PhiloxKey, int64_t low, int64_t high, View y) = 0;
  /// y = x * (u >= p) / (1 - p) with u keyed by the element's linear index; the mask is recomputed, never stored.
  virtual void dropout(Context&, PhiloxKey, double p, View x, View y) = 0;
  /// rows of weights p [R, K] (not necessarily normalised) -> indices int64 [R, n].
  virtual void multinomial(Context&, PhiloxKey, bool replacement, View p, View indices) = 0;

  // Recurrent layers.
  /// Sizes of the reserve that rnn_forward fills for these inputs, in their dtype: [T, N, reserve_width * H], unless the backend says otherwise (cuDNN
  /// keeps an opaque block, of rank 1). Backward gets the reserve that forward filled, and goes by its form.
  virtual Shape rnn_reserve(Context&, const RnnLayer&, const RnnInputs&);
  virtual void rnn_forward(Context&, const RnnLayer&, const RnnInputs&, const RnnOutputs&) = 0;
  /// dy [T, N, H], dhn and dcn [N, H] may be absent.
  virtual void rnn_backward(Context&, const RnnLayer&, const RnnInputs&, const RnnOutputs&, View dy, View dhn,
                            View dcn, const RnnGrads&) = 0;
  /// Whether the backend runs this stack in one call, and what that keeps; most backends run none, and callers go layer by layer. Decided by sizes, which
  /// views are there, and x's dtype alone: the others are cast and made dense once it is taken.
  virtual std::optional<RnnStackRoom> rnn_stack(Context&, const RnnStack&, const RnnStackInputs&) {
    return std::nullopt;
  }
  /// Only for a stack that rnn_stack has taken.
  virtual void rnn_stack_forward(Context&, const RnnStack&, const RnnStackInputs&, const RnnStackOutputs&);
  /// dy, dhn and dcn, of the sizes of y, hn and cn, may be absent.
  virtual void rnn_stack_backward(Context&, const RnnStack&, const RnnStackInputs&, const RnnStackOutputs&,
                                  View dy, View dhn, View dcn, const RnnStackGrads&);

  // Lists of tensors in one call.
  /// One pass of the update rule over every tensor (step.h), all of `dtype`. While recording(), `next` makes the functors of each replay; without it
  /// all replays use those of `tensors`. `skip` (or null) is a number on the device: where it is not 0 when the step's turn comes, values stay as they are.
  virtual void step(Context&, const StepKernel&, DType dtype, std::span<const StepTensor>,
                    const NextStep& next = nullptr, const double* skip = nullptr) = 0;
  /// out[i] = sum over tensor i of |x|^p in float64 (p = infinity: max |x|); contiguous views.
  virtual void powers(Context&, double p, std::span<const View> xs, double* out) = 0;
  /// x *= factor for every tensor.
  virtual void scale(Context&, double factor, std::span<const View> xs) = 0;
  /// norm (float64, one number) = the p-norm of all xs together, from their powers added in order; x *= min(1, max_norm / (norm + 1e-6)).
  /// Where results come later, the norm does too: nothing waits.
  virtual void clip_norm(Context&, double max_norm, double p, std::span<const View> xs, View norm) = 0;
  /// x *= state's inverse for every tensor; state's nonfinite = 1 where a result is not finite. state: float64 [4], a LossScale (loss_scale.h).
  virtual void unscale(Context&, std::span<const View> xs, View state) = 0;
  /// LossScale::update.
  virtual void update_scale(Context&, double growth, double backoff, int64_t interval, View state) = 0;

  /// Waits until everything issued so far is done.
  virtual void synchronize() = 0;
  /// Whether what is issued now is recorded for replays of a graph and not run.
  virtual bool recording(const Context&) const { return false; }
};

/// The backend of a device, opened when first asked for. Throws: DeviceError that says which of library, driver, device is missing.
WEFT_API Backend& backend(Device device);
/// Called by a backend library when it is opened; the object must live as long as the program.
WEFT_API void register_backend(Device device, Backend* backend);

/// Threads that CPU kernels use (>= 1); the split of work never depends on it.
WEFT_API int num_threads();
WEFT_API void set_num_threads(int n);
/// Instruction set in use: "baseline", "avx2" or "avx512". WEFT_ISA in the environment chooses one at start.
WEFT_API const char* cpu_isa();
/// Chooses the instruction set by name for the calls that follow. Throws: ValueError when the machine lacks it.
WEFT_API void set_cpu_isa(const char* name);

}  // namespace weft
