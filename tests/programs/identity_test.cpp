// The lines of programs that are told to do without protection.
#include "program.h"

namespace {

using namespace programs;

TEST(ProgramsIdentity, a_program_without_protection_says_what_is_open) {
  const std::string open =
      ": insecure = true: its messages are neither encrypted nor checked; anybody who "
      "reaches its port or the network between can ";
  const Output out = run("my_add --insecure");
  EXPECT_EQ(out.code, 0) << out.text;
  for (const std::string worker : {"worker0", "worker1"})
    EXPECT_TRUE(out.has("weft: worker '" + worker + "'" + open +
                        "read, change and forge them, and speak as any worker\n"))
        << out.text;
  EXPECT_FALSE(run("my_add").has("insecure"));
  Process store("weft-store --listen 127.0.0.1:0 --insecure");
  EXPECT_TRUE(store.says("weft-store: serving at ")) << store.text();
  EXPECT_NE(store.text().find(open + "read and change all keys\n"), std::string::npos) << store.text();
  const Output inspected = run("cartpole --max-episodes 1 --insecure --inspect 127.0.0.1:0");
  EXPECT_EQ(inspected.code, 0) << inspected.text;
  EXPECT_TRUE(inspected.has(open + "read the state of the group\n")) << inspected.text;
}

}  // namespace
