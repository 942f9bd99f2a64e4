// The check of tensors that cross outside an autograd context, and the callbacks of kReport. dist_record.cpp
// and gathers.cpp call the check for each message; kReport reports each function once.
#include <weft/distributed/rpc/outside_context.h>

#include <algorithm>
#include <cstdio>
#include <set>

#include <weft/autograd/tape/record.h>
#include <weft/distributed/rpc/inner/agent_impl.h>
#include <weft/distributed/rpc/inner/unrecorded.h>

namespace weft::rpc {

namespace {

/// The callbacks of an agent and the functions that were reported to them.
struct CutReports {
  explicit CutReports(Agent&) {}
  Callbacks<const CutGraph&> callbacks;
  Mutex mutex;
  std::set<std::string> told WEFT_GUARDED_BY(mutex);
};

bool is_inner(const Tensor& t) { return t.defined() && t.requires_grad() && !t.is_leaf(); }

std::string cut_text(const Agent& agent, const Message& message, const std::string& function, WorkerId to,
                     Carries carries) {
  const Tensor& cut = *std::find_if(message.tensors.begin(), message.tensors.end(), is_inner);
  const Edge edge = gradient_edge(cut);
  std::string whose = str("'", function, "'");
  if (to.value >= 0)
    whose += str(carries == Carries::kResult ? " for " : " to ", "worker '", agent.worker_info(to).name, "'");
  const std::string tensor =
      str("a tensor of sizes ", cut.sizes(), " made by ", edge.node ? edge.node->name() : "an operation",
          " requires a gradient, but ");
  switch (carries) {
    case Carries::kResult:
      return str(
          "the result of ", whose, ": ", tensor,
          "the call was made outside an autograd context, so no gradient could come back to it. Call '",
          function,
          "' inside a dist_autograd::Context, or under NoGrad, or compute its result under NoGrad, or return "
          "it with detach()");
    case Carries::kNeverRecorded:
      return str("a tensor of ", whose, ": ", tensor,
                 "no autograd context records this, so no gradient could come back to it. Compute it under "
                 "NoGrad, or pass it with detach()");
    default:
      return str("argument ", message.linked_argument, " of ", whose, ": ", tensor,
                 "the call is made outside an autograd context, so no gradient could come back to it. Call '",
                 function, "' inside a dist_autograd::Context, or under NoGrad, or pass it with detach()");
  }
}

void report(Agent& agent, const std::string& function, const std::string& text) {
  auto& reports = agent.slot<CutReports>();
  {
    MutexLock lock(reports.mutex);
    if (!reports.told.insert(function).second) return;
  }
  const CutGraph cut{function, text};
  const auto callbacks = reports.callbacks.copies();
  if (callbacks.empty())
    std::fprintf(stderr, "weft: worker '%s': %s\n", agent.self().name.c_str(), text.c_str());
  for (const auto& f : callbacks) {
    try {
      f(cut);
    } catch (...) {
    }
  }
}

}  // namespace

void on_cut_graph(Agent& agent, std::function<void(const CutGraph&)> f) {
  agent.slot<CutReports>().callbacks.add(std::move(f));
}

bool has_graph(const Message& message) {
  return std::any_of(message.tensors.begin(), message.tensors.end(), is_inner);
}

void check_unrecorded(Agent& agent, const Message& message, const std::string& function, WorkerId to,
                      Carries carries) {
  const OutsideContext rule = agent.impl().core.options.outside_context;
  if (rule == OutsideContext::kDetach) return;
  if (!has_graph(message)) return;
  const std::string text = cut_text(agent, message, function, to, carries);
  if (rule == OutsideContext::kThrow) throw AutogradError(text);
  report(agent, function, text);
}

void detach_unrecorded(Message& message) {
  for (Tensor& t : message.tensors)
    if (t.defined() && t.requires_grad()) t = t.detach();
}

}  // namespace weft::rpc
