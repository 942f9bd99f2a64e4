// Outputs as large as the last-level cache, which are written past the caches. Each element has its value, at
// any alignment, for any thread count.
#include "arrays.h"

#include <weft/kernels/cpu/limits.h>

namespace weft {
namespace {

using test::Array;
using test::cpu;
using test::each_isa;

/// Elements of a dense output that is streamed, with a remainder at its end.
template <class T> int64_t many() { return kernels::cache_bytes() / static_cast<int64_t>(sizeof(T)) + 77; }

/// The first n elements from `skipped` on.
template <class T> View part(Array<T>& a, int64_t skipped, int64_t n) {
  View v = a.view();
  v.data = a.data() + skipped;
  v.sizes = Shape{n};
  return v;
}

template <class T> void check(int64_t skipped) {
  SCOPED_TRACE(str(dtype_of<T>, ", ", skipped, " elements skipped"));
  Context context;
  const int64_t n = many<T>();
  Array<T> x(Shape{n + skipped}), y(Shape{n + skipped});
  for (int64_t i = 0; i < n; ++i) x.data()[skipped + i] = static_cast<T>(i % 113);
  const auto right = [&](const char* op, auto value) {
    int64_t wrong = 0;
    for (int64_t i = 0; i < n; ++i) wrong += y.data()[skipped + i] != static_cast<T>(value(i % 113)) ? 1 : 0;
    EXPECT_EQ(wrong, 0) << op;
    for (int64_t i = 0; i < skipped; ++i) EXPECT_EQ(y.data()[i], static_cast<T>(77)) << op;
  };
  const View from = part(x, skipped, n), to = part(y, skipped, n);
  cpu().fill(context, 5, to);
  right("fill", [](int64_t) { return 5; });
  cpu().copy(context, from, to);
  right("copy", [](int64_t v) { return v; });
  cpu().binary(context, Binary::kAdd, 1, 0, from, from, to);
  right("add", [](int64_t v) { return 2 * v; });
  cpu().unary(context, Unary::kAddScalar, 3, 0, to, to);  // in place, which is not streamed
  right("add in place", [](int64_t v) { return 2 * v + 3; });
}

TEST(Stream, large_outputs_have_each_value) {
  each_isa([] {
    const int before = num_threads();
    for (const int threads : {1, 3}) {
      set_num_threads(threads);
      check<float>(0);
      check<float>(3);
    }
    set_num_threads(before);
    check<uint8_t>(1);
    check<int64_t>(7);
  });
}

}  // namespace
}  // namespace weft
