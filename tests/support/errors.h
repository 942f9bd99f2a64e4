// Checks of errors: the text of an expected exception, and the contents of a text.
#pragma once

#include <exception>
#include <string>

#include <gtest/gtest.h>

namespace weft::test {

/// The text of the E that f throws; "" with a failure when it throws another error or none.
template <class E, class F> std::string error_of(const F& f) {
  try {
    f();
  } catch (const E& e) {
    return e.what();
  } catch (const std::exception& e) {
    ADD_FAILURE() << "another error: " << e.what();
    return "";
  }
  ADD_FAILURE() << "no error";
  return "";
}

/// Success when `text` contains `part`; a failure shows both.
inline ::testing::AssertionResult has(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << '"' << text << "\" does not say \"" << part << '"';
}

}  // namespace weft::test
