// The store: compare-and-set, watches, leases, limits and last wills of requests, over a simulated network
// that loses and doubles messages and over gRPC.
#include <gtest/gtest.h>

#include <filesystem>

#include <weft/distributed/launch/inner/process_watch.h>
#include <weft/distributed/transport/grpc_transport.h>

#include "store_world.h"
#include "support/hang.h"

namespace weft::rpc {
namespace {

TEST(Store, compare_and_set_takes_the_expected_value_only) {
  SimStore s;
  s.serve();
  const auto client = s.client();
  for (Store* store : {s.server.get(), client.get()}) {
    EXPECT_FALSE(store->compare_and_set("k", "a", "b", s.in(1s)));
    EXPECT_TRUE(store->compare_and_set("k", std::nullopt, "", s.in(1s)));
    EXPECT_FALSE(store->compare_and_set("k", std::nullopt, "b", s.in(1s)));
    EXPECT_TRUE(store->compare_and_set("k", "", "b", s.in(1s)));
    EXPECT_EQ(peek(*store, "k", s.in(1s)), Value("b"));
    store->unset("k", s.in(1s));
    store->unset("k", s.in(1s));
    EXPECT_EQ(peek(*store, "k", s.in(1s)), Value());
  }
}

TEST(Store, a_change_counts_once_and_each_client_hears_its_own_answer_under_loss_and_duplication) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SimStore s(seed, lossy());
    s.serve();
    std::vector<std::function<void()>> all;
    std::vector<std::unique_ptr<Store>> clients;
    int won = 0;
    for (int c = 0; c < 5; ++c) {
      clients.push_back(s.client());
      all.push_back([&, c] {
        Store& store = *clients[static_cast<size_t>(c)];
        for (int i = 0; i < 10; ++i) {  // a counter by compare-and-set, and one by add
          for (bool done = false; !done;) {
            const Value now = peek(store, "n", s.in(600s));
            done = store.compare_and_set("n", now, std::to_string(now ? std::stoi(*now) + 1 : 1), s.in(600s));
          }
          store.add("sum", 1, s.in(600s));
          if (store.compare_and_set(str("turn/", i), std::nullopt, std::to_string(c), s.in(600s))) ++won;
          store.set(str("own/", c), std::to_string(i), s.in(600s));
          EXPECT_EQ(peek(store, str("own/", c), s.in(600s)), std::to_string(i)) << "a late duplicate won";
        }
      });
    }
    s.together(all);
    EXPECT_EQ(peek(*s.server, "n", s.in(1s)), "50") << "seed " << seed;
    EXPECT_EQ(peek(*s.server, "sum", s.in(1s)), "50") << "seed " << seed;
    EXPECT_EQ(won, 10) << "seed " << seed;
  }
}

TEST(Store, a_late_duplicate_of_an_answered_change_is_not_executed_again) {
  SimStore s;
  s.serve();
  const auto client = s.client();
  client->set("k", "first", s.in(1s));
  s.net.add_rule({.from = WorkerId{1001}, .count = 1, .action = FaultRule::Action::kDuplicate});
  s.net.add_rule({.from = WorkerId{1001}, .count = 1, .action = FaultRule::Action::kDelay, .delay = 300ms});
  client->set("k", "old", s.in(10s));
  for (int i = 0; i < 200; ++i) client->set("k", std::to_string(i), s.in(10s));
  s.rt.run_for(2s);
  EXPECT_EQ(peek(*client, "k", s.in(1s)), "199");
}

TEST(Store, a_watch_ends_with_the_next_value_that_differs) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SimStore s(seed, lossy());
    s.serve();
    const auto watcher = s.client(), writer = s.client();
    s.together({[&] {
                  Value known;
                  std::vector<std::string> seen;
                  while (known != Value("last")) {
                    const Value now = watcher->watch("k", known, s.in(600s));
                    EXPECT_NE(now, known) << "seed " << seed;
                    known = now;
                  }
                },
                [&] {
                  for (int i = 0; i < 10; ++i) {
                    writer->set("k", std::to_string(i), s.in(600s));
                    if (i % 3 == 0) writer->unset("k", s.in(600s));
                    s.rt.sleep_for(30ms);
                  }
                  writer->set("k", "last", s.in(600s));
                }});
  }
}

TEST(Store, a_watch_that_sees_no_change_is_a_timeout_at_its_deadline) {
  SimStore s;
  s.serve();
  const auto client = s.client();
  client->set("k", "a", s.in(1s));
  for (Store* store : {s.server.get(), client.get()}) {
    const TimePoint begun = s.rt.now();
    EXPECT_THROW(store->watch("k", "a", s.in(3s)), Timeout);
    EXPECT_EQ(s.rt.now() - begun, 3s);  // virtual time
    EXPECT_EQ(store->watch("k", std::nullopt, s.in(1s)), Value("a"));
  }
}

TEST(Store, a_wait_needs_all_keys_at_one_time) {
  SimStore s;
  s.serve();
  const auto client = s.client(), other = s.client();
  s.together({[&] {
                EXPECT_EQ(client->wait({"a", "b", "c"}, "stop", s.in(60s)),
                          (std::vector<std::string>{"2", "b", "c"}));
              },
              [&] {
                s.rt.sleep_for(1s);
                other->set("a", "1", s.in(1s));
                other->set("b", "b", s.in(1s));
                other->unset("a", s.in(1s));
                other->set("c", "c", s.in(1s));
                s.rt.sleep_for(20s);  // it was sent again meanwhile
                other->set("a", "2", s.in(1s));
              }});
  s.together({[&] {
                EXPECT_THROW(client->wait({"a", "never"}, "stop", s.in(60s)), Aborted);
              },
              [&] {
                s.rt.sleep_for(1s);
                other->set("stop", "now", s.in(1s));
              }});
}

TEST(Store, a_lease_ends_once_its_time_has_passed_since_the_last_hold) {
  SimStore s;
  s.serve();
  const auto holder = s.client(), other = s.client();
  for (int i = 0; i < 5; ++i) {
    holder->hold("leader", "one", 2s, s.in(1s));
    s.rt.sleep_for(1500ms);
    EXPECT_EQ(peek(*other, "leader", s.in(1s)), "one");
  }
  try {
    other->hold("leader", "two", 2s, s.in(100ms));
    FAIL() << "a second holder";
  } catch (const ValueError& e) {
    EXPECT_STREQ(e.what(), "store: hold of leader, which is held with the value 'one'");
  }
  const TimePoint renewed = s.rt.now();
  holder->hold("leader", "one", 2s, s.in(1s));
  EXPECT_EQ(other->watch("leader", "one", s.in(60s)), Value());
  EXPECT_GE(s.rt.now() - renewed, 2s);
  EXPECT_LT(s.rt.now() - renewed, 2100ms);
  other->hold("leader", "two", 2s, s.in(1s));
  EXPECT_THROW(holder->hold("leader", "one", 2s, s.in(1s)), ValueError);
  other->unset("leader", s.in(1s));
  holder->hold("leader", "one", 2s, s.in(1s));
  EXPECT_THROW(holder->hold("leader", "one", -1s, s.in(1s)), ValueError);
}

TEST(Store, a_plain_value_ends_the_lease_of_its_key) {
  SimStore s;
  s.serve();
  const auto client = s.client();
  client->hold("a", "x", 1s, s.in(1s));
  client->set("a", "x", s.in(1s));
  client->hold("b", "x", 1s, s.in(1s));
  EXPECT_TRUE(client->compare_and_set("b", "x", "y", s.in(1s)));
  client->hold("c", "1", 1s, s.in(1s));
  EXPECT_EQ(client->add("c", 1, s.in(1s)), 2);
  client->set("d", "plain", s.in(1s));
  client->hold("d", "held", 1s, s.in(1s));
  s.rt.sleep_for(10s);
  EXPECT_EQ(client->peek({"a", "b", "c", "d"}, s.in(1s)), (std::vector<Value>{"x", "y", "2", {}}));
}

/// One holder at a time: each takes the lease, renews it a few times, then goes silent or unsets it.
TEST(Store, leases_exclude_a_second_holder_under_loss_and_duplication) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SimStore s(seed, lossy());
    s.serve();
    std::map<std::string, TimePoint> until;  // by holder: the end of its lease as it knows it
    std::vector<std::unique_ptr<Store>> clients;
    std::vector<std::function<void()>> all;
    int terms = 0;
    for (int c = 0; c < 4; ++c) {
      clients.push_back(s.client());
      all.push_back([&, c] {
        Store& store = *clients[static_cast<size_t>(c)];
        const std::string me = str("holder", c);
        std::mt19937 random(static_cast<uint32_t>(seed * 10 + static_cast<uint64_t>(c)));
        for (int term = 0; term < 5;) {
          const TimePoint asked = s.rt.now();
          try {
            store.hold("leader", me, 5s, s.in(600s));
          } catch (const ValueError&) {
            s.rt.sleep_for(1s);
            continue;
          }
          until[me] = asked + 5s;
          for (const auto& [name, end] : until)
            EXPECT_TRUE(name == me || end <= s.rt.now() || until[me] <= s.rt.now())
                << name << " and " << me << ", seed " << seed;
          if (random() % 3 != 0) continue;
          ++term, ++terms;
          until.erase(me);
          if (random() % 2 == 0) store.unset("leader", s.in(600s));
          else s.rt.sleep_for(10s);
        }
      });
    }
    s.together(all);
    EXPECT_EQ(terms, 20);
  }
}

TEST(Store, limits_are_errors_that_name_them) {
  SimStore s;
  s.serve({.limits = {.key_bytes = 8, .value_bytes = 10, .keys = 3, .bytes = 25, .open_requests = 4}});
  const auto client = s.client();
  const auto text = [&](const std::string& key, const std::string& value) {
    try {
      client->set(key, value, s.in(1s));
    } catch (const StoreFull& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(text("123456789", ""), "store: a key has 9 bytes; the limit is 8");
  EXPECT_EQ(text("a", "12345678901"), "store: the value of a has 11 bytes; the limit is 10");
  EXPECT_EQ(text("a", "1234567890"), "no error");
  EXPECT_EQ(text("b", "1234567890"), "no error");
  EXPECT_EQ(text("c", "123"), "store: no room for c: the limit is 25 bytes of keys and values");
  EXPECT_EQ(text("c", "12"), "no error");
  EXPECT_EQ(text("d", ""), "store: no room for d: the limit is 3 keys");
  client->set("a", "1", s.in(1s));
  EXPECT_THROW(client->hold("d", "", 1s, s.in(1s)), StoreFull);
  EXPECT_THROW(client->add("d", 1, s.in(1s)), StoreFull);
  EXPECT_THROW(client->compare_and_set("d", std::nullopt, "", s.in(1s)), StoreFull);
  EXPECT_FALSE(client->compare_and_set("d", "x", "", s.in(1s)));
  client->unset("a", s.in(1s));
  EXPECT_EQ(text("d", "1234567890"), "no error");
  std::vector<std::function<void()>> waits;
  int refused = 0;
  for (int i = 0; i < 6; ++i) {
    waits.push_back([&] {
      try {
        client->get("never", s.in(2s));
      } catch (const StoreFull&) {
        ++refused;
      } catch (const Timeout&) {
      }
    });
  }
  s.together(waits);
  EXPECT_EQ(refused, 2);
  client->set("c", "12", s.in(1s));
}

TEST(Store, values_beyond_one_answer_are_refused_and_their_waits_end) {
  SimStore s;
  s.serve({.limits = {.value_bytes = 100, .answer_bytes = 60}});
  const auto client = s.client();
  for (const char* key : {"a", "b", "c"}) client->set(key, std::string(25, 'x'), s.in(1s));
  client->set("large", std::string(100, 'x'), s.in(1s));
  for (Store* store : {s.server.get(), client.get()}) {
    EXPECT_EQ(store->wait({"a", "b"}, "", s.in(1s)).size(), 2u);
    EXPECT_EQ(store->get("large", s.in(1s)).size(), 100u);
    EXPECT_EQ(peek(*store, "large", s.in(1s))->size(), 100u);
    EXPECT_THROW(store->wait({"a", "b", "c"}, "", s.in(1s)), StoreFull);
    EXPECT_THROW(store->peek({"a", "none", "a", "a"}, s.in(1s)), StoreFull);
    try {
      store->peek({"large", "a"}, s.in(1s));
      ADD_FAILURE() << "125 bytes were sent";
    } catch (const StoreFull& e) {
      EXPECT_EQ(std::string(e.what()),
                "store: the values of 2 keys have 125 bytes; the limit is 60 bytes of one answer");
    }
  }
  s.together({[&] {
                EXPECT_THROW(client->wait({"a", "b", "late"}, "", s.in(60s)), StoreFull);
              },
              [&] {
                s.rt.sleep_for(1s);
                s.server->set("late", std::string(25, 'x'), s.in(1s));  // is no error of this call
              }});
}

/// Files that this process has open.
std::ptrdiff_t open_files() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                       std::filesystem::directory_iterator());
}

TEST(Store, last_wills_are_bounded_and_share_one_watch_of_their_process) {
  if (inner::ProcessWatch try_it; try_it.watch(inner::process_identity(), [] {}) == 0)
    GTEST_SKIP() << "there is no pidfd or no /proc here";
  SimStore s;
  s.serve({.limits = {.key_bytes = 8, .value_bytes = 10, .open_requests = 30}});
  const auto client = s.client(), other = s.client();
  client->set_at_end("first", "", "f", s.in(1s));
  other->set_at_end("same", "", "same/d", s.in(1s));
  const auto before = open_files();
  for (int i = 0; i < 20; ++i) client->set_at_end(str("k", i), "v", str("d", i), s.in(1s));
  for (int i = 0; i < 40; ++i) client->set_at_end("same", std::to_string(i), "same/d", s.in(1s));
  EXPECT_EQ(open_files(), before);
  EXPECT_THROW(client->set_at_end("123456789", "", "d", s.in(1s)), StoreFull);
  EXPECT_THROW(client->set_at_end("k", "12345678901", "d", s.in(1s)), StoreFull);
  EXPECT_THROW(client->set_at_end("k", "", "123456789", s.in(1s)), StoreFull);
  for (int i = 0; i < 8; ++i) client->set_at_end(str("m", i), "", "m/d", s.in(1s));
  EXPECT_THROW(client->set_at_end("one more", "", "d", s.in(1s)), StoreFull);
  client->set("m/d", "", s.in(1s));
  client->set_at_end("one more", "", "f", s.in(1s));
  for (int i = 0; i < 20; ++i) client->set(str("d", i), "", s.in(1s));
  for (const char* done : {"f", "same/d"}) client->set(done, "", s.in(1s));
  EXPECT_EQ(open_files(), before - 1) << "no will is left, so their process is not watched";
}

TEST(Store, all_last_wills_together_have_limits) {
  SimStore s;
  s.serve({.limits = {.keys = 3, .bytes = 2000}});
  const auto client = s.client(), other = s.client();
  client->set_at_end("a", "", "done", s.in(1s));
  other->set_at_end("a", "", "done", s.in(1s));
  EXPECT_THROW(client->set_at_end("b", std::string(2000, 'x'), "done", s.in(1s)), StoreFull);
  client->set_at_end("b", "", "done", s.in(1s));
  EXPECT_THROW(other->set_at_end("b", "", "done", s.in(1s)), StoreFull);
  client->set("done", "", s.in(1s));
  other->set_at_end("b", "", "another", s.in(1s));
}

TEST(Store, an_add_to_a_value_that_is_no_number_or_beyond_its_range_is_refused) {
  SimStore s;
  s.serve();
  const auto client = s.client();
  client->set("k", "12x", s.in(1s));
  for (Store* store : {s.server.get(), client.get()}) {
    EXPECT_THROW(store->add("k", 1, s.in(1s)), ValueError);
    store->set("n", "9223372036854775807", s.in(1s));
    EXPECT_THROW(store->add("n", 1, s.in(1s)), ValueError);
    EXPECT_EQ(store->add("n", -1, s.in(1s)), INT64_MAX - 1);
  }
}

TEST(Store, another_store_at_the_address_executes_nothing_of_a_client_of_the_first) {
  SimStore s;
  s.serve();
  const auto client = s.client();
  client->set("k", "first", s.in(1s));
  s.kill();
  s.serve();
  try {
    client->set("k", "again", s.in(20s));
    FAIL() << "no error";
  } catch (const Timeout& e) {
    EXPECT_NE(std::string(e.what()).find("another store answers there"), std::string::npos) << e.what();
  }
  EXPECT_EQ(peek(*s.server, "k", s.in(1s)), Value());
}

TEST(Store, requests_run_over_grpc) {
  auto rt = make_threaded_runtime();
  const auto in = [&](Duration d) { return rt->now() + d; };
  std::string where;
  const auto server = make_store_server(*rt, [&](Receiver& receiver) {
    auto transport =
        make_grpc_transport(rt, {.id = WorkerId{0}, .unix_socket = false, .admit_strangers = true}, receiver);
    where = transport->addresses().addresses.at(0);
    return transport;
  });
  const auto make_client = [&](int id) {
    return make_store_client(
        *rt,
        [&](Receiver& receiver) {
          return make_grpc_transport(rt, {.id = WorkerId{id}, .listen = "", .unix_socket = false}, receiver);
        },
        PeerAddress{.addresses = {where}}, where);
  };
  const test::HangReport report([] { return "a request of the store got no answer\n"; });
  const auto one = make_client(1001), two = make_client(1002);
  EXPECT_TRUE(one->compare_and_set("k", std::nullopt, "a", in(60s)));
  EXPECT_FALSE(two->compare_and_set("k", std::nullopt, "b", in(60s)));
  Event seen(*rt, "a watch");
  Value value;
  rt->post([&] {
    value = two->watch("k", "a", in(60s));
    seen.set();
  });
  one->set("k", "c", in(60s));
  EXPECT_TRUE(seen.wait_until(in(60s)));
  EXPECT_EQ(value, "c");
  one->hold("lease", "one", 200ms, in(60s));
  EXPECT_EQ(two->watch("lease", "one", in(60s)), Value());  // nobody renews it
  two->hold("lease", "two", 60s, in(60s));
  EXPECT_THROW(one->hold("lease", "one", 60s, in(60s)), ValueError);
  EXPECT_EQ(server->get("lease", in(60s)), "two");
  one->unset("lease", in(60s));
  EXPECT_EQ(two->watch("lease", "two", in(60s)), Value());
}

}  // namespace
}  // namespace weft::rpc
