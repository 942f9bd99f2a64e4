// The flags of every program that forms a group (group.h).
#include "args.h"
#include "group.h"

namespace examples {

void NetworkFlags::add_to(Args& args) {
  args.add("insecure", insecure, "let workers meet beyond this machine without encryption");
  args.add("tls", tls, "encrypt, with certificates made for the workers that this program starts");
  args.add("tls-ca", tls_ca, "encrypt: the authority's certificate (PEM)");
  args.add("tls-cert", tls_cert, "encrypt: this worker's certificate (PEM)");
  args.add("tls-key", tls_key, "encrypt: the key of that certificate (PEM)");
  args.add("tls-server-name", tls_server_name,
           "the name in the certificate of rank 0, if it is not its host");
  args.add("inspect", inspect,
           "let gRPC clients look into the group, by rank 0 at this host:port; alone: a unix socket");
  args.require([this]() -> std::string {
    const bool any = !tls_ca.empty() || !tls_cert.empty() || !tls_key.empty() || !tls_server_name.empty();
    if (any && (tls_ca.empty() || tls_cert.empty() || tls_key.empty()))
      return "TLS needs all of --tls-ca, --tls-cert and --tls-key";
    if (tls && (any || insecure)) return "--tls excludes --insecure and the other --tls flags";
    if (any && insecure) return "--insecure and the --tls flags exclude each other";
    return "";
  });
}

void NetworkFlags::add_elastic_to(Args& args) {
  args.add("store", store,
           "join the elastic group of the store at this address (weft-store): a dead worker may be replaced");
  args.add("name", name, "this worker's name in that group");
  args.require([this] {
    return std::string(store.empty() != name.empty() ? "--store and --name come together" : "");
  });
}

}  // namespace examples
