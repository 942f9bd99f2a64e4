// The flag --inspect of the example programs, read while they run.
#include "programs/program.h"
#include "client.h"

namespace {

using weft::test::Call;
using weft::test::Client;
namespace v1 = weft::test::v1;

TEST(InspectionPrograms, the_flag_serves_the_group_of_a_running_program) {
  programs::Process cartpole("cartpole --inspect --log-interval 1 --max-episodes 100000000 --lr 0");
  ASSERT_TRUE(cartpole.says("inspection: unix:/") && cartpole.says("Episode 1\t")) << cartpole.text();
  const size_t at = cartpole.text().find("unix:/");
  Client client(cartpole.text().substr(at, cartpole.text().find('\n', at) - at));
  v1::MembersReply members;
  const grpc::Status status = client.members(&members);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(members.self(), "agent");
  EXPECT_GE(members.members_size(), 2);
  Call call;
  v1::WaitGraphReply graph;
  EXPECT_TRUE(client.stub->WaitGraph(&call, {}, &graph).ok());
  EXPECT_NE(graph.text().find("worker 'obs1':"), std::string::npos) << graph.text();
  EXPECT_NE(client.trace().find("\"cat\": \"call\""), std::string::npos);
  cartpole.interrupt();
  const programs::Output out = cartpole.finish();
  EXPECT_EQ(out.code, 0) << out.text;
}

TEST(InspectionPrograms, without_the_flag_a_program_serves_no_inspection) {
  EXPECT_FALSE(programs::run("my_add").has("inspection")) << "off by default";
  const programs::Output refused = programs::run("my_add --inspect 127.0.0.1:0");
  EXPECT_NE(refused.code, 0);
  EXPECT_TRUE(refused.has("set tls, or insecure = true")) << refused.text;
}

}  // namespace
