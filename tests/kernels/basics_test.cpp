// Errors, devices, shapes, dtypes, the choice of the instruction set: the parts of kernels/ that are not
// kernels.
#include <limits>

#include "arrays.h"

namespace weft {
namespace {

TEST(Basics, messages_show_numbers_as_people_write_them) {
  EXPECT_EQ(str("a ", 3, ' ', 0.1, " ", -2.5, " ", true), "a 3 0.1 -2.5 true");
  EXPECT_EQ(str(1e300, " ", 1.0 / 3, " ", std::numeric_limits<double>::infinity()),
            "1e+300 0.33333333333333331 inf");
  EXPECT_EQ(str(Shape{2, 3}, " ", kFloat16, " ", Device("cuda:1")), "[2, 3] float16 cuda:1");
}

TEST(Basics, devices_are_parsed_strictly) {
  EXPECT_EQ(Device("cpu"), kCpu);
  EXPECT_EQ(Device("cuda"), Device(DeviceType::kCuda, 0));
  EXPECT_EQ(Device("cuda:12"), Device(DeviceType::kCuda, 12));
  for (const char* bad :
       {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cuda:128", "cuda1", "CPU", "cpu:0"})
    EXPECT_THROW(Device{bad}, DeviceError) << bad;
}

TEST(Basics, a_missing_backend_is_a_device_error) {
  EXPECT_EQ(backend(kCpu).device(), kCpu);
  EXPECT_THROW(backend(Device(DeviceType::kCuda, 97)), DeviceError);
  EXPECT_THROW(register_backend(kCpu, nullptr), DeviceError);
}

TEST(Basics, shapes_broadcast_or_name_both_sides) {
  EXPECT_EQ(broadcast("op", {5, 1, 7}, {3, 1}), (Shape{5, 3, 7}));
  EXPECT_EQ(broadcast("op", {}, {2}), (Shape{2}));
  EXPECT_EQ(broadcast("op", {1}, {0}), (Shape{0}));
  try {
    broadcast("op", {2, 3}, {4});
    FAIL();
  } catch (const ShapeError& e) {
    EXPECT_STREQ(e.what(), "op: sizes do not broadcast: [2, 3] and [4]");
  }
}

TEST(Basics, shapes_hold_eight_values) {
  Shape s(8, 1);
  EXPECT_THROW(s.push_back(1), ShapeError);
  EXPECT_EQ(contiguous_strides({2, 3, 5}), (Shape{15, 5, 1}));
  EXPECT_EQ(contiguous_strides({2, 0, 5}), (Shape{5, 5, 1}));
  EXPECT_EQ(to_string(Shape{}), "[]");
}

TEST(Basics, dims_count_from_both_ends) {
  EXPECT_EQ(wrap_dim("op", -1, 3), 2);
  EXPECT_THROW(wrap_dim("op", 0, 0), IndexError);  // no dim is dim 0
  EXPECT_THROW(wrap_dim("op", 3, 3), IndexError);
  EXPECT_THROW(wrap_dim("op", -4, 3), IndexError);
}

TEST(Basics, promotion_takes_the_wider_type) {
  EXPECT_EQ(promote(kFloat16, kBFloat16), kFloat32);
  EXPECT_EQ(promote(kInt64, kFloat16), kFloat16);
  EXPECT_EQ(promote(kUInt8, kInt32), kInt32);
  EXPECT_EQ(promote(kBool, kBool), kBool);
}

TEST(Basics, unknown_instruction_sets_are_refused) {
  const std::string before = cpu_isa();
  EXPECT_THROW(set_cpu_isa("sse9"), ValueError);
  EXPECT_EQ(cpu_isa(), before);
  set_cpu_isa("baseline");
  EXPECT_STREQ(cpu_isa(), "baseline");
  set_cpu_isa(before.c_str());
}

}  // namespace
}  // namespace weft
