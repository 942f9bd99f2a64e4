// Diagnostics of a hanging test, so that its log shows the waits.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

namespace weft::test {

/// Prints `text()` to stderr every 40 s of its lifetime; an empty text is not printed.
class HangReport {
 public:
  explicit HangReport(std::function<std::string()> text)
      : thread_([text = std::move(text)](const std::stop_token& stop) {
          std::mutex mutex;
          std::condition_variable_any wake;
          std::unique_lock lock(mutex);
          for (int seconds = 40;; seconds += 40) {
            wake.wait_for(lock, stop, std::chrono::seconds(40), [] { return false; });
            if (stop.stop_requested()) return;
            const std::string now = text();
            if (!now.empty()) std::fprintf(stderr, "after %d s:\n%s", seconds, now.c_str());
          }
        }) {}

 private:
  std::jthread thread_;
};

}  // namespace weft::test
