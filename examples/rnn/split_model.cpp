// The split model: the parts served by worker "ps", and the trainer's Model over remote references to them.
#include "split_model.h"

#include <weft/distributed.h>

namespace rnn {

using weft::rpc::RRef;

namespace {

std::vector<RRef<Tensor>> references(const std::vector<Tensor>& parameters) {
  std::vector<RRef<Tensor>> out;
  for (const Tensor& p : parameters) out.emplace_back(p);
  return out;
}

}  // namespace

/// EmbeddingTable with the functions that the trainer calls remotely.
struct ServedEmbedding : EmbeddingTable {
  ServedEmbedding(int64_t vocabulary, int64_t dim, double dropout, int64_t seed, const std::string& device)
      : EmbeddingTable(vocabulary, dim, dropout, static_cast<uint64_t>(seed)) {
    to(weft::Device(device));
  }
  Tensor infer(const Tensor& ids) {
    weft::NoGrad guard;
    return forward(ids);
  }
  std::vector<RRef<Tensor>> parameter_rrefs() { return references(parameters()); }
  void set_training(bool on) { train(on); }
  weft::nn::StateDict values() const { return state_dict(); }
};
WEFT_RPC_CONSTRUCTOR(ServedEmbedding, int64_t, int64_t, double, int64_t, std::string);
WEFT_RPC_CLASS(ServedEmbedding, forward, infer, parameter_rrefs, set_training, values);

/// The same for Decoder; with a reference to a table it shares the table's weight.
struct ServedDecoder : Decoder {
  ServedDecoder(int64_t vocabulary, int64_t hidden, double dropout, int64_t seed, const std::string& device,
                RRef<ServedEmbedding> tied_to)
      : Decoder(vocabulary, hidden, dropout, static_cast<uint64_t>(seed),
                tied_to ? tied_to.local_value().encoder.weight : Tensor()),
        tied(static_cast<bool>(tied_to)) {
    to(weft::Device(device));
  }
  Tensor infer(const Tensor& h) {
    weft::NoGrad guard;
    return forward(h);
  }
  Tensor infer_loss(const Tensor& h, const Tensor& target) {
    weft::NoGrad guard;
    return loss(h, target);
  }
  /// The parameters, without a tied weight, which the table lists.
  std::vector<RRef<Tensor>> parameter_rrefs() {
    return references(tied ? std::vector<Tensor>{bias} : parameters());
  }
  void set_training(bool on) { train(on); }
  weft::nn::StateDict values() const { return state_dict(); }
  bool tied;
};
WEFT_RPC_CONSTRUCTOR(ServedDecoder, int64_t, int64_t, double, int64_t, std::string, RRef<ServedEmbedding>);
WEFT_RPC_CLASS(ServedDecoder, forward, loss, infer, infer_loss, parameter_rrefs, set_training, values);

/// Loads both parts together: a state that does not fit one of them changes neither.
void restore_served(const RRef<ServedEmbedding>& embedding, const RRef<ServedDecoder>& decoder,
                    const weft::nn::StateDict& state) {
  Bundle({{"encoder", &embedding.local_value().encoder}, {"decoder", &decoder.local_value()}})
      .load_state_dict(state);
}
WEFT_RPC(restore_served);

void set_server_threads(int64_t n) { weft::set_num_threads(static_cast<int>(n)); }
WEFT_RPC(set_server_threads);

namespace {

weft::dist_optim::DistributedOptimizer make_optimizer(const Options& o,
                                                      const std::vector<RRef<Tensor>>& parameters) {
  using namespace weft::optim;
  if (o.optimizer == "adam") return weft::dist_optim::make<AdamRule>(parameters, {.lr = o.lr});
  if (o.optimizer == "qhm")
    return weft::dist_optim::make<QHMRule>(parameters, {.lr = o.lr, .momentum = o.momentum, .nu = o.nu});
  return weft::dist_optim::make<SGDRule>(parameters, {.lr = o.lr, .momentum = o.momentum});
}

class SplitModel : public Model {
 public:
  explicit SplitModel(const Options& o)
      : options_(o),
        embedding_(
            weft::rpc::remote<ServedEmbedding>("ps", o.vocabulary, o.emsize, o.dropout, o.seed, o.device)),
        rnn_(make_recurrent(o)),
        decoder_(weft::rpc::remote<ServedDecoder>("ps", o.vocabulary, o.nhid, o.dropout, o.seed, o.device,
                                                  o.tied ? embedding_ : RRef<ServedEmbedding>())),
        optimizer_(make_optimizer(o, all_parameters())) {
    if (o.threads > 0) weft::rpc::rpc_sync<set_server_threads>("ps", o.threads);
  }

  Hidden zero_hidden(int64_t columns) override {
    Hidden hidden{rnn_->zero_state(columns), {}};
    if (options_.model == "LSTM") hidden.c = rnn_->zero_state(columns);
    return hidden;
  }

  double train_step(const examples::Window& window, Hidden& hidden) override {
    hidden.detach();
    weft::dist_autograd::Context context;
    const Tensor h = recur(embedding_.rpc_sync<&ServedEmbedding::forward>(window.input), hidden);
    const Tensor loss =
        options_.decoder == "remote-loss"
            ? decoder_.rpc_sync<&ServedDecoder::loss>(h, window.target)
            : weft::cross_entropy(decoder_.rpc_sync<&ServedDecoder::forward>(h), window.target);
    context.backward({loss}, {.mode = options_.backward == "smart" ? weft::dist_autograd::Backward::kSmart
                                                                   : weft::dist_autograd::Backward::kFast});
    optimizer_.clip_grad_norm(context.id(), options_.clip);
    optimizer_.step(context.id());
    return loss.item<double>();
  }

  double eval_loss(const examples::Window& window, Hidden& hidden) override {
    weft::NoGrad guard;
    const Tensor h = recur(embedding_.rpc_sync<&ServedEmbedding::infer>(window.input), hidden);
    if (options_.decoder == "remote-loss")
      return decoder_.rpc_sync<&ServedDecoder::infer_loss>(h, window.target).item<double>();
    return weft::cross_entropy(decoder_.rpc_sync<&ServedDecoder::infer>(h), window.target).item<double>();
  }

  Tensor next_word(int64_t id, Hidden& hidden) override {
    weft::NoGrad guard;
    const Tensor ids = weft::full({1, 1}, id, {.dtype = weft::kInt64});
    const Tensor h = recur(embedding_.rpc_sync<&ServedEmbedding::infer>(ids), hidden);
    return decoder_.rpc_sync<&ServedDecoder::infer>(h).reshape({-1});
  }

  void train(bool on) override {
    rnn_->train(on);
    embedding_.rpc_sync<&ServedEmbedding::set_training>(on);
    decoder_.rpc_sync<&ServedDecoder::set_training>(on);
  }
  void set_lr(double lr) override { optimizer_.set_lr(lr); }

  weft::nn::StateDict snapshot() override {
    weft::nn::StateDict out;
    for (auto& [name, t] : embedding_.rpc_sync<&ServedEmbedding::values>())
      out.emplace_back(name, t.detach());
    for (const auto& [name, t] : rnn_->named_parameters())
      out.emplace_back("rnn." + name, t.detach().clone());
    for (auto& [name, t] : decoder_.rpc_sync<&ServedDecoder::values>())
      out.emplace_back("decoder." + name, t.detach());
    return out;
  }
  void restore(const weft::nn::StateDict& state) override {
    if (options_.tied) check_tied(state);
    weft::nn::StateDict recurrent, served;
    for (const auto& entry : state)
      (entry.first.compare(0, 4, "rnn.") == 0 ? recurrent : served).push_back(entry);
    // Loading into a temporary stack checks the trainer's part, then the server checks and loads its own.
    // Only then the trainer's part changes.
    const auto trial = make_recurrent(options_);
    Bundle({{"rnn", trial.get()}}).load_state_dict(recurrent);
    weft::rpc::rpc_sync<restore_served>("ps", embedding_, decoder_, served);
    Bundle({{"rnn", rnn_.get()}}).load_state_dict(recurrent);
  }

 private:
  std::vector<RRef<Tensor>> all_parameters() {
    std::vector<RRef<Tensor>> out = embedding_.rpc_sync<&ServedEmbedding::parameter_rrefs>();
    for (const Tensor& p : rnn_->parameters()) out.emplace_back(p);
    for (auto& p : decoder_.rpc_sync<&ServedDecoder::parameter_rrefs>()) out.push_back(p);
    return out;
  }
  Tensor recur(const Tensor& embedded, Hidden& hidden) {
    weft::nn::RnnOutput out = rnn_->forward(embedded, hidden.h, hidden.c);
    hidden = {out.h, out.c};
    return out.y;
  }

  Options options_;
  RRef<ServedEmbedding> embedding_;
  std::unique_ptr<weft::nn::Recurrent> rnn_;
  RRef<ServedDecoder> decoder_;
  weft::dist_optim::DistributedOptimizer optimizer_;
};

}  // namespace

weft::rpc::DeviceMaps split_device_maps(const Options& options) {
  const weft::Device server(options.device);
  if (server.is_cpu()) return {};
  return {{"ps", {{weft::kCpu, server}}}};
}

std::unique_ptr<Model> make_split_model(const Options& options) {
  return std::make_unique<SplitModel>(options);
}

}  // namespace rnn
