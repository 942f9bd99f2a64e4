// The cause in the errors of calls to a worker that cannot be reached. The transport, over gRPC, has its
// default timeouts, and leases and deadlines are far below them. Each try has a longer limit, so that a busy
// machine needs more tries only.
#include <gtest/gtest.h>

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <weft/distributed/launch/rendezvous.h>
#include <weft/distributed/rpc/rpc.h>
#include <weft/distributed/transport/address.h>
#include <weft/distributed/transport/grpc_transport.h>
#include <weft/distributed/transport/inner/frame.h>

#include "support/errors.h"

namespace weft::rpc {
namespace {

using namespace std::chrono_literals;
using test::error_of;
using test::has;

int64_t refusal_next(int64_t n) { return n + 1; }
WEFT_RPC(refusal_next);

constexpr Incarnation kLife{7};

struct RefusalWorker {
  explicit RefusalWorker(GrpcOptions wire, Duration lease = 1h)
      : runtime(make_threaded_runtime({.threads = 2})),
        agent(Agent::create(runtime, {.name = str("worker", wire.id), .id = wire.id, .lease = lease},
                            [&](Receiver& r) { return make_grpc_transport(runtime, wire, r); })) {}
  ~RefusalWorker() {
    agent->shutdown({.graceful = false});
    runtime->stop();
  }
  int64_t call(Duration timeout) {
    const AgentScope scope(agent);
    return rpc_sync<refusal_next>({"worker1", timeout}, 1);
  }
  const std::shared_ptr<Runtime> runtime;
  const std::shared_ptr<Agent> agent;
};

/// The error of a call to `target` by a worker with those options: the first that has `cause`, or the last.
/// Each caller makes one call, which ends by its deadline, or `by_lease`. The first has `limit`, each other
/// one twice that of the one before.
std::string error_of_calls(const GrpcOptions& wire, const Member& target, const std::string& cause,
                           bool by_lease, Duration limit) {
  std::string text;
  for (; limit <= 8s && text.find(cause) == std::string::npos; limit *= 2) {
    RefusalWorker caller(wire, by_lease ? limit : 1h);
    caller.agent->add_members({caller.agent->as_member(), target});
    text = by_lease ? error_of<PeerLost>([&] { caller.call(0s); })
                    : error_of<Timeout>([&] { caller.call(limit); });
  }
  return text;
}

void expect_cause(const GrpcOptions& wire, const Member& target, const std::string& cause,
                  Duration first = 250ms) {
  const std::string late = error_of_calls(wire, target, cause, false, first);
  EXPECT_TRUE(has(late, "ran for more than the timeout of "));
  EXPECT_TRUE(has(late, "; worker 'worker1' is not connected: worker 1 at " + target.address.addresses[0]));
  EXPECT_TRUE(has(late, cause));
  const std::string lost = error_of_calls(wire, target, cause, true, first);
  EXPECT_TRUE(has(lost, "worker 'worker1' is lost: nothing was heard from it for "));
  EXPECT_TRUE(has(lost, "; it is not connected: worker 1 at " + target.address.addresses[0]));
  EXPECT_TRUE(has(lost, cause));
}

TEST(Refusal, a_wrong_cookie_is_named_by_a_timeout_and_by_a_loss) {
  RefusalWorker callee({.id = WorkerId{1}, .unix_socket = false});
  const inner::Hello forged{.id = WorkerId{0},
                            .incarnation = kLife,
                            .target = WorkerId{1},
                            .host_key = host_key(),
                            .cookie = std::string(32, 'x')};
  expect_cause({.id = WorkerId{0},
                .incarnation = kLife,
                .first_frame = inner::encode_hello(inner::RecordType::kHello, forged)},
               callee.agent->as_member(), "has not the cookie of its file");
}

TEST(Refusal, a_life_that_is_not_counted_is_named_by_a_timeout_and_by_a_loss) {
  RefusalWorker callee({.id = WorkerId{1}});
  expect_cause({.id = WorkerId{0}}, callee.agent->as_member(),
               "worker 1 does not count this life of worker 0 as a member, or not yet");
}

TEST(Refusal, another_key_of_a_life_is_named_by_a_timeout_and_by_a_loss) {
  RefusalWorker callee({.id = WorkerId{1}});
  RefusalWorker first({.id = WorkerId{0}, .incarnation = kLife, .hello_key = 21});
  const std::vector<Member> members{first.agent->as_member(), callee.agent->as_member()};
  for (RefusalWorker* one : {&callee, &first}) one->agent->add_members(members);
  EXPECT_EQ(first.call(60s), 2);
  expect_cause({.id = WorkerId{0}, .incarnation = kLife, .hello_key = 22}, members[1],
               "worker 0 has shown another key for this life");
  EXPECT_EQ(first.call(60s), 2);
}

Member worker1_at(const std::string& address) {
  return {.name = "worker1",
          .id = WorkerId{1},
          .address = {.addresses = {address}, .incarnation = Incarnation{9}}};
}

TEST(Refusal, an_address_where_nobody_listens_is_named_by_a_timeout_and_by_a_loss) {
  const ReservedPort port;
  const Member target = worker1_at(str("127.0.0.1:", port.port()));
  expect_cause({.id = WorkerId{0}}, target, "no process of this user listens there");
  expect_cause({.id = WorkerId{0}, .insecure = true}, target, "Connection refused");
}

TEST(Refusal, a_port_that_accepts_nobody_is_named_by_a_timeout_and_by_a_loss) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{};
  socklen_t size = sizeof at;
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&at), size), 0);
  ASSERT_EQ(listen(listener, 8), 0);
  ASSERT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&at), &size), 0);
  expect_cause({.id = WorkerId{0}, .insecure = true}, worker1_at(str("127.0.0.1:", ntohs(at.sin_port))),
               "connection attempt timed out", 3s);
  close(listener);
}

TEST(Refusal, a_rendezvous_that_refuses_is_named_by_the_error_of_a_join) {
  const ReservedPort port;
  const auto runtime = make_threaded_runtime();
  const auto meet = make_rendezvous(
      runtime,
      launch_info({.rank = 1, .world_size = 2, .master_addr = "127.0.0.1", .master_port = port.port()}), {});
  std::string text;
  for (Duration limit = 250ms; limit <= 8s && text.find("no process of") == std::string::npos; limit *= 2)
    text = error_of<Timeout>([&] { meet->join({.name = "worker1"}, runtime->now() + limit); });
  EXPECT_TRUE(has(text, "init: rank 1 ('worker1') could not announce itself: store at 127.0.0.1:"));
  EXPECT_TRUE(has(text, "no process of this user listens there"));
}

}  // namespace
}  // namespace weft::rpc
