// The access lists of a worker. inner/access.h lists the requests that they cover. server.cpp calls
// check_access for each request before it runs.
#include <weft/distributed/rpc/inner/access.h>

#include <algorithm>

namespace weft::rpc {

namespace {

bool is_users(Kind kind) { return kind >= Kind::kUser; }

}  // namespace

std::string access_name(Kind kind) {
  switch (kind) {
    case Kind::kFetch: return "weft::fetch";
    case Kind::kGather: return "weft::gather";
    case Kind::kGradients:
    case Kind::kMark: return "weft::backward";
    default: return is_users(kind) ? str("weft::kind ", static_cast<int>(kind)) : "";
  }
}

bool may_use(const AgentOptions& options, const std::string& what, const std::string& worker, bool deny) {
  const auto list = options.allow.find(what);
  if (list == options.allow.end()) return !deny;
  return std::find(list->second.begin(), list->second.end(), worker) != list->second.end();
}

void check_access(const AgentCore& core, Peer& sender, Kind kind) {
  const AgentOptions& options = core.options;
  if (sender.id == core.self.id || (options.allow.empty() && !options.deny_unlisted)) return;
  const std::string what = access_name(kind);
  if (what.empty()) return;
  // a group needs its gathers, and a pass goes only where its calls were let in
  const bool deny = options.deny_unlisted && (kind == Kind::kFetch || is_users(kind));
  const std::string name = PeerTable::name(sender);
  if (!may_use(options, what, name, deny))
    throw NotAllowed(str("worker '", name, "' may not use '", what, "'"));
}

}  // namespace weft::rpc
