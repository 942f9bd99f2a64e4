// Stores at an address, over gRPC. A store at a path listens on a socket of the user's folder, as workers do,
// and the path is a link to it. A later store at that path replaces the link.
#include <weft/distributed/launch/store_service.h>

#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include <weft/distributed/transport/address.h>
#include <weft/distributed/transport/inner/unprotected.h>

namespace weft::rpc {
namespace {

/// A store with its runtime, and the link at its path.
struct KeptStore {
  ~KeptStore() {
    store.reset();
    std::error_code failed;
    if (!link.empty() && std::filesystem::read_symlink(link, failed) == socket)
      std::filesystem::remove(link, failed);
  }
  std::shared_ptr<Runtime> runtime;
  std::string link{}, socket{};
  std::unique_ptr<Store> store{};
};

/// The path of a unix address; empty for "host:port". Throws: ValueError, RpcError.
std::string store_path(const std::string& address) {
  if (!is_unix_address(address)) {
    parse_host_port(address);
    return "";
  }
  const std::string path = address.substr(5);
  if (path.empty() || path.front() != '/' || path.size() >= sizeof(sockaddr_un::sun_path))
    throw ValueError(str("store address '", address, "': a path must be absolute and below ",
                         sizeof(sockaddr_un::sun_path), " bytes"));
  const std::string folder = std::filesystem::path(path).parent_path().string();
  struct stat info {};
  if (stat(folder.c_str(), &info) != 0)
    throw RpcError(str("store address '", address, "': ", folder, ": ", std::strerror(errno)));
  if (info.st_uid != geteuid() || (info.st_mode & 022) != 0)
    throw RpcError(str("store address '", address, "': the folder ", folder,
                       " must belong to this user, and no other user may write in it"));
  return path;
}

/// Makes `link` lead to `socket`, in place of an older link.
void put_link(const std::string& link, const std::string& socket) {
  std::error_code failed;
  const auto old = std::filesystem::symlink_status(link, failed);
  if (std::filesystem::exists(old) && !std::filesystem::is_symlink(old))
    throw RpcError(str("store address 'unix:", link, "': the path is taken"));
  const std::string fresh = str(link, ".", getpid());
  std::filesystem::remove(fresh, failed);
  std::filesystem::create_symlink(socket, fresh, failed);
  if (!failed) std::filesystem::rename(fresh, link, failed);
  if (failed) throw RpcError(str("store address 'unix:", link, "': ", failed.message()));
}

GrpcOptions store_grpc(const StoreNetwork& network, const std::string& path) {
  return {.unix_socket = !path.empty(),
          .same_host_lane = false,
          .tls = network.tls,
          .insecure = network.insecure,
          .connect_timeout = std::chrono::hours(1),
          .shared_poller = false};
}

/// Throws: RpcError for a host that the system cannot resolve.
void check_host(const std::string& address) {
  const std::string host = parse_host_port(address).host;
  if (is_loopback_host(host)) return;
  if (const std::string why = why_unresolved(host); !why.empty())
    throw RpcError(str("store at ", address, ": the host '", host, "' cannot be resolved: ", why));
}

std::shared_ptr<KeptStore> keep_store(const StoreNetwork& network) {
  auto kept = std::make_shared<KeptStore>();
  kept->runtime = network.runtime ? network.runtime : make_threaded_runtime({.threads = 2});
  return kept;
}

}  // namespace

ServedStore serve_store(const std::string& address, const StoreOptions& options,
                        const StoreNetwork& network) {
  const std::string path = store_path(address);
  const auto kept = keep_store(network);
  GrpcOptions grpc = store_grpc(network, path);
  grpc.id = WorkerId{0};
  grpc.admit_strangers = true;
  grpc.listen = path.empty() ? address : "";
  std::string at;
  kept->store = make_store_server(
      *kept->runtime,
      [&](Receiver& receiver) {
        auto transport = make_grpc_transport(kept->runtime, grpc, receiver);
        at = transport->addresses().addresses.at(0);
        return transport;
      },
      options);
  if (path.empty())
    inner::tell_unprotected("the store at " + at, network.tls, network.insecure, "read and change all keys");
  if (!path.empty()) {
    kept->socket = at.substr(5);
    put_link(path, kept->socket);
    kept->link = path;
    at = address;
  }
  return {std::shared_ptr<Store>(kept, kept->store.get()), at};
}

std::shared_ptr<Store> connect_store(const std::string& address, const StoreNetwork& network) {
  const std::string path = store_path(address);
  if (path.empty()) {
    check_host(address);
    inner::tell_unprotected("the store at " + address, network.tls, network.insecure,
                            "read and change all keys");
  }
  const auto kept = keep_store(network);
  GrpcOptions grpc = store_grpc(network, path);
  grpc.id = WorkerId{static_cast<int32_t>(kept->runtime->random() & 0x3fffffff) | 0x40000000};
  grpc.listen.clear();
  kept->store = make_store_client(
      *kept->runtime, [&](Receiver& receiver) { return make_grpc_transport(kept->runtime, grpc, receiver); },
      PeerAddress{.addresses = {address}}, address);
  return {kept, kept->store.get()};
}

}  // namespace weft::rpc
