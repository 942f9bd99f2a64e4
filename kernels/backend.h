// The interface between tensors and devices: an abstract Backend, with one object per device. An operation
// takes a Context and Views whose sizes the caller has checked; the caller allocates the outputs. A backend
// must define all operations without a default: they are pure virtual. Outputs are overwritten unless the
// comment has "+=". Floating arithmetic runs in the dtype of the output; the half types compute in float.
// Where the comment has "absent", a View may have null data: an input that is not given, or an output that is
// not wanted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <weft/kernels/device.h>
#include <weft/kernels/pointwise.h>
#include <weft/kernels/scalar.h>
#include <weft/kernels/step.h>
#include <weft/kernels/view.h>

namespace weft {

/// The stream of one call. Null: the calling thread's current stream.
struct Context {
  void* stream = nullptr;
};

/// The reduction of Backend's reductions.
enum class Reduce : uint8_t { kSum, kProd, kMax, kMin, kAny, kAll, kSumAbs, kSumSquares, kMaxAbs };
/// The operation that combines an element of src with the element at its target.
enum class ScatterRule : uint8_t { kAssign, kAdd, kMul, kMax, kMin };
/// The kind of a recurrent layer.
enum class RnnMode : uint8_t { kLstm, kGru, kTanh, kRelu };

/// The scalar parameters of a pointwise operation.
struct PointwiseParams {
  Scalar s, t;
};
/// The loop of a pointwise operation over n elements of contiguous operands. p[0] is written, and p[1..] are
/// read. p[0] may equal an input.
using PointwiseRow = void (*)(const PointwiseParams& params, void* const* p, int64_t n);
/// For up to this many elements, a launch may call a PointwiseRow directly, on the calling thread.
inline constexpr int64_t kRowElements = 8192;

/// Key of a counter-based draw, the same on every device and for any thread count. Element i of a call uses
/// lane i % 4 of Philox4x32-10 block (offset + i / 4), under key `seed`. 64-bit values (float64, int64) use
/// two lanes of block offset + i / 2.
struct PhiloxKey {
  uint64_t seed = 0;
  uint64_t offset = 0;
};

/// The cross entropy of a linear layer, x [R, I], w [K, I], bias [K] or absent, and its gradients. All views
/// are contiguous and of one floating dtype, except target, int64 [R], and g, which may be broadcast.
struct LinearLossViews {
  View x, w, bias;
  View target, weight;  ///< as of Backend::cross_entropy
  View g;               ///< [R]: the gradient of each row's loss
  View loss;            ///< [R], out
  View dx, dw, db;      ///< out, each may be absent
};

/// Attention of q [B, H, L, E] to k [B, H, S, E] and v [B, H, S, F]. All have one floating dtype, and dense
/// rows that do not overlap. No size is 0.
struct AttentionViews {
  View q, k, v;
  /// [B, H, L, S], any strides: of accumulate_type(q's dtype), added; or bool, false where a key is left out.
  View mask;
  double scale = 1;
  bool causal = false;  ///< row i attends to keys 0 .. i
  View y;               ///< [B, H, L, F], contiguous
  /// [B, H, L, Backend::attention_stats], contiguous, of accumulate_type(q's dtype), for backward; absent if
  /// that number is 0.
  View stats;
  View dy;          ///< y's sizes, dense rows
  View dq, dk, dv;  ///< contiguous, each may be absent
};

/// One direction of one recurrent layer over a whole sequence. Gate order: LSTM i f g o, GRU r z n; G gates
/// of H rows.
struct RnnLayer {
  RnnMode mode = RnnMode::kLstm;
  bool reverse = false;  ///< runs from the last step to the first
  int gates() const { return mode == RnnMode::kLstm ? 4 : mode == RnnMode::kGru ? 3 : 1; }
  /// Numbers per (t, n), in units of H, that `reserve` usually holds: forward keeps them for backward.
  int reserve_width() const { return mode == RnnMode::kLstm ? 6 : mode == RnnMode::kGru ? 4 : 1; }
};

/// The inputs of one direction of one layer.
struct RnnInputs {
  View x;           ///< [T, N, I]
  View h0;          ///< [N, H]
  View c0;          ///< [N, H], LSTM only
  View w_ih, w_hh;  ///< [G*H, I], [G*H, H]
  View b_ih, b_hh;  ///< [G*H] or absent
};
/// The outputs for RnnInputs.
struct RnnOutputs {
  View y;        ///< [T, N, H], may be strided (half of a bidirectional output)
  View hn, cn;   ///< [N, H]; cn LSTM only
  View reserve;  ///< of the sizes that Backend::rnn_reserve returns; absent if no backward will follow
};
/// The gradients of RnnInputs.
struct RnnGrads {
  View dx, dh0, dc0, dw_ih, dw_hh, db_ih, db_hh;  ///< sizes of the inputs; absent: not wanted; overwritten
};

/// A stack of recurrent layers of one kind, each in one direction or in both. With both, a layer's output has
/// the H columns of the forward direction, then the columns of the reverse direction. Cell l * directions + d
/// is direction d of layer l.
struct RnnStack {
  RnnMode mode = RnnMode::kLstm;
  int64_t layers = 1;
  bool both = false;
  double dropout = 0;      ///< on the output of every layer but the last
  PhiloxKey key = {};      ///< key of this call's dropout; the masks may differ from Backend::dropout's
  uint64_t key_epoch = 0;  ///< Generator::epoch of the key's generator
  int64_t chunk = 0;       ///< as RnnStackRoom::chunk told
  /// With a chunk: the keys of Backend::dropout on the output of each layer but the last.
  std::vector<PhiloxKey> keys = {};
  int64_t directions() const { return both ? 2 : 1; }
  int64_t cells() const { return layers * directions(); }
};
/// The weights of one cell of a stack.
struct RnnWeights {
  View w_ih, w_hh;  ///< [G*H, columns of the layer's input], [G*H, H]
  View b_ih, b_hh;  ///< [G*H] or absent
};
/// The places of one cell's weights in memory that holds those of a stack, in elements from its begin. Each
/// weight is dense and row-major there. -1: there is none.
struct RnnPlaces {
  int64_t w_ih = -1, w_hh = -1, b_ih = -1, b_hh = -1;
};
/// The places of all weights of a stack, as the backend's kernels want them.
struct RnnStackLayout {
  int64_t elements = 0;  ///< of the whole memory
  std::vector<RnnPlaces> cells;
};
/// The inputs of a stack.
struct RnnStackInputs {
  View x;       ///< [T, N, I]
  View h0, c0;  ///< [cells, N, H]; c0 LSTM only
  std::span<const RnnWeights> cells;
  View space = {};  ///< rank 1: the memory of which all weights are parts; absent if there is none
};
/// The outputs of a stack.
struct RnnStackOutputs {
  View y;       ///< [T, N, directions * H]
  View hn, cn;  ///< [cells, N, H]; cn LSTM only
  /// of rank 1 and the sizes that Backend::rnn_stack returns; absent if no backward will follow
  View weights, reserve;
};
/// The gradients of RnnStackInputs.
struct RnnStackGrads {
  View dx, dh0, dc0;                  ///< absent: not wanted; overwritten
  std::span<const RnnWeights> cells;  ///< the gradients of each cell's weights; absent: not wanted
  View space = {};                    ///< as RnnStackInputs::space
};
/// Sizes, in elements of x's dtype, of the buffers that a stack keeps for its backward. `weights` holds the
/// weights in the backend's format, `reserve` everything else.
struct RnnStackRoom {
  int64_t weights = 0, reserve = 0;
  /// Not 0: the layers overlap in chunks of as many steps, and dropout has the masks of Backend::dropout.
  int64_t chunk = 0;
  /// Weights and gradients that lie so in one memory (`space`) are not copied. Null: there is no such layout.
  std::shared_ptr<const RnnStackLayout> layout = nullptr;
  bool in_place = false;  ///< the weights given lie so; forward and backward need no buffer for them
};

/// The operations of one device. Callers have checked all sizes and allocated the outputs.
class WEFT_API Backend {
 public:
  virtual ~Backend() = default;
  virtual Device device() const = 0;

  // Memory. Blocks are 64-byte aligned and cached; deallocate gets the `bytes` passed to allocate.
  virtual void* allocate(size_t bytes) = 0;
  virtual void deallocate(void* p, size_t bytes) noexcept = 0;
  /// Copies between this device and the host, complete on return.
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
  /// The function that computes the operation over contiguous inputs of dtype t in host memory. Null if there
  /// is none, or if the operation needs more than that function: callers then make the full call.
  virtual PointwiseRow row(Unary, DType) const { return nullptr; }
  virtual PointwiseRow row(Binary, DType) const { return nullptr; }
  virtual PointwiseRow row(Ternary, DType) const { return nullptr; }
  virtual void arange(Context&, Scalar start, Scalar step, View y /*[n]*/) = 0;

  // Reductions. y has x's rank with reduced dims of size 1; empty sums are 0, empty products 1.
  virtual void reduce(Context&, Reduce op, View x, View y) = 0;
  /// values and indices (int64) have size 1 at `dim`; the first of equal values wins. `values` may be absent.
  virtual void arg_reduce(Context&, bool largest, int dim, View x, View values, View indices) = 0;
  /// Mean and variance (divided by K - correction, at least 0) over the last dim, in two passes: x [R, K] ->
  /// mean, var [R] of any floating dtype. K > 0. The variance of equal numbers is 0.
  virtual void mean_var(Context&, double correction, View x, View mean, View var) = 0;
  /// Cumulative sums or products (kSum, kProd) along `dim`; x and y have the same dtype, floating or int64.
  virtual void cumulate(Context&, Reduce op, int dim, View x, View y) = 0;
  /// Sorted along the last dim of x [R, K], stable; values [R, k], indices int64 [R, k]; k <= K (k < K:
  /// top-k).
  virtual void sort(Context&, bool descending, View x, View values, View indices) = 0;
  /// Index of the median of each row of x [R, K]: element (K - 1) / 2 of the sorted row, or its first NaN.
  /// The indices are int64 [R, 1]. Returns false if the backend has no such kernel; callers then sort.
  virtual bool median(Context&, View /*x*/, View /*indices*/) { return false; }

  // Rows: x [R, K].
  virtual void softmax(Context&, bool log, View x, View y) = 0;
  /// dx from y = softmax(x) (or log_softmax) and dy.
  virtual void softmax_backward(Context&, bool log, View y, View dy, View dx) = 0;
  virtual void logsumexp(Context&, View x, View y /*[R]*/) = 0;
  /// With p[r, k] = logsumexp(x[r]) - x[r, k], minus the log-probability, and w = weight or 1:
  ///   loss[r] = (1 - smoothing) * w[target] * p[r, target] + smoothing / K * sum_k w[k] * p[r, k],
  /// and 0 where target == ignore. The backward needs log_sums: the maximum of each row and
  /// log(sum exp(x - maximum)), in float64 if x is float64, else float32. One pass over x. Throws: IndexError
  /// for a target outside [0, K).
  virtual void cross_entropy(Context&, View x, View target /*int64 [R]*/, View weight /*[K] or absent*/,
                             int64_t ignore, double smoothing, View loss /*[R]*/,
                             View log_sums /*[R, 2]*/) = 0;
  /// dx[r, k] = g[r] * d loss[r] / d x[r, k] in one pass; g[r] may be broadcast (stride 0).
  virtual void cross_entropy_backward(Context&, View x, View log_sums, View target, View weight,
                                      int64_t ignore, double smoothing, View g, View dx) = 0;
  /// Both in one call, which takes each exponential once. Returns false, with nothing written, if the backend
  /// has no such kernel for x's dtype.
  virtual bool cross_entropy_both(Context&, View /*x*/, View /*target*/, View /*weight*/, int64_t /*ignore*/,
                                  double /*smoothing*/, View /*g*/, View /*loss*/, View /*log_sums*/,
                                  View /*dx*/) {
    return false;
  }
  /// loss = cross_entropy(x w^T + bias, target), and the gradients of sum(g * loss), in one call. Returns
  /// false, with nothing written, if the backend has no such kernel for these sizes; callers then process
  /// blocks of rows. Throws: as cross_entropy.
  virtual bool linear_cross_entropy(Context&, const LinearLossViews&, int64_t /*ignore*/,
                                    double /*smoothing*/) {
    return false;
  }
  /// Whether this backend has kernels for attention in dtype `t` with heads of E = width and F = values
  /// numbers; callers compose it otherwise.
  virtual bool has_attention(DType /*t*/, int64_t /*width*/, int64_t /*values*/) const { return false; }
  /// Numbers per row that attention() keeps for a backward of these views, of which stats and gradients may
  /// be absent. 2 by default: the maximum and 1 / sum of the exponentials. cuDNN keeps the logarithm of the
  /// sum, or none if no backward `follows`; both calls distinguish the implementations by that number.
  virtual int64_t attention_stats(Context&, const AttentionViews&, bool /*follows*/) { return 2; }
  /// y = softmax(scale q k^T + mask) v, and stats; a row without a key is 0.
  virtual void attention(Context&, const AttentionViews&) = 0;
  virtual void attention_backward(Context&, const AttentionViews&) = 0;
  virtual void layer_norm(Context&, View x, View weight, View bias /*[K] or absent*/, double eps, View y,
                          View mean, View rstd /*[R]*/) = 0;
  virtual void layer_norm_backward(Context&, View x, View weight, View mean, View rstd, View dy, View dx,
                                   View dweight, View dbias) = 0;

  // Matrix product: c = alpha * a b + beta * c (+ bias added to each row), and with `relu` the positive part
  // of that (floating types). Rank 2 [M, K] [K, N], or rank 3 batched (stride 0 broadcasts a batch). Any
  // strides; if neither of the last two is 1, the operand is copied.
  virtual void matmul(Context&, double alpha, View a, View b, double beta, View bias /*[N] or absent*/,
                      View c, bool relu = false) = 0;

  // Products joined with the tanh form of gelu or with sums; rank 2, floating types, no size 0. By default
  // they are calls of the above.
  /// c = gelu_tanh(a b + bias); `before`, of c's sizes or absent, is a b + bias.
  virtual void matmul_gelu(Context&, View a, View b, View bias /*[N] or absent*/, View before, View c);
  /// c = (a b) times the slope of gelu_tanh at `before`, of c's sizes.
  virtual void matmul_gelu_grad(Context&, View a, View b, View before, View c);
  /// c = a b, and sums [M] = the sums of the rows of a.
  virtual void matmul_sums(Context&, View a, View b, View c, View sums);

  // Indexing. index is int64 or int32. Throws: IndexError that names an index out of range and the size.
  /// y[i, :] = x[index[i], :], x [V, K], y [n, K].
  virtual void take_rows(Context&, View x, View index, View y) = 0;
  /// dx[index[i], :] += dy[i, :], in order of i; rows with index == skip are left out.
  virtual void add_rows(Context&, View index, View dy, int64_t skip, View dx) = 0;
  /// y[.., i, ..] = x[.., index[.., i, ..], ..] along dim; index and y have equal sizes.
  virtual void gather(Context&, int dim, View x, View index, View y) = 0;
  /// y[.., index[.., i, ..], ..] = src, or combined with src, in order of i; index and src have equal sizes.
  virtual void scatter(Context&, ScatterRule rule, int dim, View index, View src, View y) = 0;
  /// Number of non-zero elements, and their coordinates: out int64 [count, ndim] in row-major order.
  virtual int64_t count_nonzero(Context&, View x) = 0;
  virtual void nonzero(Context&, View x, View out) = 0;
  /// y = x with the elements of the last two dims below diagonal k (upper) or above it (lower) set to 0.
  virtual void triangle(Context&, bool upper, int64_t k, View x, View y) = 0;

  // Random numbers (PhiloxKey above).
  virtual void uniform(Context&, PhiloxKey, double low, double high, View y) = 0;
  virtual void normal(Context&, PhiloxKey, double mean, double stddev, View y) = 0;
  virtual void bernoulli(Context&, PhiloxKey, View p /*same sizes, may be broadcast*/, View y) = 0;
  virtual void random_int(Context&, PhiloxKey, int64_t low, int64_t high, View y) = 0;
  /// y = x * (u >= p) / (1 - p) with u keyed by the element's linear index; the mask is recomputed, never
  /// stored.
  virtual void dropout(Context&, PhiloxKey, double p, View x, View y) = 0;
  /// Rows of weights p [R, K], which need not sum to 1 -> indices int64 [R, n].
  virtual void multinomial(Context&, PhiloxKey, bool replacement, View p, View indices) = 0;

  // Recurrent layers.
  /// Sizes of the reserve that rnn_forward fills for these inputs, in their dtype: [T, N, reserve_width * H]
  /// by default. cuDNN keeps an opaque block, of rank 1; rnn_backward distinguishes the two by the rank.
  virtual Shape rnn_reserve(Context&, const RnnLayer&, const RnnInputs&);
  virtual void rnn_forward(Context&, const RnnLayer&, const RnnInputs&, const RnnOutputs&) = 0;
  /// dy [T, N, H], dhn and dcn [N, H] may be absent.
  virtual void rnn_backward(Context&, const RnnLayer&, const RnnInputs&, const RnnOutputs&, View dy, View dhn,
                            View dcn, const RnnGrads&) = 0;
  /// Buffer sizes if the backend can run this stack in one call, else nullopt: callers then go layer by
  /// layer. The answer depends on sizes, absent views and x's dtype only; other inputs are converted
  /// afterwards. `in_place` also depends on the weights' memory and dtype.
  virtual std::optional<RnnStackRoom> rnn_stack(Context&, const RnnStack&, const RnnStackInputs&) {
    return std::nullopt;
  }
  /// May be called only for a stack for which rnn_stack returned sizes.
  virtual void rnn_stack_forward(Context&, const RnnStack&, const RnnStackInputs&, const RnnStackOutputs&);
  /// dy, dhn and dcn, of the sizes of y, hn and cn, may be absent.
  virtual void rnn_stack_backward(Context&, const RnnStack&, const RnnStackInputs&, const RnnStackOutputs&,
                                  View dy, View dhn, View dcn, const RnnStackGrads&);

  // Lists of tensors in one call.
  /// One pass of the update rule over every tensor (step.h), all of `dtype`. While recording(), `next` makes
  /// the functors of each replay; without `next` all replays use the functors in `tensors`. If `skip` is not
  /// null and this float64 on the device is non-zero when the step runs, the step changes nothing.
  virtual void step(Context&, const StepKernel&, DType dtype, std::span<const StepTensor>,
                    const NextStep& next = nullptr, const double* skip = nullptr) = 0;
  /// out[i] = sum over tensor i of |x|^p in float64 (p = infinity: max |x|); contiguous views.
  virtual void powers(Context&, double p, std::span<const View> xs, double* out) = 0;
  /// x *= factor for every tensor.
  virtual void scale(Context&, double factor, std::span<const View> xs) = 0;
  /// norm (one float64) = the p-norm of all xs together, from their powers added in order; x *= min(1,
  /// max_norm / (norm + 1e-6)). If `factor` (one float64) is given, that multiplier is written there, and the
  /// xs are only read. An asynchronous device does not wait for the norm.
  virtual void clip_norm(Context&, double max_norm, double p, std::span<const View> xs, View norm,
                         View factor = View()) = 0;
  /// x *= state.inverse for every tensor; state.nonfinite = 1 if a result is not finite. state: float64 [4],
  /// a LossScale (inner/loss_scale.h).
  virtual void unscale(Context&, std::span<const View> xs, View state) = 0;
  /// LossScale::update.
  virtual void update_scale(Context&, double growth, double backoff, int64_t interval, View state) = 0;

  /// Waits for all work issued so far.
  virtual void synchronize() = 0;
  /// Whether work issued now is recorded into a graph instead of run.
  virtual bool recording(const Context&) const { return false; }
};

/// The backend of a device, opened at the first call.
/// Throws: DeviceError that names the missing library, driver or device.
WEFT_API Backend& backend(Device device);
/// Called by a backend library when it is opened; the object must live until the program ends.
WEFT_API void register_backend(Device device, Backend* backend);

}  // namespace weft
