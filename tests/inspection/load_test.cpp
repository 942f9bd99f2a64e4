// Clients that read slowly, or not at all, and workers that do not answer. The group goes on, others are
// answered, and each call ends.
#include <gtest/gtest.h>

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>

#include <weft/distributed/inspection/inspection.h>
#include <weft/distributed/rpc/rpc.h>
#include <weft/distributed/rpc/trace.h>

#include "client.h"
#include "support/cluster.h"

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace std::chrono_literals;
using test::Call;
using test::Client;
using test::Cluster;
namespace v1 = test::v1;

int loaded_twice(int x) { return 2 * x; }
WEFT_RPC(loaded_twice);

/// A group of two whose trace is longer than a connection takes before its client reads.
struct Recorded {
  explicit Recorded(const InspectionOptions& options) {
    group.run(0, [&] {
      start_trace();
      for (int i = 0; i < 60'000; ++i) const TraceSpan span("a span with a name of some length");
      server.emplace(options);
    });
  }
  Cluster group{{.over = test::Over::kGrpc, .size = 2}};
  std::optional<InspectionServer> server;
};

/// A client that has read the first piece of a trace, and reads no further.
struct Stalled {
  explicit Stalled(const std::string& address) : client(address), reader(client.stub->Trace(&call, {})) {
    v1::TraceChunk chunk;
    began = reader->Read(&chunk);
  }
  ~Stalled() { call.TryCancel(); }
  Client client;
  Call call{10min};
  std::unique_ptr<grpc::ClientReader<v1::TraceChunk>> reader;
  bool began = false;
};

TEST(InspectionLoad, a_client_that_does_not_read_holds_neither_the_group_nor_other_clients) {
  Recorded w({});
  Stalled stalled(w.server->address());
  ASSERT_TRUE(stalled.began);
  Client other(w.server->address());
  EXPECT_TRUE(other.members().ok());
  grpc::Status status;
  other.trace({}, &status);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
  w.group.run(0, [] { EXPECT_EQ(rpc_sync<loaded_twice>("worker1", 3), 6); });
  w.group.shutdown();  // while the client still holds its call
}

TEST(InspectionLoad, a_call_ends_at_its_limit_although_its_client_does_not_read) {
  Recorded w({});
  for (Duration limit = 500ms;; limit *= 2) {  // a slow machine collects the trace for longer
    ASSERT_LT(limit, 100s);
    w.group.run(0, [&] { w.server.emplace(InspectionOptions{.max_call_time = limit}); });
    Stalled stalled(w.server->address());
    if (!stalled.began) continue;
    Client other(w.server->address());
    grpc::Status status;
    EXPECT_TRUE(test::eventually(w.group, [&] {
      other.trace({}, &status);
      return status.error_code() != grpc::StatusCode::RESOURCE_EXHAUSTED;
    })) << "the stalled call still has its seat";
    for (v1::TraceChunk chunk; stalled.reader->Read(&chunk);) {
    }
    EXPECT_EQ(stalled.reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
    return;
  }
}

TEST(InspectionLoad, calls_beyond_the_limit_are_refused_at_once) {
  Recorded w({.max_calls = 1});
  {
    Stalled stalled(w.server->address());
    ASSERT_TRUE(stalled.began);
    Client other(w.server->address());
    const grpc::Status refused = other.members();
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_EQ(refused.error_message(), "this inspection answers 1 call at a time");
  }
  Client next(w.server->address());
  EXPECT_TRUE(test::eventually(w.group, [&] { return next.members().ok(); })) << "the seat is free again";
}

TEST(InspectionLoad, a_worker_that_does_not_answer_is_named_within_the_time_of_the_call) {
  Recorded w({.max_call_time = 2s});
  w.group.kill(1);
  Client client(w.server->address());
  Call call;
  v1::WaitGraphReply graph;
  const grpc::Status status = client.stub->WaitGraph(&call, {}, &graph);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_NE(graph.text().find("worker 'worker1' does not answer: "), std::string::npos) << graph.text();
  grpc::Status trace;
  client.trace({"worker1"}, &trace);
  EXPECT_EQ(trace.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << trace.error_message();
}

TEST(InspectionLoad, strangers_that_say_nothing_or_nonsense_hold_nobody) {
  Recorded w({});
  std::vector<int> sockets;
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  std::strncpy(to.sun_path, w.server->address().c_str() + 5, sizeof to.sun_path - 1);
  for (int i = 0; i < 100; ++i) {
    sockets.push_back(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(connect(sockets.back(), reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
    const std::string nonsense(1000, static_cast<char>(i));
    if (i % 2 == 0) send(sockets.back(), nonsense.data(), nonsense.size(), MSG_NOSIGNAL);
  }
  EXPECT_TRUE(Client(w.server->address()).members().ok());
  w.group.run(0, [] { EXPECT_EQ(rpc_sync<loaded_twice>("worker1", 3), 6); });
  w.group.shutdown();
  for (const int s : sockets) close(s);
}

}  // namespace
