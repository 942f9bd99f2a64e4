// The cart-pole environment: explicit Euler in double precision. Source: Barto, Sutton & Anderson 1983, with
// the constants of Gym's CartPole-v1 (at most 500 steps, solved at a running reward above 475).
#pragma once

#include <array>
#include <cstdint>

#include <weft/tensor/generator.h>

namespace cartpole {

inline constexpr int64_t kMaxSteps = 500;
inline constexpr double kThreshold = 475;

class Env {
 public:
  using State = std::array<double, 4>;  // x [m], its speed, theta [rad], its speed

  /// Four numbers from U(-0.05, 0.05).
  std::array<float, 4> reset(weft::Generator& draws);
  /// Starts from a given state.
  void set_state(const State& state) { state_ = state, steps_ = 0, done_ = false; }
  const State& state() const { return state_; }

  struct Step {
    std::array<float, 4> observation;
    double reward;    ///< 1 up to the last step of the episode, then 0
    bool terminated;  ///< the pole fell or the cart left the track
    bool truncated;   ///< kMaxSteps reached
  };
  /// action 0 pushes left, 1 right. Throws: weft::ValueError for another action.
  Step step(int64_t action);

 private:
  std::array<float, 4> observe() const;
  State state_{};
  int64_t steps_ = 0;
  bool done_ = true;
};

}  // namespace cartpole
