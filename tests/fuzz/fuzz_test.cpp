// Every target over its seeds, its corpus and seeded mutations of both, as the program of libFuzzer would try
// them. WEFT_FUZZ_SECONDS is the time for each target.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "fuzz/targets.h"

namespace weft::fuzz {
namespace {

std::string hex(const std::string& bytes) {
  std::string out;
  for (const char c : bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    out += kDigits[static_cast<uint8_t>(c) >> 4];
    out += kDigits[static_cast<uint8_t>(c) & 15];
  }
  return out;
}

std::vector<std::string> corpus(const Target& target) {
  std::vector<std::string> all = target.seeds();
  const std::filesystem::path folder =
      std::filesystem::path(WEFT_TEST_DATA_DIR).parent_path() / "fuzz" / "corpus" / target.name;
  if (std::filesystem::exists(folder))
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      std::ifstream in(entry.path(), std::ios::binary);
      all.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
    }
  return all;
}

/// Changes bytes, sizes and places as malformed input has them.
std::string mutate(const std::vector<std::string>& from, std::mt19937_64& random) {
  const auto upto = [&](size_t n) { return static_cast<size_t>(random() % std::max<size_t>(n, 1)); };
  std::string s = from[upto(from.size())];
  for (size_t n = 1 + upto(4); n > 0; --n) {
    const size_t at = upto(s.size());
    switch (random() % 8) {
      case 0: s.resize(at); break;
      case 1: s.insert(at, upto(9), static_cast<char>(random())); break;
      case 2:
        if (!s.empty()) s[at] = static_cast<char>(random());
        break;
      case 3:
        if (!s.empty()) s[at] = static_cast<char>(s[at] ^ (1 << random() % 8));
        break;
      case 4: s.erase(at, upto(8)); break;
      case 5: {  // a number at its limits
        constexpr uint64_t kLimits[] = {
            0, 1, 0x7f, 0xff, 0x7fff'ffff, 0xffff'ffff, ~uint64_t{0} >> 1, ~uint64_t{0}};
        const uint64_t limit = kLimits[random() % 8];
        for (size_t i = 0; i < 8 && at + i < s.size(); ++i) s[at + i] = static_cast<char>(limit >> (8 * i));
        break;
      }
      case 6: {
        const std::string& other = from[upto(from.size())];
        s.insert(at, other.substr(upto(other.size()), upto(64)));
        break;
      }
      default: s += s.substr(at, upto(32));
    }
  }
  if (s.size() > 8192) s.resize(8192);
  return s;
}

class Fuzz : public ::testing::TestWithParam<size_t> {};
INSTANTIATE_TEST_SUITE_P(Targets, Fuzz, ::testing::Range<size_t>(0, targets().size()),
                         [](const auto& info) { return std::string(targets()[info.param].name); });

TEST_P(Fuzz, malformed_input_is_refused_and_harms_nothing) {
  const Target& target = targets()[GetParam()];
  const char* const wish = std::getenv("WEFT_FUZZ_SECONDS");
  const auto end =
      std::chrono::steady_clock::now() + std::chrono::milliseconds(wish ? 1000 * std::atoi(wish) : 2000);
  const char* const shift = std::getenv("WEFT_TEST_SEED");
  std::mt19937_64 random(1 + (shift ? std::strtoull(shift, nullptr, 10) : 0));
  const auto one = [&](const std::string& input) {
    try {
      target.one(reinterpret_cast<const uint8_t*>(input.data()), input.size());
      return true;
    } catch (const std::exception& e) {
      ADD_FAILURE() << target.name << ": " << e.what() << "\n" << hex(input);
      return false;
    }
  };
  std::vector<std::string> known = corpus(target);
  for (const std::string& input : known) ASSERT_TRUE(one(input));
  uint64_t count = 0;
  while (count < target.least || std::chrono::steady_clock::now() < end) {
    ASSERT_TRUE(one(mutate(known, random)));
    ++count;
  }
  RecordProperty("inputs", std::to_string(count));
}

TEST(FuzzLive, malformed_messages_at_a_live_port_are_counted_and_harm_no_call_of_the_group) {
  const int64_t before = malformed_at_live_port();
  std::mt19937_64 random(7);
  const auto way = static_cast<char>(3);  // as messages of a member
  for (int i = 0; i < 200; ++i) {
    const std::string input = way + (static_cast<char>(random()) + mutate(envelope_seeds(), random));
    live(reinterpret_cast<const uint8_t*>(input.data()), input.size());
  }
  EXPECT_GT(malformed_at_live_port(), before);
}

}  // namespace
}  // namespace weft::fuzz
