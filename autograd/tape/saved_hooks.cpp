// Saved-tensor hooks (saved_hooks.h): a Packed value takes the place of a saved tensor. It keeps the unpack
// hook, and the sizes, dtype and device that the unpacked tensor must have.
#include <weft/autograd/tape/saved_hooks.h>

namespace weft {

SavedTensorHooks::SavedTensorHooks(PackHook pack, UnpackHook unpack)
    : pack_(std::move(pack)), unpack_(std::move(unpack)), outer_(autograd_state().saved_hooks) {
  if (!pack_ || !unpack_) throw ValueError("SavedTensorHooks: empty hook");
  autograd_state().saved_hooks = this;
}

namespace detail {

struct Packed : RefCounted {
  Packed(const SavedTensorHooks& hooks, const Tensor& x)
      : kept(hooks.pack_(x)), unpack(hooks.unpack_), sizes(x.sizes()), dtype(x.dtype()), device(x.device()) {}
  std::any kept;
  UnpackHook unpack;
  Shape sizes;
  DType dtype;
  Device device;
};

Packed* pack(const Tensor& x) {
  AutogradState& state = autograd_state();
  // tensors that the hook saves are not packed
  const SavedTensorHooks* hooks = std::exchange(state.saved_hooks, nullptr);
  struct Restore {
    AutogradState& state;
    const SavedTensorHooks* hooks;
    ~Restore() { state.saved_hooks = hooks; }
  } restore{state, hooks};
  NoGrad off;
  return new Packed(*hooks, x.detach());
}

void share_packed(Packed* p) noexcept { p->retain(); }

void drop_packed(Packed* p) noexcept {
  if (p->release()) delete p;
}

Tensor unpack(const Packed& p) {
  NoGrad off;
  const Tensor x = p.unpack(p.kept);
  if (!x.defined() || x.sizes() != p.sizes || x.dtype() != p.dtype || x.device() != p.device)
    throw AutogradError(
        str("SavedTensorHooks: unpack returned ",
            x.defined() ? str(x.sizes(), " ", x.dtype(), " on ", x.device()) : std::string("nothing"),
            " for ", p.sizes, " ", p.dtype, " on ", p.device));
  return x;
}

}  // namespace detail
}  // namespace weft
