// Reads the dates of an X.509 certificate: PEM is base64 around DER, and DER is nested values of tag, length
// and bytes. The way to the dates is short, and all other fields are skipped. Every length is checked first.
#include <weft/distributed/transport/inner/certificate_dates.h>

#include <ctime>

namespace weft::rpc::inner {
namespace {

constexpr std::string_view kBegin = "-----BEGIN CERTIFICATE-----", kEnd = "-----END CERTIFICATE-----";
constexpr uint8_t kSequence = 0x30, kInteger = 0x02, kVersion = 0xa0, kShortTime = 0x17, kLongTime = 0x18;

int value_of(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/// The bytes of base64; other characters are skipped.
std::string from_base64(std::string_view text) {
  std::string bytes;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const int value = value_of(c);
    if (value < 0) continue;
    bits = bits << 6 | static_cast<uint32_t>(value);
    if ((count += 6) < 8) continue;
    count -= 8;
    bytes += static_cast<char>(bits >> count & 0xff);
  }
  return bytes;
}

/// Values one behind the other.
class DerReader {
 public:
  explicit DerReader(std::string_view bytes) : left_(bytes) {}
  uint8_t tag() const { return left_.empty() ? 0 : static_cast<uint8_t>(left_[0]); }
  /// The bytes of the next value; none if it has another tag or is not whole.
  std::optional<std::string_view> take(uint8_t wanted) {
    if (left_.size() < 2 || tag() != wanted) return std::nullopt;
    size_t size = static_cast<uint8_t>(left_[1]), head = 2;
    if (size >= 0x80) {
      const size_t bytes = size & 0x7f;
      if (bytes > 4 || left_.size() < 2 + bytes) return std::nullopt;
      size = 0;
      for (; head < 2 + bytes; ++head) size = size << 8 | static_cast<uint8_t>(left_[head]);
    }
    if (left_.size() - head < size) return std::nullopt;
    const std::string_view value = left_.substr(head, size);
    left_.remove_prefix(head + size);
    return value;
  }

 private:
  std::string_view left_;
};

/// "YYMMDDHHMMSSZ" or, with the tag of the long form, "YYYYMMDDHHMMSSZ".
std::optional<int64_t> read_time(DerReader& in) {
  const size_t digits = in.tag() == kLongTime ? 14 : 12;
  const auto text = in.take(in.tag() == kLongTime ? kLongTime : kShortTime);
  if (!text || text->size() != digits + 1 || text->back() != 'Z') return std::nullopt;
  for (const char c : text->substr(0, digits))
    if (c < '0' || c > '9') return std::nullopt;
  size_t at = 0;
  const auto number = [&](size_t count) {
    int value = 0;
    for (size_t i = 0; i < count; ++i) value = value * 10 + ((*text)[at++] - '0');
    return value;
  };
  std::tm time{};
  const int year = number(digits == 14 ? 4 : 2);
  time.tm_year = digits == 14 ? year - 1900 : year < 50 ? year + 100 : year;
  time.tm_mon = number(2) - 1;
  time.tm_mday = number(2);
  time.tm_hour = number(2);
  time.tm_min = number(2);
  time.tm_sec = number(2);
  return timegm(&time);
}

std::string text_of(int64_t seconds) {
  const std::time_t time = seconds;
  std::tm parts{};
  char text[64];
  if (gmtime_r(&time, &parts) == nullptr || std::strftime(text, sizeof text, "%F %T UTC", &parts) == 0)
    return "?";
  return text;
}

}  // namespace

std::optional<CertificateDates> dates_of(std::string_view pem) {
  const size_t begin = pem.find(kBegin);
  if (begin == std::string_view::npos) return std::nullopt;
  pem.remove_prefix(begin + kBegin.size());
  const std::string bytes = from_base64(pem.substr(0, pem.find(kEnd)));
  const auto certificate = DerReader(bytes).take(kSequence);
  const auto body = certificate ? DerReader(*certificate).take(kSequence) : std::nullopt;
  if (!body) return std::nullopt;
  DerReader in(*body);
  if (in.tag() == kVersion && !in.take(kVersion)) return std::nullopt;
  // the serial number, the algorithm and the issuer
  if (!in.take(kInteger) || !in.take(kSequence) || !in.take(kSequence)) return std::nullopt;
  const auto validity = in.take(kSequence);
  if (!validity) return std::nullopt;
  DerReader dates(*validity);
  const auto first = read_time(dates), last = read_time(dates);
  if (!first || !last) return std::nullopt;
  return CertificateDates{*first, *last};
}

std::string why_out_of_date(std::string_view pem, int64_t now) {
  const auto dates = dates_of(pem);
  if (dates && now > dates->end) return "expired at " + text_of(dates->end);
  if (dates && now < dates->begin) return "is not valid before " + text_of(dates->begin);
  return "";
}

}  // namespace weft::rpc::inner
