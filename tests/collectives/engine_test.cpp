// The engine over Gloo with a meeting of these tests, between two threads of one process.
#include <condition_variable>
#include <future>
#include <map>
#include <mutex>

#include <weft/distributed/collectives/inner/engine.h>

#include "members.h"

namespace {

using namespace weft;
using namespace weft::test;
using namespace std::chrono_literals;

/// Values in memory. A set of the key `held` waits for release().
class Board {
 public:
  explicit Board(std::string held) : held_(std::move(held)) {}
  void set(const std::string& key, const std::string& value) {
    std::unique_lock lock(mutex_);
    if (key == held_) {
      reached_ = true;
      changed_.notify_all();
      changed_.wait_for(lock, 60s, [&] { return released_; });
    }
    values_[key] = value;
    changed_.notify_all();
  }
  std::string get(const std::string& key) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, 60s, [&] { return values_.count(key) != 0; }))
      throw Timeout(key + " was not set");
    return values_.at(key);
  }
  bool wait_reached() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, 60s, [&] { return reached_; });
  }
  void release() {
    const std::lock_guard lock(mutex_);
    released_ = true;
    changed_.notify_all();
  }

 private:
  const std::string held_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
  bool reached_ = false, released_ = false;
};

class BoardMeeting final : public dist::inner::Meeting {
 public:
  explicit BoardMeeting(Board& board) : board_(board) {}
  void set(const std::string& key, const std::string& value) override { board_.set(key, value); }
  std::string get(const std::string& key) override { return board_.get(key); }

 private:
  Board& board_;
};

TEST(GlooEngine, no_process_begins_before_all_have_their_connections) {
  NEEDS_GLOO;
  Board board("connected/1");
  const auto runtime = rpc::make_threaded_runtime({.threads = 1});
  const auto form = [&](int rank) {
    return std::async(std::launch::async, [&, rank] {
      BoardMeeting meeting(board);
      return dist::inner::make_gloo({rank, 2, "127.0.0.1", 60s, 60s, runtime.get()}, meeting);
    });
  };
  auto first = form(0), second = form(1);
  ASSERT_TRUE(board.wait_reached());
  EXPECT_EQ(first.wait_for(200ms), std::future_status::timeout);
  board.release();
  EXPECT_NE(first.get(), nullptr);
  EXPECT_NE(second.get(), nullptr);
}

}  // namespace
