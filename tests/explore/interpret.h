// One interpreter of programs for both worlds (world.h). A program sees a list of numbers, in the same order
// in both. They are values that it fetched, gradients (empty where there is none), and parameters at the end.
#pragma once

#include <weft/autograd/ops/ops.h>

#include "explore/plan.h"
#include "explore/world.h"

namespace weft::explore {

template <class World> class Interpreter {
 public:
  Interpreter(const Program& program, int workers)
      : program_(program), workers_(workers), world_(workers, program) {}

  std::vector<Numbers> run() {
    for (const auto& steps : program_.iterations) {
      world_.begin();
      leaves_ = {numbered_leaf(1), numbered_leaf(2)};
      values_ = leaves_;
      int losses = 0;
      for (const Step& s : steps) losses += is_loss(s);
      for (const Step& s : steps) {
        if (s.op == Step::Op::kStep) look_at_gradients();
        take(s, losses > 1);
        losses -= is_loss(s);
      }
      look_at_gradients();
      values_.clear(), refs_.clear(), pending_.clear(), kept_.clear();
      world_.end();
    }
    for (Numbers& v : world_.values()) seen_.push_back(std::move(v));
    return std::move(seen_);
  }

 private:
  using Op = Step::Op;
  static bool is_loss(const Step& s) { return s.op == Op::kBackward || s.op == Op::kRemoteBackward; }

  const Tensor& value(int i) const { return values_[static_cast<size_t>(i) % values_.size()]; }
  const typename World::Ref& ref(int i) const { return refs_[static_cast<size_t>(i) % refs_.size()]; }
  void add(Tensor value) {
    seen_.push_back(value.detach().template to_vector<double>());
    values_.push_back(std::move(value));
  }
  void look_at_gradients() {
    for (Numbers& g : world_.gradients(leaves_)) seen_.push_back(std::move(g));
  }

  void await_oldest() {
    add(world_.await(pending_.front()));
    pending_.erase(pending_.begin());
  }
  /// A loss that all outputs of the context reach, as FAST needs it.
  void loss_of_all(const Step& s, bool more_losses) {
    while (!pending_.empty()) await_oldest();
    for (const auto& r : refs_) add(world_.fetch(r));
    Tensor sum = values_.front();
    for (size_t i = 1; i < values_.size(); ++i) sum = sum + values_[i];
    // a loss at a worker records a send, which a later loss would not reach
    if (s.op == Op::kRemoteBackward && !more_losses)
      return world_.remote_backward(s.worker % workers_, sum, false);
    world_.backward({sum.sum()}, more_losses);
  }

  void take(const Step& s, bool more_losses) {
    const int w = s.worker % workers_;
    if (program_.fast) {
      if (is_loss(s)) return loss_of_all(s, more_losses);
      if (s.op == Op::kDropValue || s.op == Op::kDropRef || s.op == Op::kForget) return;
    }
    const Tensor a = value(s.a), b = value(s.b);
    switch (s.op) {
      case Op::kLocal: return add(mix(s.kind, a, b));
      case Op::kCall: return add(world_.call(w, s.kind, a, b));
      case Op::kFree: return add(world_.free(w, s.kind, a, b));
      case Op::kChain: return add(world_.chain(s.way, s.kind, a, b));
      case Op::kFreeChain: return add(world_.free_chain(s.way, s.kind, a, b));
      case Op::kAsync: return pending_.push_back(world_.async(w, s.kind, a, b));
      case Op::kRemote: return refs_.push_back(world_.remote(w, s.kind, a, b));
      case Op::kHold: return refs_.push_back(world_.hold(w, s.kind, a, b));
      case Op::kParameter: return refs_.push_back(world_.parameter(w, s.a % 2));
      case Op::kThird: return refs_.push_back(world_.third(w, s.b % workers_, s.kind, a, b));
      case Op::kBackward: {
        std::vector<Tensor> roots{a.sum()};
        if (s.kind == 1) roots.push_back(b.sum());
        return world_.backward(roots, more_losses);
      }
      case Op::kRemoteBackward: return world_.remote_backward(w, a, more_losses);
      case Op::kStep: return world_.step();
      case Op::kBurst: return add(world_.burst(w, s.kind, a, b));
      case Op::kResults: return world_.results(w);
      case Op::kCancel: return world_.cancel(s.way, s.kind);
      case Op::kDropValue:
        if (values_.size() > leaves_.size())
          values_.erase(values_.begin() +
                        static_cast<ptrdiff_t>(leaves_.size() +
                                               static_cast<size_t>(s.a) % (values_.size() - leaves_.size())));
        return;
      case Op::kAwait:
        if (!pending_.empty()) await_oldest();
        return;
      case Op::kForget:
        if (!pending_.empty()) pending_.erase(pending_.begin());
        return;
      case Op::kGive:
        if (kept_[w] > 0) refs_.push_back(world_.give(w));
        return;
      default: break;
    }
    if (refs_.empty()) return;
    switch (s.op) {
      case Op::kFetch: return add(world_.fetch(ref(s.a)));
      case Op::kUse: return add(world_.use(w, s.kind, ref(s.a), b));
      case Op::kForward: return refs_.push_back(world_.forward(w, ref(s.a)));
      case Op::kKeep: ++kept_[w]; return world_.keep(w, ref(s.a));
      case Op::kDropRef:
        refs_.erase(refs_.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(s.a) % refs_.size()));
        return;
      default: return;
    }
  }

  const Program& program_;
  const int workers_;
  World world_;
  std::vector<Tensor> leaves_, values_;
  std::vector<typename World::Ref> refs_;
  std::vector<typename World::Pending> pending_;
  std::map<int, int> kept_;
  std::vector<Numbers> seen_;
};

}  // namespace weft::explore
