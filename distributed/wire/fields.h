// WEFT_FIELDS(Type, a, b) gives a user struct a codec, field by field. Write it after the struct, in the
// struct's namespace. The struct needs a default constructor. Signatures contain the name of the struct, and
// the name and type of each field.
//   struct Step { Tensor observation; double reward = 0; };
//   WEFT_FIELDS(Step, observation, reward)
#pragma once

#include <tuple>

#include <weft/distributed/wire/codec.h>

// Applies a macro to each further argument: WEFT_FOR_EACH(m, context, a, b) is m(context, a) m(context, b);
// up to 256.
#define WEFT_PARENS ()
#define WEFT_EXPAND(...) WEFT_EXPAND4(WEFT_EXPAND4(WEFT_EXPAND4(WEFT_EXPAND4(__VA_ARGS__))))
#define WEFT_EXPAND4(...) WEFT_EXPAND3(WEFT_EXPAND3(WEFT_EXPAND3(WEFT_EXPAND3(__VA_ARGS__))))
#define WEFT_EXPAND3(...) WEFT_EXPAND2(WEFT_EXPAND2(WEFT_EXPAND2(WEFT_EXPAND2(__VA_ARGS__))))
#define WEFT_EXPAND2(...) WEFT_EXPAND1(WEFT_EXPAND1(WEFT_EXPAND1(WEFT_EXPAND1(__VA_ARGS__))))
#define WEFT_EXPAND1(...) __VA_ARGS__
#define WEFT_FOR_EACH(macro, context, ...) \
  __VA_OPT__(WEFT_EXPAND(WEFT_FOR_EACH_STEP(macro, context, __VA_ARGS__)))
#define WEFT_FOR_EACH_STEP(macro, context, first, ...) \
  macro(context, first) __VA_OPT__(WEFT_FOR_EACH_AGAIN WEFT_PARENS(macro, context, __VA_ARGS__))
#define WEFT_FOR_EACH_AGAIN() WEFT_FOR_EACH_STEP
#define WEFT_CAT2(a, b) a##b
#define WEFT_CAT(a, b) WEFT_CAT2(a, b)

#define WEFT_FIELD_ITEM(context, field) f(#field, value.field);
#define WEFT_FIELDS(Type, ...)                                                                     \
  inline const char* weft_fields_name(const ::weft::rpc::detail::TypeTag<Type>&) { return #Type; } \
  template <class V, class F>                                                                      \
  requires std::is_same_v<std::remove_const_t<V>, Type>                                            \
  void weft_each_field(const ::weft::rpc::detail::TypeTag<Type>&, V& value, F&& f) {               \
    WEFT_FOR_EACH(WEFT_FIELD_ITEM, , __VA_ARGS__)                                                  \
    (void)value, (void)f;                                                                          \
  }

namespace weft::rpc {

namespace detail {
/// A tag for argument-dependent lookup in the namespace of T.
template <class T> struct TypeTag {};
template <class T>
concept HasFields = requires {
  weft_fields_name(TypeTag<T>());
};
}  // namespace detail

template <class T>
requires detail::HasFields<T>
struct Codec<T> {
  static_assert(std::is_default_constructible_v<T>, "a struct with WEFT_FIELDS needs a default constructor");
  static std::string name() {
    std::string out = weft_fields_name(detail::TypeTag<T>());
    const char* open = "{";
    const T value{};
    weft_each_field(detail::TypeTag<T>(), value, [&]<class F>(const char* field, const F&) {
      out += std::exchange(open, ", ");
      out += std::string(field) + ": " + Codec<F>::name();
    });
    return out += *open == '{' ? "{}" : "}";
  }
  static void encode(Encoder& out, const T& v) {
    out.number(uint8_t{1});
    weft_each_field(detail::TypeTag<T>(), v,
                    [&]<class F>(const char*, const F& field) { Codec<F>::encode(out, field); });
  }
  static T decode(Decoder& in) {
    if (in.number<uint8_t>() != 1)
      detail::malformed(std::string("not a ") + weft_fields_name(detail::TypeTag<T>()));
    T v{};
    weft_each_field(detail::TypeTag<T>(), v,
                    [&]<class F>(const char*, F& field) { field = Codec<F>::decode(in); });
    return v;
  }
};

}  // namespace weft::rpc
