// The table of operations by name. A row is a function. Its arguments are read from the request in order:
//   table<Of<Tensor, Tensor, Tensor, Scalar>>(rows, {WEFT_ROW(add), WEFT_ROW(sub)}); // rows of one signature
//   row<Tensor(In, const Shape&)>(rows, "view", WEFT_CALL(view));
//   row(rows, "add_", [](Tensor x, Tensor y, Scalar alpha) { return x.add_(y, alpha); });
// Its result becomes the outputs of the answer.
#pragma once

#include <functional>
#include <map>
#include <tuple>

#include "support/compare/frame.h"

namespace weft::test {

using Outputs = std::vector<Tensor>;
using Call = std::function<Outputs(Request&)>;
using Rows = std::map<std::string, Call>;

// One function per file of rows.
void add_pointwise(Rows& rows);
void add_writes(Rows& rows);
void add_reductions(Rows& rows);
void add_shapes(Rows& rows);
void add_layers(Rows& rows);
void add_training(Rows& rows);

inline Outputs outputs(const Tensor& x) { return {x}; }
inline Outputs outputs(Outputs list) { return list; }
inline Outputs outputs(const MaxResult& r) { return {r.values, r.indices}; }
inline Outputs outputs(const RnnResult& r) { return {r.y, r.hn, r.cn}; }
inline Outputs outputs(const UniqueResult& r) { return {r.values, r.inverse, r.counts}; }
inline Outputs outputs(bool value) { return {scalar_tensor(value, {.dtype = kBool})}; }
inline Outputs outputs(double value) { return {scalar_tensor(value, {.dtype = kFloat64})}; }
inline Outputs outputs(const std::vector<double>& values) {
  return {from_vector<double>(values, {static_cast<int64_t>(values.size())})};
}

// Taker<T>::take reads an argument of a row's parameter type T; an In is read as the Tensor it is made of.
template <class T> struct Taker;
template <> struct Taker<Tensor> {
  static Tensor take(Request& r) { return r.tensor(); }
};
template <> struct Taker<In> : Taker<Tensor> {};
template <> struct Taker<Fp32Arg> : Taker<Tensor> {};
template <> struct Taker<AutocastArg> : Taker<Tensor> {};
template <> struct Taker<DeviceAutocastArg> : Taker<Tensor> {};
template <> struct Taker<std::vector<Tensor>> {
  static std::vector<Tensor> take(Request& r) { return r.tensors(); }
};
template <> struct Taker<Scalar> {
  static Scalar take(Request& r) { return r.scalar(); }
};
template <> struct Taker<int64_t> {
  static int64_t take(Request& r) { return r.integer(); }
};
template <> struct Taker<double> {
  static double take(Request& r) { return r.real(); }
};
template <> struct Taker<bool> {
  static bool take(Request& r) { return r.flag(); }
};
template <> struct Taker<Shape> {
  static Shape take(Request& r) { return r.shape(); }
};
template <> struct Taker<std::string> {
  static std::string take(Request& r) { return r.text(); }
};
template <class E>
requires std::is_enum_v<E>
struct Taker<E> {
  static E take(Request& r) { return static_cast<E>(r.integer()); }
};
template <> struct Taker<CrossEntropyOptions> {
  static CrossEntropyOptions take(Request& r) {
    CrossEntropyOptions options;
    options.weight = r.tensor();
    options.ignore_index = r.integer();
    options.label_smoothing = r.real();
    options.reduction = Taker<Reduction>::take(r);
    return options;
  }
};
template <> struct Taker<Request> {
  static std::reference_wrapper<Request> take(Request& r) { return r; }
};

template <class R, class... A, class F> Call call_of(F f, std::type_identity<R(A...)>) {
  return [f](Request& request) {
    const int count = request.count();
    constexpr int wanted = (0 + ... +
                            (std::is_same_v<std::decay_t<A>, Request>               ? 0
                             : std::is_same_v<std::decay_t<A>, CrossEntropyOptions> ? 4
                                                                                    : 1));
    if (count != wanted) throw FrameError(str(count, " arguments, not ", wanted));
    auto arguments = std::tuple{Taker<std::decay_t<A>>::take(request)...};  // braces: in order
    return outputs(std::apply(f, arguments));
  };
}

/// A row for a function; the signature selects the overload.
template <class Signature> void row(Rows& rows, const char* name, Signature* f) {
  rows[name] = call_of(f, std::type_identity<Signature>());
}
/// A row for a set of overloads, `WEFT_CALL(add)`, selected by the types of the arguments. In and similar
/// types are given as Tensors.
template <class Signature, class F> void row(Rows& rows, const char* name, F f) {
  rows[name] = call_of(f, std::type_identity<Signature>());
}
#define WEFT_CALL(name) [](const auto&... arguments) { return name(arguments...); }
/// Rows of one signature: `table<Of<Tensor, Tensor>>(rows, {WEFT_ROW(exp), {"sum.all", WEFT_CALL(sum)}})`.
template <class R, class... A> using Of = R(const A&...);
template <class Signature> struct Named {
  const char* name;
  Signature* call;
};
template <class Signature> void table(Rows& rows, std::initializer_list<Named<Signature>> list) {
  for (const Named<Signature>& named : list) row(rows, named.name, named.call);
}
#define WEFT_ROW(name) \
  { #name, WEFT_CALL(name) }
/// A row for a lambda without captures.
template <class F>
requires(!std::is_pointer_v<F> && !std::is_function_v<F>) void row(Rows& rows, const char* name, F f) {
  row(rows, name, +f);
}

}  // namespace weft::test
