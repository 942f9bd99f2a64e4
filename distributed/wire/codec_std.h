// Codecs of the standard containers. Included by codec.h; not on its own.
#pragma once

#include <array>
#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include <weft/distributed/wire/codec.h>

namespace weft::rpc {

namespace detail {
template <class... Ts> std::string join_names(const char* open) {
  std::string out = open;
  [[maybe_unused]] const char* comma = "";
  ((out += std::exchange(comma, ", "), out += Codec<Ts>::name()), ...);
  return out += ">";
}
/// Numbers whose vectors are copied as one block; vector<bool> has no contiguous memory.
template <class T>
inline constexpr bool is_block = std::is_arithmetic_v<T> && !std::is_same_v<T, bool> && sizeof(T) <= 8;
}  // namespace detail

template <Wire T> struct Codec<std::vector<T>> {
  static std::string name() { return "vector<" + Codec<T>::name() + ">"; }
  static void encode(Encoder& out, const std::vector<T>& v) {
    out.size(v.size());
    if constexpr (detail::is_block<T>) out.raw(v.data(), v.size() * sizeof(T));
    else
      for (const auto& item : v) Codec<T>::encode(out, item);
  }
  static std::vector<T> decode(Decoder& in) {
    const size_t n = in.size();
    std::vector<T> v;
    if constexpr (detail::is_block<T>) {
      if (n > in.remaining() / sizeof(T)) detail::malformed("a vector that is longer than its message");
      v.resize(n);
      const std::string_view bytes = in.raw(n * sizeof(T));
      if (n != 0) std::memcpy(v.data(), bytes.data(), bytes.size());
    } else {
      v.reserve(n < 1024 ? n : 1024);
      for (size_t i = 0; i < n; ++i) v.push_back(Codec<T>::decode(in));
    }
    return v;
  }
};

template <Wire T, size_t N> struct Codec<std::array<T, N>> {
  static std::string name() { return "array<" + Codec<T>::name() + ", " + std::to_string(N) + ">"; }
  static void encode(Encoder& out, const std::array<T, N>& v) {
    if (N == 0) out.number(uint8_t{0});
    for (const T& item : v) Codec<T>::encode(out, item);
  }
  static std::array<T, N> decode(Decoder& in) {
    if (N == 0) in.number<uint8_t>();
    return [&]<size_t... I>(std::index_sequence<I...>) {
      return std::array<T, N>{((void)I, Codec<T>::decode(in))...};
    }
    (std::make_index_sequence<N>());
  }
};

namespace detail {
/// The codec of std::map and std::unordered_map.
template <class Map> struct MapCodec {
  using K = typename Map::key_type;
  using V = typename Map::mapped_type;
  static std::string name() { return join_names<K, V>("map<"); }
  static void encode(Encoder& out, const Map& v) {
    out.size(v.size());
    for (const auto& [key, value] : v) {
      Codec<K>::encode(out, key);
      Codec<V>::encode(out, value);
    }
  }
  static Map decode(Decoder& in) {
    Map v;
    for (size_t n = in.size(); n > 0; --n) {
      K key = Codec<K>::decode(in);
      v.insert_or_assign(std::move(key), Codec<V>::decode(in));
    }
    return v;
  }
};
}  // namespace detail

template <Wire K, Wire V> struct Codec<std::map<K, V>> : detail::MapCodec<std::map<K, V>> {};
template <Wire K, Wire V>
struct Codec<std::unordered_map<K, V>> : detail::MapCodec<std::unordered_map<K, V>> {};

template <Wire T> struct Codec<std::set<T>> {
  static std::string name() { return "set<" + Codec<T>::name() + ">"; }
  static void encode(Encoder& out, const std::set<T>& v) {
    out.size(v.size());
    for (const T& item : v) Codec<T>::encode(out, item);
  }
  static std::set<T> decode(Decoder& in) {
    std::set<T> v;
    for (size_t n = in.size(); n > 0; --n) v.insert(Codec<T>::decode(in));
    return v;
  }
};

template <Wire T> struct Codec<std::optional<T>> {
  static std::string name() { return "optional<" + Codec<T>::name() + ">"; }
  static void encode(Encoder& out, const std::optional<T>& v) {
    out.number(static_cast<uint8_t>(v.has_value()));
    if (v) Codec<T>::encode(out, *v);
  }
  static std::optional<T> decode(Decoder& in) {
    if (in.number<uint8_t>() == 0) return std::nullopt;
    return std::optional<T>(Codec<T>::decode(in));
  }
};

template <Wire A, Wire B> struct Codec<std::pair<A, B>> {
  static std::string name() { return detail::join_names<A, B>("pair<"); }
  static void encode(Encoder& out, const std::pair<A, B>& v) {
    Codec<A>::encode(out, v.first);
    Codec<B>::encode(out, v.second);
  }
  static std::pair<A, B> decode(Decoder& in) {
    A first = Codec<A>::decode(in);
    return {std::move(first), Codec<B>::decode(in)};
  }
};

template <Wire... Ts> struct Codec<std::tuple<Ts...>> {
  static std::string name() { return detail::join_names<Ts...>("tuple<"); }
  static void encode(Encoder& out, const std::tuple<Ts...>& v) {
    if (sizeof...(Ts) == 0) out.number(uint8_t{0});
    std::apply([&](const Ts&... items) { (Codec<Ts>::encode(out, items), ...); }, v);
  }
  static std::tuple<Ts...> decode(Decoder& in) {
    if (sizeof...(Ts) == 0) in.number<uint8_t>();
    return std::tuple<Ts...>{Codec<Ts>::decode(in)...};  // braces: left to right
  }
};

template <> struct Codec<std::monostate> {
  static std::string name() { return "monostate"; }
  static void encode(Encoder& out, std::monostate) { out.number(uint8_t{0}); }
  static std::monostate decode(Decoder& in) { return in.number<uint8_t>(), std::monostate(); }
};

template <Wire... Ts> struct Codec<std::variant<Ts...>> {
  using V = std::variant<Ts...>;
  static_assert(sizeof...(Ts) < 255, "a variant of at most 254 alternatives travels");
  static std::string name() { return detail::join_names<Ts...>("variant<"); }
  static void encode(Encoder& out, const V& v) {
    out.number(static_cast<uint8_t>(v.index()));
    std::visit([&]<class T>(const T& item) { Codec<T>::encode(out, item); }, v);
  }
  static V decode(Decoder& in) {
    const size_t index = in.number<uint8_t>();
    if (index >= sizeof...(Ts)) detail::malformed("a variant of an unknown alternative");
    return pick(in, index, std::index_sequence_for<Ts...>());
  }

 private:
  template <size_t... I> static V pick(Decoder& in, size_t index, std::index_sequence<I...>) {
    using Read = V (*)(Decoder&);
    static constexpr Read readers[] = {[](Decoder& d) {
      return V(std::in_place_index<I>, Codec<std::variant_alternative_t<I, V>>::decode(d));
    }...};
    return readers[index](in);
  }
};

/// Durations are encoded as int64 nanoseconds; durations with a floating representation as float64 seconds.
template <class Rep, class Period> struct Codec<std::chrono::duration<Rep, Period>> {
  using D = std::chrono::duration<Rep, Period>;
  static constexpr bool kFloating = std::is_floating_point_v<Rep>;
  static std::string name() { return kFloating ? "seconds" : "nanoseconds"; }
  static void encode(Encoder& out, const D& v) {
    if constexpr (kFloating) out.number(std::chrono::duration<double>(v).count());
    else out.number(static_cast<int64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(v).count()));
  }
  static D decode(Decoder& in) {
    if constexpr (kFloating) return D(std::chrono::duration<double>(in.number<double>()));
    else return std::chrono::duration_cast<D>(std::chrono::nanoseconds(in.number<int64_t>()));
  }
};

}  // namespace weft::rpc
