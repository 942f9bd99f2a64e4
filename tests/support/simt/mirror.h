// A host array's memory on the emulated device: the same strides, guard zones right at its ends.
#pragma once

#include <weft/kernels/cuda/runtime.h>
#include <weft/kernels/view.h>

namespace weft::cuda::simt {

class Mirror {
 public:
  /// Copies what the host's view spans; an undefined view gives an undefined one.
  explicit Mirror(const View& host) : host_(host) {
    if (!host.defined()) return;
    int64_t span = host.numel() == 0 ? 0 : 1;
    for (int d = 0; d < host.ndim() && span > 0; ++d) span += (host.size(d) - 1) * host.stride(d);
    bytes_ = static_cast<size_t>(span * size_of(host.dtype));
    data_ = runtime::allocate(bytes_);
    runtime::copy(data_, host.data, bytes_, nullptr);
  }
  ~Mirror() { runtime::release(data_); }
  Mirror(const Mirror&) = delete;

  View view() const {
    View v = host_;
    v.data = data_;
    return v;
  }
  operator View() const { return view(); }
  /// Copies the device's numbers back over the host's.
  void fetch() const { runtime::copy(host_.data, data_, bytes_, nullptr); }

 private:
  View host_;
  size_t bytes_ = 0;
  void* data_ = nullptr;
};

}  // namespace weft::cuda::simt
