// The .npy format, versions 1.0 to 3.0: the magic prefix, the header (a Python dictionary literal), and the
// data. A small parser reads the few kinds of literals that a header may contain. Column-major data is
// transposed, big-endian data is refused, and narrow integers are widened (file_ints.h).
#include <weft/tensor/io/inner/npy_format.h>

#include <cstring>
#include <limits>

#include <weft/tensor/io/inner/file_io.h>

namespace weft::detail {
namespace {

struct Row {
  DType dtype;
  const char* code;
};
constexpr Row kCodes[] = {{kFloat32, "<f4"}, {kFloat64, "<f8"}, {kFloat16, "<f2"}, {kInt64, "<i8"},
                          {kInt32, "<i4"},   {kUInt8, "|u1"},   {kBool, "|b1"},    {kBFloat16, "|V2"}};

struct NarrowRow {
  FileInt stored;
  const char* code;
};
constexpr NarrowRow kNarrowCodes[] = {
    {FileInt::kInt8, "|i1"}, {FileInt::kInt16, "<i2"}, {FileInt::kUInt16, "<u2"}, {FileInt::kUInt32, "<u4"}};

/// The few Python literals that a header holds: a dictionary of strings, booleans and tuples of integers.
class Literal {
 public:
  explicit Literal(std::string_view text) : text_(text) {}
  [[noreturn]] void fail(const char* expected) const {
    throw IoError(str("bad .npy header at byte ", static_cast<int64_t>(at_), ": expected ", expected));
  }
  bool accept(char c) {
    skip();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c, const char* what) {
    if (!accept(c)) fail(what);
  }
  std::string string() {
    skip();
    const char quote = at_ < text_.size() ? text_[at_] : '\0';
    if (quote != '\'' && quote != '"') fail("a string");
    const size_t end = text_.find(quote, ++at_);
    if (end == std::string_view::npos) fail("the end of a string");
    std::string out(text_.substr(at_, end - at_));
    at_ = end + 1;
    return out;
  }
  bool boolean() {
    skip();
    for (const std::string_view word : {"True", "False"})
      if (text_.substr(at_, word.size()) == word) {
        at_ += word.size();
        return word == "True";
      }
    fail("True or False");
  }
  int64_t integer() {
    skip();
    const size_t begin = at_;
    int64_t value = 0;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9')
      if (__builtin_mul_overflow(value, int64_t{10}, &value) ||
          __builtin_add_overflow(value, text_[at_++] - '0', &value))
        fail("a smaller number");
    if (at_ == begin) fail("a size");
    return value;
  }
  bool peek_string() {
    skip();
    return at_ < text_.size() && (text_[at_] == '\'' || text_[at_] == '"');
  }
  bool done() {
    skip();
    return at_ == text_.size();
  }

 private:
  void skip() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t')) ++at_;
  }
  std::string_view text_;
  size_t at_ = 0;
};

void read_code(const std::string& code, NpyHeader& out) {
  const auto is = [&](const char* known) {
    return code == known || (code.size() == 3 && code[0] == '=' && code.substr(1) == known + 1);
  };
  for (const Row& row : kCodes)
    if (is(row.code)) {
      out.dtype = row.dtype;
      return;
    }
  for (const NarrowRow& row : kNarrowCodes)
    if (is(row.code)) {
      out.stored = row.stored;
      out.dtype = widened(row.stored);
      return;
    }
  if (code.find('O') != std::string::npos)
    throw IoError(str("dtype '", code, "' holds Python objects, which are never read"));
  throw IoError(str("dtype '", code, "' is not supported"));
}

}  // namespace

std::string write_npy_header(DType dtype, const Shape& sizes) {
  std::string shape = "(";
  for (int d = 0; d < sizes.size(); ++d)
    shape += str(sizes[d], sizes.size() == 1 ? "," : d + 1 < sizes.size() ? ", " : "");
  const char* code = "";
  for (const Row& row : kCodes)
    if (row.dtype == dtype) code = row.code;
  std::string text = str("{'descr': '", code, "', 'fortran_order': False, 'shape': ", shape, "), }");
  text.append((64 - (10 + text.size() + 1) % 64) % 64, ' ');
  text += '\n';
  std::string out("\x93NUMPY\x01\x00", 8);
  out += static_cast<char>(text.size() & 0xFF);
  out += static_cast<char>(text.size() >> 8);
  return out + text;
}

void read_npy_prefix(const unsigned char* first, size_t available, uint64_t& prefix, uint64_t& length) {
  if (available == 0) throw IoError("the file is empty");
  const size_t magic = available < 6 ? available : 6;
  if (std::memcmp(first, "\x93NUMPY", magic) != 0)
    throw IoError("this is no .npy file: it does not begin with \\x93NUMPY");
  if (available < 10) throw IoError(str("cut off: ", available, " bytes hold no .npy header"));
  const int major = first[6];
  if (major < 1 || major > 3)
    throw IoError(str("unknown .npy version ", major, ".", static_cast<int>(first[7])));
  prefix = major == 1 ? 10 : 12;
  if (available < prefix) throw IoError("the .npy header is cut off");
  length = first[8] | static_cast<uint64_t>(first[9]) << 8;
  if (major > 1) length |= static_cast<uint64_t>(first[10]) << 16 | static_cast<uint64_t>(first[11]) << 24;
  if (length > 1'000'000) throw IoError(str("the .npy header claims ", length, " bytes"));
}

NpyHeader read_npy_dictionary(std::string_view text) {
  NpyHeader out;
  bool descr = false, order = false, shape = false;
  Literal in(text);
  in.expect('{', "'{'");
  while (!in.accept('}')) {
    const std::string key = in.string();
    in.expect(':', "':'");
    if (key == "descr" && !descr) {
      if (!in.peek_string()) throw IoError("structured dtypes are not supported");
      read_code(in.string(), out);
      descr = true;
    } else if (key == "fortran_order" && !order) {
      out.fortran_order = in.boolean();
      order = true;
    } else if (key == "shape" && !shape) {
      in.expect('(', "a tuple");
      while (!in.accept(')')) {
        if (out.sizes.size() == kMaxDims)
          throw IoError(str("more than ", kMaxDims, " dims are not supported"));
        out.sizes.push_back(in.integer());
        if (!in.accept(',')) {
          in.expect(')', "')'");
          break;
        }
      }
      shape = true;
    } else {
      throw IoError(str("the .npy header has the unknown or repeated key '", key, "'"));
    }
    if (!in.accept(',')) {
      in.expect('}', "'}'");
      break;
    }
  }
  if (!in.done()) in.fail("the end");
  if (!descr || !order || !shape)
    throw IoError(str("the .npy header lacks ", !descr ? "descr" : !order ? "fortran_order" : "shape"));
  return out;
}

uint64_t npy_data_bytes(const NpyHeader& header) {
  int64_t bytes = header.stored == FileInt::kNone ? size_of(header.dtype) : width_of(header.stored);
  for (const int64_t n : header.sizes)
    if (n == 0) return 0;
  for (const int64_t n : header.sizes)
    if (__builtin_mul_overflow(bytes, n, &bytes)) throw IoError(str("shape ", header.sizes, " is too large"));
  return static_cast<uint64_t>(bytes);
}

Tensor npy_from_fortran(const Tensor& reversed, const Shape& sizes) {
  Shape strides = sizes;
  int64_t step = 1;
  for (int d = 0; d < sizes.size(); ++d) {
    strides[d] = step;
    step *= sizes[d];
  }
  return host_copy(alias(reversed, sizes, strides, 0));
}

void npy_normalise_bools(const Tensor& x) {
  if (x.dtype() != kBool) return;
  auto* bytes = static_cast<uint8_t*>(x.address());
  for (int64_t i = 0; i < x.numel(); ++i) bytes[i] = bytes[i] != 0;
}

}  // namespace weft::detail
