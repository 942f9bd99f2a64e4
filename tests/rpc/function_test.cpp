// The registry of functions: names, signatures, conversions, refusals.
#include <gtest/gtest.h>

#include <weft/distributed/rpc/rpc.h>
#include <weft/tensor/factories.h>

#include "support/cluster.h"

namespace app {

using weft::Tensor;

int64_t add_numbers(int64_t a, double b) { return a + static_cast<int64_t>(b); }
WEFT_RPC(add_numbers);

std::string shout(const std::string& text) { return text + "!"; }
WEFT_RPC(shout);

int pick(int) { return 1; }
int pick(double) { return 2; }
WEFT_RPC_AS("pick_int", static_cast<int (*)(int)>(&pick));
WEFT_RPC_AS("pick_double", static_cast<int (*)(double)>(&pick));

template <class T> T identity(T value) { return value; }
WEFT_RPC_AS("identity<string>", identity<std::string>);

inline constexpr auto kLambda = [](int a) noexcept { return a + 1; };
WEFT_RPC_AS("lambda", kLambda);

struct Base {
  void train(bool on) { training = on; }
  bool training = true;
};
struct Table : Base {
  Table(int64_t rows, double scale, std::string name) : rows_(rows), scale_(scale), name_(std::move(name)) {}
  Table(const Table&) = delete;
  int64_t rows() const { return rows_; }
  double scaled(double x) noexcept { return scale_ * x; }
  int64_t rows_;
  double scale_;
  std::string name_;
};
WEFT_RPC_CLASS(Table, rows, scaled, train);

}  // namespace app

namespace {

using namespace weft;
using namespace weft::rpc;
using test::Cluster;

TEST(Function, signatures_are_made_of_wire_names) {
  EXPECT_EQ(function_entry<app::add_numbers>().signature, "add_numbers(int64, float64) -> int64");
  EXPECT_EQ(function_entry<app::shout>().signature, "shout(string) -> string");
  EXPECT_EQ(function_entry<app::kLambda>().signature, "lambda(int32) -> int32");
  EXPECT_EQ((method_entry<app::Table, &app::Table::train>().signature), "Table::train(bool) -> void");
  EXPECT_EQ((constructor_entry<app::Table, int64_t, double, std::string>().signature),
            "Table::Table(int64, float64, string) -> Table");
}

TEST(Function, is_found_by_name_and_by_id) {
  const FunctionEntry* e = find_function("shout");
  ASSERT_NE(e, nullptr);
  EXPECT_EQ(e, &function_entry<app::shout>());
  EXPECT_EQ(find_function(stable_hash("shout")), e);
  EXPECT_EQ(find_function("whisper"), nullptr);
}

TEST(Function, a_class_registers_its_own_and_inherited_methods) {
  const auto& train = method_entry<app::Table, &app::Table::train>();
  EXPECT_EQ(train.class_name, "Table");
  app::Table table(3, 2.0, "t");
  Message m;
  {
    Encoder out(m);
    out.put(false);
  }
  struct Nothing : Finisher {
    void done(Outcome& o) noexcept override { EXPECT_EQ(o.error, nullptr); }
  };
  Decoder in(m);
  train.prepare(in)->run(&table, std::make_unique<Nothing>());
  EXPECT_FALSE(table.training);
}

TEST(Function, a_constructor_makes_an_object_that_can_neither_be_copied_nor_moved) {
  Message m;
  {
    Encoder out(m);
    out.put(int64_t{5});
    out.put(0.5);
    out.put(std::string("n"));
  }
  struct Keep : Finisher {
    explicit Keep(std::shared_ptr<void>& o) : object(o) {}
    void done(Outcome& o) noexcept override { object = o.box(); }
    std::shared_ptr<void>& object;
  };
  std::shared_ptr<void> object;
  Decoder in(m);
  constructor_entry<app::Table, int64_t, double, std::string>().prepare(in)->run(
      nullptr, std::make_unique<Keep>(object));
  ASSERT_NE(object, nullptr);
  EXPECT_EQ(static_cast<app::Table*>(object.get())->rows(), 5);
}

TEST(Function, constructor_arguments_travel_in_one_form) {
  static_assert(std::is_same_v<constructor_argument_t<int>, int64_t>);
  static_assert(std::is_same_v<constructor_argument_t<const uint16_t&>, int64_t>);
  static_assert(std::is_same_v<constructor_argument_t<float>, double>);
  static_assert(std::is_same_v<constructor_argument_t<bool>, bool>);
  static_assert(std::is_same_v<constructor_argument_t<const char(&)[4]>, std::string>);
  static_assert(std::is_same_v<constructor_argument_t<const Tensor&>, Tensor>);
  SUCCEED();
}

TEST(Function, arguments_convert_to_the_parameters) {
  Cluster c({.size = 2});
  c.run(0, [] {
    EXPECT_EQ(rpc_sync<app::add_numbers>("worker1", 3, 4), 7);  // int to int64 and to double
    EXPECT_EQ(rpc_sync<app::shout>("worker1", "hey"), "hey!");  // a literal to a string
  });
}

TEST(Function, overloads_templates_and_lambdas_are_told_apart_by_their_names) {
  Cluster c({.size = 2});
  c.run(0, [] {
    EXPECT_EQ(rpc_sync<static_cast<int (*)(int)>(&app::pick)>("worker1", 1), 1);
    EXPECT_EQ(rpc_sync<static_cast<int (*)(double)>(&app::pick)>("worker1", 1), 2);
    EXPECT_EQ(rpc_sync<app::identity<std::string>>("worker1", "x"), "x");
    EXPECT_EQ(rpc_sync<app::kLambda>("worker1", 1), 2);
  });
}

TEST(Function, an_address_is_the_same_key_as_the_name) {
  EXPECT_EQ(&function_entry<app::shout>(), &function_entry<&app::shout>());
}

int unregistered(int x) { return x; }

TEST(Function, one_that_was_never_registered_is_an_error_that_names_it) {
  Cluster c({.size = 2});
  c.run(0, [] {
    try {
      rpc_sync<unregistered>("worker1", 1);
      FAIL();
    } catch (const UnknownFunction& e) {
      const std::string text = e.what();
      EXPECT_EQ(text.find("[with"), std::string::npos) << text;
      EXPECT_NE(text.find("::unregistered' is not registered in this program; WEFT_RPC(name)"),
                std::string::npos)
          << text;
    }
  });
}

TEST(Function, the_callee_names_a_function_it_does_not_have) {
  Cluster c({.size = 2});
  c.run(0, [&] {
    FunctionEntry missing = function_entry<app::shout>();
    missing.name = "whisper";
    missing.id = stable_hash(missing.name);
    Message m;
    {
      Encoder out(m);
      put_function(out, missing);
      out.put(std::string("x"));
    }
    try {
      send_call<std::string>(*current_agent(), WorkerId{1}, Kind::kCall, std::move(m),
                             {.timeout = {}, .what = "whisper"})
          .wait();
      FAIL();
    } catch (const UnknownFunction& e) {
      EXPECT_STREQ(e.what(), "On worker 'worker1': no function 'whisper' is registered there");
    }
  });
}

TEST(Function, a_signature_mismatch_names_both_signatures) {
  Cluster c({.size = 2});
  c.run(0, [&] {
    FunctionEntry other = function_entry<app::shout>();
    other.signature_hash ^= 1;
    Message m;
    {
      Encoder out(m);
      put_function(out, other);
      out.put(std::string("x"));
    }
    try {
      send_call<std::string>(*current_agent(), WorkerId{1}, Kind::kCall, std::move(m),
                             {.timeout = {}, .what = "shout"})
          .wait();
      FAIL();
    } catch (const SignatureMismatch& e) {
      EXPECT_STREQ(
          e.what(),
          "signatures differ: here 'shout(string) -> string', on worker 'worker1' 'shout(string) -> string'");
      EXPECT_EQ(e.signature, "shout(string) -> string");
    }
  });
}

TEST(Function, arguments_that_do_not_decode_are_an_error_at_the_caller) {
  Cluster c({.size = 2});
  c.run(0, [&] {
    Message m;
    {
      Encoder out(m);
      put_function(out, function_entry<app::shout>());
      out.number(uint8_t{200});  // a string of 200 bytes that is not there
    }
    EXPECT_THROW(send_call<std::string>(*current_agent(), WorkerId{1}, Kind::kCall, std::move(m), {}).wait(),
                 WireError);
    EXPECT_EQ(rpc_sync<app::shout>("worker1", "still here"), "still here!");
  });
}

TEST(Function, the_builtin_tensor_functions_are_served_under_their_names) {
  Cluster c({.size = 2});
  ASSERT_NE(find_function("weft::add"), nullptr);
  EXPECT_EQ(find_function("weft::matmul")->signature, "weft::matmul(Tensor, Tensor) -> Tensor");
  c.run(0, [] {
    const Tensor y = rpc_sync<builtin::add>("worker1", tensor({1., 2.}), tensor({10., 20.}));
    EXPECT_EQ(y.to_vector<float>(), (std::vector<float>{11, 22}));
  });
}

}  // namespace
