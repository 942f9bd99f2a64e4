// A group that spawn gives certificates: each process has its own, they talk encrypted, and the files are
// private and end with the group.
#include <gtest/gtest.h>

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include <weft/distributed/launch/group.h>
#include <weft/distributed/launch/spawn.h>
#include <weft/distributed/rpc/rpc.h>

#include "mailbox.h"
#include "support/child_environment.h"
#include "support/errors.h"
#include "support/process.h"

namespace weft::rpc {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

int64_t spawned_next(int64_t n) { return n + 1; }
WEFT_RPC(spawned_next);
std::vector<std::string> spawned_addresses() { return current_agent()->transport().addresses().addresses; }
WEFT_RPC(spawned_addresses);

uint32_t mode_of(const fs::path& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 ? info.st_mode & 0777 : 0;
}

/// True if a process of the same user without a certificate gets no word to worker 0.
bool plain_is_refused() {
  const auto runtime = make_threaded_runtime();
  Mailbox box(*runtime);
  const auto plain =
      make_grpc_transport(runtime, {.id = WorkerId{1}, .insecure = true, .connect_timeout = 1h}, box);
  plain->add_peer(WorkerId{0}, {.addresses = rpc_sync<spawned_addresses>("ps")});
  plain->send(WorkerId{0}, 1, "x");
  const bool refused = box.wait_for_state(WorkerId{0}, "rejected", 30s);
  plain->close();
  return refused;
}

int tls_child(const std::string&, int rank) {
  const char* const certificate = std::getenv("WEFT_TLS_CERT");
  if (certificate == nullptr) return 2;
  const std::string name = rank == 0 ? "ps" : str("trainer", rank - 1);
  const fs::path file = certificate, folder = file.parent_path();
  if (file.filename() != name + ".pem" || mode_of(folder) != 0700) return 3;
  for (const auto& entry : fs::directory_iterator(folder))
    if (mode_of(entry.path()) != 0600) return 4;
  if (fs::exists(folder / "ca.key")) return 5;
  init_rpc(name, {.unix_socket = false});
  if (rpc_sync<spawned_next>("ps", rank) != rank + 1) return 6;
  if (rpc_sync<spawned_next>("trainer1", rank) != rank + 1) return 7;
  if (rank == 2 && !plain_is_refused()) return 8;
  rpc::shutdown();
  return 0;
}

constexpr const char* kTlsChild = "SpawnTls.a_process_started_by_these_tests_does_its_job";
TEST(SpawnTls, a_process_started_by_these_tests_does_its_job) { test::do_job(tls_child); }

bool has_weft_certs() {
  return access((fs::read_symlink("/proc/self/exe").parent_path() / "weft-certs").c_str(), X_OK) == 0;
}

SpawnOptions tls_group() {
  return {.world_size = 3,
          .arguments = {str("--gtest_filter=", kTlsChild), "--gtest_brief=1"},
          .own_arguments = false,
          .environment = test::child_environment({{"WEFT_TEST_JOB", "tls"}}),
          .tls = true,
          .names = {"ps", "trainer0", "trainer1"}};
}

TEST(SpawnTls, each_worker_has_a_certificate_of_its_own_and_the_files_end_with_the_group) {
  if (!has_weft_certs()) GTEST_SKIP() << "weft-certs was not built";
  Children workers = spawn(tls_group());
  const fs::path folder = fs::path(workers.tls(0)->ca_file).parent_path();
  EXPECT_EQ(mode_of(folder), 0700u);
  test::expect_ended(std::move(workers));
  EXPECT_FALSE(fs::exists(folder));
}

TEST(SpawnTls, a_missing_program_and_a_wrong_number_of_names_are_said_before_any_process_starts) {
  SpawnOptions options = tls_group();
  options.names.pop_back();
  EXPECT_TRUE(test::has(test::error_of<ValueError>([&] { spawn(options); }), "2 names for 3 workers"));
  setenv("WEFT_CERTS", "/no/such/program", 1);
  options.names = {};
  EXPECT_TRUE(test::has(test::error_of<RpcError>([&] { spawn(options); }),
                        "certificates need the program weft-certs, and there is no '/no/such/program'"));
  setenv("WEFT_CERTS", "/bin/false", 1);
  EXPECT_TRUE(test::has(test::error_of<RpcError>([&] { spawn(options); }), "made no certificates"));
  unsetenv("WEFT_CERTS");
}

}  // namespace
}  // namespace weft::rpc
