// Reductions of the floating dtypes (blocks/reduce.h), and the split of the dims of each call into kept and
// reduced ones.
#include <weft/kernels/cuda/blocks/reduce.h>

namespace weft::cuda {

void CudaBackend::reduce(Context& c, Reduce op, View x, View y) {
  enter();
  View kept_x = x, kept_y = y, reduced = x;
  kept_x.sizes = kept_x.strides = kept_y.sizes = kept_y.strides = reduced.sizes = reduced.strides = Shape();
  for (int d = 0; d < x.ndim(); ++d) {
    if (y.size(d) == 1 && x.size(d) != 1) {
      reduced.sizes.push_back(x.size(d)), reduced.strides.push_back(x.stride(d));
    } else {
      kept_x.sizes.push_back(x.size(d)), kept_x.strides.push_back(x.stride(d));
      kept_y.sizes.push_back(x.size(d)), kept_y.strides.push_back(y.stride(d));
    }
  }
  const Layout<2> kept = layout_of<2>({&kept_x, &kept_y});
  const Layout<1> gone = layout_of<1>({&reduced});
  if (kept.numel == 0) return;
  if (is_floating(x.dtype))
    reduction::reduce_as<double>(*this, c, op, {x.data, x.dtype, 0, kept, gone, 1, 0}, y.data, y.dtype);
  else reduction::reduce_integers(*this, c, op, {x.data, x.dtype, 0, kept, gone, 1, 0}, y.data, y.dtype);
}

}  // namespace weft::cuda
