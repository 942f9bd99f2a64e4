// Reading of golden files, and the comparisons of tensors (golden.h).
#include "golden.h"

#include <cmath>
#include <cstdlib>
#include <cstring>

#include <weft/tensor/io/safetensors.h>

namespace weft::testing {

namespace {
std::string setting(const char* name, const char* otherwise) {
  const char* const set = std::getenv(name);
  return set && *set ? set : otherwise;
}
}  // namespace

Device golden_device() { return Device(setting("WEFT_TEST_DEVICE", "cpu").c_str()); }

Golden::Golden(const std::string& file, std::string prefix) : prefix_(std::move(prefix)) {
  const auto loaded =
      load_safetensors(setting("WEFT_TEST_DATA_DIR", WEFT_TEST_DATA_DIR) + "/" + file + ".safetensors");
  for (const auto& [name, tensor] : loaded.tensors) tensors_.emplace(name, tensor);
  for (const auto& [key, value] : loaded.metadata) metadata_.emplace(key, value);
}

Tensor Golden::operator[](const std::string& name) const {
  const auto found = tensors_.find(prefix_ + name);
  if (found == tensors_.end()) throw IndexError("golden: no tensor '" + prefix_ + name + "'");
  return found->second.to(golden_device());
}

Golden Golden::at(const std::string& name) const {
  Golden out = *this;
  out.prefix_ = prefix_ + name + ".";
  return out;
}

std::string Golden::metadata(const std::string& key) const {
  const auto found = metadata_.find(key);
  return found == metadata_.end() ? "" : found->second;
}

std::vector<std::string> Golden::names(const std::string& start) const {
  std::vector<std::string> out;
  const std::string full = prefix_ + start;
  for (const auto& entry : tensors_)
    if (entry.first.compare(0, full.size(), full) == 0) out.push_back(entry.first.substr(prefix_.size()));
  return out;
}

::testing::AssertionResult close(const Tensor& a, const Tensor& b, double rtol, double atol) {
  if (!a.defined() || !b.defined())
    return ::testing::AssertionFailure() << "undefined tensor: " << (a.defined() ? "second" : "first");
  if (a.sizes() != b.sizes())
    return ::testing::AssertionFailure()
           << "sizes " << to_string(a.sizes()) << " and " << to_string(b.sizes());
  const std::vector<double> x = a.to_vector<double>(), y = b.to_vector<double>();
  size_t bad = 0, worst = 0;
  double gap = -1;
  for (size_t i = 0; i < x.size(); ++i) {
    if (x[i] == y[i] || (std::isnan(x[i]) && std::isnan(y[i]))) continue;
    const double d = std::abs(x[i] - y[i]);
    if (d <= atol + rtol * std::abs(y[i])) continue;
    ++bad;
    if (!(d <= gap)) gap = d, worst = i;
  }
  if (bad == 0) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << bad << " of " << x.size() << " differ; worst at " << worst << ": "
                                       << x[worst] << " against " << y[worst];
}

::testing::AssertionResult same_bits(const Tensor& a, const Tensor& b) {
  if (!a.defined() || !b.defined())
    return a.defined() == b.defined() ? ::testing::AssertionSuccess()
                                      : ::testing::AssertionFailure() << "one tensor is undefined";
  if (a.sizes() != b.sizes() || a.dtype() != b.dtype())
    return ::testing::AssertionFailure() << to_string(a.dtype()) << to_string(a.sizes()) << " and "
                                         << to_string(b.dtype()) << to_string(b.sizes());
  const Tensor x = a.detach().to(kCpu).contiguous(), y = b.detach().to(kCpu).contiguous();
  if (x.numel() == 0 ||
      std::memcmp(x.const_raw(), y.const_raw(), static_cast<size_t>(x.numel() * size_of(x.dtype()))) == 0)
    return ::testing::AssertionSuccess();
  const auto close_result = close(a, b, 0, 0);
  return ::testing::AssertionFailure() << "bits differ: " << close_result.message();
}

}  // namespace weft::testing
