// The run of weft-certs for a group that this process starts. Each worker gets the variables with its files
// from spawn.cpp, and init.cpp reads them there. The destructor removes the private folder.
#include <weft/distributed/launch/inner/group_certificates.h>

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>

#include <weft/distributed/transport/inner/user_folder.h>
#include <weft/kernels/error.h>

extern char** environ;

namespace weft::rpc::inner {
namespace {

using namespace std::chrono_literals;

constexpr char kCa[] = "WEFT_TLS_CA", kCertificate[] = "WEFT_TLS_CERT", kKey[] = "WEFT_TLS_KEY";
constexpr char kDays[] = "7";  // a group that runs longer is given files of its own
constexpr auto kLimit = 60s;

/// A fresh folder with mode 0700.
std::string make_private_folder() {
  const FolderChoice choice = FolderChoice::of_process();
  std::string why;
  for (const std::string& parent : {choice.runtime, choice.temporary}) {
    if (parent.empty()) continue;
    std::string path = parent + "/weft-certs-XXXXXX";
    if (mkdtemp(path.data()) != nullptr) return path;
    why += str(why.empty() ? "" : "; ", parent, ": ", std::strerror(errno));
  }
  throw IoError("spawn: no folder for certificates: " + why);
}

/// The path of weft-certs, or its name for PATH.
std::string find_program() {
  if (const char* given = std::getenv("WEFT_CERTS"); given != nullptr && *given != '\0') return given;
  std::error_code failed;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", failed);
  const std::string beside = (self.parent_path() / "weft-certs").string();
  return !failed && access(beside.c_str(), X_OK) == 0 ? beside : "weft-certs";
}

/// Runs it without its output. Returns its status; -1: it was not found.
int run_program(std::vector<std::string> words) {
  std::vector<char*> argv;
  for (std::string& w : words) argv.push_back(w.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t pid = 0;
  const int error = posix_spawnp(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return -1;
  const auto end = std::chrono::steady_clock::now() + kLimit;
  int status = 0;
  for (;;) {
    const pid_t got = waitpid(pid, &status, WNOHANG);
    if (got == pid) return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
    if (got < 0 && errno != EINTR) return 128;  // another part of the program has waited for it
    if (std::chrono::steady_clock::now() >= end) break;
    std::this_thread::sleep_for(2ms);
  }
  ::kill(pid, SIGKILL);
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return 128;
}

}  // namespace

GroupCertificates::GroupCertificates(const std::vector<std::string>& workers)
    : folder_(make_private_folder()) {
  std::string names;
  for (const std::string& w : workers) names += (names.empty() ? "" : ",") + w;
  const std::string program = find_program();
  const int status = run_program(
      {program, "--dir", folder_, "--workers", names, "--hosts", "127.0.0.1,localhost", "--days", kDays});
  std::error_code failed;
  std::filesystem::remove(folder_ + "/ca.key", failed);
  if (status == 0 && !failed) return;
  std::filesystem::remove_all(folder_, failed);
  if (status == -1)
    throw RpcError(str("spawn: certificates need the program weft-certs, and there is no '", program,
                       "': install it beside this program or in PATH, or name it by WEFT_CERTS"));
  throw RpcError(str("spawn: '", program, "' made no certificates for ", names, ": status ", status));
}

GroupCertificates::~GroupCertificates() {
  std::error_code failed;
  std::filesystem::remove_all(folder_, failed);
}

TlsOptions GroupCertificates::of(const std::string& worker) const {
  return {.ca_file = folder_ + "/ca.pem",
          .certificate_file = folder_ + "/" + worker + ".pem",
          .key_file = folder_ + "/" + worker + ".key"};
}

std::map<std::string, std::string> GroupCertificates::variables(const std::string& worker) const {
  const TlsOptions files = of(worker);
  return {{kCa, files.ca_file}, {kCertificate, files.certificate_file}, {kKey, files.key_file}};
}

std::optional<TlsOptions> tls_of_environment() {
  TlsOptions tls;
  int given = 0;
  for (const auto& [name, file] :
       {std::pair(kCa, &tls.ca_file), std::pair(kCertificate, &tls.certificate_file),
        std::pair(kKey, &tls.key_file)})
    if (const char* value = std::getenv(name); value != nullptr && *value != '\0') *file = value, ++given;
  if (given == 0) return std::nullopt;
  if (given < 3) throw ValueError(str("TLS needs all of ", kCa, ", ", kCertificate, " and ", kKey));
  return tls;
}

}  // namespace weft::rpc::inner
