// Rows that are too long for one block: they are sorted by digits, in passes over many blocks. Rows of the
// op table are shorter.
#include <gtest/gtest.h>

#include <vector>

#include <weft/tensor/cuda.h>
#include <weft/weft.h>
#include "cuda/shared/device_test.h"

namespace weft::test {
namespace {

using std::vector;

DEVICE_TEST(LongRows, are_sorted_in_the_cpus_order) {
  Generator numbers(3);
  for (const auto& [dtype, sizes] :
       {std::pair{kFloat32, Shape{3, 5000}}, {kFloat32, Shape{9, 2049}}, {kInt64, Shape{3, 2500}}}) {
    const Tensor x = randint(-300, 300, sizes, {.dtype = kFloat32}, &numbers).to(dtype);  // with equal ones
    for (const bool descending : {false, true}) {
      const MaxResult here = x.sort(1, descending), there = x.to(gpu).sort(1, descending);
      EXPECT_EQ(there.indices.to_vector<int64_t>(), here.indices.to_vector<int64_t>())
          << sizes << ' ' << dtype << (descending ? " descending" : "");
      EXPECT_TRUE(equal(there.values.to(kCpu), here.values)) << sizes << ' ' << dtype;
    }
  }
}

DEVICE_TEST(LongRows, have_the_cpus_largest_numbers) {
  Generator numbers(4);
  const Tensor x = randint(0, 200, {9, 5000}, {.dtype = kFloat32}, &numbers);
  for (const int64_t k : {1, 50, 1000}) {
    const MaxResult here = x.topk(k, 1), there = x.to(gpu).topk(k, 1);
    EXPECT_EQ(there.indices.to_vector<int64_t>(), here.indices.to_vector<int64_t>()) << k;
  }
}

DEVICE_TEST(LongRows, of_indices_add_up_in_the_cpus_order) {
  Generator numbers(5);
  const Tensor ids = randint(0, 700, {6000}, {.dtype = kInt64}, &numbers),
               dy = randint(-4, 4, {6000, 3}, {.dtype = kFloat32}, &numbers);
  const auto gradient = [&](Device device) {
    Tensor table = zeros({700, 3}, {.device = device}).requires_grad_();
    embedding(table, ids.to(device)).backward(dy.to(device));
    return table.grad().to_vector<float>();
  };
  EXPECT_EQ(gradient(gpu), gradient(kCpu));
}

}  // namespace
}  // namespace weft::test
