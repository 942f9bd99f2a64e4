// The codecs of edges (edge_codec.h). An int8 tensor travels as bytes: one scale for each 1024 elements, then
// the elements. The extension of a message has for each coded tensor: index, codec, whether it requires grad,
// number of dims, sizes.
#include <weft/distributed/autograd/inner/edge_codecs.h>

#include <cmath>
#include <cstring>

#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/grad_mode.h>
#include <weft/distributed/autograd/inner/dist_context.h>
#include <weft/distributed/rpc/agent.h>
#include <weft/distributed/wire/codec.h>
#include <weft/tensor/factories.h>

namespace weft::dist_autograd {

namespace detail {

using rpc::Message;
using rpc::MutexLock;
using rpc::Tag;

namespace {

constexpr Tag kCodedTensors = Tag{2};
constexpr int64_t kBlock = 1024;

int64_t blocks_of(int64_t numel) { return (numel + kBlock - 1) / kBlock; }

template <class T> void append_number(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

/// The largest absolute value; infinity if there is an inf or a NaN.
float largest(const float* x, int64_t n) {
  float most = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float a = std::fabs(x[i]);
    if (!(a <= std::numeric_limits<float>::max())) return std::numeric_limits<float>::infinity();
    most = std::max(most, a);
  }
  return most;
}

Tensor to_int8(const Tensor& x) {
  const int64_t n = x.numel(), blocks = blocks_of(n);
  Tensor out = empty({blocks * static_cast<int64_t>(sizeof(float)) + n}, {.dtype = kUInt8});
  auto* const scales = out.data<uint8_t>();
  auto* const steps = reinterpret_cast<int8_t*>(scales + blocks * static_cast<int64_t>(sizeof(float)));
  const float* const from = x.data<float>();
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t first = b * kBlock, count = std::min(kBlock, n - first);
    const float scale = largest(from + first, count) / 127;
    std::memcpy(scales + b * static_cast<int64_t>(sizeof scale), &scale, sizeof scale);
    for (int64_t i = first; i < first + count; ++i)
      steps[i] = scale > 0 ? static_cast<int8_t>(std::clamp(std::nearbyint(from[i] / scale), -127.f, 127.f))
                           : int8_t{0};
  }
  return out;
}

Tensor from_int8(const Tensor& coded, const Shape& sizes) {
  Tensor out = empty(sizes, {.dtype = kFloat32});
  const int64_t n = out.numel(), blocks = blocks_of(n);
  const auto* const scales = coded.data<uint8_t>();
  const auto* const steps =
      reinterpret_cast<const int8_t*>(scales + blocks * static_cast<int64_t>(sizeof(float)));
  auto* const to = out.data<float>();
  for (int64_t b = 0; b < blocks; ++b) {
    float scale = 0;
    std::memcpy(&scale, scales + b * static_cast<int64_t>(sizeof scale), sizeof scale);
    for (int64_t i = b * kBlock; i < std::min(n, (b + 1) * kBlock); ++i)
      to[i] = scale * static_cast<float>(steps[i]);
  }
  return out;
}

Tensor decoded(WireCodec codec, const Tensor& coded, const Shape& sizes) {
  return codec == WireCodec::kFloat16 ? coded.to(kFloat32) : from_int8(coded, sizes);
}

/// Whether a tensor of a message lies on the CPU at both ends and is large enough.
bool may_be_coded(const Message& message, size_t index, const Tensor& t, const EdgeCodec& codec) {
  if (!t.defined() || t.dtype() != kFloat32 || !t.device().is_cpu()) return false;
  if (index < message.places.size() && !message.places[index].target.is_cpu()) return false;
  return t.numel() > 0 && t.numel() * static_cast<int64_t>(sizeof(float)) >= codec.min_bytes;
}

}  // namespace

void EdgeCodecs::set(WorkerId to, const EdgeCodec& codec) {
  MutexLock lock(mutex_);
  codecs_[to] = codec;
  any_ = true;
}

void EdgeCodecs::set_limit(int64_t bytes) {
  std::vector<Tensor> gone;  // freed after the lock
  MutexLock lock(mutex_);
  limit_ = bytes;
  while (bytes_ > limit_ && !ages_.empty()) {
    const auto oldest = owed_.find(ages_.front());
    gone.push_back(oldest->second.error);
    forget(oldest);
  }
  lock.unlock();
}

EdgeCodec EdgeCodecs::codec_for(WorkerId to) const {
  if (!any_) return {};
  MutexLock lock(mutex_);
  const auto found = codecs_.find(to);
  return found == codecs_.end() ? EdgeCodec() : found->second;
}

bool EdgeCodecs::code(Message& message, size_t index, const Tensor& value, WireCodec codec,
                      bool requires_grad) {
  const float most = largest(value.data<float>(), value.numel());
  if (!(most <= (codec == WireCodec::kFloat16 ? 65504.f : std::numeric_limits<float>::max()))) return false;
  Tensor& t = message.tensors[index];
  t = codec == WireCodec::kFloat16 ? value.to(kFloat16) : to_int8(value);
  std::string& notes = message.extension(kCodedTensors);
  append_number(notes, static_cast<uint32_t>(index));
  append_number(notes, static_cast<uint8_t>(codec));
  append_number(notes, static_cast<uint8_t>(requires_grad));
  append_number(notes, static_cast<uint8_t>(value.dim()));
  for (const int64_t n : value.sizes()) append_number(notes, n);
  coded.fetch_add(1, std::memory_order_relaxed);
  saved_bytes.fetch_add(value.numel() * 4 - t.numel() * size_of(t.dtype()), std::memory_order_relaxed);
  return true;
}

void EdgeCodecs::code_activations(WorkerId to, Message& message) {
  const EdgeCodec codec = codec_for(to);
  if (codec.activations == WireCodec::kExact) return;
  const NoGrad plain;
  for (size_t i = 0; i < message.tensors.size(); ++i) {
    const Tensor t = message.tensors[i];
    if (t.requires_grad() && !t.is_leaf() && may_be_coded(message, i, t, codec))
      code(message, i, t.detach().contiguous(), codec.activations, true);
  }
}

void EdgeCodecs::code_gradients(Message& message, const FeedbackKey& first,
                                const std::vector<int64_t>& slots) {
  const EdgeCodec codec = codec_for(first.to.id);
  if (codec.gradients == WireCodec::kExact) return;
  const NoGrad plain;
  for (size_t i = 0; i < message.tensors.size() && i < slots.size(); ++i) {
    if (slots[i] < 0 || !may_be_coded(message, i, message.tensors[i], codec)) continue;
    FeedbackKey key = first;
    key.slot = slots[i];
    Tensor gradient = message.tensors[i].detach().contiguous();
    if (codec.error_feedback)
      if (const Tensor owed = take_owed(key, gradient); owed.defined()) gradient = gradient + owed;
    if (!code(message, i, gradient, codec.gradients, false)) continue;
    if (codec.error_feedback)
      owe(key, gradient - decoded(codec.gradients, message.tensors[i], gradient.sizes()));
  }
}

void EdgeCodecs::decode(Message& message) {
  const std::string* const found = message.find(kCodedTensors);
  if (!found) return;
  const NoGrad plain;
  std::string_view left = *found;
  const auto read = [&](auto& value) {
    if (left.size() < sizeof value) rpc::detail::malformed("its list of coded tensors is cut short");
    std::memcpy(&value, left.data(), sizeof value);
    left.remove_prefix(sizeof value);
  };
  while (!left.empty()) {
    uint32_t index = 0;
    uint8_t kind = 0, requires_grad = 0, dims = 0;
    read(index), read(kind), read(requires_grad), read(dims);
    if (index >= message.tensors.size() || requires_grad > 1 || dims > kMaxDims ||
        (kind != static_cast<uint8_t>(WireCodec::kFloat16) && kind != static_cast<uint8_t>(WireCodec::kInt8)))
      rpc::detail::malformed(str("a coded tensor ", index, " of codec ", static_cast<int>(kind)));
    const auto codec = static_cast<WireCodec>(kind);
    Shape sizes;
    int64_t numel = 1;
    for (int d = 0; d < dims; ++d) {
      int64_t n = 0;
      read(n);
      if (n < 0 || __builtin_mul_overflow(numel, n, &numel))
        rpc::detail::malformed("sizes of a coded tensor");
      sizes.push_back(n);
    }
    Tensor& t = message.tensors[index];
    const bool fits = codec == WireCodec::kFloat16
                          ? t.dtype() == kFloat16 && t.sizes() == sizes
                          : t.dtype() == kUInt8 && t.dim() == 1 && t.is_contiguous() && numel <= t.numel() &&
                                t.numel() == numel + 4 * blocks_of(numel);
    if (!fits || !t.device().is_cpu())
      rpc::detail::malformed(str("a coded tensor of sizes ", sizes, " in one of sizes ", t.sizes()));
    t = decoded(codec, t, sizes);
    if (requires_grad) t.requires_grad_();
  }
}

// ---- the errors that gradients still owe

Tensor EdgeCodecs::take_owed(const FeedbackKey& key, const Tensor& gradient) {
  MutexLock lock(mutex_);
  const auto found = find_owed(key);
  if (found == owed_.end()) return {};
  Tensor error = found->second.error;
  forget(found);
  lock.unlock();
  return error.sizes() == gradient.sizes() ? error : Tensor();
}

void EdgeCodecs::owe(const FeedbackKey& key, Tensor error) {
  std::vector<Tensor> gone;  // freed after the lock
  const int64_t bytes = error.numel() * 4;
  MutexLock lock(mutex_);
  if (const auto other = owed_.find(key); other != owed_.end()) {  // of a pass at the same time
    gone.push_back(other->second.error);
    forget(other);
  }
  if (bytes <= limit_) {
    while (bytes_ + bytes > limit_) {
      const auto oldest = owed_.find(ages_.front());
      gone.push_back(oldest->second.error);
      forget(oldest);
    }
    std::list<FeedbackKey> age{key};  // without memory for the entry, there is no age of it either
    owed_[key] = {std::move(error), age.begin()};
    ages_.splice(ages_.end(), age);
    bytes_ += bytes;
  }
  lock.unlock();
}

/// The error of a key, or one of a loaded checkpoint whose worker had no known life then.
std::map<FeedbackKey, EdgeCodecs::Owed>::iterator EdgeCodecs::find_owed(const FeedbackKey& key) {
  for (const Life to : {key.to, Life(key.to.id)})
    for (const Life maker : {key.maker, Life(key.maker.id)})
      if (const auto found = owed_.find({to, maker, key.ordinal, key.slot}); found != owed_.end())
        return found;
  return owed_.end();
}

std::vector<KeptError> EdgeCodecs::errors() const {
  std::vector<KeptError> out;
  MutexLock lock(mutex_);
  for (const FeedbackKey& key : ages_) out.push_back({key, owed_.at(key).error});
  return out;
}

void EdgeCodecs::set_errors(std::vector<KeptError> errors) {
  std::map<FeedbackKey, Owed> gone;  // freed after the lock
  {
    MutexLock lock(mutex_);
    gone.swap(owed_);
    ages_.clear();
    bytes_ = 0;
  }
  for (KeptError& e : errors) owe(e.key, std::move(e.error));
}

void EdgeCodecs::forget(std::map<FeedbackKey, Owed>::iterator entry) {
  bytes_ -= entry->second.error.numel() * 4;
  ages_.erase(entry->second.age);
  owed_.erase(entry);
}

void EdgeCodecs::peer_lost(Life peer) {
  std::vector<Tensor> gone;  // freed after the lock
  MutexLock lock(mutex_);
  for (auto it = owed_.begin(); it != owed_.end();) {
    const auto here = it++;
    if (!same_life(here->first.to, peer) && !same_life(here->first.maker, peer)) continue;
    gone.push_back(here->second.error);
    forget(here);
  }
  lock.unlock();
}

int64_t EdgeCodecs::feedback_bytes() const {
  MutexLock lock(mutex_);
  return bytes_;
}

}  // namespace detail

void set_edge_codec(const std::string& peer, const EdgeCodec& codec) {
  const auto agent = rpc::current_agent();
  if (codec.min_bytes < 0) throw ValueError(str("set_edge_codec: min_bytes is negative: ", codec.min_bytes));
  detail::ContextTable::of(*agent)->codecs.set(agent->worker_info_id(peer), codec);
}

void set_feedback_limit(int64_t bytes) {
  if (bytes < 0) throw ValueError(str("set_feedback_limit: it is negative: ", bytes));
  detail::ContextTable::of(*rpc::current_agent())->codecs.set_limit(bytes);
}

}  // namespace weft::dist_autograd
