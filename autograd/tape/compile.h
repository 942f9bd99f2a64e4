// compile: runs of a function of tensors are recorded, and later calls replay only the kernels. A replay has
// no dispatch, no bookkeeping of autograd and no allocation of temporaries. Its results have the bits of an
// ordinary run. Pointwise operations that follow each other run block by block, so that large temporaries do
// not travel through memory. Tensors lie on the CPU.
//   auto policy = weft::compile([&](const Tensor& x) { return softmax(net.forward(x), 1); });
//   NoGrad guard;
//   Tensor p = policy(x);  // recorded, as is the second call; later calls are replays
// - Host side effects are not replayed. A replay runs no line of f: it prints nothing, counts nothing, and
//   changes no variable. It repeats the writes that f's operations make to arguments and captured tensors.
// - f is a function of its arguments and of the values of the tensors that it captures. A number of the host
//   that f reads from elsewhere (a step count, a rate) is a constant of the recording. So is the choice of a
//   captured tensor or of a generator: do not assign to a captured handle or pointer. Pass numbers that
//   change as arguments: as a tensor without dims, or as a number, of which each value is recorded
//   separately.
// - A replay takes no mutex that f locks. A function that calls another worker, or waits for one, is never
//   replayed.
// - f runs wherever a replay might differ, and reason() states why. compile cannot see values that f reads or
//   writes through Tensor::raw(), nor writes of other threads to tensors of f.
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include <weft/tensor/tensor.h>

namespace weft {

/// Options of compile.
struct CompileOptions {
  /// Each n-th replay of a signature is checked: f also runs, with the same values and draws, and both must
  /// give the same bits. 0: only the first replay is checked.
  int check_every = 0;
  /// The most signatures (sizes, dtypes, numbers, grad mode, ...) that are recorded; calls with further
  /// signatures run f. Each recording keeps the memory of its temporaries.
  int max_programs = 8;
};

/// Numbers of calls so far, by how they ran. Calls made while another function is recorded do not count.
struct CompileStats {
  int64_t replays = 0, recordings = 0, eager = 0;
  /// pointwise operations of replays that ran block by block with other operations
  int64_t fused = 0;
};

namespace detail {

/// The arguments of a call.
struct CompiledArguments {
  const std::type_info* types = nullptr;  ///< f may be a template
  std::vector<const Tensor*> tensors;
  std::vector<Scalar> numbers;
  template <class T> void add(const T& x) {
    if constexpr (std::is_same_v<T, Tensor>) {
      tensors.push_back(&x);
    } else if constexpr (std::is_same_v<T, std::vector<Tensor>>) {
      numbers.emplace_back(static_cast<int64_t>(x.size()));
      for (const Tensor& each : x) tensors.push_back(&each);
    } else if constexpr (std::is_enum_v<T>) {
      numbers.emplace_back(static_cast<std::underlying_type_t<T>>(x));
    } else {
      static_assert(std::is_arithmetic_v<T> || std::is_same_v<T, Scalar>,
                    "compile: an argument is a Tensor, a vector of them, a number or an enum");
      numbers.emplace_back(x);
    }
  }
};

using CompiledFunction = std::function<std::vector<Tensor>()>;

/// Programs by signature. The caller gives f bound to the arguments.
class WEFT_API CompiledPrograms {
 public:
  explicit CompiledPrograms(CompileOptions options);
  ~CompiledPrograms();
  CompiledPrograms(CompiledPrograms&&) noexcept;
  std::vector<Tensor> call(const CompiledArguments& arguments, const CompiledFunction& f);
  std::string reason() const;
  CompileStats stats() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// To be called after a change of a flag that layers read (Module::train) or a move of tensors (Module::to).
/// Functions are then recorded again at their next call.
WEFT_API void note_mode_change() noexcept;

// Results as a list: a Tensor, a vector of them, a tuple, pair or array of them, or nothing.
inline std::vector<Tensor> listed(Tensor y) {
  std::vector<Tensor> out;
  out.push_back(std::move(y));
  return out;
}
inline std::vector<Tensor> listed(std::vector<Tensor> ys) { return ys; }
template <class R>
requires requires { std::tuple_size<R>::value; }
std::vector<Tensor> listed(R ys) {
  return std::apply(
      [](auto&... y) {
        std::vector<Tensor> out;
        (out.push_back(std::move(y)), ...);
        return out;
      },
      ys);
}
template <class R> consteval bool holds_tensors() {
  if constexpr (requires { std::tuple_size<R>::value; }) return []<size_t... I>(std::index_sequence<I...>) {
      return (std::is_same_v<std::tuple_element_t<I, R>, Tensor> && ...);
    }
  (std::make_index_sequence<std::tuple_size_v<R>>());
  else return std::is_void_v<R> || std::is_same_v<R, Tensor> || std::is_same_v<R, std::vector<Tensor>>; }
template <class R> R unlisted(std::vector<Tensor> ys) {
  if constexpr (std::is_same_v<R, Tensor>) return std::move(ys[0]);
  else if constexpr (std::is_same_v<R, std::vector<Tensor>>) return ys;
  else return [&]<size_t... I>(std::index_sequence<I...>) {
      return R{std::move(ys[I])...};
    }
  (std::make_index_sequence<std::tuple_size_v<R>>());
}

}  // namespace detail

/// A function with its recordings; made by compile(). Its arguments are tensors, vectors of tensors, numbers
/// and enums. It returns a Tensor, or a vector, tuple, pair or array of them, or void. Results are new
/// tensors, like those of f.
/// Thread safety: any thread may call it. A call during a call of another thread runs f, or waits for the end
/// of a replay that writes to tensors.
template <class F> class Compiled {
 public:
  Compiled(F f, CompileOptions options) : f_(std::move(f)), programs_(options) {}

  /// Throws: as f; ValueError if a check (CompileOptions::check_every) finds bits that differ from f's. Then
  /// f has run, its writes stand, and later calls of this signature run f.
  template <class... A> auto operator()(const A&... args) {
    using Given = std::remove_cvref_t<std::invoke_result_t<F&, const A&...>>;
    using R =
        std::conditional_t<std::is_convertible_v<Given, Tensor>, Tensor, Given>;  // x[mask] is no Tensor
    static_assert(detail::holds_tensors<R>(),
                  "compile: f gives a Tensor, a vector of them, a tuple, pair or array of them, or nothing");
    const std::tuple<const A&...> all{args...};
    detail::CompiledArguments in;
    in.types = &typeid(all);
    (in.add(args), ...);
    const auto run = [this, &all]() -> std::vector<Tensor> {
      if constexpr (std::is_void_v<R>) return std::apply(f_, all), std::vector<Tensor>();
      else return detail::listed(R(std::apply(f_, all)));
    };
    if constexpr (std::is_void_v<R>) programs_.call(in, run);
    else return detail::unlisted<R>(programs_.call(in, run));
  }
  /// Why the last call ran f instead of a replay; "" after a replay. A recording is a run of f too.
  std::string reason() const { return programs_.reason(); }
  CompileStats stats() const { return programs_.stats(); }

 private:
  F f_;
  detail::CompiledPrograms programs_;
};

/// A copy of f with separate recordings. Objects that f captures by reference must outlive it. The first two
/// calls of each signature are recorded and compared. A number that differs between them is refused, and
/// reason() names its operation. Other sizes, strides, dtypes, numbers, requires_grad, grad mode or inference
/// mode make another signature. A call is recorded anew if a captured tensor was destroyed or moved, or if
/// the train() flag of any module has changed. It is also recorded anew if all recordings had the same tensor
/// as an argument and the call has another. The reason is that f may have captured the first tensor.
/// Replays draw from the generators of f as f would, which outlive the calls. Replays record no graph: f runs
/// as usual if a result requires grad. Inside f, weft::grad() gives gradients as results. A whole training
/// step is replayed too: zero_grad(), backward() and the step of an optimizer, with the rate and count of the
/// replay. An IndexError in a replay leaves the generator, step counts and gradients as an IndexError in f
/// does.
/// Throws: ValueError for a negative check_every or max_programs.
template <class F> Compiled<std::decay_t<F>> compile(F&& f, CompileOptions options = {}) {
  return {std::forward<F>(f), options};
}

}  // namespace weft
