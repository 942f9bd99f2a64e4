// A strict JSON reader for the headers of safetensors files: strings with escapes and surrogate pairs,
// unsigned integers, and the punctuation between them. Errors name the byte.
#include <weft/tensor/io/inner/json.h>

namespace weft::detail {

void JsonReader::fail(const std::string& problem) const {
  throw IoError(str("bad JSON at byte ", static_cast<int64_t>(at_), ": ", problem));
}

void JsonReader::skip_space() {
  while (at_ < text_.size() &&
         (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r'))
    ++at_;
}

bool JsonReader::accept(char c) {
  skip_space();
  if (at_ >= text_.size() || text_[at_] != c) return false;
  ++at_;
  return true;
}

void JsonReader::expect(char c) {
  if (!accept(c))
    fail(str("expected '", c, "'",
             at_ < text_.size() ? str(", found '", text_[at_], "'") : std::string(", found the end")));
}

void JsonReader::end() {
  skip_space();
  if (at_ != text_.size()) fail("something follows the last brace");
}

uint32_t JsonReader::hex4() {
  uint32_t value = 0;
  for (int i = 0; i < 4; ++i) {
    const char c = at_ < text_.size() ? text_[at_++] : ' ';
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) fail("bad \\u escape");
    value = value * 16 + static_cast<uint32_t>(digit);
  }
  return value;
}

namespace {

void append_utf8(std::string& out, uint32_t c) {
  const auto byte = [&](uint32_t b) { out += static_cast<char>(b); };
  if (c < 0x80) return byte(c);
  if (c < 0x800) {
    byte(0xC0 | c >> 6);
  } else if (c < 0x10000) {
    byte(0xE0 | c >> 12);
    byte(0x80 | (c >> 6 & 0x3F));
  } else {
    byte(0xF0 | c >> 18);
    byte(0x80 | (c >> 12 & 0x3F));
    byte(0x80 | (c >> 6 & 0x3F));
  }
  byte(0x80 | (c & 0x3F));
}

}  // namespace

std::string JsonReader::string() {
  expect('"');
  std::string out;
  while (true) {
    if (at_ >= text_.size()) fail("unterminated string");
    const char c = text_[at_++];
    if (c == '"') return out;
    if (static_cast<unsigned char>(c) < 0x20) fail("control character in a string");
    if (c != '\\') {
      out += c;
      continue;
    }
    const char e = at_ < text_.size() ? text_[at_++] : '\0';
    switch (e) {
      case '"':
      case '\\':
      case '/': out += e; break;
      case 'b': out += '\b'; break;
      case 'f': out += '\f'; break;
      case 'n': out += '\n'; break;
      case 'r': out += '\r'; break;
      case 't': out += '\t'; break;
      case 'u': {
        uint32_t code = hex4();
        if (code >= 0xDC00 && code < 0xE000) fail("lone surrogate");
        if (code >= 0xD800 && code < 0xDC00) {
          if (text_.substr(at_, 2) != "\\u") fail("lone surrogate");
          at_ += 2;
          const uint32_t low = hex4();
          if (low < 0xDC00 || low > 0xDFFF) fail("lone surrogate");
          code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        }
        append_utf8(out, code);
        break;
      }
      default: fail("unknown escape");
    }
  }
}

uint64_t JsonReader::unsigned_integer() {
  skip_space();
  const size_t begin = at_;
  uint64_t value = 0;
  while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') {
    const uint64_t digit = static_cast<uint64_t>(text_[at_++] - '0');
    if (__builtin_mul_overflow(value, uint64_t{10}, &value) || __builtin_add_overflow(value, digit, &value))
      fail("number too large");
  }
  if (at_ == begin) fail("expected an unsigned integer");
  if (text_[begin] == '0' && at_ - begin > 1) fail("number with a leading zero");
  if (at_ < text_.size() && (text_[at_] == '.' || text_[at_] == 'e' || text_[at_] == 'E'))
    fail("expected an integer, found a fraction");
  return value;
}

}  // namespace weft::detail
