// The training (training.h). A step's batch depends on its number alone, and a checkpoint has the parameters,
// the state of Adam and the number. So a training that was interrupted ends with the same bits.
#include "training.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <thread>

#include <weft/distributed.h>
#include <weft/distributed/launch/membership.h>
#include <weft/distributed/launch/store_service.h>
#include <weft/distributed/optim/dist_checkpoint.h>
#include "../common/held_counters.h"

namespace elastic {
namespace {

using weft::Tensor;
using weft::rpc::RRef;
using namespace std::chrono_literals;

constexpr int64_t kFeatures = 16, kWidth = 64, kRows = 32;
const weft::optim::AdamRule::Options kRule{.lr = 0.01};

struct Layer : weft::nn::Module {
  Layer(int64_t inputs, int64_t outputs, int64_t seed) : linear(inputs, outputs) {
    add("linear", linear);
    weft::Generator draws = weft::Generator(static_cast<uint64_t>(seed)).fork(static_cast<uint64_t>(outputs));
    linear.reset_parameters(&draws);
  }
  Tensor forward(const Tensor& x) { return linear.forward(x); }
  std::vector<RRef<Tensor>> parameter_rrefs() {
    std::vector<RRef<Tensor>> out;
    for (const Tensor& p : parameters()) out.emplace_back(p);
    return out;
  }
  weft::nn::Linear linear;
};
WEFT_RPC_CONSTRUCTOR(Layer, int64_t, int64_t, int64_t);
WEFT_RPC_CLASS(Layer, forward, parameter_rrefs);

/// The counters of things that this worker still holds. `served`: in a served call, which counts itself.
std::map<std::string, int64_t> kept_here(bool served) {
  auto kept = weft::rpc::debug_info();
  --kept.at("agent.watches");  // the other worker is kept under lease as long as the group lives
  if (served && --kept.at("agent.server_active_calls") == 0) kept.erase("agent.served_bytes");
  for (const char* memory : {"agent.shared_bytes", "agent.shared_payloads"})  // kept for later, and a total
    kept.erase(memory);
  std::erase_if(kept, [](const auto& c) { return c.second == 0 || !examples::counts_held(c.first, true); });
  return kept;
}
WEFT_RPC(kept_here);
/// The sum of the counters at both workers. `say`: names them.
int64_t kept_in_all(bool say) {
  int64_t sum = 0;
  for (const auto& [where, kept] :
       {std::pair("ps", weft::rpc::rpc_sync<kept_here>("ps", true)), std::pair("trainer", kept_here(false))})
    for (const auto& [name, value] : kept) {
      sum += std::abs(value);
      if (say)
        std::fprintf(stderr, "elastic: %s has %s = %lld\n", where, name.c_str(),
                     static_cast<long long>(value));
    }
  return sum;
}
/// The things that both still hold after the session, of which the server drops those of earlier trainers.
int64_t kept_at_end() {
  const auto limit = std::chrono::steady_clock::now() + 30s;
  while (kept_in_all(false) > 0) {
    if (std::chrono::steady_clock::now() >= limit) return kept_in_all(true);
    std::this_thread::sleep_for(20ms);
  }
  return 0;
}
void finish() { weft::rpc::stop_serving(); }
WEFT_RPC(finish);

struct Batch {
  Tensor x, y;
};
Batch batch_of(const Options& o, int64_t step) {
  weft::Generator draws = weft::Generator(static_cast<uint64_t>(o.seed))
                              .fork(weft::nn::name_key("data"))
                              .fork(static_cast<uint64_t>(step));
  const Tensor x = weft::randn({kRows, kFeatures}, {}, &draws);
  return {x, weft::sin(x.sum({1}, true))};
}

/// The model over two workers, from its checkpoint if there is one.
class Session {
 public:
  explicit Session(const Options& o)
      : options_(o),
        first_(weft::rpc::remote<Layer>("ps", kFeatures, kWidth, o.seed)),
        second_(kWidth, 1, o.seed),
        optimizer_(weft::dist_optim::make<weft::optim::AdamRule>(all_parameters(), kRule)) {
    if (weft::dist_optim::has_checkpoint(o.dir))
      weft::dist_optim::load_checkpoint(o.dir, optimizer_, {{"step", step_}, {"loss", loss_}});
  }
  bool done() const { return step_ == options_.steps; }
  double loss() const { return loss_; }
  void step() {
    const Batch batch = batch_of(options_, step_);
    const weft::dist_autograd::Context context;
    const Tensor hidden = weft::tanh(first_.rpc_sync<&Layer::forward>(batch.x));
    const Tensor loss = weft::mse_loss(second_.forward(hidden), batch.y);
    context.backward({loss});
    optimizer_.step(context.id());
    loss_ = loss.item<double>();
    write_step(options_.dir, ++step_);
    if (step_ % options_.save_every == 0 || done())
      weft::dist_optim::save_checkpoint(options_.dir, optimizer_, {{"step", step_}, {"loss", loss_}});
  }

 private:
  std::vector<RRef<Tensor>> all_parameters() {
    std::vector<RRef<Tensor>> all = first_.rpc_sync<&Layer::parameter_rrefs>();
    for (const auto& p : second_.parameter_rrefs()) all.push_back(p);
    return all;
  }
  const Options& options_;
  RRef<Layer> first_;
  Layer second_;
  weft::dist_optim::DistributedOptimizer optimizer_;
  int64_t step_ = 0;
  double loss_ = 0;
};

void join(const Options& o, const std::string& name) {
  weft::rpc::InitOptions init;
  init.elastic = true;  // the supervisor names the store by WEFT_STORE
  init.lease = std::chrono::duration_cast<weft::rpc::Duration>(std::chrono::duration<double>(o.lease));
  weft::rpc::init_rpc(name, init);
  weft::rpc::on_member_lost([dir = o.dir, name](const weft::rpc::LostPeer& lost) {
    if (!lost.left) report_loss(dir, name, lost.info.name);
  });
}

}  // namespace

int serve_store(const Options& o) {
  const auto served = weft::rpc::serve_store(std::getenv("WEFT_STORE"), {.log = o.dir + "/store.log"});
  while (true) pause();  // until SIGTERM
}

int serve_parameters(const Options& o) {
  join(o, "ps");
  weft::rpc::serve_until_done();
  return 0;
}

int train(const Options& o) {
  join(o, "trainer");
  constexpr auto kPatience = 2min;
  auto went_on = std::chrono::steady_clock::now();
  Result result;
  for (bool done = false; !done;) {
    weft::rpc::wait_for_members({"ps"}, kPatience);  // throws when this life has lost its place to another
    try {
      {
        Session session(o);
        for (; !session.done(); went_on = std::chrono::steady_clock::now()) session.step();
        result.loss = session.loss();
      }
      result.kept = kept_at_end();
      write_result(o.dir, result);
      weft::rpc::rpc_sync<finish>("ps");
      done = true;
    } catch (const weft::Error& e) {  // of a worker that is lost, or fenced
      if (std::chrono::steady_clock::now() > went_on + kPatience) throw;
      ++result.resumes;
      std::this_thread::sleep_for(100ms);  // a successor joins when the old lease has run out
    }
  }
  weft::rpc::shutdown();
  return 0;
}

double train_undisturbed(const Options& o) {
  Layer first(kFeatures, kWidth, o.seed), second(kWidth, 1, o.seed);
  std::vector<Tensor> parameters = first.parameters();
  for (const Tensor& p : second.parameters()) parameters.push_back(p);
  weft::optim::Fused<weft::optim::AdamRule> optimizer(parameters, kRule);
  double last = 0;
  for (int64_t step = 0; step < o.steps; ++step) {
    const Batch batch = batch_of(o, step);
    const Tensor loss = weft::mse_loss(second.forward(weft::tanh(first.forward(batch.x))), batch.y);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    last = loss.item<double>();
  }
  return last;
}

}  // namespace elastic
