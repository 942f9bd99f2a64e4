// Golden files (tests/golden) by name, and comparisons of tensors for tests.
#pragma once

#include <map>
#include <string>

#include <gtest/gtest.h>

#include <weft/tensor/tensor.h>

namespace weft::testing {

/// The device of golden tests: WEFT_TEST_DEVICE of the environment, else the CPU.
Device golden_device();

/// The tensors of one golden file, on golden_device(). Throws: IoError when the file is missing; IndexError
/// that names an absent tensor.
class Golden {
 public:
  explicit Golden(const std::string& file, std::string prefix = "");
  Tensor operator[](const std::string& name) const;
  bool has(const std::string& name) const { return tensors_.count(prefix_ + name) != 0; }
  /// The tensors of this file whose names begin with "<case>.".
  Golden at(const std::string& name) const;
  std::string metadata(const std::string& key) const;
  /// Names that begin with the prefix and `start`, without the prefix.
  std::vector<std::string> names(const std::string& start = "") const;

 private:
  Golden() = default;
  std::map<std::string, Tensor> tensors_;
  std::map<std::string, std::string> metadata_;
  std::string prefix_;
};

/// Success if the sizes are equal and |a - b| <= atol + rtol |b| for every element; a failure shows the
/// largest difference. Infinities of one sign are equal, and so are NaNs.
::testing::AssertionResult close(const Tensor& a, const Tensor& b, double rtol = 1e-5, double atol = 1e-6);
/// Success if dtype, sizes and every bit are equal.
::testing::AssertionResult same_bits(const Tensor& a, const Tensor& b);

}  // namespace weft::testing
