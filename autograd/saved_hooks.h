// Saved-tensor hooks: what backward needs later may be kept elsewhere meanwhile (in host memory, compressed, on disk).
#pragma once

#include <any>

#include <weft/autograd/callback.h>
#include <weft/autograd/grad_mode.h>
#include <weft/autograd/record.h>

namespace weft {

/// Turns a tensor about to be saved into something to keep. Called without recording; what it keeps must not be the tensor's own memory if that
/// may be written to, since a packed tensor has no version check.
using PackHook = Callback<std::any(const Tensor&)>;
/// Gives back a tensor of the same sizes, dtype and device. May be called more than once.
using UnpackHook = Callback<Tensor(const std::any&)>;

/// Every tensor that an op saves on this thread in this scope goes through `pack`, and through `unpack` when backward asks for it, in whatever
/// thread and scope that happens. Scopes nest; the innermost counts. Throws: ValueError for an empty hook.
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
/// x through the hooks in force.
Packed* pack(const Tensor& x);
void share_packed(Packed* p) noexcept;
Tensor unpack(const Packed& p);
}  // namespace detail

}  // namespace weft
