// safetensors, .npy and .npz: round trips, golden bytes and files that must be refused.
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include <gtest/gtest.h>

#include <weft/tensor/factories.h>
#include <weft/tensor/io/npy.h>
#include <weft/tensor/io/write_file.h>

#include "support/errors.h"

namespace weft {
namespace {

using test::error_of;
using test::has;

namespace fs = std::filesystem;

class Files : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = fs::temp_directory_path() / ("weft_files_" + std::to_string(getpid()) + "_" +
                                        testing::UnitTest::GetInstance()->current_test_info()->name());
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
  /// The message with which `load` refuses `bytes`; it names the file.
  template <class Load> std::string refusal(const Load& load, const std::string& bytes) const {
    write(bytes);
    const std::string text = error_of<IoError>([&] { load(path()); });
    EXPECT_TRUE(has(text, path()));
    return text;
  }
  static NamedTensors load_all(const std::string& p) { return load_npz(p); }
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
    in.emplace_back(std::string("a \"quoted\"\n") + to_string(t),
                    tensor({{0, 1, 1}, {1, 0, 1}}, {.dtype = t}));
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
  save_safetensors(path(), {{"b", ones({1})},
                            {"a", ones({1})},
                            {"z", ones({1}, {.dtype = kFloat64})},
                            {"c", ones({1}, {.dtype = kBool})}});
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
  const auto why = [&](const std::string& bytes) { return refusal(load_safetensors, bytes); };
  const auto one = [](const char* dtype, const char* shape, const char* offsets) {
    return std::string(R"({"a":{"dtype":")") + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" +
           offsets + "}}";
  };
  EXPECT_NO_THROW(load_safetensors(write(safetensors(one("F32", "[4]", "[0,16]"), data))));
  EXPECT_NO_THROW(load_safetensors(write(safetensors(one("F32", "[4]", "[0,16]") + "   ", data))));
  EXPECT_TRUE(has(why("short"), "too few"));
  EXPECT_TRUE(has(why(safetensors(one("F32", "[4]", "[0,16]"), data).substr(0, 30)), "the header claims"));
  EXPECT_TRUE(has(why(std::string("\xff\xff\xff\xff\xff\xff\xff\x7f{}", 10)), "at most"));
  EXPECT_TRUE(has(why(safetensors(" {}", "")), "begin with '{'"));
  EXPECT_TRUE(has(why(safetensors("{\"a\":", data)), "bad JSON"));
  EXPECT_TRUE(has(why(safetensors("{} x", "")), "bad JSON"));
  EXPECT_TRUE(has(why(safetensors(one("F32", "[4]", "[0,16]"), data + "tail")), "the file has 20"));
  EXPECT_TRUE(has(why(safetensors(one("F32", "[4]", "[0,16]"), data.substr(4))), "the file has 12"));
  EXPECT_TRUE(has(why(safetensors(one("F32", "[3]", "[0,16]"), data)), "takes 12 bytes"));
  EXPECT_TRUE(has(why(safetensors(one("F32", "[3]", "[4,16]"), data)), "hole"));
  EXPECT_TRUE(has(why(safetensors(one("F32", "[4]", "[16,0]"), data)), "offsets"));
  EXPECT_TRUE(has(why(safetensors(one("F32", "[4294967296,4294967296,4294967296]", "[0,16]"), data)),
                  "whole number of bytes"));
  EXPECT_TRUE(has(why(safetensors(one("F32", "[-4]", "[0,16]"), data)), "unsigned integer"));
  EXPECT_TRUE(has(why(safetensors(one("F32", "[4.0]", "[0,16]"), data)), "fraction"));
  EXPECT_TRUE(has(why(safetensors(one("F33", "[4]", "[0,16]"), data)), "unknown dtype F33"));
  EXPECT_TRUE(has(why(safetensors(one("U64", "[2]", "[0,16]"), data)), "U64"));
  EXPECT_TRUE(has(why(safetensors(R"({"a":{"dtype":"F32","shape":[4]}})", data)), "lacks data_offsets"));
  const std::string part = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  EXPECT_TRUE(has(why(safetensors("{" + part + "," + part + "}", data)), "appears twice"));
  EXPECT_TRUE(
      has(why(safetensors("{" + part + R"(,"b":{"dtype":"F32","shape":[3],"data_offsets":[4,16]}})", data)),
          "overlapping"));
  EXPECT_TRUE(has(why(safetensors(R"({"__metadata__":{"k":1}})", "")), "bad JSON"));
}

TEST_F(Safetensors, narrow_integers_are_read_into_wider_ones) {
  const std::string data("\xFF\x01\xFE\xFF\xFF\xFF\xFF\xFF\xFE\xFF\xFF\xFF", 12);
  const SafetensorsFile file =
      load_safetensors(write(safetensors(R"({"i8":{"dtype":"I8","shape":[2],"data_offsets":[0,2]},)"
                                         R"("i16":{"dtype":"I16","shape":[2],"data_offsets":[2,6]},)"
                                         R"("u16":{"dtype":"U16","shape":[1],"data_offsets":[6,8]},)"
                                         R"("u32":{"dtype":"U32","shape":[1],"data_offsets":[8,12]}})",
                                         data)));
  EXPECT_EQ(file.find("i8").to_vector<int64_t>(), (std::vector<int64_t>{-1, 1}));
  EXPECT_EQ(file.find("i16").to_vector<int64_t>(), (std::vector<int64_t>{-2, -1}));
  EXPECT_EQ(file.find("u16").to_vector<int64_t>(), std::vector<int64_t>{65535});
  EXPECT_EQ(file.find("u32").to_vector<int64_t>(), std::vector<int64_t>{4294967294});
  EXPECT_EQ(file.find("u16").dtype(), kInt32);
  EXPECT_EQ(file.find("u32").dtype(), kInt64);
}

TEST_F(Safetensors, missing_and_unwritable_paths_are_io_errors) {
  EXPECT_THROW(load_safetensors(path("absent")), IoError);
  for (const std::string& text :
       {error_of<IoError>([] { save_npy("", ones({2})); }), error_of<IoError>([] {
          save_npz("", {{"a", ones({2})}});
        }),
        error_of<IoError>([] {
          save_safetensors("", {{"a", ones({2})}});
        }),
        error_of<IoError>([] { write_file("", "x"); }), error_of<IoError>([] { write_output("", "x"); }),
        error_of<IoError>([] { load_npy(""); }), error_of<IoError>([] { load_npz(""); }),
        error_of<IoError>([] { load_safetensors(""); })})
    EXPECT_TRUE(has(text, "the path is empty"));
  EXPECT_THROW(load_safetensors(dir_.string()), IoError);
  EXPECT_THROW(save_safetensors(path("absent/x"), {{"a", ones({2})}}), IoError);
}

TEST_F(Npy, golden_zeros_are_152_bytes) {
  save_npy(path(), zeros({2, 3}));
  const std::string bytes = read(path());
  EXPECT_EQ(bytes.size(), 152u);
  EXPECT_EQ(bytes.substr(0, 10), std::string("\x93NUMPY\x01\x00\x76\x00", 10));
  EXPECT_TRUE(bytes.substr(10).starts_with("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }"))
      << bytes;
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
  const Tensor x =
      load_npy(write(npy("{'shape': (2, 3), 'fortran_order': True, \"descr\": '<f4'}", data, 2)));
  EXPECT_EQ(x.sizes(), Shape({2, 3}));
  EXPECT_TRUE(x.is_contiguous());
  EXPECT_EQ(x.to_vector<int>(), (std::vector<int>{1, 2, 3, 4, 5, 6}));
}

TEST_F(Npy, narrow_integers_are_read_into_wider_ones) {
  const std::string data("\x80\xFF\x01\x00\xFF\xFF\x7F\x80", 8);
  const auto values = [&](const std::string& code, const std::string& shape, const char* order = "False") {
    return load_npy(write(
        npy("{'descr': '" + code + "', 'fortran_order': " + order + ", 'shape': " + shape + ", }", data)));
  };
  using Values = std::vector<int64_t>;
  EXPECT_EQ(values("|i1", "(8,)").to_vector<int64_t>(), (Values{-128, -1, 1, 0, -1, -1, 127, -128}));
  EXPECT_EQ(values("<i2", "(4,)").to_vector<int64_t>(), (Values{-128, 1, -1, -32641}));
  EXPECT_EQ(values("=u2", "(2, 2)").to_vector<int64_t>(), (Values{65408, 1, 65535, 32895}));
  EXPECT_EQ(values("<u2", "(2, 2)", "True").to_vector<int64_t>(), (Values{65408, 65535, 1, 32895}));
  EXPECT_EQ(values("<u4", "(2,)").to_vector<int64_t>(), (Values{130944, 2155872255}));
  EXPECT_EQ(values("|i1", "(2, 2, 2)").dtype(), kInt32);
  EXPECT_EQ(values("<u4", "(2,)").dtype(), kInt64);
  EXPECT_TRUE(has(refusal(load_npy, npy("{'descr': '<u8', 'fortran_order': False, 'shape': (1,), }", data)),
                  "'<u8'"));
}

TEST_F(Npy, an_empty_a_short_and_a_foreign_file_are_told_apart) {
  EXPECT_TRUE(has(refusal(load_npy, ""), "the file is empty"));
  EXPECT_TRUE(has(refusal(load_npy, "\x93NUM"), "cut off: 4 bytes"));
  EXPECT_TRUE(has(refusal(load_npy, "PK"), "does not begin with"));
}

TEST_F(Npy, bad_files_are_refused_by_what_is_wrong) {
  const auto why = [&](const std::string& bytes) { return refusal(load_npy, bytes); };
  EXPECT_TRUE(has(why("nothing of the kind"), "no .npy file"));
  EXPECT_TRUE(has(why(npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", "12345678")),
                  "Python objects"));
  EXPECT_TRUE(has(why(npy("{'descr': '>f4', 'fortran_order': False, 'shape': (1,), }", "1234")), "'>f4'"));
  EXPECT_TRUE(has(why(npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }", "1234")),
                  "structured"));
  EXPECT_TRUE(
      has(why(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", "1234")), "takes 8 bytes"));
  EXPECT_TRUE(has(why(npy("{'descr': '<f4', 'fortran_order': False, }", "1234")), "lacks shape"));
  EXPECT_TRUE(has(why(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), } x", "1234")),
                  "bad .npy header"));
  EXPECT_TRUE(
      has(why(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }", "1234", 9)), "version 9"));
  EXPECT_TRUE(has(why(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }", "1234").substr(0, 40)),
                  "claims"));
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

TEST_F(Npz, named_members_are_loaded_alone) {
  save_npz(path(), {{"a", arange(3)}, {"b", arange(5)}, {"c", arange(7)}});
  std::string bytes = read(path());
  bytes.replace(bytes.find("<i8"), 3, "<c8");  // the first member is of a type that is not read
  write(bytes);
  EXPECT_TRUE(
      has(error_of<IoError>([&] { load_npz(path()); }), "member a.npy: dtype '<c8' is not supported"));
  const NamedTensors out = load_npz(path(), {"c", "b"});
  ASSERT_EQ(out.size(), 2u);
  EXPECT_EQ(out[0].first, "c");
  EXPECT_EQ(out[1].second.numel(), 5);
  EXPECT_TRUE(has(error_of<IoError>([&] { load_npz(path(), {"d"}); }), path() + ": there is no member 'd'"));
}

TEST_F(Npz, an_empty_a_short_and_a_foreign_file_are_told_apart) {
  save_npz(path(), {{"a", arange(11)}});
  const std::string good = read(path());
  EXPECT_TRUE(has(refusal(load_all, ""), "the file is empty"));
  EXPECT_TRUE(
      has(refusal(load_all, good.substr(0, good.size() / 2)), "cut off: the zip directory is missing"));
  EXPECT_TRUE(has(refusal(load_all, "no zip"), "does not begin as a zip archive"));
  save_npz(path(), {});
  EXPECT_TRUE(load_npz(path()).empty());
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
  bad[good.find("PK\x01\x02") + 10] = 12;
  EXPECT_TRUE(has(refusal(load_all, bad), "member a.npy is compressed by method 12"));
}

/// A file of one stored member with that member as a deflate stream: one block of plain bytes, `more` after
/// the member's own.
std::string deflated(std::string zip, const std::string& more = "") {
  const auto number = [&](size_t at) { return (zip[at] & 0xFF) | (zip[at + 1] & 0xFF) << 8; };
  const auto set = [&](size_t at, size_t v) {
    zip[at] = static_cast<char>(v), zip[at + 1] = static_cast<char>(v >> 8);
  };
  const size_t central = zip.find("PK\x01\x02"), end = zip.find("PK\x05\x06"),
               size = static_cast<size_t>(number(central + 24)), begin = central - size;
  const size_t block = size + more.size();
  set(central + 10, 8), set(central + 20, block + 5), set(end + 16, central + more.size() + 5);
  std::string head(5, '\1');
  for (size_t i = 0; i < 2; ++i)
    head[1 + i] = static_cast<char>(block >> 8 * i), head[3 + i] = static_cast<char>(~block >> 8 * i);
  return zip.substr(0, begin) + head + zip.substr(begin, size) + more + zip.substr(central);
}

class DeflatedNpz : public Files {
 protected:
  void SetUp() override {
    Files::SetUp();
    save_npz(path(), {{"a", arange(11)}});
    good_ = deflated(read(path()));
    central_ = good_.find("PK\x01\x02");
    try {
      load_npz(write(good_));
    } catch (const IoError& e) {
      if (std::string(e.what()).find("without zlib") != std::string::npos) GTEST_SKIP() << e.what();
      throw;
    }
  }
  std::string with(size_t at, std::string bytes) const {
    return std::string(good_).replace(at, bytes.size(), bytes);
  }
  std::string good_;
  size_t central_ = 0;
};

TEST_F(DeflatedNpz, a_file_that_numpy_compressed_reads) {
  const NamedTensors out = load_npz(WEFT_TEST_DATA_DIR "/numpy_deflate.npz");
  std::map<std::string, Tensor> x(out.begin(), out.end());
  ASSERT_EQ(x.size(), 7u);
  EXPECT_EQ(x["quarters"].sizes(), Shape({10, 100}));
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(x["quarters"].data<float>()[i], 0.25f * static_cast<float>(i));
  EXPECT_EQ(x["columns"].sizes(), Shape({3, 4}));
  EXPECT_TRUE(x["columns"].is_contiguous());
  for (int i = 0; i < 12; ++i)
    EXPECT_EQ(x["columns"].data<float>()[i], 0.25f * static_cast<float>(i / 4 * 100 + i % 4));
  EXPECT_EQ(x["squares"].dtype(), kInt64);
  for (int i = 0; i < 77; ++i) EXPECT_EQ(x["squares"].data<int64_t>()[i], i * i);
  EXPECT_EQ(x["odd"].to_vector<int>(), (std::vector<int>{0, 1, 0, 1, 0, 1, 0, 1, 0}));
  EXPECT_EQ(x["scalar"].sizes(), Shape({}));
  EXPECT_EQ(x["scalar"].to_vector<double>(), std::vector<double>{-1.5});
  EXPECT_EQ(x["empty"].sizes(), Shape({0, 3}));
  EXPECT_EQ(x["zeros"].to_vector<int>(), std::vector<int>(100000));
}

TEST_F(DeflatedNpz, damage_and_false_sizes_are_refused_by_what_is_wrong) {
  EXPECT_EQ(load_npz(write(good_)).at(0).second.to_vector<int>(), arange(11).to_vector<int>());
  EXPECT_TRUE(has(refusal(load_all, with(central_ - 3, "x")), "checksum"));
  EXPECT_TRUE(has(refusal(load_all, with(30 + 5, "\7")), "damaged"));
  const std::string far("\0\0\0\x7f", 4);
  EXPECT_TRUE(
      has(refusal(load_all, with(central_ + 24, far)), "claims to unpack from 221 to 2130706432 bytes"));
  EXPECT_TRUE(has(refusal(load_all, with(central_ + 24, "\xD0")), "does not fit"));
  EXPECT_TRUE(has(refusal(load_all, with(central_ + 20, "\xD0")), "too early"));
  EXPECT_TRUE(has(refusal(load_all, with(central_ + 20, far)), "past the end"));
  save_npz(path(), {{"a", arange(11)}});
  EXPECT_TRUE(has(refusal(load_all, deflated(read(path()), "more")), "more compressed data"));
}

}  // namespace
}  // namespace weft
