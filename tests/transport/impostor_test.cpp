// Impostors against a group of real processes: one process more than the group has, which speaks as a member.
// Each hello is refused, nothing of it is heard, and the group goes on.
#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <weft/distributed/launch/inner/group_keys.h>
#include <weft/distributed/launch/inner/member_list.h>
#include <weft/distributed/launch/membership.h>
#include <weft/distributed/launch/rendezvous.h>
#include <weft/distributed/launch/store_service.h>
#include <weft/distributed/rpc/rpc.h>
#include <weft/distributed/transport/address.h>

#include "impostor_stage.h"

namespace weft::rpc {
namespace {

using namespace std::chrono_literals;

int64_t impostor_next(int64_t n) { return n + 1; }
WEFT_RPC(impostor_next);

/// A member that calls worker 0 until the impostor is through, and finds the group as it was.
int go_on(int rank) {
  tell_impostor();
  int64_t n = 0;
  while (!has_shared("done")) {
    n = rpc_sync<impostor_next>("worker0", n);
    current_runtime()->sleep_for(1ms);
  }
  for (int i = 0; i < 50; ++i) n = rpc_sync<impostor_next>((rank + 1) % 3, n);
  for (int other = 0; other < 3; ++other)
    if (other != rank && current_agent()->is_lost(WorkerId{other})) return 2;
  barrier();
  rpc::shutdown();
  return 0;
}

// ---- the jobs

/// A fourth process says hello as worker 1: of this user with another life, and without the user's folder.
int speaks_as_1() {
  await_shared("life1");
  bool all = true;
  for (const char* way : {"unix:", "127.0.0.1"})
    all = is_refused({}, address_of_0(way), "does not count this life of worker 1") && all;
  const Incarnation life{std::stoull(await_shared("life1"))};
  unsetenv("XDG_RUNTIME_DIR");  // as a process of another user, which knows the life's number all the same
  all = is_refused({.incarnation = life, .insecure = true}, address_of_0("127.0.0.1"),
                   "has not the cookie of its file") &&
        all;
  put_shared("done", "");
  return all ? 0 : 3;
}

/// Returns when rank 0 serves the rendezvous; throws after a minute.
void wait_for_listener(const LaunchInfo& launch) {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(launch.master_port);
  inet_pton(AF_INET, launch.master_addr.c_str(), &at.sin_addr);
  for (int i = 0; i < 12000; ++i) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool there = connect(fd, reinterpret_cast<sockaddr*>(&at), sizeof at) == 0;
    close(fd);
    if (there) return;
    usleep(5000);
  }
  throw Timeout("nobody serves the rendezvous");
}

/// A fourth process without the user's folder announces itself as rank 1 before rank 1 does.
int announces_itself() {
  unsetenv("XDG_RUNTIME_DIR");
  const auto runtime = make_threaded_runtime();
  const LaunchInfo launch = launch_info({.rank = 1, .world_size = 3});
  wait_for_listener(launch);
  const auto meet = make_rendezvous(runtime, launch, {.insecure = true});
  int status = 3;
  for (Duration limit = 1s; limit <= 8s && status != 0; limit *= 2) {
    try {
      meet->join({.name = "worker1"}, runtime->now() + limit);
    } catch (const Timeout& e) {
      const std::string text = e.what();
      const bool told = text.find("could not announce itself") != std::string::npos &&
                        text.find("has not the cookie of its file") != std::string::npos;
      if (!told) std::fprintf(stderr, "%s\n", e.what());
      status = told ? 0 : 4;
    }
  }
  put_shared("refused", "");
  put_shared("done", "");
  return status;
}

/// A fourth process with a certificate of the authority, for another name, speaks as worker 1.
int shows_another_name() {
  const Incarnation life{std::stoull(await_shared("life1"))};
  PeerAddress to = address_of_0("127.0.0.1");
  to.name = "worker0";
  const bool refused = is_refused({.incarnation = life, .unix_socket = false, .tls = tls_of("other")}, to,
                                  "is for other, 127.0.0.1, localhost, and not for 'worker1'");
  put_shared("done", "");
  return refused ? 0 : 3;
}

/// A fourth process with a certificate of the authority acts for worker 1 at the store of the group.
int acts_at_the_store(const std::string& where) {
  await_shared("formed");
  const auto store = connect_store(where, {.tls = tls_of("other")});
  const TimePoint late = std::chrono::steady_clock::now() + 1h;
  const std::string life = inner::kLifeBegin + std::string("worker1");
  const auto change = [&](const std::function<void(inner::MemberList&)>& f) {
    inner::change_members(*store, inner::kMembersKey, late, [&](inner::MemberList& list) {
      f(list);
      return true;
    });
  };
  const std::vector<std::function<void()>> attempts{
      [&] { store->hold(life, store->get(life, late), 1ms, late); }, [&] { store->unset(life, late); },
      [&] {
        change([](inner::MemberList& list) {
          Member moved = *list.find("worker1");
          moved.address.addresses = {"127.0.0.1:9"};
          list.add(moved);
        });
      },
      [&] {
        change([](inner::MemberList& list) {
          list.remove({inner::life_of(*list.find("worker1")), false, "it is gone"});
        });
      }};
  size_t refused = 0;
  for (const auto& attempt : attempts) {
    try {
      attempt();
    } catch (const NotAllowed& e) {
      if (std::string(e.what()).find("worker1") != std::string::npos) ++refused;
      else std::fprintf(stderr, "%s\n", e.what());
    }
  }
  put_shared("done", "");
  return refused == attempts.size() ? 0 : 3;
}

/// A member of an elastic group that calls worker 0 until the impostor is through, and finds the same list.
int shares_a_store(int rank) {
  const std::string store = to_string(HostPort{"127.0.0.1", launch_info().master_port});
  if (rank == 3) return acts_at_the_store(store);
  const std::string name = str("worker", rank);
  init_rpc(
      name,
      {.elastic = true, .store = store, .serve_store = rank == 0, .unix_socket = false, .tls = tls_of(name)});
  wait_for_members({"worker0", "worker1", "worker2"}, 60s);
  const uint64_t formed = epoch();
  if (rank == 0) put_shared("formed", "");
  for (int64_t n = 0; !has_shared("done");) {
    n = rpc_sync<impostor_next>("worker0", n);
    current_runtime()->sleep_for(1ms);
  }
  const bool same = epoch() == formed && rpc_sync<impostor_next>("worker1", 1) == 2;
  put_shared("checked by " + name, "");
  for (int other = 0; other < 3; ++other) await_shared(str("checked by worker", other));
  rpc::shutdown();
  return same ? 0 : 2;
}

int impostor_child(const std::string& job, int rank) {
  if (job == "store") return shares_a_store(rank);
  if (rank == 3)
    return job == "hello" ? speaks_as_1() : job == "rank" ? announces_itself() : shows_another_name();
  const std::string name = str("worker", rank);
  InitOptions options{.world_size = 3};
  if (job == "name") options.unix_socket = false, options.tls = tls_of(name);
  if (job == "rank" && rank == 1) await_shared("refused");
  init_rpc(name, options);
  return go_on(rank);
}

constexpr const char* kImpostorChild = "Impostor.a_process_started_by_these_tests_does_its_job";
TEST(Impostor, a_process_started_by_these_tests_does_its_job) { test::do_job(impostor_child); }

TEST(Impostor, a_hello_of_a_wrong_life_or_without_the_folder_is_refused_with_its_goodbye_and_its_floor) {
  Stage(kImpostorChild).play("hello");
}
TEST(Impostor, a_stranger_that_announces_itself_as_rank_1_is_not_heard_and_rank_1_joins) {
  Stage(kImpostorChild).play("rank");
}
TEST(Impostor, a_valid_certificate_of_another_name_is_refused) {
  play_with_certificates(kImpostorChild, "name");
}
TEST(Impostor, a_valid_certificate_of_another_name_changes_nothing_at_the_store_of_the_group) {
  play_with_certificates(kImpostorChild, "store");
}

}  // namespace
}  // namespace weft::rpc
