// weft-certs: an authority and a certificate per worker, for the --tls flags of the programs.
//
//   weft-certs --dir certs --workers ps,trainer0,trainer1 --hosts 192.0.2.10
//
// A second run with the same folder keeps the authority and renews the certificates; running workers read
// them at their next connection.
#include <cstdio>

#include "common/args.h"
#include "common/report.h"
#include "weft-certs/certificates.h"

namespace {

std::vector<std::string> split_list(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    if (end > at) parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

}  // namespace

int main(int argc, char** argv) {
  weft_certs::Request request;
  std::string workers, hosts = "localhost,127.0.0.1";
  int64_t days = request.days;
  examples::Args args("weft-certs", "certificates for a group with TLS");
  args.add("dir", request.folder, "the folder of the files");
  args.add("workers", workers, "the workers' names, with commas between");
  args.add("hosts", hosts, "names and addresses of the host of rank 0, with commas between");
  args.add("days", days, "days until the certificates expire");
  args.require([&]() -> std::string {
    if (request.folder.empty() || workers.empty()) return "--dir and --workers are needed";
    if (days < 1 || days > 3650) return "--days must be 1 to 3650";
    return "";
  });
  args.parse(argc, argv);
  request.workers = split_list(workers);
  request.hosts = split_list(hosts);
  request.days = static_cast<int>(days);
  return examples::guarded("weft-certs", [&] {
    weft_certs::write_certificates(request);
    std::printf("weft-certs: %zu certificates in %s\n", request.workers.size(), request.folder.c_str());
    return 0;
  });
}
