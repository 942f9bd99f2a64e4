// Processes that a group under TLS does not take in, with the cause in their last line. Also the lines of
// programs that are told to do without protection.
#include "program.h"
#include "support/certificates.h"

namespace {

using namespace programs;
using weft::test::Certificates;

std::string tls_flags(const std::string& ca, const Certificates& files, const std::string& file = "cert") {
  return " --tls-ca " + ca + " --tls-cert " + files.certificate(file) + " --tls-key " + files.key_file(file);
}

TEST(ProgramsIdentity, a_process_without_a_good_certificate_is_refused_at_once_and_the_group_goes_on) {
  const std::vector<std::string> workers{"worker0", "worker1"};
  const Certificates ours("group", workers), theirs("stranger", workers);
  if (!ours.made()) GTEST_SKIP() << "no headers of OpenSSL";
  ours.issue("past", workers, -10);
  ours.issue("future", workers, 10);
  const Port port;
  Process first("my_add" + tls_flags(ours.ca(), ours), port.worker(0, 2));
  const std::vector<std::pair<std::string, std::string>> refused{
      {tls_flags(ours.ca(), ours, "past"), "past.pem expired at 20"},
      {tls_flags(ours.ca(), ours, "future"), "future.pem is not valid before 20"},
      {tls_flags(ours.ca(), theirs), "as for a certificate that it does not accept"},
      {tls_flags(theirs.ca(), theirs), "not of the authority that this side knows"},
      {"", "that port speaks TLS, and this side has no certificates: set tls"},
      {" --insecure", "that port speaks TLS, and this side has no certificates: set tls"}};
  for (const auto& [flags, cause] : refused) {
    const Output out = run("my_add" + flags, port.worker(1, 2));
    EXPECT_EQ(out.code, 1) << out.text;
    EXPECT_EQ(out.last().find("my_add: "), 0u) << out.text;
    EXPECT_NE(out.last().find(cause), std::string::npos) << "wanted " << cause << ", got " << out.text;
    EXPECT_EQ(out.last().find("no answer in time"), std::string::npos) << out.text;
  }
  Process second("my_add" + tls_flags(ours.ca(), ours), port.worker(1, 2));
  const Output out = first.finish(), other = second.finish();
  EXPECT_EQ(out.code, 0) << out.text;
  EXPECT_EQ(out.last(), "my_add: t1.grad=[5, 6] t2.grad=[5, 6] t4.grad=[4, 6] matches local: yes");
  EXPECT_EQ(other.code, 0) << other.text;
}

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
