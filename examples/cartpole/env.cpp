// The cart-pole dynamics of env.h.
#include "env.h"

#include <cmath>
#include <numbers>

#include <weft/tensor/factories.h>

namespace cartpole {
namespace {

constexpr double kGravity = 9.8, kPoleMass = 0.1, kTotalMass = 1.1, kHalfLength = 0.5,
                 kPoleMassLength = kPoleMass * kHalfLength, kForce = 10, kTau = 0.02, kTrack = 2.4,
                 kTilt = 12 * 2 * std::numbers::pi / 360;

}  // namespace

std::array<float, 4> Env::reset(weft::Generator& draws) {
  const weft::Tensor start = weft::rand({4}, {.dtype = weft::kFloat64}, &draws);
  State s;
  for (int i = 0; i < 4; ++i) s[static_cast<size_t>(i)] = start.data<double>()[i] * 0.1 - 0.05;
  set_state(s);
  return observe();
}

Env::Step Env::step(int64_t action) {
  if (action != 0 && action != 1)
    throw weft::ValueError(weft::str("cartpole: action must be 0 or 1, got ", action));
  auto& [x, v, theta, omega] = state_;
  const double force = action == 1 ? kForce : -kForce, sine = std::sin(theta), cosine = std::cos(theta);
  const double t = (force + kPoleMassLength * omega * omega * sine) / kTotalMass;
  const double alpha =
      (kGravity * sine - cosine * t) / (kHalfLength * (4.0 / 3.0 - kPoleMass * cosine * cosine / kTotalMass));
  const double a = t - kPoleMassLength * alpha * cosine / kTotalMass;
  x += kTau * v;
  v += kTau * a;
  theta += kTau * omega;
  omega += kTau * alpha;
  const double reward = done_ ? 0 : 1;
  const bool terminated = std::abs(x) > kTrack || std::abs(theta) > kTilt;
  const bool truncated = ++steps_ >= kMaxSteps;
  done_ = done_ || terminated || truncated;
  return {observe(), reward, terminated, truncated};
}

std::array<float, 4> Env::observe() const {
  return {static_cast<float>(state_[0]), static_cast<float>(state_[1]), static_cast<float>(state_[2]),
          static_cast<float>(state_[3])};
}

}  // namespace cartpole
