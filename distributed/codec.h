// Values on the wire. Codec<T> says how a T becomes bytes and tensors of a Message; this file has the Encoder, the Decoder and the
// codecs of plain values. The containers are in codec_std.h, WEFT_FIELDS for one's own structs in fields.h (both come with it).
//
// A Decoder trusts nothing: every length is checked against what is left before anything is allocated, and a malformed message is a
// WireError, never a crash. Each codec writes at least one byte, so a count can never exceed the bytes that follow it.
//
// A type of one's own with a codec by hand (a reference, say):
//   template <> struct weft::rpc::Codec<Mine> {
//     static std::string name() { return "Mine"; }              // part of signatures: the same on every worker
//     static void encode(Encoder& out, const Mine& v);
//     static Mine decode(Decoder& in);
//   };
// Thread safety: encoders and decoders as plain values.
#pragma once

#include <concepts>
#include <cstring>
#include <functional>
#include <optional>
#include <type_traits>

#include <weft/distributed/call_context.h>
#include <weft/distributed/future.h>
#include <weft/distributed/message.h>
#include <weft/distributed/worker_info.h>
#include <weft/kernels/scalar.h>

namespace weft::rpc {

/// How a T travels. The primary template is not defined: a type without a codec is refused at compile time.
template <class T> struct Codec;

/// Types that travel.
template <class T>
concept Wire = requires {
  { Codec<T>::name() } -> std::convertible_to<std::string>;
};

/// Writes values into a message.
class WEFT_API Encoder {
 public:
  /// `to`: who will read it; negative when nobody in particular.
  explicit Encoder(Message& message, Agent* agent = nullptr, WorkerId to = {}, bool reply = false);
  ~Encoder() { finish(); }
  Encoder(const Encoder&) = delete;
  Encoder& operator=(const Encoder&) = delete;

  template <class T> void put(const T& value) { Codec<T>::encode(*this, value); }

  void raw(const void* data, size_t bytes) { message_.bytes.append(static_cast<const char*>(data), bytes); }
  template <class T>
  requires std::is_arithmetic_v<T>
  void number(T value) { raw(&value, sizeof value); }
  /// A count: one byte up to 254, else nine.
  void size(uint64_t n);
  /// Adds to the tensor table. A parameter marked concurrent is pinned at its present value. Throws: DeviceError for a tensor of a device that the
  /// map for this receiver does not name.
  void tensor(const Tensor& value);
  /// The device of the receiver that tensors put from now on arrive on; none: what the device map says.
  void place_on(std::optional<Device> device) { place_ = device; }
  /// From now on a tensor of a device without an entry in the map goes to the receiver's CPU.
  void unmapped_to_cpu() { unmapped_to_cpu_ = true; }

  // What a codec may need to know.
  Agent* agent() const { return agent_; }
  WorkerId to() const { return to_; }
  bool is_reply() const { return reply_; }
  Message& message() { return message_; }
  /// See Message::settled.
  void on_settled(std::function<void(bool received)> f) { message_.settled.push_back(std::move(f)); }
  /// Closes the body; the destructor does it too.
  void finish() { message_.body_end = message_.bytes.size(); }

 private:
  Message& message_;
  Agent* agent_;
  WorkerId to_;
  bool reply_;
  bool unmapped_to_cpu_ = false;
  std::optional<Device> place_;
};

/// Reads them back in the same order. Throws: WireError for a message that does not hold what is asked of it.
class WEFT_API Decoder {
 public:
  /// The message must outlive the decoder. `from`: who wrote it.
  explicit Decoder(const Message& message, Agent* agent = nullptr, WorkerId from = {}, bool reply = false);

  template <class T> T get() { return Codec<T>::decode(*this); }

  std::string_view raw(size_t bytes);
  template <class T>
  requires std::is_arithmetic_v<T> T number() {
    T value;
    std::memcpy(&value, raw(sizeof(T)).data(), sizeof(T));
    return value;
  }
  /// A count of items that take at least a byte each. Throws: WireError when fewer bytes than that are left.
  size_t size();
  /// On the device that the sender chose. Awaits its arrival there, see await().
  Tensor tensor();
  size_t remaining() const { return body_.size(); }
  /// Throws: WireError when bytes are left over.
  void expect_end() const;

  Agent* agent() const { return agent_; }
  WorkerId from() const { return from_; }
  bool is_reply() const { return reply_; }
  const Message& message() const { return message_; }
  /// What is being decoded must not be used before `ready` is done: the function starts (the reply's future completes) after all of
  /// these; if one fails, that is the call's error.
  void await(Future<void> ready) { awaited_.push_back(std::move(ready)); }
  std::vector<Future<void>>& awaited() { return awaited_; }

 private:
  const Message& message_;
  std::string_view body_;
  size_t next_tensor_ = 0;
  bool awaits_arrival_ = false;
  Agent* agent_;
  WorkerId from_;
  bool reply_;
  std::vector<Future<void>> awaited_;
};

namespace detail {
[[noreturn]] WEFT_API void malformed(const std::string& what);
template <class T> constexpr const char* number_name() {
  if constexpr (std::is_same_v<T, bool>) return "bool";
  else if constexpr (std::is_floating_point_v<T>) return sizeof(T) == 4 ? "float32" : "float64";
  else if constexpr (std::is_signed_v<T>)
    return sizeof(T) == 1 ? "int8" : sizeof(T) == 2 ? "int16" : sizeof(T) == 4 ? "int32" : "int64";
  else return sizeof(T) == 1 ? "uint8" : sizeof(T) == 2 ? "uint16" : sizeof(T) == 4 ? "uint32" : "uint64";
}
}  // namespace detail

/// Numbers, little-endian as they lie in memory. long double does not travel.
template <class T>
requires(std::is_arithmetic_v<T> && sizeof(T) <= 8) struct Codec<T> {
  static std::string name() { return detail::number_name<T>(); }
  static void encode(Encoder& out, const T& v) { out.number(v); }
  static T decode(Decoder& in) {
    if constexpr (std::is_same_v<T, bool>) return in.number<uint8_t>() != 0;
    else return in.number<T>();
  }
};

/// Enumerations, as their underlying number.
template <class T>
requires std::is_enum_v<T>
struct Codec<T> {
  static std::string name() {
    return std::string("enum ") + detail::number_name<std::underlying_type_t<T>>();
  }
  static void encode(Encoder& out, const T& v) { out.number(static_cast<std::underlying_type_t<T>>(v)); }
  static T decode(Decoder& in) { return static_cast<T>(in.number<std::underlying_type_t<T>>()); }
};

template <> struct Codec<void> {
  static std::string name() { return "void"; }
};

template <> struct WEFT_API Codec<std::string> {
  static std::string name() { return "string"; }
  static void encode(Encoder& out, const std::string& v);
  static std::string decode(Decoder& in);
};

/// A tensor of any dtype: sizes and strides are kept (one that uses less than half of its span is compacted), so is requires_grad.
template <> struct Codec<Tensor> {
  static std::string name() { return "Tensor"; }
  static void encode(Encoder& out, const Tensor& v) { out.tensor(v); }
  static Tensor decode(Decoder& in) { return in.tensor(); }
};

template <> struct WEFT_API Codec<Scalar> {
  static std::string name() { return "Scalar"; }
  static void encode(Encoder& out, const Scalar& v);
  static Scalar decode(Decoder& in);
};

/// The sizes of a tensor.
template <> struct WEFT_API Codec<Shape> {
  static std::string name() { return "Shape"; }
  static void encode(Encoder& out, const Shape& v);
  static Shape decode(Decoder& in);
};

template <> struct WEFT_API Codec<WorkerInfo> {
  static std::string name() { return "WorkerInfo"; }
  static void encode(Encoder& out, const WorkerInfo& v);
  static WorkerInfo decode(Decoder& in);
};

/// A Future does not travel: wait for it, or return it from the function (its value is then the answer).
template <class T> struct Codec<Future<T>> {
  static_assert(
      sizeof(T) == 0,
      "a Future cannot travel: wait for it first; a function that returns one answers with its value");
};

}  // namespace weft::rpc

#include <weft/distributed/codec_std.h>
#include <weft/distributed/fields.h>
