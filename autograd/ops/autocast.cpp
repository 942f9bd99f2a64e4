// Autocast: the scope, and the casts of arguments declared AutocastArg or Fp32Arg. Casts of leaves that
// require grad are cached per thread until the outermost scope ends, because a model reads its parameters
// many times. A cached cast is used only while the leaf has the same version, storage and target dtype. Casts
// of parameters marked concurrent are not cached: the cache would keep their old blocks.
#include <weft/autograd/tape/autocast.h>

#include <unordered_map>

#include <weft/autograd/ops/inner/formula.h>
#include <weft/kernels/backend.h>

namespace weft {

namespace {

// The cached cast of a leaf that requires grad. It holds the leaf and its storage, so that their addresses
// are not reused: set_data may give the leaf another storage.
struct CastOf {
  Tensor leaf, cast;
  Ref<Storage> storage;
  uint32_t version;
  DType dtype;
};
struct Casts {
  int depth = 0;
  std::unordered_map<const TensorBody*, CastOf> made;
};
Casts& casts() {
  thread_local Casts all;
  return all;
}

Tensor cast_recorded(const Tensor& x, DType dtype) {
  if (!grad_enabled() || !x.requires_grad() || !x.is_leaf()) return to(x, dtype);
  if (backend(x.device()).recording({})) return to(x, dtype);  // a replay casts the value of its time
  if (x.body().holds_save) return to(x, dtype);  // a snapshot of a concurrent parameter, each use a new one
  auto& made = casts().made;
  const auto found = made.find(&x.body());
  if (found != made.end() && found->second.version == x.version() && found->second.dtype == dtype &&
      found->second.storage.get() == x.body().storage.get())
    return found->second.cast;
  const Tensor cast = to(x, dtype);
  made.insert_or_assign(&x.body(), CastOf{x, cast, x.body().storage, x.version(), dtype});
  return cast;
}

}  // namespace

Autocast::Autocast(DType dtype) : before_(autocast_dtype()) {
  if (!is_half(dtype)) throw DTypeError(str("Autocast: takes float16 or bfloat16, got ", dtype));
  autograd_state().autocast = dtype;
  ++casts().depth;
}
Autocast::Autocast(Off) : before_(autocast_dtype()) {
  autograd_state().autocast = kFloat32;
  ++casts().depth;
}
Autocast::~Autocast() {
  autograd_state().autocast = before_;
  if (--casts().depth == 0) casts().made.clear();
}

void detail::forget_cast(const Tensor& x) {
  if (x.defined()) casts().made.erase(&x.body());
}

bool detail::keeps_casts() { return casts().depth != 0; }

DType formula::lowered(const Tensor& x) {
  const DType half = autocast_dtype();
  return half != kFloat32 && is_floating(x.dtype()) && x.dtype() != kFloat64 ? half : x.dtype();
}

void In::lower() {
  if (!t_->defined() || formula::lowered(*t_) == t_->dtype()) return;
  pinned_ = cast_recorded(*t_, formula::lowered(*t_));
  t_ = &pinned_;
}

void In::widen() {
  if (!t_->defined() || !is_half(t_->dtype())) return;
  pinned_ = to(*t_, kFloat32);
  t_ = &pinned_;
}

}  // namespace weft
