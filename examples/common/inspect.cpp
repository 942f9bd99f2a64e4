// The server of --inspect (inspect.h), over TLS by the files of the group.
#include "common/inspect.h"

#include <cstdio>

#include <weft/distributed/inspection/inspection.h>
#include <weft/distributed/rpc/trace.h>
#include "common/group.h"

namespace examples {

Inspecting::Inspecting(const NetworkFlags& flags) {
  weft::rpc::InspectionOptions options{.address = flags.inspect.value_or(""), .insecure = flags.insecure};
  if (!flags.tls_ca.empty())
    options.tls = {.ca_file = flags.tls_ca, .certificate_file = flags.tls_cert, .key_file = flags.tls_key};
#ifdef WEFT_HAVE_INSPECTION
  const auto server = std::make_shared<weft::rpc::InspectionServer>(options);
  server_ = server;
  weft::rpc::start_trace({.keep = true});  // of an elastic group that may record already
  std::printf("inspection: %s\n", server->address().c_str());
  std::fflush(stdout);
#else
  throw weft::ValueError("--inspect: this build has no inspection service (WEFT_INSPECTION)");
#endif
}

}  // namespace examples
