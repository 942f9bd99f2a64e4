// test_explore runs its tests, as every program of tests does. With these options it explores instead:
//   test_explore --schedules 100000 --seed 1 [--workers 3] [--planted NAME]
//   test_explore --depth 200 --width 1 --seed 1 [--workers 3] [--elastic 1]
// It prints the failing schedule, shrunk, and ends with status 1.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "explore/explore.h"

int main(int argc, char** argv) {
  using namespace weft::explore;
  testing::InitGoogleTest(&argc, argv);
  if (argc == 1) return RUN_ALL_TESTS();
  Range range;
  int depth = 0, width = 1;
  bool elastic = false;
  const Planted* planted = nullptr;
  for (int i = 1; i < argc; ++i) {
    const char* const value = i + 1 < argc ? argv[i + 1] : nullptr;
    const auto is = [&](const char* name) { return value && std::strcmp(argv[i], name) == 0 && ++i; };
    if (is("--schedules")) range.schedules = std::strtoull(value, nullptr, 10);
    else if (is("--seed")) range.seed = std::strtoull(value, nullptr, 10);
    else if (is("--workers")) range.workers = std::atoi(value);
    else if (is("--elastic")) elastic = std::atoi(value) != 0;
    else if (is("--depth")) depth = std::atoi(value);
    else if (is("--width")) width = std::atoi(value);
    else if (is("--planted")) {
      for (const Planted& p : planted_faults())
        if (std::strcmp(p.name, value) == 0) planted = &p;
      if (!planted) {
        for (const Planted& p : planted_faults()) std::fprintf(stderr, "%s: %s\n", p.name, p.guarantee);
        return 2;
      }
    } else {
      std::fprintf(stderr, "unknown option %s\n", argv[i]);
      return 2;
    }
  }
  const auto start = std::chrono::steady_clock::now();
  const Report report =
      depth > 0 ? explore_all(range.seed, range.workers > 0 ? range.workers : 3, depth, width, elastic)
                : explore(range, planted);
  const double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::printf("%llu schedules in %.1f s: %llu whole, %llu with a reported loss, %llu messages\n",
              static_cast<unsigned long long>(report.schedules), s,
              static_cast<unsigned long long>(report.completed), static_cast<unsigned long long>(report.hurt),
              static_cast<unsigned long long>(report.messages));
  if (report.failed()) std::printf("FAILED: %s", report.failure.c_str());
  return report.failed() ? 1 : 0;
}
