// Conversion between different dtypes, y = x (=), with one kernel per pair. Each element of x is read once
// and each of y written once.
#include <weft/kernels/cuda/blocks/convert.h>

#include <weft/kernels/cuda/packs.h>
#include <weft/kernels/inner/convert.h>

namespace weft::cuda {

namespace {

template <class From, class To> struct ConvertElements {
  static constexpr bool kIndependent = true;
  static constexpr int kEach = 16 / static_cast<int>(sizeof(From) > sizeof(To) ? sizeof(From) : sizeof(To));
  Packs<2> loop;
  const void* x;
  void* y;

  WEFT_DEVICE static Pack<To, kEach> converted(const Pack<From, kEach>& in) {
    Pack<To, kEach> out;
    for (int i = 0; i < kEach; ++i) out.at[i] = kernels::convert<To>(in.at[i]);
    return out;
  }
  WEFT_DEVICE void operator()(Thread t) const {
    each_two_packs(t, loop.packs, [&](int64_t first, int64_t second, bool both) {
      int64_t a[2], b[2];
      loop.layout.locate(first, a);
      loop.layout.locate(both ? second : first, b);
      const auto one = load_pack<From, kEach>(x, a[1], loop.splats(1)),
                 other = load_pack<From, kEach>(x, b[1], loop.splats(1));
      store_pack(y, a[0], converted(one));
      if (both) store_pack(y, b[0], converted(other));
    });
    for (int64_t i = loop.packs * loop.width + t.global(); i < loop.numel; i += t.globals()) {
      int64_t at[2];
      loop.element(i, at);
      static_cast<To*>(y)[at[0]] = kernels::convert<To>(static_cast<const From*>(x)[at[1]]);
    }
  }
};

}  // namespace

void convert_elements(CudaBackend& backend, void* stream, const Layout<2>& layout, const View& x,
                      const View& y) {
  const View* const views[] = {&y, &x};
  const auto run = [&]<class From, class To>(TypeTag<From>, TypeTag<To>) {
    if constexpr (!std::is_same_v<From, To>) {
      using Body = ConvertElements<From, To>;
      const Packs<2> loop = packs_of(views, layout, Body::kEach);
      launch(stream, "convert", backend.grid_for(loop.threads()), Body{loop, x.data, y.data});
    }
  };
  dispatch(x.dtype, [&](auto from) { dispatch(y.dtype, [&](auto to) { run(from, to); }); });
}

}  // namespace weft::cuda
