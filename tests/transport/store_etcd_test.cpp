// The store over etcd: the same calls against a real member, one killed and started again, and three of which
// one is killed. Skipped where etcd is not installed (setup.sh --ci installs it).
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include <weft/distributed/launch/inner/etcd_calls.h>
#include <weft/distributed/launch/store_etcd.h>
#include <weft/distributed/transport/address.h>

#include "programs/program.h"
#include "store_world.h"
#include "support/hang.h"

namespace weft::rpc {
namespace {

const char kEtcd[] = "/usr/bin/etcd";

/// Members of a cluster on this host, each with ports and a folder of its own.
class Etcd {
 public:
  explicit Etcd(size_t members = 1) : folder_("etcd"), client_(members), peer_(members), running_(members) {
    for (size_t i = 0; i < members; ++i) start(i);
  }
  void start(size_t i) {
    std::string all;
    for (size_t k = 0; k < peer_.size(); ++k) all += str(k ? "," : "", "m", k, "=", url(peer_[k]));
    const std::string client = url(client_[i]), peer = url(peer_[i]), name = str("m", i);
    running_[i] = std::make_unique<programs::Process>(str(
        kEtcd, " --name ", name, " --data-dir ", folder_.file(name), " --listen-client-urls ", client,
        " --advertise-client-urls ", client, " --listen-peer-urls ", peer, " --initial-advertise-peer-urls ",
        peer, " --initial-cluster ", all, " --logger zap --log-outputs ", folder_.file(name + ".log")));
  }
  void kill(size_t i) { running_[i].reset(); }
  std::string address() const {
    std::string all;
    for (const auto& port : client_) all += str(all.empty() ? "" : ",", "127.0.0.1:", port.port());
    return all;
  }

 private:
  static std::string url(const ReservedPort& port) { return str("http://127.0.0.1:", port.port()); }
  const programs::Folder folder_;
  std::vector<ReservedPort> client_, peer_;
  std::vector<std::unique_ptr<programs::Process>> running_;
};

bool has_etcd() { return std::filesystem::exists(kEtcd); }
#define SKIP_WITHOUT_ETCD() \
  if (!has_etcd()) GTEST_SKIP() << "etcd is not installed: " << kEtcd

TEST(EtcdStore, the_end_of_a_calls_time_is_no_answer_whoever_notices_it) {
  for (const int code : {1, 4, 14}) EXPECT_TRUE((inner::EtcdStatus{code, "any"}.again())) << code;
  EXPECT_TRUE((inner::EtcdStatus{2, "context deadline exceeded"}.again()));
  EXPECT_FALSE((inner::EtcdStatus{2, "another error"}.again()));
  EXPECT_FALSE((inner::EtcdStatus{3, "context deadline exceeded"}.again()));
}

TEST(EtcdStore, does_what_every_store_does) {
  SKIP_WITHOUT_ETCD();
  const Etcd etcd;
  const test::HangReport report([] { return "a request got no answer of etcd\n"; });
  const auto one = make_etcd_store(etcd.address()), two = make_etcd_store(etcd.address());
  const auto other = make_etcd_store(etcd.address(), {.prefix = "other/"});
  EXPECT_FALSE(one->compare_and_set("k", "a", "b", in(60s)));
  EXPECT_TRUE(one->compare_and_set("k", std::nullopt, "", in(60s)));
  EXPECT_FALSE(two->compare_and_set("k", std::nullopt, "b", in(60s)));
  EXPECT_TRUE(two->compare_and_set("k", "", std::string("b\0c", 3), in(60s)));
  EXPECT_EQ(peek(*one, "k", in(60s)), Value(std::string("b\0c", 3)));
  EXPECT_EQ(peek(*other, "k", in(60s)), Value());
  one->unset("k", in(60s));
  one->unset("k", in(60s));
  EXPECT_EQ(peek(*two, "k", in(60s)), Value());
  EXPECT_EQ(one->add("n", 5, in(60s)), 5);
  EXPECT_EQ(two->add("n", -7, in(60s)), -2);
  one->set("text", "12x", in(60s));
  EXPECT_THROW(two->add("text", 1, in(60s)), ValueError);
  const TimePoint begun = std::chrono::steady_clock::now();
  EXPECT_THROW(two->watch("text", "12x", in(300ms)), Timeout);
  EXPECT_GE(std::chrono::steady_clock::now() - begun, 300ms);
  EXPECT_EQ(two->watch("text", std::nullopt, in(60s)), Value("12x"));
  std::jthread later([&] {
    one->set("b", "2", in(60s));
    one->set("a", "1", in(60s));
    one->set("text", "y", in(60s));
  });
  EXPECT_EQ(two->wait({"a", "b"}, "stop", in(60s)), (std::vector<std::string>{"1", "2"}));
  EXPECT_EQ(two->watch("text", "12x", in(60s)), Value("y"));
  later.join();
  std::jthread stopper([&] { one->set("stop", "why", in(60s)); });
  EXPECT_THROW(two->wait({"a", "never"}, "stop", in(60s)), Aborted);
  std::vector<std::string> many;
  for (int i = 0; i < 150; ++i) many.push_back(str("many/", i));
  one->set("many/149", "last", in(60s));
  EXPECT_EQ(two->peek(many, in(60s)).at(149), Value("last"));
  EXPECT_THROW(one->set("large", std::string(4 << 20, 'x'), in(60s)), Error);
}

TEST(EtcdStore, a_lease_excludes_a_second_holder_until_it_ends) {
  SKIP_WITHOUT_ETCD();
  const Etcd etcd;
  const auto one = make_etcd_store(etcd.address()), two = make_etcd_store(etcd.address());
  TimePoint renewed;
  for (int i = 0; i < 3; ++i) {
    renewed = std::chrono::steady_clock::now();
    one->hold("leader", "one", 2s, in(60s));
    EXPECT_THROW(two->hold("leader", "two", 2s, in(60s)), ValueError);
    std::this_thread::sleep_for(1200ms);
    EXPECT_EQ(peek(*two, "leader", in(60s)), "one") << "it was renewed";
  }
  EXPECT_EQ(two->watch("leader", "one", in(60s)), Value());
  EXPECT_GE(std::chrono::steady_clock::now() - renewed, 2s);
  two->hold("leader", "two", 2s, in(60s));
  EXPECT_THROW(one->hold("leader", "one", 2s, in(60s)), ValueError);
  two->set("leader", "two", in(60s));  // plain from here on
  one->hold("leader", "one", 60s, in(60s));
  one->unset("leader", in(60s));
  EXPECT_EQ(peek(*two, "leader", in(60s)), Value());
}

/// Clients count while `disturb` kills members.
void check_counts(const Etcd& etcd, const std::function<void(Store&)>& disturb) {
  const test::HangReport report([] { return "a client got no answer of etcd\n"; });
  constexpr int kClients = 3, kRounds = 30;
  std::atomic<int> won{0};
  std::vector<std::jthread> clients;
  for (int c = 0; c < kClients; ++c) {
    clients.emplace_back([&, c] {
      try {
        const auto store = make_etcd_store(etcd.address());
        for (int i = 0; i < kRounds; ++i) {
          store->add("sum", 1, in(100s));
          if (store->compare_and_set(str("turn/", i), std::nullopt, std::to_string(c), in(100s))) ++won;
          store->set(str("round/", i, "/", c), "", in(100s));
          std::vector<std::string> keys;
          for (int k = 0; k < kClients; ++k) keys.push_back(str("round/", i, "/", k));
          store->wait(keys, "", in(100s));
        }
      } catch (const std::exception& e) {
        ADD_FAILURE() << "client " << c << ": " << e.what();
      }
    });
  }
  const auto observer = make_etcd_store(etcd.address());
  disturb(*observer);
  clients.clear();
  EXPECT_EQ(peek(*observer, "sum", in(100s)), std::to_string(kClients * kRounds));
  EXPECT_EQ(won, kRounds);
}

TEST(EtcdStore, clients_go_on_when_etcd_is_killed_and_started_again) {
  SKIP_WITHOUT_ETCD();
  Etcd etcd;
  check_counts(etcd, [&](Store& store) {
    for (const int round : {5, 10, 15, 20}) {
      store.wait({str("round/", round, "/0")}, "", in(100s));
      etcd.kill(0);
      etcd.start(0);
    }
  });
}

TEST(EtcdStore, clients_go_on_when_one_of_three_members_is_killed) {
  SKIP_WITHOUT_ETCD();
  Etcd etcd(3);
  check_counts(etcd, [&](Store& store) {
    store.wait({"round/5/0"}, "", in(100s));
    etcd.kill(0);
    store.wait({"round/15/0"}, "", in(100s));
    etcd.start(0);
    store.wait({"round/16/0"}, "", in(100s));
  });
}

TEST(EtcdStore, bad_addresses_are_named_and_nobody_there_is_a_timeout) {
  EXPECT_THROW(make_etcd_store("nowhere"), ValueError);
  EXPECT_THROW(make_etcd_store("127.0.0.1:2379,192.0.2.1:2379"), RpcError) << "no credentials";
  const ReservedPort port;
  const auto store = make_etcd_store(str("127.0.0.1:", port.port()));
  try {
    store->set("k", "v", in(300ms));
    FAIL() << "no error";
  } catch (const Timeout& e) {
    EXPECT_NE(std::string(e.what()).find(str("127.0.0.1:", port.port())), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace weft::rpc
