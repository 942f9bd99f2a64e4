// Checkpoints: a whole training run in one file, with model, optimizer, schedule, scaler, generators and
// position. One list of parts serves to save and to load:
//   int64_t epoch = 0;
//   const std::vector<CheckpointPart> run{{"model", net}, {"optimizer", adam}, {"epoch", epoch}};
//   if (std::filesystem::exists(path)) load_checkpoint(path, run);
//   for (; epoch < 90; save_checkpoint(path, run)) {
//     ...
//     ++epoch;
//   }
// A resumed run has the same bits as an uninterrupted run, in any order of construction. Every checkpoint
// contains the default generator and the streams set by Module::seed. It does not contain options other than
// learning rates, gradients, or the state of cuDNN's dropout. The file is a safetensors file with tensors
// "<part>/<name>" and a checksum in its metadata.
#pragma once

#include <concepts>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include <weft/autograd/tape/callback.h>
#include <weft/optim/state_dict.h>
#include <weft/tensor/random_state.h>

namespace weft {

/// An object that a checkpoint saves under a name and loads in place. It keeps a reference: the object must
/// outlive it.
class WEFT_API CheckpointPart {
 public:
  using State = optim::StateDict;

  /// A module, optimizer, schedule, GradScaler, or another type with state_dict() and a load_state_dict()
  /// that throws before it changes anything; a RemoteModule may throw later. Throws, as the constructors
  /// below: ValueError for a name that is empty or contains '/' or ':'.
  template <class T>
  requires requires(T& t, const State& s) {
    { t.state_dict() } -> std::convertible_to<State>;
    t.load_state_dict(s);
  }
  CheckpointPart(std::string name, T& object)
      : CheckpointPart(
            std::move(name), [&object] { return State(object.state_dict()); },
            [&object](const State& s) { object.load_state_dict(s); }) {
    remote = requires { T::kLoadsRemotely; };
    if constexpr (requires(const State& s) {
                    { object.generator_state() } -> std::convertible_to<State>;
                    object.load_generator_state(s);
                  }) {
      save_streams = [&object] { return State(object.generator_state()); };
      load_streams = [&object](const State& s) { object.load_generator_state(s); };
    }
  }
  CheckpointPart(std::string name, Generator& generator);
  /// Loading writes the values into the tensor if the stored tensor has its dtype and sizes. Otherwise, or if
  /// the stored tensor is undefined, loading assigns it to this handle, on the same device. A tensor that
  /// requires grad refuses that.
  CheckpointPart(std::string name, Tensor& tensor);
  /// An integer, bool or floating number.
  template <class N>
  requires std::is_arithmetic_v<N> CheckpointPart(std::string name, N& number)
      : CheckpointPart(
            std::move(name),
            [&number] {
              return State{{"", of_number(number)}};
            },
            [&number](const State& s) { number = number_of<N>(s); }) {}

  std::string name;
  Callback<State()> save, save_streams;
  Callback<void(const State&)> load, load_streams;  ///< load_streams is empty except for modules
  bool optional = false;                            ///< a file without it leaves the object alone
  /// The object is on another worker: a load that throws may have taken effect (T::kLoadsRemotely).
  bool remote = false;

 private:
  CheckpointPart(std::string name, Callback<State()> save, Callback<void(const State&)> load);
  static const Tensor& only(const State& state);
  static void load_tensor(Tensor& tensor, const State& state);
  static Tensor number(int64_t value);
  static Tensor number(double value);
  template <class N> static Tensor of_number(N value) {
    if constexpr (std::is_integral_v<N>) return number(static_cast<int64_t>(value));
    else return number(static_cast<double>(value));
  }
  static int64_t integer_of(const State& state);
  static double floating_of(const State& state);
  [[noreturn]] static void does_not_fit(int64_t value);
  static void check_magnitude(double value, double most);
  template <class N> static N number_of(const State& state) {
    if constexpr (std::is_floating_point_v<N>) {
      const double value = floating_of(state);
      if constexpr (sizeof(N) < sizeof(double))
        check_magnitude(value, static_cast<double>(std::numeric_limits<N>::max()));
      return static_cast<N>(value);
    } else {
      const int64_t value = integer_of(state);
      if (static_cast<int64_t>(static_cast<N>(value)) != value) does_not_fit(value);
      return static_cast<N>(value);
    }
  }
};

/// Saves all parts, replacing the file at `path` as write_file does.
/// Throws: IoError, ValueError for a name used twice.
WEFT_API void save_checkpoint(const std::string& path, const std::vector<CheckpointPart>& parts);

/// Loads all parts. The default generator is the part "default_generator".
/// Throws: IoError for a file that cannot be read, is no checkpoint, or is damaged. ValueError that lists
/// missing parts and, if `strict`, parts of the file that the list lacks. The error of a part that does not
/// fit, with the part's name. After an error all objects have their previous values.
WEFT_API void load_checkpoint(const std::string& path, const std::vector<CheckpointPart>& parts,
                              bool strict = true);

}  // namespace weft
