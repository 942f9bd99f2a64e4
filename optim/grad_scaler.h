// GradScaler: loss scaling for training in float16, whose smallest positive number is about 6e-8. The loss is
// scaled so that gradients do not underflow, and the gradients are unscaled before the step. A step with
// overflowed gradients is skipped and the scale halved; after many good steps it is doubled.
//   optim::GradScaler scaler;
//   scaler.scale(loss).backward();
//   scaler.unscale(opt.parameters());            // optional: before clipping
//   scaler.step(opt);
//   scaler.update();
// A parameter of a half type with a float32 master (optimizer.h) has half-type gradients. Unscaling these in
// place would lose small values, so the step unscales them in float32 as it reads them. step_clipped clips
// such gradients.
// The scale is on the loss's device, and the device itself skips the step. So no call waits for the gradients
// of its iteration. A step waits for the gradients of the previous iteration, because the step count depends
// on them. After a first run, all calls may be recorded in a cuda::Graph; a replay waits for the previous
// one. Source: Micikevicius et al. 2018, "Mixed precision training".
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <weft/optim/state_dict.h>

namespace weft::optim {

class Optimizer;

/// Thread safety: none; use one per training loop. Several optimizers may share a scaler: call update() once,
/// after all their steps.
class WEFT_API GradScaler {
 public:
  /// How the scale grows and shrinks.
  struct Options {
    double init_scale = 65536;
    double growth = 2;               ///< factor after `growth_interval` good steps in a row, > 1
    double backoff = 0.5;            ///< factor after a skipped step, in (0, 1)
    int64_t growth_interval = 2000;  ///< >= 1
    bool enabled = true;             ///< off: losses and gradients stay unscaled
  };
  /// The scale, and the number of good steps since its last change.
  struct State {
    double scale = 0;
    int64_t good_steps = 0;
  };

  GradScaler() : GradScaler(Options()) {}
  /// Throws: ValueError for an option out of range.
  explicit GradScaler(const Options& options);
  GradScaler(GradScaler&&) = default;
  GradScaler& operator=(GradScaler&&) = default;

  /// loss * scale(), recorded; float32 for a loss of a half dtype, in which it could overflow.
  Tensor scale(const Tensor& loss);
  /// Divides the gradients by scale() and checks that they are finite. A small float16 gradient becomes 0.
  /// Throws: ValueError if called twice for a parameter before update().
  void unscale(std::span<const Tensor> params);
  /// Steps the optimizer unless a gradient is not finite (found_nonfinite()). Gradients that are still scaled
  /// are unscaled first. Half-type gradients are not written; the step unscales them as it reads.
  /// Throws: ValueError if some gradients are unscaled already and a half-type gradient is not.
  void step(Optimizer& optimizer);
  /// Optimizer::step_clipped, which unscales the gradients as it reads them and does not write them. It is
  /// skipped as step() is, and also if the norm overflows.
  /// Throws: ValueError if a gradient is unscaled already, for a negative max_norm or p <= 0.
  Tensor step_clipped(Optimizer& optimizer, double max_norm, double p = 2);
  /// Adjusts the scale; call it after the steps of an iteration.
  void update();

  // The following functions wait for the device.
  double scale() const;
  /// Whether a gradient since the last update() was not finite.
  bool found_nonfinite() const;
  State state() const;
  /// Throws: ValueError for a scale that is not positive or a negative count.
  void load_state(const State& state);
  /// The entries "scale" and "good_steps".
  StateDict state_dict() const;
  /// Throws, before any change: as load_state; ValueError that names a missing or unknown entry.
  void load_state_dict(const StateDict& state);

 private:
  bool was_unscaled(const Tensor& param) const;
  void step_scaled(Optimizer& optimizer, const std::vector<Tensor>& grads, const Tensor& total,
                   const Tensor& factor);
  void bring_state_to(Device device);
  Options options_;
  Tensor state_;                       // float64 [4], a LossScale (kernels/inner/loss_scale.h)
  bool placed_ = false;                // state_ is on the device of the first loss or gradient
  bool seen_ = false;                  // gradients since the last update
  std::vector<const void*> unscaled_;  // bodies of the parameters whose gradients are unscaled
};

}  // namespace weft::optim
