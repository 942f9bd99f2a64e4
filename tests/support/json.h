// A strict reader of JSON for tests of files that other programs read.
#pragma once

#include <cctype>
#include <map>
#include <string>
#include <utility>

namespace weft::test {

/// Reads JSON whose outermost value is an object, and refuses other text. The object's values are kept as
/// they are written.
class Json {
 public:
  explicit Json(std::string text) : text_(std::move(text)) {
    object(&members_);
    skip();
    ok_ = ok_ && at_ == text_.size();
  }
  bool ok() const { return ok_; }
  const std::map<std::string, std::string>& members() const { return members_; }
  /// The value of a member as it is written, a string without its quotation marks; empty: there is none.
  std::string value_of(const std::string& name) const {
    const auto found = members_.find(name);
    if (found == members_.end()) return "";
    const std::string& text = found->second;
    return text.front() == '"' ? text.substr(1, text.size() - 2) : text;
  }

 private:
  char next() {
    skip();
    return here();
  }
  char here() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void skip() {
    while (at_ < text_.size() && std::string(" \t\r\n").find(text_[at_]) != std::string::npos) ++at_;
  }
  bool take(char c) {
    if (!ok_ || next() != c) return false;
    ++at_;
    return true;
  }
  void need(char c) { ok_ = take(c); }
  std::string string() {
    need('"');
    std::string out;
    while (ok_ && at_ < text_.size() && text_[at_] != '"') {
      ok_ = static_cast<unsigned char>(text_[at_]) >= 0x20;
      if (text_[at_] == '\\') {
        ++at_;
        ok_ = ok_ && here() != '\0' && std::string("\"\\/bfnrtu").find(here()) != std::string::npos;
        for (size_t digit = 1; ok_ && here() == 'u' && digit <= 4; ++digit)
          ok_ = at_ + digit < text_.size() && std::isxdigit(static_cast<unsigned char>(text_[at_ + digit]));
      }
      if (at_ < text_.size()) out += text_[at_++];
    }
    if (ok_ && here() == '"') ++at_;
    else ok_ = false;
    return out;
  }
  void object(std::map<std::string, std::string>* members) {
    need('{');
    if (take('}')) return;
    do {
      const std::string name = (next(), string());
      need(':');
      next();
      const size_t start = at_;
      value();
      // a name twice is no figure's name
      if (members && ok_) ok_ = members->emplace(name, text_.substr(start, at_ - start)).second;
    } while (take(','));
    need('}');
  }
  size_t digits() {
    const size_t first = at_;
    while (std::isdigit(static_cast<unsigned char>(here()))) ++at_;
    return at_ - first;
  }
  bool number() {
    if (here() == '-') ++at_;
    const bool zero = here() == '0';
    const size_t whole = digits();
    if (whole == 0 || (zero && whole > 1)) return false;
    if (here() == '.' && (++at_, digits() == 0)) return false;
    if (here() != 'e' && here() != 'E') return true;
    ++at_;
    if (here() == '+' || here() == '-') ++at_;
    return digits() > 0;
  }
  void value() {
    const char c = next();
    if (c == '{') return object(nullptr);
    if (c == '"') return static_cast<void>(string());
    if (take('[')) {
      if (take(']')) return;
      do value();
      while (take(','));
      return need(']');
    }
    for (const char* word : {"true", "false", "null"})
      if (text_.compare(at_, std::string(word).size(), word) == 0) {
        at_ += std::string(word).size();
        return;
      }
    ok_ = ok_ && number();
  }

  std::string text_;
  size_t at_ = 0;
  bool ok_ = true;
  std::map<std::string, std::string> members_;
};

}  // namespace weft::test
