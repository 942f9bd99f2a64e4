// weft-store: serves a store until it is told to end. Programs reach it by rpc::connect_store. With --dir it
// can be killed and started again: keys, leases and clients go on.
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ctime>

#include <sys/stat.h>

#include <weft/distributed/launch/store_service.h>

#include "common/args.h"
#include "common/report.h"

using namespace weft;

namespace {

/// Blocks until SIGINT or SIGTERM, which are blocked in all threads. Throws: the store's error when its log
/// cannot be written any more.
int wait_for_end(rpc::Store& store, const sigset_t& signals) {
  while (true) {
    const timespec second{1, 0};
    const int got = sigtimedwait(&signals, nullptr, &second);
    if (got > 0) return got;
    if (errno == EAGAIN) store.peek({}, std::chrono::steady_clock::now() + std::chrono::seconds(60));
  }
}

int serve(const std::string& listen, const rpc::StoreOptions& options, const rpc::StoreNetwork& network) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // before the first thread
  auto served = rpc::serve_store(listen, options, network);
  std::printf("weft-store: serving at %s, %s\n", served.address.c_str(),
              options.log.empty() ? "without a log" : ("log " + options.log).c_str());
  std::fflush(stdout);
  const int got = wait_for_end(*served.store, signals);
  served.store.reset();
  std::printf("weft-store: ended by %s after %.1f s\n", got == SIGINT ? "SIGINT" : "SIGTERM",
              examples::seconds());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::string listen = "127.0.0.1:29400", dir, ca, certificate, key;
  rpc::StoreOptions options;
  rpc::StoreNetwork network;
  examples::seconds();
  examples::Args args("weft-store", "Serves a store: keys with values, leases and watches.");
  args.add("listen", listen, "host:port, port 0 for any, or unix:/path");
  args.add("dir", dir, "folder of the log that keeps the store over a restart");
  args.add("insecure", network.insecure, "listen beyond this machine without encryption");
  args.add("tls-ca", ca, "encrypt: the authority's certificate (PEM)");
  args.add("tls-cert", certificate, "encrypt: this store's certificate (PEM)");
  args.add("tls-key", key, "encrypt: the key of that certificate (PEM)");
  args.require([&]() -> std::string {
    const bool any = !ca.empty() || !certificate.empty() || !key.empty();
    if (any && (ca.empty() || certificate.empty() || key.empty()))
      return "TLS needs all of --tls-ca, --tls-cert and --tls-key";
    if (any && network.insecure) return "--insecure and the --tls flags exclude each other";
    return "";
  });
  args.parse(argc, argv);
  if (!ca.empty()) {
    network.tls.emplace();
    network.tls->ca_file = ca, network.tls->certificate_file = certificate, network.tls->key_file = key;
  }
  return examples::guarded("weft-store", [&] {
    if (!dir.empty()) {
      if (mkdir(dir.c_str(), 0700) != 0 && errno != EEXIST)
        throw IoError("cannot make the folder " + dir + ": " + std::strerror(errno));
      options.log = dir + "/store.log";
    }
    return serve(listen, options, network);
  });
}
