// The cluster of etcd (etcd.h). A member that is killed and started again goes on with its folder, which lies
// in that of the run.
#include "etcd.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <thread>

#include <weft/kernels/error.h>

namespace elastic {
namespace {

const std::string kScheme = "etcd://";

std::string program() {
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');)
    if (const std::string file = folder + "/etcd"; access(file.c_str(), X_OK) == 0) return file;
  throw weft::IoError("--etcd: there is no program etcd in PATH (Debian: etcd-server)");
}

std::string addresses(const std::vector<weft::rpc::ReservedPort>& ports) {
  std::string all;
  for (const auto& one : ports) all += weft::str(all.empty() ? "" : ",", "127.0.0.1:", one.port());
  return all;
}

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> all;
  std::istringstream in(list);
  for (std::string one; std::getline(in, one, ',');) all.push_back(one);
  if (all.size() != kMembers) throw weft::IoError(weft::str("not ", kMembers, " addresses: '", list, "'"));
  return all;
}

std::string peers_file(const std::string& dir) { return dir + "/peers"; }

}  // namespace

EtcdPorts::EtcdPorts(const std::string& dir) : clients_(kMembers), peers_(kMembers) {
  program();
  if (!(std::ofstream(peers_file(dir)) << addresses(peers_)).flush())
    throw weft::IoError("cannot write " + peers_file(dir));
}

std::string EtcdPorts::store() const { return kScheme + addresses(clients_); }

double longest_absence(const Options& options) { return 2 * options.lease; }

void become_member(const Options& o, int member) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // it ends with the supervisor, as the other processes do
  const std::string name = weft::str("etcd", member), files = o.dir + "/" + name;
  if (std::filesystem::exists(files)) {
    std::mt19937_64 draws(static_cast<uint64_t>(o.seed) + static_cast<uint64_t>(getpid()));
    std::uniform_real_distribution<double> away(0, longest_absence(o));
    std::this_thread::sleep_for(std::chrono::duration<double>(away(draws)));
  }
  const char* const store = std::getenv("WEFT_STORE");
  std::string list;
  std::ifstream(peers_file(o.dir)) >> list;
  const std::vector<std::string> peers = split(list),
                                 clients = split(std::string(store ? store : "").substr(kScheme.size()));
  std::string cluster;
  for (size_t i = 0; i < peers.size(); ++i)
    cluster += weft::str(i ? "," : "", "etcd", i, "=http://", peers[i]);
  const std::string client = "http://" + clients[static_cast<size_t>(member)],
                    peer = "http://" + peers[static_cast<size_t>(member)];
  std::vector<std::string> words = {program(),     "--name",
                                    name,          "--data-dir",
                                    files,         "--listen-client-urls",
                                    client,        "--advertise-client-urls",
                                    client,        "--listen-peer-urls",
                                    peer,          "--initial-advertise-peer-urls",
                                    peer,          "--initial-cluster",
                                    cluster,       "--logger",
                                    "zap",         "--log-outputs",
                                    files + ".log"};
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  execv(arguments[0], arguments.data());
  throw weft::IoError(weft::str("cannot run ", words[0], ": ", std::strerror(errno)));
}

}  // namespace elastic
