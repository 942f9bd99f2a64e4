// The split model in an elastic group (make_replaceable_model).
#include <cstdio>
#include <type_traits>

#include <weft/distributed.h>
#include <weft/distributed/launch/membership.h>
#include "../common/report.h"
#include "split_model.h"

namespace rnn {
namespace {

using namespace std::chrono_literals;

class ReplaceableModel : public Model {
 public:
  explicit ReplaceableModel(const Options& o) : options_(o) {
    weft::rpc::wait_for_members({"ps"}, kPatience);
    model_ = make_split_model(o);
    copy_ = model_->snapshot();
  }
  Hidden zero_hidden(int64_t columns) override { return model_->zero_hidden(columns); }
  double train_step(const examples::Window& window, Hidden& hidden) override {
    const Hidden before = hidden;
    const double loss = again([&] {
      hidden = before;
      return model_->train_step(window, hidden);
    });
    if (++steps_ % options_.snapshot_every == 0) copy_ = again([&] { return model_->snapshot(); });
    return loss;
  }
  double eval_loss(const examples::Window& window, Hidden& hidden) override {
    const Hidden before = hidden;
    return again([&] {
      hidden = before;
      return model_->eval_loss(window, hidden);
    });
  }
  Tensor next_word(int64_t id, Hidden& hidden) override {
    const Hidden before = hidden;
    return again([&] {
      hidden = before;
      return model_->next_word(id, hidden);
    });
  }
  void train(bool on) override {
    training_ = on;
    again([&] { model_->train(on); });
  }
  void set_lr(double lr) override {
    lr_ = lr;
    again([&] { model_->set_lr(lr); });
  }
  weft::nn::StateDict snapshot() override {
    return again([&] { return model_->snapshot(); });
  }
  void restore(const weft::nn::StateDict& state) override {
    again([&] { model_->restore(state); });
    copy_ = state;
  }

 private:
  static constexpr auto kPatience = 2min;

  /// Calls f, and again with a new model whenever the server is lost meanwhile.
  template <class F> std::invoke_result_t<const F&> again(const F& f) {
    while (true) {
      try {
        return f();
      } catch (const weft::PeerLost& e) {
        std::printf("step %lld: %s\n", static_cast<long long>(steps_), e.what());
        std::fflush(stdout);
      }
      replace();
    }
  }
  /// Makes the model on the successor of the server. Throws: the last error after two minutes.
  void replace() {
    const double start = examples::seconds();
    const auto limit = std::chrono::steady_clock::now() + kPatience;
    model_.reset();
    while (true) {
      try {
        weft::rpc::wait_for_members({"ps"}, kPatience);
        model_ = make_split_model(options_);
        model_->restore(copy_);
        model_->set_lr(lr_);
        model_->train(training_);
        std::printf("step %lld: going on after %.1f s with the parameters of step %lld\n",
                    static_cast<long long>(steps_), examples::seconds() - start,
                    static_cast<long long>(steps_ / options_.snapshot_every * options_.snapshot_every));
        std::fflush(stdout);
        return;
      } catch (const weft::PeerLost&) {
        if (std::chrono::steady_clock::now() > limit) throw;
        weft::rpc::current_agent()->runtime()->sleep_for(100ms);
      }
    }
  }

  const Options options_;
  std::unique_ptr<Model> model_;
  weft::nn::StateDict copy_;
  int64_t steps_ = 0;
  double lr_ = options_.lr;
  bool training_ = true;
};

}  // namespace

std::unique_ptr<Model> make_replaceable_model(const Options& options) {
  return std::make_unique<ReplaceableModel>(options);
}

}  // namespace rnn
