// The services of every agent, lowest first. inner/services.h declares them; each is defined in the file of
// its protocol. The services of gathers, rounds and devices are here: these parts of an agent do not know the
// whole agent.
#include <weft/distributed/rpc/inner/services.h>

#include <weft/distributed/rpc/inner/agent_impl.h>

namespace weft::rpc {

void install_services(Agent& agent) {
  install_calls(agent);
  install_batches(agent);
  install_gather(agent);
  install_rounds(agent);
  install_devices(agent);
  install_references(agent);
  install_dist_autograd(agent);
}

void install_gather(Agent& agent) {
  agent.handle(Kind::kGather, RunOn::kTransport, [](Request request, Responder responder) {
    const std::shared_ptr<Agent> self = agent_of(responder.context());
    self->impl().gathers.serve(*self, std::move(request), std::move(responder));
  });
}

void install_rounds(Agent& agent) {
  agent.handle(Kind::kRound, RunOn::kTransport, [](Request request, Responder responder) {
    const std::shared_ptr<Agent> self = agent_of(responder.context());
    self->impl().rounds.serve(*self, std::move(request), std::move(responder));
  });
}

void install_devices(Agent& agent) {
  agent.handle(Kind::kReturn, RunOn::kTransport, [](Request request, Responder responder) {
    const std::shared_ptr<Agent> self = agent_of(responder.context());
    Decoder in(request.message);
    const auto numbers = in.get<std::vector<uint64_t>>();
    in.expect_end();
    const auto& lending = self->impl().devices.lending();
    Message answer;
    {
      Encoder out(answer);
      out.put(lending && lending->take_back(request.from, numbers));
    }
    responder.reply(std::move(answer));
  });
  if (!agent.impl().devices.lending()) return;
  agent.add_debug_info(
      [weak = std::weak_ptr<Lending>(agent.impl().devices.lending())](std::map<std::string, int64_t>& out) {
        const auto lending = weak.lock();
        if (!lending) return;
        out["devices.lent_tensors"] = lending->lent();
        out["devices.standing_loans"] = lending->standing();
      });
}

}  // namespace weft::rpc
