// Values on the wire: round trips, views, and malformed input.
#include <gtest/gtest.h>

#include <random>

#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/concurrent_parameter.h>
#include <weft/distributed/wire/codec.h>
#include <weft/distributed/wire/inner/wire_format.h>
#include <weft/optim/optim.h>
#include <weft/tensor/factories.h>

namespace app {
struct Inner {
  std::string name;
  std::vector<weft::Tensor> parts;
};
WEFT_FIELDS(Inner, name, parts)
struct Outer {
  int32_t a = 0;
  std::optional<Inner> inner;
  std::variant<int64_t, std::string, Inner> choice;
};
WEFT_FIELDS(Outer, a, inner, choice)
struct Empty {};
WEFT_FIELDS(Empty)
enum class Colour : uint8_t { kRed, kBlue };
}  // namespace app

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace std::chrono_literals;

/// Through bytes and back, as a transport would.
Message travel(Message m) {
  seal(m);
  std::vector<Block> blocks;
  for (Payload& p : payloads_of(m)) {
    Block b = allocate_payload(p.bytes);
    std::memcpy(b.data, p.data, static_cast<size_t>(p.bytes));
    blocks.push_back(std::move(b));
  }
  const Envelope e = open_envelope(m.bytes);
  return unseal(std::move(m.bytes), std::move(blocks), e);
}

template <class T> T round_trip(const T& value) {
  Message m;
  {
    Encoder out(m);
    out.put(value);
  }
  const Message there = travel(std::move(m));
  Decoder in(there);
  T back = in.get<T>();
  in.expect_end();
  return back;
}

TEST(Codec, plain_values_come_back_as_they_were) {
  EXPECT_EQ(round_trip(true), true);
  EXPECT_EQ(round_trip(int8_t{-7}), -7);
  EXPECT_EQ(round_trip(INT64_MIN), INT64_MIN);
  EXPECT_EQ(round_trip(uint64_t{1} << 63), uint64_t{1} << 63);
  EXPECT_EQ(round_trip(0.1), 0.1);
  EXPECT_EQ(round_trip(2.5f), 2.5f);
  EXPECT_EQ(round_trip(std::string()), "");
  EXPECT_EQ(round_trip(std::string(1000, 'x')), std::string(1000, 'x'));
  EXPECT_EQ(round_trip(app::Colour::kBlue), app::Colour::kBlue);
  EXPECT_EQ(round_trip(Duration(1234567)), Duration(1234567));
  EXPECT_EQ(round_trip(std::chrono::milliseconds(9)), 9ms);
  EXPECT_EQ(round_trip(WorkerInfo{"ps", WorkerId{3}}), (WorkerInfo{"ps", WorkerId{3}}));
  EXPECT_EQ(round_trip(Shape{2, 3, 5}), (Shape{2, 3, 5}));
}

TEST(Codec, containers_come_back_as_they_were) {
  EXPECT_EQ(round_trip(std::vector<double>{1, 2, 3}), (std::vector<double>{1, 2, 3}));
  EXPECT_EQ(round_trip(std::vector<bool>{true, false, true}), (std::vector<bool>{true, false, true}));
  EXPECT_EQ(round_trip(std::vector<std::string>(300, "ab")).size(), 300u);
  EXPECT_EQ(round_trip(std::array<int, 3>{1, 2, 3}), (std::array<int, 3>{1, 2, 3}));
  EXPECT_EQ(round_trip(std::map<std::string, int>{{"a", 1}, {"b", 2}}),
            (std::map<std::string, int>{{"a", 1}, {"b", 2}}));
  EXPECT_EQ(round_trip(std::set<int>{3, 1}), (std::set<int>{1, 3}));
  EXPECT_EQ(round_trip(std::optional<int>()), std::nullopt);
  EXPECT_EQ(round_trip(std::optional<int>(4)), 4);
  EXPECT_EQ(round_trip(std::pair<int, std::string>(4, "x")), (std::pair<int, std::string>(4, "x")));
  EXPECT_EQ(round_trip(std::tuple<int, std::string, double>(4, "x", 0.5)),
            (std::tuple<int, std::string, double>(4, "x", 0.5)));
  EXPECT_EQ(round_trip(std::tuple<>()), std::tuple<>());
  using V = std::variant<std::monostate, int, std::string>;
  EXPECT_EQ(round_trip(V()), V());
  EXPECT_EQ(round_trip(V("x")), V("x"));
}

TEST(Codec, structs_with_fields_travel_with_what_they_hold) {
  app::Outer o;
  o.a = 5;
  o.inner = app::Inner{"in", {tensor({1., 2.}), Tensor(), tensor({3.})}};
  o.choice = app::Inner{"choice", {}};
  const app::Outer back = round_trip(o);
  EXPECT_EQ(back.a, 5);
  EXPECT_EQ(back.inner->name, "in");
  EXPECT_EQ(back.inner->parts[0].to_vector<float>(), (std::vector<float>{1, 2}));
  EXPECT_FALSE(back.inner->parts[1].defined());
  EXPECT_EQ(back.inner->parts[2].to_vector<float>(), (std::vector<float>{3}));
  EXPECT_EQ(std::get<app::Inner>(back.choice).name, "choice");
  round_trip(std::vector<app::Empty>(7));
}

TEST(Codec, names_are_the_same_everywhere) {
  EXPECT_EQ(Codec<app::Outer>::name(),
            "Outer{a: int32, inner: optional<Inner{name: string, parts: vector<Tensor>}>, "
            "choice: variant<int64, string, Inner{name: string, parts: vector<Tensor>}>}");
  EXPECT_EQ((Codec<std::map<std::string, std::vector<double>>>::name()), "map<string, vector<float64>>");
  EXPECT_EQ((Codec<std::tuple<bool, uint8_t>>::name()), "tuple<bool, uint8>");
}

TEST(Codec, tensors_of_every_dtype_come_back_with_their_bits) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    for (const int64_t n : {0, 1, 7, 5003}) {
      const Tensor t = empty({n}, {.dtype = dtype});
      for (int64_t b = 0; b < n * size_of(dtype); ++b)
        static_cast<uint8_t*>(t.raw())[b] = static_cast<uint8_t>(dtype == kBool ? b % 2 : b * 7);
      const Tensor back = round_trip(t);
      EXPECT_EQ(back.dtype(), dtype);
      EXPECT_EQ(back.sizes(), t.sizes());
      EXPECT_EQ(std::memcmp(back.raw(), t.raw(), static_cast<size_t>(n * size_of(dtype))), 0);
      EXPECT_FALSE(back.shares_storage(t));
    }
  }
}

TEST(Codec, an_undefined_tensor_stays_undefined) { EXPECT_FALSE(round_trip(Tensor()).defined()); }

TEST(Codec, requires_grad_travels) {
  Tensor t = tensor({1., 2.});
  EXPECT_FALSE(round_trip(t).requires_grad());
  t.requires_grad_();
  EXPECT_TRUE(round_trip(t).requires_grad());
}

TEST(Codec, strides_are_kept) {
  const Tensor t = arange(35).view({5, 7});
  for (const Tensor& view : {t.t(), t.narrow(1, 2, 3), t.select(1, 4), t.slice(0, 1, 5, 2)}) {
    const Tensor back = round_trip(view);
    EXPECT_EQ(back.strides(), view.strides());
    EXPECT_EQ(back.to_vector<int64_t>(), view.to_vector<int64_t>());
  }
  EXPECT_FALSE(round_trip(t.t()).is_contiguous());
  const Tensor wide = tensor({5.}).expand({1000});
  EXPECT_EQ(round_trip(wide).strides(), (Shape{0}));
}

TEST(Codec, a_view_sends_its_span_and_a_sparse_one_is_compacted) {
  const auto bytes = [](const Tensor& t) {
    Message m;
    {
      Encoder out(m);
      out.put(t);
    }
    seal(m);
    int64_t total = static_cast<int64_t>(m.bytes.size());
    for (const Payload& p : payloads_of(m)) total += p.bytes;
    return total;
  };
  const Tensor big = arange(1'000'000).to(kFloat32).view({1000, 1000});
  EXPECT_LT(bytes(big.select(0, 3)), 4200);  // one row of a large matrix
  EXPECT_LT(bytes(big.select(1, 3)), 4200);  // one column: its span is everything
  EXPECT_EQ(round_trip(big.select(1, 3)).to_vector<float>(), big.select(1, 3).to_vector<float>());
  EXPECT_GT(bytes(big.t()), 4'000'000);  // dense in another order: as it lies
  EXPECT_EQ(round_trip(big.t()).strides(), (Shape{1, 1000}));
}

TEST(Codec, a_large_tensor_is_not_copied_into_the_message) {
  const Tensor t = zeros({100, 100});
  Message m;
  {
    Encoder out(m);
    out.put(t);
  }
  seal(m);
  const auto payloads = payloads_of(m);
  ASSERT_EQ(payloads.size(), 1u);
  EXPECT_EQ(payloads[0].data, t.raw());
  EXPECT_GT(t.body().storage->saves(), 0u);
}

TEST(Codec, a_parameter_travels_with_the_values_it_had_whatever_steps_follow) {
  for (const bool concurrent : {false, true}) {
    const Tensor p = full({100, 100}, 3.0).requires_grad_();
    if (concurrent) mark_concurrent(p);
    Message m;
    {
      Encoder out(m);
      out.put(p.detach());
    }
    seal(m);
    const auto payloads = payloads_of(m);
    ASSERT_EQ(payloads.size(), 1u);
    optim::SGD sgd({p}, {.lr = 1});
    sgd.step(std::vector<Tensor>{ones({100, 100})});
    EXPECT_EQ(static_cast<const float*>(payloads[0].data)[9999], 3) << concurrent;
    EXPECT_EQ(p.to_vector<float>()[9999], 2) << concurrent;
  }
}

TEST(Codec, extensions_travel_beside_the_body) {
  Message m;
  m.extension(Tag::kAutograd) = "12345678";
  m.extension(Tag::kUser) = "";
  {
    Encoder out(m);
    out.put(7);
  }
  const Message back = travel(std::move(m));
  ASSERT_NE(back.find(Tag::kAutograd), nullptr);
  EXPECT_EQ(*back.find(Tag::kAutograd), "12345678");
  EXPECT_NE(back.find(Tag::kUser), nullptr);
  EXPECT_EQ(back.find(Tag::kResultsToCpu), nullptr);
}

// Random bytes, and real messages with random damage: each decode gives a value or a WireError, nothing else.
template <class T> void fuzz(const T& value, uint64_t seed) {
  std::mt19937_64 random(seed);
  Message good;
  {
    Encoder out(good);
    out.put(value);
  }
  seal(good);
  int refused = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string bytes = good.bytes;
    if (i % 3 == 0) {
      bytes.assign(kEnvelopeBytes + random() % 200, '\0');
      for (char& b : bytes) b = static_cast<char>(random());
      Envelope e;
      e.body_end = kEnvelopeBytes + random() % (bytes.size() - kEnvelopeBytes + 1);
      e.tensors = random() % 4;
      std::memcpy(bytes.data(), &e, sizeof e);
    } else if (i % 3 == 1) {
      for (int n = 0; n < 4; ++n) bytes[random() % bytes.size()] = static_cast<char>(random());
    } else {
      bytes.resize(random() % bytes.size());
    }
    try {
      const Envelope e = open_envelope(bytes);
      const Message m = unseal(bytes, {}, e);
      Decoder in(m);
      in.get<T>();
      in.expect_end();
    } catch (const WireError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 1500);
}

TEST(Codec, damaged_messages_are_refused_and_nothing_worse) {
  app::Outer o;
  o.inner = app::Inner{"in", {tensor({1., 2.}), arange(12).view({3, 4}).t()}};
  fuzz(o, 1);
  fuzz(std::vector<Tensor>{tensor({1., 2.}), Tensor(), zeros({3, 5}), zeros({0})}, 2);
  fuzz(std::map<std::string, std::vector<double>>{{"a", {1, 2, 3}}, {"b", {}}}, 3);
  fuzz(std::vector<std::vector<std::string>>{{"x", "y"}, {}, {"z"}}, 4);
  fuzz(std::tuple<WorkerInfo, Shape, Scalar, std::optional<bool>>{{"w", WorkerId{1}}, {2, 3}, 1.5, true}, 5);
}

TEST(Codec, a_count_larger_than_the_message_is_refused_before_anything_is_allocated) {
  Message m;
  {
    Encoder out(m);
    out.size(uint64_t{1} << 60);
  }
  Decoder in(m);
  EXPECT_THROW(in.get<std::vector<double>>(), WireError);
}

TEST(Codec, a_type_without_a_codec_is_known_at_compile_time) {
  struct Unknown {};
  static_assert(!Wire<Unknown>);
  static_assert(!Wire<int*>);
  static_assert(!Wire<std::vector<Unknown>>);
  static_assert(!Wire<std::string_view>);
  static_assert(Wire<app::Outer> && Wire<std::vector<app::Outer>> && Wire<Tensor>);
  EXPECT_TRUE(Wire<std::vector<Tensor>>);
}

}  // namespace
