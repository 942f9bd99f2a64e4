// Scaling of the loss for training in float16, whose smallest numbers lie near 6e-8: gradients are made large enough to be told from zero, and made
// small again before the step. A step whose gradients overflowed is left out and the scale halved; after many good ones it is doubled.
//   optim::GradScaler scaler;
//   scaler.scale(loss).backward();
//   scaler.unscale(opt.parameters());            // optional: before clipping
//   scaler.step(opt);
//   scaler.update();
// The scale lies on the loss's device, which leaves a step out by itself. So no call waits for the gradients of its own iteration; a step waits for those of the
// one before, whose step count it goes on from. All of it may be recorded in a cuda::Graph once it has run before; a replay waits for the last.
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
  GradScaler(GradScaler&&) = default;
  GradScaler& operator=(GradScaler&&) = default;

  /// loss * scale(), recorded; float32 for a loss of a half type, which has no room for the scale.
  Tensor scale(const Tensor& loss);
  /// Divides the gradients by scale() and looks for ones that are not finite. Throws: ValueError when called twice before update().
  void unscale(std::span<const Tensor> params);
  /// Steps the optimizer unless a gradient is not finite; unscales its gradients first unless that has been done. found_nonfinite() tells which.
  void step(Optimizer& optimizer);
  /// Adjusts the scale after the steps of one iteration.
  void update();

  // These wait for the device.
  double scale() const;
  /// Whether a gradient since the last update() was not finite.
  bool found_nonfinite() const;
  State state() const;
  /// Throws: ValueError for a scale that is not positive or a negative count.
  void load_state(const State& state);

 private:
  bool was_unscaled(const Tensor& param) const;
  void bring_state_to(Device device);
  Options options_;
  Tensor state_;                       // float64 [4], a LossScale (kernels/loss_scale.h)
  bool placed_ = false;                // state_ lies where the first loss or gradient did
  bool seen_ = false;                  // gradients since the last update
  std::vector<const void*> unscaled_;  // bodies of the parameters whose gradients are plain again
};

}  // namespace weft::optim
