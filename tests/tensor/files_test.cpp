// safetensors, .npy and .npz: round trips, golden bytes and files that must be refused.
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include <weft/tensor/factories.h>
#include <weft/tensor/npy.h>

namespace weft {
namespace {

namespace fs = std::filesystem;

class Files : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = fs::temp_directory_path() / ("weft_files_" + std::to_string(getpid()) + "_" + testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(dir_);
  }
  void TearDown() override { fs::remove_all(dir_); }
  std::string path(const std::string& name = "x") const { return (dir_ / name).string(); }
  std::string write(const std::string& bytes) const {
    std::ofstream(path(), std::ios::binary) << bytes;
    return path();
  }
  static std::string read(const std::string& p) {
    std::ifstream in(p, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static std::string safetensors(const std::string& header, const std::string& data) {
    std::string out(8, '\0');
    const uint64_t n = header.size();
    std::memcpy(out.data(), &n, 8);
    return out + header + data;
  }
  /// The message with which loading `bytes` is refused; "" when it is not.
  std::string refusal(const std::string& bytes) const {
    try {
      load_safetensors(write(bytes));
    } catch (const IoError& e) {
      EXPECT_NE(std::string(e.what()).find(path()), std::string::npos) << e.what();
      return e.what();
    }
    return "";
  }
  static std::string npy(std::string text, const std::string& data, int major = 1) {
    text.append((64 - (10 + text.size() + 1) % 64) % 64, ' ');
    text += '\n';
    std::string out("\x93NUMPY", 6);
    out += static_cast<char>(major);
    out += '\0';
    out += static_cast<char>(text.size() & 0xFF);
    out += static_cast<char>(text.size() >> 8);
    if (major > 1) out += std::string(2, '\0');
    return out + text + data;
  }
  fs::path dir_;
};

using Safetensors = Files;
using Npy = Files;
using Npz = Files;

#define EXPECT_SAYS(text, part) EXPECT_NE(std::string(text).find(part), std::string::npos) << text

TEST_F(Safetensors, golden_file_reads) {
  const std::string header = R"({"test":{"dtype":"I32","shape":[2,2],"data_offsets":[0,16]}})";
  ASSERT_EQ(header.size(), 60u);
  const int32_t values[4] = {1, -2, 3, 4};
  const std::string bytes = safetensors(header, std::string(reinterpret_cast<const char*>(values), 16));
  ASSERT_EQ(bytes.size(), 84u);
  EXPECT_EQ(bytes[0], 0x3C);
  const SafetensorsFile file = load_safetensors(write(bytes));
  ASSERT_EQ(file.tensors.size(), 1u);
  EXPECT_EQ(file.tensors[0].first, "test");
  EXPECT_EQ(file.find("test").sizes(), Shape({2, 2}));
  EXPECT_EQ(file.find("test").dtype(), kInt32);
  EXPECT_EQ(file.find("test").to_vector<int>(), (std::vector<int>{1, -2, 3, 4}));
  EXPECT_FALSE(file.find("other").defined());
}

TEST_F(Safetensors, writer_writes_the_golden_header_padded_to_eight) {
  save_safetensors(path(), {{"test", tensor({{1, -2}, {3, 4}}, {.dtype = kInt32})}});
  const std::string bytes = read(path());
  EXPECT_EQ(bytes.size(), 88u);
  EXPECT_EQ(bytes[0], 0x40);
  EXPECT_EQ(bytes.substr(8, 64), R"({"test":{"dtype":"I32","shape":[2,2],"data_offsets":[0,16]}}    )");
  EXPECT_EQ(std::distance(fs::directory_iterator(dir_), fs::directory_iterator{}), 1);
}

TEST_F(Safetensors, every_dtype_and_shape_round_trips) {
  NamedTensors in;
  for (const DType t : {kBool, kUInt8, kInt32, kInt64, kFloat16, kBFloat16, kFloat32, kFloat64})
    in.emplace_back(std::string("a \"quoted\"\n") + to_string(t), tensor({{0, 1, 1}, {1, 0, 1}}, {.dtype = t}));
  in.emplace_back("scalar", scalar_tensor(2.5));
  in.emplace_back("none", zeros({0, 5}));
  save_safetensors(path(), in, {{"format", "pt"}, {"é", "ü\t"}});
  const SafetensorsFile out = load_safetensors(path());
  ASSERT_EQ(out.tensors.size(), in.size());
  for (const auto& [name, x] : in) {
    const Tensor y = out.find(name);
    ASSERT_TRUE(y.defined()) << name;
    EXPECT_EQ(y.dtype(), x.dtype());
    EXPECT_EQ(y.sizes(), x.sizes());
    EXPECT_EQ(y.to_vector<double>(), x.to_vector<double>());
  }
  EXPECT_EQ(out.metadata, (Metadata{{"format", "pt"}, {"é", "ü\t"}}));
}

TEST_F(Safetensors, order_is_by_type_then_name) {
  save_safetensors(path(), {{"b", ones({1})}, {"a", ones({1})}, {"z", ones({1}, {.dtype = kFloat64})}, {"c", ones({1}, {.dtype = kBool})}});
  std::string order;
  for (const auto& [name, x] : load_safetensors(path()).tensors) order += name;
  EXPECT_EQ(order, "zabc");
}

TEST_F(Safetensors, strided_views_are_written_row_major) {
  const Tensor x = tensor({{1, 2, 3}, {4, 5, 6}});
  save_safetensors(path(), {{"t", alias(x, {3, 2}, {1, 3}, 0)}});
  EXPECT_EQ(load_safetensors(path()).find("t").to_vector<int>(), (std::vector<int>{1, 4, 2, 5, 3, 6}));
}

TEST_F(Safetensors, tied_weights_are_stored_once_and_come_back_tied) {
  const Tensor w = ones({101, 7});
  save_safetensors(path(), {{"encoder", w}, {"decoder", w}});
  EXPECT_LT(fs::file_size(path()), 101 * 7 * 4 + 300u);
  const SafetensorsFile file = load_safetensors(path());
  EXPECT_TRUE(file.find("encoder").shares_storage(file.find("decoder")));
  EXPECT_TRUE(file.metadata.empty());
}

TEST_F(Safetensors, overlapping_views_and_repeated_names_are_refused_before_writing) {
  const Tensor x = ones({5});
  EXPECT_THROW(save_safetensors(path(), {{"a", x}, {"b", alias(x, {3}, {1}, 1)}}), ValueError);
  EXPECT_THROW(save_safetensors(path(), {{"a", x}, {"a", ones({2})}}), ValueError);
  EXPECT_THROW(save_safetensors(path(), {{"a", Tensor()}}), ValueError);
  EXPECT_THROW(save_safetensors(path(), {{"a", x}}, {{"k", "1"}, {"k", "2"}}), ValueError);
  EXPECT_FALSE(fs::exists(path()));
  save_safetensors(path(), {{"a", alias(x, {2}, {1}, 0)}, {"b", alias(x, {3}, {1}, 2)}});
  EXPECT_EQ(load_safetensors(path()).tensors.size(), 2u);
}

TEST_F(Safetensors, malformed_files_are_refused_by_what_is_wrong) {
  const std::string data(16, '\0');
  const auto one = [](const char* dtype, const char* shape, const char* offsets) {
    return std::string(R"({"a":{"dtype":")") + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
  };
  EXPECT_EQ(refusal(safetensors(one("F32", "[4]", "[0,16]"), data)), "");
  EXPECT_EQ(refusal(safetensors(one("F32", "[4]", "[0,16]") + "   ", data)), "");
  EXPECT_SAYS(refusal("short"), "too few");
  EXPECT_SAYS(refusal(safetensors(one("F32", "[4]", "[0,16]"), data).substr(0, 30)), "the header claims");
  EXPECT_SAYS(refusal(std::string("\xff\xff\xff\xff\xff\xff\xff\x7f{}", 10)), "at most");
  EXPECT_SAYS(refusal(safetensors(" {}", "")), "begin with '{'");
  EXPECT_SAYS(refusal(safetensors("{\"a\":", data)), "bad JSON");
  EXPECT_SAYS(refusal(safetensors("{} x", "")), "bad JSON");
  EXPECT_SAYS(refusal(safetensors(one("F32", "[4]", "[0,16]"), data + "tail")), "the file has 20");
  EXPECT_SAYS(refusal(safetensors(one("F32", "[4]", "[0,16]"), data.substr(4))), "the file has 12");
  EXPECT_SAYS(refusal(safetensors(one("F32", "[3]", "[0,16]"), data)), "takes 12 bytes");
  EXPECT_SAYS(refusal(safetensors(one("F32", "[3]", "[4,16]"), data)), "hole");
  EXPECT_SAYS(refusal(safetensors(one("F32", "[4]", "[16,0]"), data)), "offsets");
  EXPECT_SAYS(refusal(safetensors(one("F32", "[4294967296,4294967296,4294967296]", "[0,16]"), data)), "whole number of bytes");
  EXPECT_SAYS(refusal(safetensors(one("F32", "[-4]", "[0,16]"), data)), "unsigned integer");
  EXPECT_SAYS(refusal(safetensors(one("F32", "[4.0]", "[0,16]"), data)), "fraction");
  EXPECT_SAYS(refusal(safetensors(one("F33", "[4]", "[0,16]"), data)), "unknown dtype F33");
  EXPECT_SAYS(refusal(safetensors(one("U16", "[8]", "[0,16]"), data)), "U16");
  EXPECT_SAYS(refusal(safetensors(R"({"a":{"dtype":"F32","shape":[4]}})", data)), "lacks data_offsets");
  const std::string part = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  EXPECT_SAYS(refusal(safetensors("{" + part + "," + part + "}", data)), "appears twice");
  EXPECT_SAYS(refusal(safetensors("{" + part + R"(,"b":{"dtype":"F32","shape":[3],"data_offsets":[4,16]}})", data)), "overlapping");
  EXPECT_SAYS(refusal(safetensors(R"({"__metadata__":{"k":1}})", "")), "bad JSON");
}

TEST_F(Safetensors, missing_and_unwritable_paths_are_io_errors) {
  EXPECT_THROW(load_safetensors(path("absent")), IoError);
  EXPECT_THROW(load_safetensors(dir_.string()), IoError);
  EXPECT_THROW(save_safetensors(path("absent/x"), {{"a", ones({2})}}), IoError);
}

TEST_F(Npy, golden_zeros_are_152_bytes) {
  save_npy(path(), zeros({2, 3}));
  const std::string bytes = read(path());
  EXPECT_EQ(bytes.size(), 152u);
  EXPECT_EQ(bytes.substr(0, 10), std::string("\x93NUMPY\x01\x00\x76\x00", 10));
  EXPECT_TRUE(bytes.substr(10).starts_with("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }")) << bytes;
  EXPECT_EQ(bytes[127], '\n');
}

TEST_F(Npy, every_dtype_and_shape_round_trips) {
  for (const DType t : {kBool, kUInt8, kInt32, kInt64, kFloat16, kBFloat16, kFloat32, kFloat64})
    for (const Shape& sizes : {Shape({}), Shape({1}), Shape({7}), Shape({0, 3}), Shape({2, 3, 5})}) {
      const Tensor x = full(sizes, 1, {.dtype = t});
      save_npy(path(), x);
      EXPECT_EQ(fs::file_size(path()) % 64, static_cast<uint64_t>(x.numel() * size_of(t)) % 64);
      const Tensor y = load_npy(path());
      EXPECT_EQ(y.dtype(), t);
      EXPECT_EQ(y.sizes(), sizes);
      EXPECT_EQ(y.to_vector<double>(), x.to_vector<double>());
    }
}

TEST_F(Npy, column_major_and_any_key_order_read) {
  const float values[6] = {1, 4, 2, 5, 3, 6};
  const std::string data(reinterpret_cast<const char*>(values), 24);
  const Tensor x = load_npy(write(npy("{'shape': (2, 3), 'fortran_order': True, \"descr\": '<f4'}", data, 2)));
  EXPECT_EQ(x.sizes(), Shape({2, 3}));
  EXPECT_TRUE(x.is_contiguous());
  EXPECT_EQ(x.to_vector<int>(), (std::vector<int>{1, 2, 3, 4, 5, 6}));
}

TEST_F(Npy, bad_files_are_refused_by_what_is_wrong) {
  const auto why = [&](const std::string& bytes) -> std::string {
    try {
      load_npy(write(bytes));
    } catch (const IoError& e) {
      EXPECT_SAYS(e.what(), path());
      return e.what();
    }
    return "";
  };
  EXPECT_SAYS(why("nothing of the kind"), "no .npy file");
  EXPECT_SAYS(why(npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", "12345678")), "Python objects");
  EXPECT_SAYS(why(npy("{'descr': '>f4', 'fortran_order': False, 'shape': (1,), }", "1234")), "'>f4'");
  EXPECT_SAYS(why(npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }", "1234")), "structured");
  EXPECT_SAYS(why(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", "1234")), "takes 8 bytes");
  EXPECT_SAYS(why(npy("{'descr': '<f4', 'fortran_order': False, }", "1234")), "lacks shape");
  EXPECT_SAYS(why(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), } x", "1234")), "bad .npy header");
  EXPECT_SAYS(why(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }", "1234", 9)), "version 9");
  EXPECT_SAYS(why(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }", "1234").substr(0, 40)), "claims");
}

TEST_F(Npz, several_tensors_round_trip) {
  const NamedTensors in{{"weight", tensor({{1, 2}, {3, 4}})}, {"deep/bias", tensor({5}, {.dtype = kInt64})}};
  save_npz(path(), in);
  const NamedTensors out = load_npz(path());
  ASSERT_EQ(out.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(out[i].first, in[i].first);
    EXPECT_EQ(out[i].second.dtype(), in[i].second.dtype());
    EXPECT_EQ(out[i].second.to_vector<double>(), in[i].second.to_vector<double>());
  }
  EXPECT_THROW(save_npz(path(), {{"a", ones({1})}, {"a", ones({1})}}), ValueError);
}

TEST_F(Npz, damage_is_found) {
  save_npz(path(), {{"a", arange(11)}});
  const std::string good = read(path());
  std::string bad = good;
  bad[30 + 5 + 128 + 3] ^= 1;
  EXPECT_THROW(load_npz(write(bad)), IoError);
  EXPECT_THROW(load_npz(write(good.substr(0, good.size() / 2))), IoError);
  EXPECT_THROW(load_npz(write("no zip")), IoError);
  bad = good;
  const size_t central = good.find("PK\x01\x02");
  bad[central + 10] = 8;
  try {
    load_npz(write(bad));
    ADD_FAILURE();
  } catch (const IoError& e) {
    EXPECT_SAYS(e.what(), "compressed");
  }
}

}  // namespace
}  // namespace weft
