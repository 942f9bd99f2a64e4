// Impostors that are more than a stranger, against a group of real processes. One is a member that has proved
// its own name and speaks for another member. Others are processes of another user at unix sockets. The group
// goes on.
#include <gtest/gtest.h>

#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <functional>

#include <weft/distributed/launch/launch.h>
#include <weft/distributed/rpc/rpc.h>
#include <weft/distributed/transport/address.h>

#include "impostor_stage.h"
#include "raw_lane.h"

namespace weft::rpc {
namespace {

using namespace std::chrono_literals;

const std::vector<std::string> kHonest{"worker0", "worker1", "worker2"};
constexpr uint64_t kBeyond = uint64_t{1} << 61;

std::array<std::atomic<int64_t>, 4> g_calls;
/// The calls of its caller that have run here.
int64_t impostor_count() { return ++g_calls.at(static_cast<size_t>(call_context().caller.value)); }
WEFT_RPC(impostor_count);
int64_t impostor_malformed() { return debug_info().at("agent.malformed"); }
WEFT_RPC(impostor_malformed);

/// False: it did not hold within a minute.
bool soon(const std::function<bool()>& holds) {
  const TimePoint end = current_runtime()->now() + 1min;
  while (!holds()) {
    if (current_runtime()->now() > end) return false;
    current_runtime()->sleep_for(1ms);
  }
  return true;
}

// ---- a member speaks for another one

/// One of the others, which call each other until the liar is through. Each of their calls runs once.
int works_beside_a_liar(int rank) {
  tell_impostor();
  int64_t calls = 0;
  const auto call_all = [&] {
    ++calls;
    for (int other = 0; other < 3; ++other)
      if (other != rank && rpc_sync<impostor_count>({other, 60s}) != calls) return false;
    return true;
  };
  while (!has_shared("done")) {
    if (!call_all()) return 2;
    current_runtime()->sleep_for(1ms);
  }
  if (!soon([] { return current_agent()->is_lost(WorkerId{3}); })) return 3;  // its goodbye is its own
  for (int i = 0; i < 50; ++i)
    if (!call_all()) return 4;
  for (int other = 0; other < 3; ++other)
    if (other != rank && current_agent()->is_lost(WorkerId{other})) return 5;
  try {
    rpc_sync<impostor_count>({"worker3", 60s});
    return 6;
  } catch (const PeerLost& e) {
    if (e.peer != "worker3") return 7;
  }
  barrier(kHonest);
  put_shared(str("checked by ", rank), "");
  rpc::shutdown();
  return 0;
}

/// A member that was admitted in its own name. `as_1`: its hello as worker 1 is refused.
int lies(const std::function<bool()>& as_1) {
  const auto agent = current_agent();
  const auto send = [&](int to, Kind kind, uint8_t bits, const std::string& bytes) {
    agent->transport().send(WorkerId{to}, static_cast<uint8_t>(static_cast<uint8_t>(kind) | bits), bytes);
  };
  const Life one = agent->life_of(WorkerId{1});
  const auto names_1 = [&](Encoder& out) { out.put(std::string("worker1")), out.put(one.incarnation.value); };
  if (!as_1()) return 2;
  for (int to = 0; to < 3; ++to) {  // a call that is finished before it begins is refused, and runs nothing
    const int64_t before = rpc_sync<impostor_malformed>({to, 60s});
    send(to, Kind::kCall, 0, raw_message({.sequence = kBeyond / 2, .floor = kBeyond}, [](Encoder& out) {
           put_function(out, function_entry<impostor_count>());
         }));
    if (!soon([&] { return rpc_sync<impostor_malformed>({to, 60s}) == before + 1; })) return 3;
    if (rpc_sync<impostor_count>({to, 60s}) != 1) return 4;
  }
  for (uint64_t call = 1; call <= 200; ++call)  // answers to calls of worker 0 to others
    send(0, Kind::kCall, kReplyBit,
         raw_message({.sequence = call}, [](Encoder& out) { out.put(int64_t{-7}); }));
  if (rpc_sync<impostor_count>({0, 60s}) != 2) return 5;
  for (int to = 0; to < 3; ++to) {  // all calls of the sender are finished, later ones too
    send(to, Kind::kStatus, 0, raw_message({.floor = kBeyond}, [](Encoder& out) {
           out.number(uint8_t{0}), out.number(kBeyond), out.put(std::vector<uint64_t>());
         }));
    try {
      rpc_sync<impostor_count>({to, 500ms});
      return 6;
    } catch (const Timeout&) {  // it hurts the liar alone
    }
  }
  send(0, Kind::kGoodbye, 0, raw_message({.floor = kBeyond}, names_1));
  send(1, Kind::kGoodbye, 0, raw_message({}));
  send(2, Kind::kFenced, 0, raw_message({}, [](Encoder& out) { out.put(std::string("worker1 is lost")); }));
  put_shared("done", "");
  for (int other = 0; other < 3; ++other) await_shared(str("checked by ", other));
  rpc::shutdown({.graceful = false});
  return 0;
}

int member_job(bool tls, int rank) {
  const std::string name = str("worker", rank);
  InitOptions options{.world_size = 4};
  if (tls) options.unix_socket = false, options.tls = tls_of(name);
  init_rpc(name, options);
  barrier();
  if (rank != 3) return works_beside_a_liar(rank);
  const Incarnation life{std::stoull(await_shared("life1"))};
  return lies([&] {
    if (tls) {
      PeerAddress to = address_of_0("127.0.0.1");
      to.name = "worker0";
      return is_refused({.incarnation = life, .unix_socket = false, .tls = tls_of("worker3")}, to,
                        "is for worker3, 127.0.0.1, localhost, and not for 'worker1'");
    }
    for (const char* way : {"unix:", "127.0.0.1"})
      if (!is_refused({.incarnation = life}, address_of_0(way), "has shown another key for this life"))
        return false;
    return true;
  });
}

// ---- processes of another user

constexpr uid_t kNobody = 65534;

/// The process goes on as another user, with a private folder of its own. The test's folder is open to it.
bool becomes_another_user(const std::string& folder) {
  if (chmod(shared_path("").c_str(), 0777) != 0) return false;
  if (setresgid(kNobody, kNobody, kNobody) != 0 || setresuid(kNobody, kNobody, kNobody) != 0) return false;
  const std::string own = shared_path(folder);
  return mkdir(own.c_str(), 0700) == 0 && setenv("XDG_RUNTIME_DIR", own.c_str(), 1) == 0;
}

/// A process of another user that knows the addresses of the group and a life of worker 1.
int speaks_as_another_user() {
  const Incarnation life{std::stoull(await_shared("life1"))};
  const PeerAddress sockets = address_of_0("unix:"), port = address_of_0("127.0.0.1");
  if (!becomes_another_user("run of the speaker")) return 2;
  if (sockets.addresses.size() != (has_same_host_lane() ? 2 : 1)) return 3;  // gRPC's and the lane's
  for (const std::string& a : sockets.addresses)
    if (RawLane(a.substr(5)).is_open() || errno != EACCES) return 4;
  bool all = is_refused({.incarnation = life}, sockets, "Permission denied");
  all =
      is_refused({.incarnation = life}, port, "a process of user 0 listens there, this is user 65534") && all;
  all = is_refused({.incarnation = life, .insecure = true}, port, "has not the cookie of its file") && all;
  put_shared("spoken", "");
  return all ? 0 : 5;
}

/// A process of another user whose sockets are open to all. Nobody says a word to it.
int listens_as_another_user() {
  if (!becomes_another_user("run of the listener")) return 2;
  const std::string path = shared_path("foreign");
  std::array<pollfd, 2> sockets{};
  for (size_t i = 0; i < 2; ++i) {
    const std::string at = path + (i == 0 ? "" : kLaneEnd);
    sockets[i] = {.fd = RawLane::listen_at(at), .events = POLLIN, .revents = 0};
    if (sockets[i].fd < 0 || chmod(at.c_str(), 0777) != 0) return 3;
  }
  put_shared("listening", path);
  for (int i = 0; i < 6000 && !has_shared("met"); ++i) {
    if (poll(sockets.data(), sockets.size(), 10) <= 0) continue;
    for (const pollfd& one : sockets)
      if (one.revents != 0 && !RawLane::accept_from(one.fd).read(1).empty()) return 4;
  }
  return has_shared("met") ? 0 : 5;
}

/// A worker at these addresses cannot be added or cannot be called, and the error tells the cause.
bool cannot_call(int id, const std::vector<std::string>& addresses, const std::string& cause) {
  const std::string name = str("stranger", id);
  const Member member{
      .name = name,
      .id = WorkerId{id},
      .address = {.addresses = addresses, .host_key = host_key(), .incarnation = Incarnation{9}}};
  std::string text;
  for (Duration limit = 250ms; limit <= 16s && text.find(cause) == std::string::npos; limit *= 2) {
    try {
      current_agent()->add_members({member});
      rpc_sync<impostor_count>({name, limit});
    } catch (const RpcError& e) {
      text = e.what();
    }
  }
  if (text.find(cause) != std::string::npos) return true;
  std::fprintf(stderr, "the error does not say '%s': '%s'\n", cause.c_str(), text.c_str());
  return false;
}

int works_beside_another_user(int rank) {
  init_rpc(str("worker", rank), {.world_size = 2});
  barrier();
  tell_impostor();
  int64_t calls = 0;
  const auto call = [&] { return rpc_sync<impostor_count>({1 - rank, 60s}) == ++calls; };
  bool all = true;
  if (rank == 0) {
    const std::string path = await_shared("listening"), lane = path + kLaneEnd;
    const std::string foreign = "belongs to user 65534, this is user 0";
    all = cannot_call(10, {"unix:" + path}, foreign) && all;
    all = cannot_call(11, {"unix:" + lane}, foreign) && all;
    all = cannot_call(12, {"unix:" + path, "unix:" + lane}, foreign) && all;
    if (has_same_host_lane()) {
      if (chown(lane.c_str(), 0, 0) != 0) return 2;  // the file looks like one of this user
      all = cannot_call(13, {"unix:" + lane}, "a process of another user listens there") && all;
    }
    put_shared("met", "");
  }
  while (!has_shared("met") || !has_shared("spoken")) {
    if (!call()) return 3;
    current_runtime()->sleep_for(1ms);
  }
  for (int i = 0; i < 50; ++i)
    if (!call()) return 4;
  if (current_agent()->is_lost(WorkerId{1 - rank})) return 5;
  barrier({"worker0", "worker1"});
  rpc::shutdown({.graceful = false});  // the strangers would be waited for
  return all ? 0 : 6;
}

int member_impostor_child(const std::string& job, int rank) {
  if (job != "user") return member_job(job == "member with certificates", rank);
  return rank < 2    ? works_beside_another_user(rank)
         : rank == 2 ? speaks_as_another_user()
                     : listens_as_another_user();
}

constexpr const char* kMemberChild = "ImpostorMember.a_process_started_by_these_tests_does_its_job";
TEST(ImpostorMember, a_process_started_by_these_tests_does_its_job) { test::do_job(member_impostor_child); }

TEST(ImpostorMember,
     a_member_that_claims_the_goodbye_the_floor_and_the_answers_of_others_hurts_itself_alone) {
  Stage(kMemberChild).play("member");
}
TEST(ImpostorMember, a_member_with_a_certificate_of_its_own_name_speaks_for_no_other) {
  play_with_certificates(kMemberChild, "member with certificates");
}
TEST(ImpostorMember, another_users_sockets_are_refused_in_both_directions_and_the_group_goes_on) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  Stage(kMemberChild).play("user");
}

}  // namespace
}  // namespace weft::rpc
