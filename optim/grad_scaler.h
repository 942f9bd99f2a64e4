// Scaling of the loss for training in float16, whose smallest numbers lie near 6e-8: gradients are made large enough to be told from zero, and made
// small again before the step. A step whose gradients overflowed is left out and the scale halved; after many good ones it is doubled.
//   optim::GradScaler scaler;
//   scaler.scale(loss).backward();
//   scaler.unscale(opt.parameters());            // optional: before clipping
//   scaler.step(opt);
//   scaler.update();
// Source: Micikevicius et al. 2018, "Mixed precision training".
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <weft/tensor/tensor.h>

namespace weft::optim {

class Optimizer;

/// Thread safety: none; one per training loop. Several optimizers may share one: call update() once after all have stepped.
class WEFT_API GradScaler {
 public:
  struct Options {
    double init_scale = 65536;
    double growth = 2;               ///< factor after `growth_interval` good steps in a row, > 1
    double backoff = 0.5;            ///< factor after a bad one, in (0, 1)
    int64_t growth_interval = 2000;  ///< >= 1
    bool enabled = true;             ///< off: every member passes through
  };
  struct State {
    double scale = 0;
    int64_t good_steps = 0;
  };

  GradScaler() : GradScaler(Options()) {}
  /// Throws: ValueError for an option out of range.
  explicit GradScaler(const Options& options);

  /// loss * scale(), recorded.
  Tensor scale(const Tensor& loss) const;
  /// Divides the gradients by scale() and looks for ones that are not finite. Throws: ValueError when called twice before update().
  void unscale(std::span<const Tensor> params);
  /// Steps the optimizer unless a gradient is not finite; unscales its gradients first unless that has been done. Returns whether it stepped.
  bool step(Optimizer& optimizer);
  /// Adjusts the scale after the steps of one iteration.
  void update();

  double scale() const { return options_.enabled ? scale_ : 1; }
  bool found_nonfinite() const { return nonfinite_; }
  State state() const { return {scale_, good_steps_}; }
  void load_state(const State& state);

 private:
  bool was_unscaled(const Tensor& param) const;
  Options options_;
  double scale_;
  int64_t good_steps_ = 0;
  bool nonfinite_ = false;
  bool seen_ = false;                     // gradients since the last update
  std::vector<const void*> unscaled_;     // bodies of the parameters whose gradients are plain again
};

}  // namespace weft::optim
