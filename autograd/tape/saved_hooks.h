// Saved-tensor hooks store the tensors saved for backward in another form (in host memory, compressed, on
// disk).
#pragma once

#include <any>

#include <weft/autograd/tape/callback.h>
#include <weft/autograd/tape/grad_mode.h>
#include <weft/autograd/tape/record.h>

namespace weft {

/// Converts a tensor to be saved into a value to store. Called without recording. The value must not share
/// the tensor's memory if that may be written to, since a packed tensor has no version check.
using PackHook = Callback<std::any(const Tensor&)>;
/// Restores a tensor of the same sizes, dtype and device. May be called more than once.
using UnpackHook = Callback<Tensor(const std::any&)>;

/// For its lifetime, every tensor that an operation saves on this thread passes through `pack`. Backward
/// passes it through `unpack`, on any thread and outside the scope too. Scopes nest; the innermost applies.
/// Throws: ValueError for an empty hook.
class WEFT_API SavedTensorHooks {
 public:
  SavedTensorHooks(PackHook pack, UnpackHook unpack);
  SavedTensorHooks(const SavedTensorHooks&) = delete;
  ~SavedTensorHooks() { autograd_state().saved_hooks = outer_; }

 private:
  friend struct detail::Packed;
  PackHook pack_;
  UnpackHook unpack_;
  const SavedTensorHooks* outer_;
};

namespace detail {
/// x packed by the innermost hooks.
Packed* pack(const Tensor& x);
void share_packed(Packed* p) noexcept;
Tensor unpack(const Packed& p);
}  // namespace detail

}  // namespace weft
