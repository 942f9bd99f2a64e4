// The store of a group under TLS, over real gRPC: a change that acts for a worker needs the certificate of
// its name. Each refusal says so at once, changes nothing, and the group goes on.
#include <gtest/gtest.h>

#include <weft/distributed/launch/inner/group_keys.h>
#include <weft/distributed/launch/inner/member_list.h>
#include <weft/distributed/launch/membership.h>
#include <weft/distributed/launch/rendezvous.h>
#include <weft/distributed/launch/store_service.h>
#include <weft/distributed/rpc/rpc_error.h>
#include <weft/distributed/transport/grpc_transport.h>

#include "store_world.h"
#include "support/certificates.h"
#include "support/errors.h"

namespace weft::rpc {
namespace {

using inner::MemberList;
using test::Certificates;

constexpr char kPsLife[] = "group/life/ps", kMembers[] = "group/members";

/// A store under TLS, and clients of it with certificates of their own.
struct NamedStore {
  explicit NamedStore(const std::string& name)
      : files(name), served(serve_store("127.0.0.1:0", {}, {.tls = of("store")})) {}
  TlsOptions of(const std::string& worker) const {
    files.issue(worker);
    return {.ca_file = files.ca(),
            .certificate_file = files.certificate(worker),
            .key_file = files.key_file(worker)};
  }
  std::shared_ptr<Store> client(const std::string& worker, bool check_names = true) const {
    TlsOptions tls = of(worker);
    tls.check_names = check_names;
    return connect_store(served.address, {.tls = tls});
  }
  Value now(const std::string& key) const { return served.store->peek({key}, in(60s)).at(0); }

  Certificates files;
  ServedStore served;
};

/// A member of that name, id and life at an address.
Member member(const std::string& name, int id, uint64_t life, const std::string& address = "127.0.0.1:9") {
  Member m{.name = name, .id = WorkerId{id}};
  m.address.addresses = {address};
  m.address.incarnation = Incarnation{life};
  return m;
}

void claim(Store& store, const std::string& name, int id, uint64_t life) {
  EXPECT_EQ(store.add("group/ids", 1, in(60s)), id + 1);
  EXPECT_TRUE(store.compare_and_set("group/id/" + name, std::nullopt, std::to_string(id), in(60s)));
  store.hold("group/life/" + name, std::to_string(life), 1h, in(60s));
}
void change(Store& store, const std::function<void(MemberList&)>& f) {
  inner::change_members(store, kMembers, in(60s), [&](MemberList& list) {
    f(list);
    return true;
  });
}

/// The text of a refusal. The deadline of the calls is an hour from now: a refusal comes at once.
template <class F> std::string refusal(F f) { return test::error_of<NotAllowed>(f); }
TimePoint late() { return in(1h); }

TEST(StoreNames, a_lease_is_taken_renewed_and_ended_by_the_certificate_of_its_name_only) {
  if (!Certificates::made()) GTEST_SKIP() << "no headers of OpenSSL";
  const NamedStore world("lease");
  const auto ps = world.client("ps"), trainer = world.client("trainer1");
  for (int held = 0; held < 2; ++held) {
    const Value before = world.now(kPsLife);
    const std::vector<std::function<void()>> attempts{
        [&] { trainer->hold(kPsLife, "7", 1s, late()); },
        [&] { trainer->set(kPsLife, "7", late()); },
        [&] { trainer->unset(kPsLife, late()); },
        [&] { trainer->add(kPsLife, 1, late()); },
        [&] { trainer->compare_and_set(kPsLife, before, "7", late()); },
        [&] { trainer->set_at_end(kPsLife, "7", "done", late()); },
        [&] { trainer->set_at_end("key", "7", kPsLife, late()); }};
    for (const auto& attempt : attempts) EXPECT_TRUE(test::has(refusal(attempt), kPsLife)) << held;
    EXPECT_EQ(
        refusal(attempts[0]),
        "store: a change of group/life/ps is refused: it is of worker 'ps', and the certificate of this "
        "client is for trainer1, 127.0.0.1, localhost");
    EXPECT_EQ(world.now(kPsLife), before);
    ps->hold(kPsLife, "5", 1h, in(60s));
  }
  trainer->set("any other key", "7", in(60s));
  EXPECT_EQ(ps->get(kPsLife, in(60s)), "5");
}

TEST(StoreNames, an_entry_of_the_list_is_written_by_the_certificate_of_its_name_only) {
  if (!Certificates::made()) GTEST_SKIP() << "no headers of OpenSSL";
  const NamedStore world("record");
  const auto ps = world.client("ps"), trainer = world.client("trainer1");
  claim(*ps, "ps", 0, 5);
  change(*ps, [](MemberList& list) { list.add(member("ps", 0, 5)); });
  claim(*trainer, "trainer1", 1, 6);
  const Value before = world.now(kMembers);
  const auto refused = [&](const std::function<void(MemberList&)>& f) {
    const std::string text = refusal([&] { change(*trainer, f); });
    EXPECT_EQ(world.now(kMembers), before);
    return text;
  };
  const auto expect_refused = [&](const std::string& why, const std::function<void(MemberList&)>& f) {
    const std::string text = refused(f);
    EXPECT_TRUE(test::has(text, why)) << text;
  };
  expect_refused("the entry of 'ps' differs",
                 [](MemberList& l) { l.add(member("ps", 0, 5, "192.0.2.1:9")); });
  expect_refused("it is of worker 'ps'", [](MemberList& l) { l.add(member("ps", 0, 7)); });
  expect_refused("it is of worker 'other'", [](MemberList& l) { l.add(member("other", 2, 7)); });
  expect_refused("the id 0 is not that of 'trainer1'",
                 [](MemberList& l) { l.add(member("trainer1", 0, 6)); });
  expect_refused("another life holds the lease of 'trainer1'",
                 [](MemberList& l) { l.add(member("trainer1", 1, 8)); });
  expect_refused("it is of worker 'ps'", [](MemberList& l) {
    l.remove({{WorkerId{0}, {5}}, false, "gone"});
  });
  expect_refused("the epoch", [](MemberList& l) { l.epoch += 5; });
  expect_refused("the departures before differ", [](MemberList& l) {
    l.departures.push_back({{WorkerId{1}, {6}}, true, "it never was"});
  });
  expect_refused("the id 1 stands there twice", [](MemberList& l) {
    l.members.push_back(member("trainer1", 1, 6)), l.members.push_back(member("trainer1", 1, 6));
  });
  EXPECT_TRUE(test::has(refusal([&] { trainer->set(kMembers, "x", late()); }), "by compare-and-set"));
  EXPECT_TRUE(test::has(refusal([&] { trainer->unset(kMembers, late()); }), "by compare-and-set"));
  EXPECT_TRUE(
      test::has(refusal([&] { trainer->compare_and_set(kMembers, before, "no list", late()); }), kMembers));
  EXPECT_FALSE(trainer->compare_and_set(kMembers, "an older list", "no list", in(60s)));
  change(*trainer, [](MemberList& list) { list.add(member("trainer1", 1, 6)); });
  EXPECT_EQ(inner::decode_members(*world.now(kMembers)).members.size(), 2u);
}

TEST(StoreNames, a_member_is_removed_by_itself_or_once_its_lease_has_run_out) {
  if (!Certificates::made()) GTEST_SKIP() << "no headers of OpenSSL";
  const NamedStore world("removal");
  const auto ps = world.client("ps"), trainer = world.client("trainer1");
  claim(*ps, "ps", 0, 5);
  change(*ps, [](MemberList& list) { list.add(member("ps", 0, 5)); });
  claim(*trainer, "trainer1", 1, 6);
  change(*trainer, [](MemberList& list) { list.add(member("trainer1", 1, 6)); });
  const auto remove = [](const std::shared_ptr<Store>& by, int id, uint64_t life) {
    change(*by, [&](MemberList& list) {
      EXPECT_TRUE(list.remove({{WorkerId{id}, {life}}, false, "nothing was heard from it"}));
    });
  };
  EXPECT_NE(refusal([&] { remove(trainer, 0, 5); }), "");
  ps->hold(kPsLife, "5", 1ms, in(60s));  // as it leaves
  ps->watch(kPsLife, "5", in(60s));
  remove(trainer, 0, 5);
  remove(trainer, 1, 6);  // itself
  const MemberList list = inner::decode_members(*world.now(kMembers));
  EXPECT_TRUE(list.members.empty());
  EXPECT_EQ(list.departures.size(), 2u);
  ps->hold(kPsLife, "9", 1h, in(60s));  // a successor, in the place of a life that nobody has removed
  change(*ps, [](MemberList& l) { l.add(member("ps", 0, 9)); });
  ps->hold(kPsLife, "9", 1ms, in(60s));
  ps->watch(kPsLife, "9", in(60s));
  ps->hold(kPsLife, "11", 1h, in(60s));
  change(*ps, [](MemberList& l) {
    l.remove({{WorkerId{0}, {9}}, false, "its successor has its name"});
    l.add(member("ps", 0, 11));
  });
}

TEST(StoreNames, an_id_is_given_once_to_the_certificate_of_its_name) {
  if (!Certificates::made()) GTEST_SKIP() << "no headers of OpenSSL";
  const NamedStore world("ids");
  const auto ps = world.client("ps"), trainer = world.client("trainer1");
  claim(*ps, "ps", 0, 5);
  const auto give = [&](const std::string& key, const Value& expected, const std::string& id) {
    return refusal([&] { trainer->compare_and_set(key, expected, id, late()); });
  };
  const std::string mine = "group/id/trainer1";
  EXPECT_TRUE(test::has(give("group/id/ps", "0", "1"), "it is of worker 'ps'"));
  EXPECT_TRUE(test::has(give(mine, std::nullopt, "0"), "the id 0 is of group/id/ps"));
  for (const char* bad : {"1", "-1", "", "x", "00", "99999999999999999999"})
    EXPECT_TRUE(test::has(give(mine, std::nullopt, bad), "is no id that was counted")) << bad;
  for (const int64_t by : {-1, 0, 2})
    EXPECT_TRUE(test::has(refusal([&] { trainer->add("group/ids", by, late()); }), "counts up by one"));
  EXPECT_TRUE(test::has(refusal([&] { trainer->set("group/ids", "0", late()); }), "counts up by one"));
  claim(*trainer, "trainer1", 1, 6);
  EXPECT_TRUE(test::has(give(mine, "1", "0"), "an id is given once"));
  EXPECT_FALSE(trainer->compare_and_set(mine, std::nullopt, "1", in(60s)));
}

TEST(StoreNames, a_worker_commits_its_own_steps_and_says_that_its_own_function_has_returned) {
  if (!Certificates::made()) GTEST_SKIP() << "no headers of OpenSSL";
  const NamedStore world("steps");
  const auto ps = world.client("ps"), trainer = world.client("trainer1");
  claim(*ps, "ps", 0, 5);
  claim(*trainer, "trainer1", 1, 6);
  EXPECT_TRUE(
      test::has(refusal([&] { trainer->hold("step/0.5.0.1", "commit", 1h, late()); }), "of another worker"));
  EXPECT_NE(refusal([&] { trainer->unset("step/0.5.0.1", late()); }), "");
  ps->hold("step/0.5.0.1", "commit", 1h, in(60s));
  trainer->hold("step/0.5.0.2", "abort", 1h, in(60s));  // as an owner in doubt
  trainer->hold("step/1.6.0.1", "commit", 1h, in(60s));
  trainer->set("step/of a user", "x", in(60s));

  const std::string run = "run/12/returned/";
  EXPECT_TRUE(test::has(refusal([&] { trainer->set(run + "0", "ps", late()); }), "it is of worker 'ps'"));
  EXPECT_NE(refusal([&] { trainer->set("run/number", "13", late()); }), "");
  ps->set(run + "0", "ps", in(60s));
  ps->set(run + "0", "ps", in(60s));
  EXPECT_TRUE(
      test::has(refusal([&] { trainer->set(run + "0", "trainer1", late()); }), "it is of worker 'ps'"));
  trainer->set(run + "1", "trainer1", in(60s));
  EXPECT_TRUE(test::has(refusal([&] { trainer->set(run + "2", "trainer1", late()); }), "has set " + run));
  trainer->set("run/of a user", "x", in(60s));
}

TEST(StoreNames, the_announcement_of_a_rank_has_the_name_of_its_certificate) {
  if (!Certificates::made()) GTEST_SKIP() << "no headers of OpenSSL";
  const NamedStore world("ranks");
  const auto ps = world.client("ps"), trainer = world.client("trainer1");
  EXPECT_NE(refusal([&] { trainer->set("init/member/0", "ps\n2\n", late()); }), "");
  EXPECT_NE(refusal([&] { trainer->add("init/name/ps", 1, late()); }), "");
  ps->set("init/member/0", "ps\n2\n", in(60s));
  EXPECT_NE(refusal([&] { trainer->set("init/member/0", "trainer1\n2\n", late()); }), "");
  EXPECT_NE(refusal([&] { trainer->unset("init/member/0", late()); }), "");
  trainer->set("init/member/1", "trainer1\n2\n", in(60s));
}

TEST(StoreNames, without_checked_names_every_client_of_the_authority_may_change_all) {
  if (!Certificates::made()) GTEST_SKIP() << "no headers of OpenSSL";
  const Certificates files("unchecked");
  const TlsOptions tls{.ca_file = files.ca(),
                       .certificate_file = files.certificate(),
                       .key_file = files.key_file(),
                       .check_names = false};
  const ServedStore served = serve_store("127.0.0.1:0", {}, {.tls = tls});
  const auto any = connect_store(served.address, {.tls = tls});
  any->hold(kPsLife, "7", 1h, in(60s));
  EXPECT_EQ(served.store->get(kPsLife, in(60s)), "7");
}

TEST(StoreNames, members_join_leave_and_are_succeeded_under_tls_and_one_of_another_name_does_not_join) {
  if (!Certificates::made()) GTEST_SKIP() << "no headers of OpenSSL";
  const NamedStore world("membership");
  const auto runtime = make_threaded_runtime();
  const auto join = [&](const std::string& name, const std::string& certificate) {
    const TlsOptions tls = world.of(certificate);
    JoinOptions options{.name = name, .deadline = in(60s)};
    options.make_agent = [&](WorkerId id) {
      AgentOptions mine;
      mine.name = name, mine.id = id, mine.lease = 2s;
      return Agent::create(runtime, mine, [&](Receiver& receiver) {
        return make_grpc_transport(runtime, {.id = id, .unix_socket = false, .tls = tls}, receiver);
      });
    };
    return Membership::join(runtime, connect_store(world.served.address, {.runtime = runtime, .tls = tls}),
                            options);
  };
  const auto ps = join("ps", "ps");
  const std::string text = refusal([&] { join("ghost", "trainer1"); });
  EXPECT_TRUE(test::has(text, "worker 'ghost'")) << text;
  auto trainer = join("trainer1", "trainer1");
  ps->wait_for({"trainer1"}, in(60s));
  trainer->stop();  // as if killed: its lease runs out
  trainer->agent()->shutdown({.graceful = false});
  trainer = join("trainer1", "trainer1");
  EXPECT_EQ(trainer->members().size(), 2u);
  trainer->leave(in(60s));
  ps->leave(in(60s));
  runtime->stop();
  EXPECT_TRUE(inner::decode_members(*world.now(kMembers)).members.empty());
}

}  // namespace
}  // namespace weft::rpc
