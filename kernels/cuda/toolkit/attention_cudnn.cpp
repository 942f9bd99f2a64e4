// attention_seam.h over cuDNN's graph API (attention_graph.h): the calls that are given to cuDNN, and their
// plans. A plan is made once per device and kind of call, at the first one, for which cuDNN compiles a
// kernel. A kind that cuDNN refuses is kept too. Its fused kernels need rows of whole packs of 16 bytes.
#include <weft/kernels/cuda/host/attention_seam.h>

#include <weft/kernels/cuda/host/cuda_backend.h>

#if !defined(WEFT_WITH_CUDNN)

namespace weft::cuda::cudnn {
bool takes(CudaBackend&, const AttentionViews&, bool) { return false; }
bool attention(CudaBackend&, Context&, const AttentionViews&) { return false; }
bool attention_backward(CudaBackend&, Context&, const AttentionViews&) { return false; }
}  // namespace weft::cuda::cudnn

#else

#include <weft/kernels/cuda/toolkit/attention_graph.h>
#include <weft/kernels/cuda/toolkit/relaxed_capture.h>
#include <weft/kernels/cuda/toolkit/rnn_cudnn_plan.h>
#include <weft/kernels/cuda/toolkit/with_room.h>

#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include <weft/kernels/cuda/trace.h>
#include <weft/kernels/cuda_settings.h>

namespace weft::cuda::cudnn {

namespace {

constexpr size_t kMaxKinds = 512;
constexpr size_t kOldest = 91600;      // older ones have faults in attention
constexpr int64_t kMostHeads = 65535;  // cuDNN's limit for a batch too
constexpr int64_t kForwardWork = int64_t{1} << 28,
                  kBackwardWork = (int64_t{1} << 31) + (1 << 20);  // 2 GiB, and cuDNN's own

/// A kind of call, without a plan if cuDNN refuses it. Plans are never destroyed: their kernels may still
/// run, and recorded graphs have them.
struct Kind {
  std::optional<Graph::Plan> plan;
  bool crowded = false;  // its workspace did not fit into memory
};
struct Attention {
  std::mutex mutex;  // held while a call is issued: the handle serves one thread at a time
  cudnnHandle_t handle = nullptr;
  // for recordings, as DeviceState has one (rnn_cudnn_plan.h). Plans are taken to run on every handle of
  // their device: cuDNN also makes them without any, for a device that is described.
  cudnnHandle_t recording_handle = nullptr;
  bool broken = false;  // a part of the library is missing or does not fit the driver
  std::map<AttentionSpec, Kind> kinds;
};
Attention& attention_of(int device) {
  static Attention* const all = new Attention[128];  // never destroyed
  return all[device];
}

const Library* library_for_attention() {
  const Library* const lib = library();
  return lib && lib->cudnnGetVersion() >= kOldest ? lib : nullptr;
}

/// Strides for cuDNN: dims of size 1 get those of a dense matrix. Nothing if it cannot read the view in
/// place.
std::optional<Graph::Sizes> strides_of(const View& v) {
  constexpr int64_t kPack = 8;  // of 16 bytes
  if (reinterpret_cast<uintptr_t>(v.data) % 16 != 0 || v.size(3) % kPack != 0) return std::nullopt;
  Graph::Sizes strides{0, 0, 0, 1};
  for (int dim = 2; dim >= 0; --dim) {
    const auto d = static_cast<size_t>(dim);
    strides[d] = v.size(dim) > 1 ? v.stride(dim) : v.size(dim + 1) * strides[d + 1];
    if (strides[d] <= 0 || strides[d] % kPack != 0) return std::nullopt;
  }
  return strides;
}

/// Nothing for a call that cuDNN does not get.
std::optional<AttentionSpec> spec_of(const CudaBackend& backend, const AttentionViews& v, bool training,
                                     bool backward) {
  if (!cudnn_attention() || !is_half(v.q.dtype) || v.mask.defined() || backend.major() < 8)
    return std::nullopt;
  AttentionSpec spec{.type = v.q.dtype == kFloat16 ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16,
                     .batch = v.q.size(0),
                     .heads = v.q.size(1),
                     .queries = v.q.size(2),
                     .keys = v.k.size(2),
                     .width = v.q.size(3),
                     .values = v.v.size(3),
                     .causal = v.causal,
                     .training = training,
                     .backward = backward,
                     .ordered = !backward || ordered_attention()};
  // a single query is a step of a decoder, whose next step has other sizes
  if (spec.queries < 2 || spec.keys < 2 || !(static_cast<float>(v.scale) > 0)) return std::nullopt;
  if (spec.batch > kMostHeads || spec.heads > kMostHeads) return std::nullopt;
  for (const int64_t size : {spec.batch * spec.heads, spec.queries, spec.keys})
    if (size > std::numeric_limits<int32_t>::max() / 2) return std::nullopt;
  if (backward && spec.ordered &&
      2.0 * static_cast<double>(spec.batch * spec.heads) * static_cast<double>(spec.queries) *
              static_cast<double>(spec.keys) >
          static_cast<double>(kBackwardWork))
    return std::nullopt;
  // there it writes NaN to dq where the logarithm of a row's sum is below -88.7
  if (backward && !spec.causal && spec.keys % 128 == 64 && backend.major() == 9) return std::nullopt;
  // from this capability on cuDNN repeats its bits with other engines, which its list does not name
  if (backward && spec.ordered && backend.major() >= 10) return std::nullopt;
  const auto q = strides_of(v.q), k = strides_of(v.k), values = strides_of(v.v), y = strides_of(v.y),
             dy = backward ? strides_of(v.dy) : Graph::Sizes{};
  if (!q || !k || !values || !y || !dy) return std::nullopt;
  for (const View* d : {&v.dq, &v.dk, &v.dv})
    if (d->defined() && !strides_of(*d)) return std::nullopt;
  spec.q = *q, spec.k = *k, spec.v = *values, spec.dy = *dy;
  return spec;
}

/// The kind of a call if it has a plan. With `may_make` it is made, unless a thread records a graph on the
/// device. The caller holds the state's mutex.
Kind* planned(CudaBackend& backend, Attention& state, const Library& lib, const AttentionSpec& spec,
              bool may_make) {
  if (const auto found = state.kinds.find(spec); found != state.kinds.end())
    return found->second.plan && !found->second.crowded ? &found->second : nullptr;
  if (state.broken || !may_make || state.kinds.size() >= kMaxKinds || backend.records()) return nullptr;
  const RelaxedCapture mode;  // a recording may begin meanwhile, and then calls may fail
  Kind kind;
  try {
    make_handle(backend, lib, state.handle);
    make_handle(backend, lib, state.recording_handle);
  } catch (const CudaError&) {
    cudaGetLastError();  // clears the error for the next launch
    state.broken = !backend.records();
    return nullptr;
  } catch (const OutOfMemoryError&) {
    return nullptr;
  }
  try {
    with_room(backend, [&] {
      kind.plan = attention_graph(lib, spec).plan({.handle = state.handle},
                                                  spec.backward ? kBackwardWork : kForwardWork, spec.ordered);
    });
  } catch (const CudaError&) {
    cudaGetLastError();
    if (backend.records()) return nullptr;
  } catch (const OutOfMemoryError&) {  // the next call tries again
    return nullptr;
  }
  Kind& kept = state.kinds[spec] = std::move(kind);
  return kept.plan ? &kept : nullptr;
}

using Places = std::vector<std::pair<int64_t, void*>>;

/// Runs the plan on the context's stream. The caller holds the state's mutex.
void issue(CudaBackend& backend, const Context& context, Attention& state, const Library& lib,
           const Graph::Plan& plan, const Places& places, void* workspace, const char* name) {
  const RelaxedCapture mode;  // the first run of a kernel may load it
  void* const stream = backend.stream_of(context);
  const cudnnHandle_t handle = backend.recording(context) ? state.recording_handle : state.handle;
  check(lib.cudnnSetStream(handle, static_cast<cudaStream_t>(stream)), "cudnnSetStream");
  with_room(backend, [&] {
    const TraceSpan span(name, stream);
    run(lib, handle, plan, places, workspace);
  });
}

}  // namespace

bool takes(CudaBackend& backend, const AttentionViews& v, bool training) {
  const auto spec = spec_of(backend, v, training, false);
  const Library* const lib = spec ? library_for_attention() : nullptr;
  if (!lib) return false;
  Attention& state = attention_of(backend.index());
  const std::lock_guard lock(state.mutex);
  return planned(backend, state, *lib, *spec, true) != nullptr;
}

bool attention(CudaBackend& backend, Context& context, const AttentionViews& v) {
  const auto spec = spec_of(backend, v, v.stats.defined(), false);
  const Library* const lib = spec ? library_for_attention() : nullptr;
  if (!lib) return false;
  Attention& state = attention_of(backend.index());
  const std::lock_guard lock(state.mutex);
  Kind* const kind = planned(backend, state, *lib, *spec, false);
  if (!kind) return false;
  std::optional<Scratch> work;
  try {
    work.emplace(backend, context, static_cast<size_t>(kind->plan->workspace));
  } catch (const OutOfMemoryError&) {
    kind->crowded = true;  // else each call would empty the cache in vain
    return false;
  }
  float scale = static_cast<float>(v.scale), none = -std::numeric_limits<float>::infinity();
  Places places{{kAttentionQ, v.q.data},
                {kAttentionK, v.k.data},
                {kAttentionV, v.v.data},
                {kAttentionY, v.y.data},
                {kAttentionScale, &scale}};
  if (v.causal) places.emplace_back(kAttentionNone, &none);
  if (spec->training) places.emplace_back(kAttentionStats, v.stats.data);
  issue(backend, context, state, *lib, *kind->plan, places, work->as<void>(), "cudnn_attention");
  return true;
}

bool attention_backward(CudaBackend& backend, Context& context, const AttentionViews& v) {
  const auto spec = spec_of(backend, v, true, true);
  const Library* const lib = spec ? library_for_attention() : nullptr;
  if (!lib) return false;
  Attention& state = attention_of(backend.index());
  const std::lock_guard lock(state.mutex);
  Kind* const kind = planned(backend, state, *lib, *spec, true);
  if (!kind) return false;
  float scale = static_cast<float>(v.scale), none = -std::numeric_limits<float>::infinity(), one = 1;
  const auto bytes = [](const View& like) { return static_cast<size_t>(like.numel() * size_of(like.dtype)); };
  const auto rows = static_cast<size_t>(v.stats.numel()) * sizeof(float);
  std::optional<Scratch> work, along, sums, dq, dk, dv;  // cuDNN writes all gradients
  try {
    work.emplace(backend, context, static_cast<size_t>(kind->plan->workspace));
    along.emplace(backend, context, rows);
    sums.emplace(backend, context, spec->ordered ? 0 : static_cast<size_t>(v.q.numel()) * sizeof(float));
    dq.emplace(backend, context, v.dq.defined() ? 0 : bytes(v.q));
    dk.emplace(backend, context, v.dk.defined() ? 0 : bytes(v.k));
    dv.emplace(backend, context, v.dv.defined() ? 0 : bytes(v.v));
  } catch (const OutOfMemoryError&) {
    kind->crowded = true;  // else each step would empty the cache in vain
    return false;
  }
  Places places{{kAttentionQ, v.q.data},
                {kAttentionK, v.k.data},
                {kAttentionV, v.v.data},
                {kAttentionY, v.y.data},
                {kAttentionStats, v.stats.data},
                {kAttentionDy, v.dy.data},
                {kAttentionDq, v.dq.defined() ? v.dq.data : dq->as<void>()},
                {kAttentionDk, v.dk.defined() ? v.dk.data : dk->as<void>()},
                {kAttentionDv, v.dv.defined() ? v.dv.data : dv->as<void>()},
                {kAttentionAlong, along->as<void>()},
                {kAttentionScale, &scale},
                {kAttentionOne, &one}};
  if (v.causal) places.emplace_back(kAttentionNone, &none);
  if (!spec->ordered) places.emplace_back(kAttentionSums, sums->as<void>());
  issue(backend, context, state, *lib, *kind->plan, places, work->as<void>(), "cudnn_attention_backward");
  return true;
}

}  // namespace weft::cuda::cudnn

#endif
