// The log of a store: a restart from every length that a crash can leave, and refusal of damage. Also
// restarts under clients, leases over a restart, and a log that grows without bound or cannot be written.
#include <gtest/gtest.h>

#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "store_world.h"

namespace weft::rpc {
namespace {

/// A path for a log in a folder of its own, which is removed at the end.
struct LogFile {
  LogFile() {
    std::string name = testing::TempDir() + "store_log_XXXXXX";
    folder = mkdtemp(name.data());
    path = folder + "/log";
  }
  ~LogFile() { std::filesystem::remove_all(folder); }
  std::string read() const {
    std::ostringstream out;
    out << std::ifstream(path, std::ios::binary).rdbuf();
    return out.str();
  }
  void write(const std::string& bytes) const {
    std::ofstream(path, std::ios::binary | std::ios::trunc).write(bytes.data(), std::ssize(bytes));
  }
  std::string folder, path;
};

const std::vector<std::string> kAll = {"a", "b", "c", "n", "held"};

/// Makes a log by a few changes. Returns the values of kAll by the size that the log had by then.
std::map<size_t, std::vector<Value>> make_log(const LogFile& log) {
  SimStore s;
  s.serve({.log = log.path});
  const auto client = s.client();
  std::map<size_t, std::vector<Value>> after;
  const auto note = [&] { after[log.read().size()] = s.server->peek(kAll, s.in(1s)); };
  note();
  client->set("a", "first", s.in(1s));
  note();
  EXPECT_TRUE(client->compare_and_set("b", std::nullopt, std::string("b\0b", 3), s.in(1s)));
  note();
  EXPECT_FALSE(client->compare_and_set("b", std::nullopt, "x", s.in(1s)));
  note();
  client->add("n", 41, s.in(1s));
  note();
  client->hold("held", "me", 5s, s.in(1s));
  note();
  client->add("n", 1, s.in(1s));
  note();
  client->unset("a", s.in(1s));
  note();
  s.server->set("c", std::string(60, 'c'), s.in(1s));
  note();
  return after;
}

TEST(StoreLog, a_crash_at_every_byte_leaves_the_changes_that_were_answered) {
  const LogFile log;
  const auto after = make_log(log);
  const std::string whole = log.read();
  ASSERT_EQ(after.rbegin()->first, whole.size());
  for (size_t size = after.begin()->first; size <= whole.size(); ++size) {
    log.write(whole.substr(0, size));
    const auto& expected = std::prev(after.upper_bound(size))->second;
    for (int start = 0; start < 2; ++start) {  // the second one reads the log that the first one repaired
      SimStore s;
      s.serve({.log = log.path});
      auto want = expected;
      if (start == 1) want[0] = "new";
      EXPECT_EQ(s.server->peek(kAll, s.in(1s)), want) << "cut to " << size << " bytes";
      s.server->set("a", "new", s.in(1s));
    }
  }
}

TEST(StoreLog, damage_before_the_last_record_is_refused_by_name) {
  const LogFile log;
  const auto after = make_log(log);
  const std::string whole = log.read();
  const size_t last = std::next(after.rbegin())->first;
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string bytes = whole;
    bytes[at] = static_cast<char>(bytes[at] ^ 0x10);
    log.write(bytes);
    SimStore s;
    if (at >= last) {  // it looks like a torn record
      s.serve({.log = log.path});
      EXPECT_EQ(s.server->peek(kAll, s.in(1s)), std::next(after.rbegin())->second);
      continue;
    }
    try {
      s.serve({.log = log.path});
      ADD_FAILURE() << "byte " << at << " was changed and nobody noticed";
    } catch (const IoError& e) {
      EXPECT_NE(std::string(e.what()).find(log.path), std::string::npos) << e.what();
    }
    EXPECT_EQ(log.read(), bytes) << "a refused log was changed";
  }
  log.write("another file of the user");
  EXPECT_THROW(SimStore().serve({.log = log.path}), IoError);
  EXPECT_THROW(SimStore().serve({.log = log.folder + "/missing/log"}), IoError);
}

TEST(StoreLog, two_stores_do_not_share_a_log) {
  const LogFile log;
  SimStore s, other;
  s.serve({.log = log.path});
  try {
    other.serve({.log = log.path});
    FAIL() << "no error";
  } catch (const IoError& e) {
    EXPECT_EQ(std::string(e.what()), str("store log ", log.path, ": another store uses it"));
  }
  s.kill();
  other.serve({.log = log.path});
}

TEST(StoreLog, clients_go_on_with_a_store_that_was_killed_and_served_again) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const LogFile log;
    const StoreOptions options{.log = log.path, .log_growth = seed % 2 == 0 ? size_t{2000} : size_t{4} << 20};
    SimStore s(seed, lossy());
    s.serve(options);
    std::vector<std::unique_ptr<Store>> clients;
    std::vector<std::function<void()>> all;
    int won = 0, over = 0;
    for (int c = 0; c < 4; ++c) {
      clients.push_back(s.client());
      all.push_back([&, c] {
        Store& store = *clients[static_cast<size_t>(c)];
        for (int i = 0; i < 10; ++i) {
          store.add("sum", 1, s.in(600s));
          if (store.compare_and_set(str("turn/", i), std::nullopt, std::to_string(c), s.in(600s))) ++won;
          store.set(str("round/", i, "/", c), "", s.in(600s));
          std::vector<std::string> keys;
          for (int k = 0; k < 4; ++k) keys.push_back(str("round/", i, "/", k));
          store.wait(keys, "", s.in(600s));
        }
        ++over;
      });
    }
    all.push_back([&] {
      std::mt19937 random(static_cast<uint32_t>(seed));
      while (over < 4) {
        s.rt.sleep_for(std::chrono::milliseconds(random() % 700));
        s.kill();
        s.rt.sleep_for(std::chrono::milliseconds(random() % 700));
        s.serve(options);
      }
    });
    s.together(all);
    EXPECT_EQ(peek(*s.server, "sum", s.in(1s)), "40") << "seed " << seed;
    EXPECT_EQ(won, 10) << "seed " << seed;
  }
}

TEST(StoreLog, a_held_key_has_one_whole_lease_after_a_restart) {
  const LogFile log;
  SimStore s;
  s.serve({.log = log.path});
  const auto holder = s.client(), other = s.client();
  holder->hold("leader", "one", 5s, s.in(1s));
  s.rt.sleep_for(4s);
  s.kill();
  s.rt.sleep_for(60s);
  s.serve({.log = log.path});
  const TimePoint begun = s.rt.now();
  s.rt.sleep_for(4s);
  EXPECT_THROW(other->hold("leader", "two", 5s, s.in(500ms)), ValueError);
  EXPECT_EQ(other->watch("leader", "one", s.in(60s)), Value());
  EXPECT_GE(s.rt.now() - begun, 5s);
  EXPECT_LT(s.rt.now() - begun, 5100ms);
  s.kill();
  s.serve({.log = log.path});
  EXPECT_EQ(peek(*other, "leader", s.in(60s)), Value()) << "the end of a lease is in the log";
  other->hold("leader", "two", 5s, s.in(60s));
}

TEST(StoreLog, a_log_is_as_long_as_what_it_must_hold) {
  const LogFile log;
  SimStore s;
  s.serve({.log = log.path, .log_growth = 10000});
  const auto client = s.client();
  for (int i = 0; i < 1000; ++i) client->set(str("key", i % 10), std::to_string(i), s.in(10s));
  EXPECT_LT(log.read().size(), 13000u);
  const size_t before = log.read().size();
  for (int i = 0; i < 100; ++i) client->hold("lease", "me", 60s, s.in(1s));
  EXPECT_LT(log.read().size(), before + 200) << "a renewal is not written";
  client->unset("lease", s.in(1s));
  s.kill();
  s.serve({.log = log.path});
  for (int i = 0; i < 10; ++i) EXPECT_EQ(peek(*client, str("key", i), s.in(60s)), std::to_string(990 + i));
}

TEST(StoreLog, a_log_that_cannot_be_written_fails_every_request) {
  const LogFile log;
  SimStore s;
  s.serve({.log = log.path});
  const auto client = s.client();
  client->set("k", "kept", s.in(1s));
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto ignored = signal(SIGXFSZ, SIG_IGN);
  const rlimit small{log.read().size() + 10, old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto text = [&](Store& store) {
    try {
      store.set("k", "lost", s.in(10s));
    } catch (const RpcError& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  const std::string first = text(*client), second = text(*client), own = text(*s.server);
  setrlimit(RLIMIT_FSIZE, &old);
  signal(SIGXFSZ, ignored);
  EXPECT_EQ(first, str("store log ", log.path, ": it cannot be written: File too large"));
  EXPECT_EQ(second, first);
  EXPECT_EQ(own, first);
  EXPECT_THROW(peek(*client, "k", s.in(10s)), RpcError);
  s.kill();
  s.serve({.log = log.path});
  EXPECT_EQ(peek(*client, "k", s.in(60s)), "kept");
}

}  // namespace
}  // namespace weft::rpc
