// How the arguments of a call meet the declared parameters: conversions, containers, constructors with
// default arguments. Calls that do not fit are refused by the compiler (tests/support/mistakes), those of
// another program by the callee (../rpc/function_test.cpp).
#include "conformance/fixture.h"

#include <map>
#include <optional>

#include <weft/distributed/rref/rref.h>
#include <weft/tensor/factories.h>

namespace weft::test {

std::string bind_show(int64_t a, double b, bool c, const std::string& d) {
  return str(a, " ", b, " ", c, " ", d);
}
WEFT_RPC(bind_show);
int32_t bind_narrow(int32_t a, uint8_t b) { return a + b; }
WEFT_RPC(bind_narrow);
double bind_sum(const Tensor& t, const std::vector<Tensor>& more, const std::map<std::string, double>& named,
                std::optional<double> last) {
  double sum = t.sum().item<double>() + last.value_or(1000);
  for (const Tensor& m : more) sum += m.sum().item<double>();
  for (const auto& [name, value] : named) sum += value * static_cast<double>(name.size());
  return sum;
}
WEFT_RPC(bind_sum);
double bind_scaled(double x, double by = 2) { return x * by; }
WEFT_RPC(bind_scaled);
/// The default of bind_scaled, for callers.
inline constexpr auto kBindTwice = [](double x) { return bind_scaled(x); };
WEFT_RPC_AS("bind_twice", kBindTwice);

class BindBox {
 public:
  explicit BindBox(int64_t start = 5, double factor = 2, std::string name = "box")
      : start_(start), factor_(factor), name_(std::move(name)) {}
  std::string show(double more) const {
    return str(name_, " ", factor_ * static_cast<double>(start_) + more);
  }

 private:
  int64_t start_;
  double factor_;
  std::string name_;
};
WEFT_RPC_CLASS(BindBox, show);

}  // namespace weft::test

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace weft::test;

WEFT_CONFORMANCE(ArgumentBinding);

// the portable core of upstream's script suite: mixed types against a declared signature
TEST_P(ArgumentBinding, arguments_become_the_declared_types_in_every_kind_of_call) {
  Cluster c(options());
  c.run(0, [] {
    const float b = 2.5f;
    const char d[] = "text";
    EXPECT_EQ(rpc_sync<bind_show>("worker1", 3, b, true, d), "3 2.5 true text");
    EXPECT_EQ(rpc_async<bind_show>("worker1", uint8_t{3}, 2, false, std::string(d)).wait(), "3 2 false text");
    EXPECT_EQ(remote<bind_show>("worker1", 'A', 0.5, true, d).to_here(), "65 0.5 true text");
    EXPECT_EQ(rpc_sync<bind_narrow>("worker1", int64_t{-7}, 200), 193);
    const auto box = remote<BindBox>("worker1", 1);
    EXPECT_EQ(box.rpc_sync<&BindBox::show>(3), "box 5");
    EXPECT_EQ(box.rpc_async<&BindBox::show>(0.5f).wait(), "box 2.5");
    EXPECT_EQ(box.remote<&BindBox::show>(true).to_here(), "box 3");
  });
}

TEST_P(ArgumentBinding, containers_and_an_optional_argument_are_given_in_place) {
  Cluster c(options());
  c.run(0, [] {
    using More = std::vector<Tensor>;
    using Named = std::map<std::string, double>;
    EXPECT_EQ(rpc_sync<bind_sum>("worker1", ones({2}), More{ones({3}), ones({4})}, Named{{"ab", 10}}, 0.5),
              29.5);
    EXPECT_EQ(rpc_sync<bind_sum>("worker1", ones({2}), More{}, Named{}, std::nullopt), 1002);
  });
}

// none, some and all of the arguments that have defaults
TEST_P(ArgumentBinding, a_constructor_is_given_none_some_or_all_of_its_default_arguments) {
  Cluster c(options());
  c.run(0, [] {
    for (const int to : {0, 1}) {
      EXPECT_EQ(remote<BindBox>(to).rpc_sync<&BindBox::show>(0), "box 10");
      EXPECT_EQ(remote<BindBox>(to, 7).rpc_sync<&BindBox::show>(0), "box 14");
      EXPECT_EQ(remote<BindBox>(to, 7, 0.5f).rpc_sync<&BindBox::show>(0), "box 3.5");
      EXPECT_EQ(remote<BindBox>(to, 7, 3, "all").rpc_sync<&BindBox::show>(0), "all 21");
    }
  });
}

// a function's own defaults are not part of its signature: its short form is a function of its own
TEST_P(ArgumentBinding, a_functions_default_is_given_by_a_registered_function_of_fewer_parameters) {
  Cluster c(options());
  c.run(0, [] {
    EXPECT_EQ(rpc_sync<bind_scaled>("worker1", 3, 4), 12);
    EXPECT_EQ(rpc_sync<kBindTwice>("worker1", 3), 6);
    EXPECT_EQ(function_entry<bind_scaled>().signature, "bind_scaled(float64, float64) -> float64");
  });
}

}  // namespace
