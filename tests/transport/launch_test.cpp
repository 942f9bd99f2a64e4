// The settings of a launch, from options and from the variables of launchers.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include <weft/distributed/launch/launch.h>

namespace weft::rpc {
namespace {

Environment variables(std::map<std::string, std::string> values) {
  return [values = std::move(values)](const char* name) {
    auto found = values.find(name);
    return found == values.end() ? nullptr : found->second.c_str();
  };
}

TEST(Launch, torchrun_variables_come_first_and_options_beat_them) {
  const auto env = variables({{"RANK", "2"},
                              {"WORLD_SIZE", "5"},
                              {"LOCAL_RANK", "1"},
                              {"MASTER_ADDR", "host0"},
                              {"MASTER_PORT", "4711"},
                              {"SLURM_PROCID", "3"},
                              {"SLURM_NTASKS", "7"}});
  const auto info = launch_info({}, env);
  EXPECT_EQ(info.rank, 2);
  EXPECT_EQ(info.world_size, 5);
  EXPECT_EQ(info.local_rank, 1);
  EXPECT_EQ(info.master_addr, "host0");
  EXPECT_EQ(info.master_port, 4711);
  EXPECT_EQ(info.source, "rank from RANK, address from MASTER_ADDR");
  const auto own = launch_info({.rank = 4, .master_addr = "127.0.0.1", .master_port = 1234}, env);
  EXPECT_EQ(own.rank, 4);
  EXPECT_EQ(own.world_size, 5);
  EXPECT_EQ(own.master_port, 1234);
  EXPECT_EQ(own.source, "rank from the options, address from the options");
}

TEST(Launch, torchruns_agent_keeps_its_port) {
  std::map<std::string, std::string> env = {
      {"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "localhost"}, {"MASTER_PORT", "4711"}};
  const auto port = [&] { return launch_info({}, variables(env)).master_port; };
  EXPECT_EQ(port(), 4711);
  env["TORCHELASTIC_USE_AGENT_STORE"] = "False";
  EXPECT_EQ(port(), 4711);
  env["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  EXPECT_EQ(port(), 4712);
  env["MASTER_PORT"] = "65535";
  EXPECT_EQ(port(), 65534);
  env["WEFT_MASTER_PORT"] = "4713";
  EXPECT_EQ(port(), 4713);
  EXPECT_EQ(launch_info({.master_port = 4714}, variables(env)).master_port, 4714);
}

TEST(Launch, other_launchers_are_understood) {
  const auto slurm = launch_info({}, variables({{"SLURM_PROCID", "3"},
                                                {"SLURM_NTASKS", "7"},
                                                {"SLURM_LOCALID", "1"},
                                                {"SLURM_JOB_NODELIST", "gpu[07-12,20],login"}}));
  EXPECT_EQ(slurm.rank, 3);
  EXPECT_EQ(slurm.world_size, 7);
  EXPECT_EQ(slurm.local_rank, 1);
  EXPECT_EQ(slurm.master_addr, "gpu07");
  EXPECT_EQ(slurm.master_port, 29500);
  EXPECT_EQ(
      launch_info(
          {}, variables({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}}))
          .rank,
      1);
  EXPECT_EQ(
      launch_info({}, variables({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MASTER_ADDR", "a"}})).world_size, 2);
  EXPECT_EQ(
      launch_info({}, variables({{"JOB_COMPLETION_INDEX", "1"}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", "a"}}))
          .world_size,
      3);
  EXPECT_EQ(launch_info({.rank = 0, .world_size = 1}, variables({})).master_port, 0);
}

TEST(Launch, what_is_missing_or_wrong_is_named) {
  const auto text = [](const LaunchOptions& options, std::map<std::string, std::string> values) {
    try {
      launch_info(options, variables(std::move(values)));
    } catch (const ValueError& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_NE(text({}, {}).find("no rank"), std::string::npos);
  EXPECT_NE(text({}, {{"RANK", "0"}}).find("no world size"), std::string::npos);
  EXPECT_NE(text({}, {{"RANK", "0"}, {"WORLD_SIZE", "2"}}).find("MASTER_ADDR"), std::string::npos);
  EXPECT_EQ(text({}, {{"RANK", "two"}}), "RANK is 'two', not a number");
  EXPECT_EQ(text({.rank = 3, .world_size = 3}, {}), "launch: rank 3 is not in 0..2");
  EXPECT_EQ(text({.rank = 0, .world_size = 2, .master_addr = "a", .master_port = 70000}, {}),
            "launch: master port is 70000, not in 1..65535");
}

}  // namespace
}  // namespace weft::rpc
