// The whole model in this process.
#include <functional>

#include "model.h"

namespace rnn {
namespace {

std::unique_ptr<weft::optim::Optimizer> make_optimizer(const Options& o,
                                                       const std::vector<Tensor>& parameters) {
  if (o.optimizer == "adam")
    return std::make_unique<weft::optim::Adam>(parameters, weft::optim::AdamOptions{.lr = o.lr});
  if (o.optimizer == "qhm")
    return std::make_unique<weft::optim::QHM>(
        parameters, weft::optim::QHMOptions{.lr = o.lr, .momentum = o.momentum, .nu = o.nu});
  return std::make_unique<weft::optim::SGD>(parameters,
                                            weft::optim::SGDOptions{.lr = o.lr, .momentum = o.momentum});
}

class LocalModel : public Model {
 public:
  explicit LocalModel(const Options& o)
      : options_(o),
        embedding_(o.vocabulary, o.emsize, o.dropout, static_cast<uint64_t>(o.seed)),
        rnn_(make_recurrent(o)),
        decoder_(o.vocabulary, o.nhid, o.dropout, static_cast<uint64_t>(o.seed),
                 o.tied ? embedding_.encoder.weight : Tensor()),
        whole_({{"encoder", &embedding_.encoder}, {"rnn", rnn_.get()}, {"decoder", &decoder_}}),
        encoder_device_(o.placed("encoder")),
        rnn_device_(o.placed("rnn")),
        decoder_device_(o.placed("decoder")) {
    embedding_.to(encoder_device_);
    rnn_->to(rnn_device_);
    decoder_.to(decoder_device_);
    parameters_ = whole_.parameters();
    optimizer_ = make_optimizer(o, parameters_);
  }

  Hidden zero_hidden(int64_t columns) override {
    Hidden hidden{rnn_->zero_state(columns), {}};
    if (options_.model == "LSTM") hidden.c = rnn_->zero_state(columns);
    return hidden;
  }

  double train_step(const examples::Window& window, Hidden& hidden) override {
    std::vector<Tensor> state{hidden.h};  // zeros, or what a step gave: without a graph
    if (hidden.c.defined()) state.push_back(hidden.c);
    const auto out = options_.compile ? replayed_(window.input, window.target, state)
                                      : step(window.input, window.target, state);
    hidden.h = out[1];
    if (hidden.c.defined()) hidden.c = out[2];
    return out[0].item<double>();
  }

  double eval_loss(const examples::Window& window, Hidden& hidden) override {
    weft::NoGrad guard;
    return loss(window, hidden).item<double>();
  }

  Tensor next_word(int64_t id, Hidden& hidden) override {
    weft::NoGrad guard;
    return decoder_.forward(recur(weft::full({1, 1}, id, {.dtype = weft::kInt64}), hidden))
        .reshape({-1})
        .to(weft::kCpu);
  }

  void train(bool on) override {
    for (weft::nn::Module* part : parts()) part->train(on);
  }
  void set_lr(double lr) override { optimizer_->set_lr(lr); }

  weft::nn::StateDict snapshot() override {
    weft::nn::StateDict out;
    for (const auto& [name, tensor] : whole_.state_dict())
      out.emplace_back(name, tensor.detach().to(weft::kCpu).clone());
    return out;
  }
  void restore(const weft::nn::StateDict& state) override {
    if (options_.tied) check_tied(state);
    whole_.load_state_dict(state);
  }
  std::string remark() const override {
    if (!options_.compile) return "";
    const weft::CompileStats stats = replayed_.stats();
    const std::string reason = replayed_.reason();
    return weft::str(stats.replays, " of ", stats.replays + stats.recordings + stats.eager,
                     " steps were replays", reason.empty() ? "" : "; not the last one: ", reason);
  }

 private:
  std::vector<weft::nn::Module*> parts() { return {&embedding_, rnn_.get(), &decoder_}; }

  Tensor recur(const Tensor& ids, Hidden& hidden) {
    const Tensor embedded = embedding_.forward(ids.to(encoder_device_)).to(rnn_device_);
    weft::nn::RnnOutput out = rnn_->forward(embedded, hidden.h, hidden.c);
    hidden = {out.h, out.c};
    return out.y.to(decoder_device_);
  }

  /// A training step from the hidden state h, or h and c: the loss, and the state after it.
  std::vector<Tensor> step(const Tensor& input, const Tensor& target, const std::vector<Tensor>& state) {
    Hidden hidden{state[0], state.size() > 1 ? state[1] : Tensor()};
    optimizer_->zero_grad();
    const Tensor loss = this->loss({input, target}, hidden);
    loss.backward();
    optimizer_->step_clipped(options_.clip);
    hidden.detach();
    std::vector<Tensor> out{loss.detach(), hidden.h};
    if (hidden.c.defined()) out.push_back(hidden.c);
    return out;
  }

  Tensor loss(const examples::Window& window, Hidden& hidden) {
    const Tensor h = recur(window.input, hidden), target = window.target.to(decoder_device_);
    if (options_.decoder == "remote-loss") return decoder_.loss(h, target);
    return weft::cross_entropy(decoder_.forward(h), target);
  }

  Options options_;
  EmbeddingTable embedding_;
  std::unique_ptr<weft::nn::Recurrent> rnn_;
  Decoder decoder_;
  Bundle whole_;
  weft::Device encoder_device_, rnn_device_, decoder_device_;
  std::vector<Tensor> parameters_;
  std::unique_ptr<weft::optim::Optimizer> optimizer_;
  using Step = std::function<std::vector<Tensor>(const Tensor&, const Tensor&, const std::vector<Tensor>&)>;
  weft::Compiled<Step> replayed_ =
      weft::compile(Step([this](const auto& input, const auto& target, const auto& state) {
        return step(input, target, state);
      }));
};

}  // namespace

std::unique_ptr<Model> make_local_model(const Options& options) {
  return std::make_unique<LocalModel>(options);
}

}  // namespace rnn
