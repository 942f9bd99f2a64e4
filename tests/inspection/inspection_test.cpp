// The inspection service over a unix socket, read by a generated client: each method, the services beside it,
// and the agent that it shows. It only reads.
#include <gtest/gtest.h>

#include <filesystem>

#include <weft/distributed/inspection/inspection.h>
#include <weft/distributed/rpc/rpc.h>
#include <weft/distributed/rpc/trace.h>
#include <weft/distributed/transport/inner/user_folder.h>

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

test::Gate inspected_gate;

int inspected_twice(int x) { return 2 * x; }
WEFT_RPC(inspected_twice);
void inspected_wait() { inspected_gate.pass(); }
WEFT_RPC(inspected_wait);
void inspected_pass_on() { rpc_sync<inspected_wait>("worker2"); }
WEFT_RPC(inspected_pass_on);
void inspected_refusal() { throw ValueError("no"); }
WEFT_RPC(inspected_refusal);

/// A group over gRPC whose worker 0 is inspected.
struct Inspected {
  explicit Inspected(int size, InspectionOptions options = {},
                     std::function<void(int, AgentOptions&)> each = {})
      : group({.over = test::Over::kGrpc, .size = size, .each = std::move(each)}) {
    group.run(0, [&] { server.emplace(std::move(options)); });
    client.emplace(server->address());
  }
  Cluster group;
  std::optional<InspectionServer> server;
  std::optional<Client> client;
};

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(Inspection, members_and_counters_are_those_of_the_worker) {
  Inspected w(3);
  EXPECT_EQ(w.server->port(), 0);
  EXPECT_EQ(w.server->address().compare(0, 6, "unix:/"), 0) << w.server->address();
  EXPECT_TRUE(inner::is_own_socket(w.server->address().substr(5)));
  v1::MembersReply members;
  const grpc::Status status = w.client->members(&members);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(members.self(), "worker0");
  ASSERT_EQ(members.members_size(), 3);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(members.members(i).name(), str("worker", i));
    EXPECT_EQ(members.members(i).id(), i);
    EXPECT_FALSE(members.members(i).lost());
  }
  w.group.run(0, [] { EXPECT_EQ(rpc_sync<inspected_twice>("worker1", 4), 8); });
  Call call;
  v1::CountersReply counters;
  ASSERT_TRUE(w.client->stub->Counters(&call, {}, &counters).ok());
  EXPECT_GE(counters.counters().at("agent.client_calls"), 1);
  EXPECT_EQ(counters.counters().at("agent.lost_peers"), 0);
  w.group.kill(2);
  w.group.run(0, [&] { w.group.agent(0)->declare_lost(WorkerId{2}, "a test"); });
  ASSERT_TRUE(w.client->members(&members).ok());
  EXPECT_TRUE(members.members(2).lost());
  EXPECT_FALSE(members.members(1).lost());
}

TEST(Inspection, open_calls_and_who_waits_for_whom_are_shown_while_they_wait) {
  Inspected w(3);
  inspected_gate.close();
  Future<void> waits;
  w.group.run(0, [&] { waits = rpc_async<inspected_pass_on>({"worker1", 60s}); });
  EXPECT_TRUE(test::eventually(w.group, [] { return inspected_gate.reached > 0; }));
  Call one, two;
  v1::OpenCallsReply open;
  v1::WaitGraphReply graph;
  ASSERT_TRUE(w.client->stub->OpenCalls(&one, {}, &open).ok());
  EXPECT_TRUE(w.client->stub->WaitGraph(&two, {}, &graph).ok());
  inspected_gate.open = true;
  waits.wait();
  ASSERT_EQ(open.total(), 1);
  EXPECT_TRUE(open.calls(0).outgoing());
  EXPECT_EQ(open.calls(0).worker(), "worker1");
  EXPECT_EQ(open.calls(0).function(), "inspected_pass_on");
  EXPECT_GT(open.calls(0).age_us(), 0);
  EXPECT_NE(graph.text().find("'inspected_wait' on worker 'worker2' (inside 'inspected_pass_on' called by "
                              "worker 'worker0')"),
            std::string::npos)
      << graph.text();
  EXPECT_FALSE(graph.cut());
}

TEST(Inspection, latencies_and_the_trace_are_those_that_the_program_records) {
  Inspected w(2);
  w.group.run(0, [] {
    start_trace();
    for (int i = 0; i < 5; ++i) rpc_sync<inspected_twice>("worker1", i);
    EXPECT_THROW(rpc_sync<inspected_refusal>("worker1"), ValueError);
  });
  Call call;
  v1::LatenciesReply latencies;
  ASSERT_TRUE(w.client->stub->Latencies(&call, {}, &latencies).ok());
  bool found = false;
  for (const v1::FunctionLatencies& f : latencies.functions()) {
    if (f.function() == "inspected_refusal") {
      EXPECT_EQ(f.errors(), 1);
    }
    if (f.function() != "inspected_twice") continue;
    found = true;
    EXPECT_EQ(f.count(), 5);
    EXPECT_EQ(f.errors(), 0);
    int64_t sum = 0;
    for (const int64_t n : f.buckets()) sum += n;
    EXPECT_EQ(sum, 5);
    EXPECT_LE(f.median_us(), f.percentile99_us());
    EXPECT_LE(f.percentile99_us(), f.longest_us());
    EXPECT_LE(f.longest_us(), f.total_us());
  }
  EXPECT_TRUE(found) << latencies.ShortDebugString();
  const std::string all = w.client->trace(), one = w.client->trace({"worker1"});
  EXPECT_EQ(all.compare(0, 20, "{\"displayTimeUnit\": "), 0) << all;
  EXPECT_EQ(all.compare(all.size() - 4, 4, "\n]}\n"), 0);
  EXPECT_EQ(count_of(all, "\"name\": \"inspected_twice\""), 10u);  // at both ends
  EXPECT_EQ(count_of(one, "\"name\": \"inspected_twice\""), 5u);
  grpc::Status status;
  w.client->trace({"nobody"}, &status);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_NE(status.error_message().find("nobody"), std::string::npos) << status.error_message();
}

TEST(Inspection, health_and_reflection_answer_beside_it) {
  Inspected w(1);
  const std::string name = "weft.inspection.v1.Inspection", serving("\x08\x01", 2);
  const auto field = [](int number, const std::string& text) {
    return std::string{static_cast<char>(number << 3 | 2), static_cast<char>(text.size())} + text;
  };
  EXPECT_EQ(w.client->exchange("/grpc.health.v1.Health/Check", ""), serving);
  EXPECT_EQ(w.client->exchange("/grpc.health.v1.Health/Check", field(1, name)), serving);
  const std::string reflection = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
  const std::string services = w.client->exchange(reflection, field(7, ""));
  for (const std::string& service : {name, std::string("grpc.health.v1.Health")})
    EXPECT_NE(services.find(service), std::string::npos) << services;
  const std::string described = w.client->exchange(reflection, field(4, name));
  for (const char* part : {"Members", "WaitGraph", "TraceChunk"})
    EXPECT_NE(described.find(part), std::string::npos) << part;
}

TEST(Inspection, it_reads_only) {
  Inspected w(2);
  const auto* service =
      google::protobuf::DescriptorPool::generated_pool()->FindServiceByName("weft.inspection.v1.Inspection");
  ASSERT_NE(service, nullptr);
  std::string methods;
  for (int i = 0; i < service->method_count(); ++i) methods += service->method(i)->name() + " ";
  EXPECT_EQ(methods, "Members Counters OpenCalls WaitGraph Latencies Trace ");
  for (const char* method : {"Members", "Counters", "OpenCalls", "WaitGraph", "Latencies"})
    w.client->exchange(str("/weft.inspection.v1.Inspection/", method), "");
  // a trace that nobody has started is not started by its readers
  for (int i = 0; i < 2; ++i) {
    w.group.run(0, [] { rpc_sync<inspected_twice>("worker1", 1); });
    EXPECT_EQ(count_of(w.client->trace(), "\"ph\": \"X\""), 0u);
  }
  w.group.shutdown();
}

TEST(Inspection, access_lists_of_functions_hold_for_its_questions_to_other_workers) {
  Inspected w(2, {}, [](int rank, AgentOptions& options) { options.deny_unlisted = rank == 1; });
  Call call;
  v1::WaitGraphReply graph;
  ASSERT_TRUE(w.client->stub->WaitGraph(&call, {}, &graph).ok());
  EXPECT_NE(graph.text().find("worker 'worker1' does not answer: "), std::string::npos) << graph.text();
  EXPECT_NE(graph.text().find("weft::open_calls"), std::string::npos) << graph.text();
  grpc::Status status;
  w.client->trace({}, &status);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED) << status.error_message();
  w.client->trace({"worker0"}, &status);
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST(Inspection, made_before_the_group_it_shows_the_default_agent) {
  const InspectionServer server;
  Client client(server.address());
  EXPECT_EQ(client.members().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  Cluster group({.over = test::Over::kGrpc, .size = 2});
  set_default_agent(group.agent(1));
  v1::MembersReply members;
  EXPECT_TRUE(client.members(&members).ok());
  EXPECT_EQ(members.self(), "worker1");
  group.shutdown();
  EXPECT_EQ(client.members().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  set_default_agent(nullptr);
}

TEST(Inspection, nothing_listens_unless_the_program_asks_and_nothing_remains) {
  const std::filesystem::path folder =
      std::filesystem::path(::testing::TempDir()) / str("weft_inspection_", getpid());
  std::filesystem::create_directory(folder);
  std::filesystem::permissions(folder, std::filesystem::perms::owner_all);
  const char* const before = std::getenv("XDG_RUNTIME_DIR");
  const std::string kept = before != nullptr ? before : "";
  setenv("XDG_RUNTIME_DIR", folder.c_str(), 1);
  const auto sockets = [&] {
    size_t count = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
      count += entry.is_socket();
    return count;
  };
  {
    Cluster group({.over = test::Over::kGrpc, .size = 2});
    const size_t of_group = sockets();
    EXPECT_GE(of_group, 2u);
    {
      const InspectionServer server;
      EXPECT_EQ(sockets(), of_group + 1);
      EXPECT_EQ(std::filesystem::status(folder / "weft").permissions(), std::filesystem::perms::owner_all);
    }
    EXPECT_EQ(sockets(), of_group);
  }
  EXPECT_EQ(sockets(), 0u);
  if (before != nullptr) setenv("XDG_RUNTIME_DIR", kept.c_str(), 1);
  else unsetenv("XDG_RUNTIME_DIR");
  std::filesystem::remove_all(folder);
}

}  // namespace
