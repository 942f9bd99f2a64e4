// Serialisation. Codec<T> encodes a T into bytes and tensors of a Message and decodes it again. This file has
// the Encoder, the Decoder and the codecs of plain values. It includes codec_std.h (standard containers) and
// fields.h (WEFT_FIELDS for user structs).
//
// A Decoder trusts no input: it checks every length against the remaining bytes before it allocates. A
// malformed message is a WireError, never a crash. Each codec writes at least one byte, so a valid count
// never exceeds the number of bytes that follow it.
//
// A codec for a user type:
//   template <> struct weft::rpc::Codec<Mine> {
//     static std::string name() { return "Mine"; }   // part of signatures: the same on every worker
//     static void encode(Encoder& out, const Mine& v);
//     static Mine decode(Decoder& in);
//   };
// Thread safety: an Encoder or Decoder belongs to one thread at a time.
#pragma once

#include <concepts>
#include <cstring>
#include <functional>
#include <optional>
#include <type_traits>

#include <weft/autograd/tape/row_grad.h>
#include <weft/distributed/wire/call_context.h>
#include <weft/distributed/wire/future.h>
#include <weft/distributed/wire/message.h>
#include <weft/distributed/wire/worker_info.h>
#include <weft/kernels/scalar.h>

namespace weft::rpc {

/// Encodes and decodes a T. The primary template is not defined: a type without a codec does not compile.
template <class T> struct Codec;

/// Types with a codec.
template <class T>
concept Wire = requires {
  { Codec<T>::name() } -> std::convertible_to<std::string>;
};

/// Writes values into a message.
class WEFT_API Encoder {
 public:
  /// `to`: the receiver; negative when it is not known.
  explicit Encoder(Message& message, Endpoint* endpoint = nullptr, Life to = {}, bool reply = false);
  ~Encoder() { finish(); }
  Encoder(const Encoder&) = delete;
  Encoder& operator=(const Encoder&) = delete;

  template <class T> void put(const T& value) { Codec<T>::encode(*this, value); }

  void raw(const void* data, size_t bytes) { message_.bytes.append(static_cast<const char*>(data), bytes); }
  template <class T>
  requires std::is_arithmetic_v<T>
  void number(T value) { raw(&value, sizeof value); }
  /// Writes a count: one byte up to 254, else nine bytes.
  void size(uint64_t n);
  /// Adds a tensor to the message's table. A concurrent parameter is sent with its present value.
  /// Throws: DeviceError for a device without an entry in the device map for this receiver.
  void tensor(const Tensor& value);
  /// Begins the next argument of a function, for texts.
  void begin_argument() { ++argument_; }
  /// Sets the receiver's device for the following tensors; none: by the device map.
  void place_on(std::optional<Device> device) { place_ = device; }
  /// Sends the following tensors to the receiver's CPU if the device map has no entry for their device.
  void unmapped_to_cpu() { unmapped_to_cpu_ = true; }

  // For codecs.
  Endpoint* endpoint() const { return endpoint_; }
  WorkerId to() const { return to_.id; }
  Life receiver() const { return to_; }
  bool is_reply() const { return reply_; }
  Message& message() { return message_; }
  /// See Message::settled.
  void on_settled(std::function<void(bool received)> f) { message_.settled.push_back(std::move(f)); }
  /// Closes the body. The destructor calls it too.
  void finish() { message_.body_end = message_.bytes.size(); }

 private:
  Message& message_;
  Endpoint* endpoint_;
  Life to_;
  bool reply_;
  bool unmapped_to_cpu_ = false;
  int32_t argument_ = 0;
  std::optional<Device> place_;
};

/// Reads values in the order of their encoding. Throws: WireError for a message that does not match
/// the requested types.
class WEFT_API Decoder {
 public:
  /// The message must outlive the decoder. `from`: the sender.
  explicit Decoder(const Message& message, Endpoint* endpoint = nullptr, Life from = {}, bool reply = false);

  template <class T> T get() { return Codec<T>::decode(*this); }

  std::string_view raw(size_t bytes);
  template <class T>
  requires std::is_arithmetic_v<T> T number() {
    T value;
    std::memcpy(&value, raw(sizeof(T)).data(), sizeof(T));
    return value;
  }
  /// A count of items of at least one byte each. Throws: WireError when fewer bytes are left.
  size_t size();
  /// A tensor on the device that the sender chose. Its copy to that device joins awaited().
  Tensor tensor();
  size_t remaining() const { return body_.size(); }
  /// Throws: WireError when bytes remain.
  void expect_end() const;

  Endpoint* endpoint() const { return endpoint_; }
  WorkerId from() const { return from_.id; }
  Life sender() const { return from_; }
  bool is_reply() const { return reply_; }
  const Message& message() const { return message_; }
  /// Delays the use of the decoded values until `ready` is done. The function starts, or the reply's future
  /// completes, after all awaited futures. If one fails, the call fails with its error.
  void await(Future<void> ready) { awaited_.push_back(std::move(ready)); }
  std::vector<Future<void>>& awaited() { return awaited_; }

 private:
  const Message& message_;
  std::string_view body_;
  size_t next_tensor_ = 0;
  bool awaits_arrival_ = false;
  Endpoint* endpoint_;
  Life from_;
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

/// Numbers, in the machine's little-endian byte order. long double has no codec.
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

/// A tensor of any dtype. Sizes, strides and requires_grad are kept. A tensor that uses less than half of the
/// memory it spans is sent contiguous.
template <> struct Codec<Tensor> {
  static std::string name() { return "Tensor"; }
  static void encode(Encoder& out, const Tensor& v) { out.tensor(v); }
  static Tensor decode(Decoder& in) { return in.tensor(); }
};

/// The rows and values of a row-wise gradient; the number of bytes depends on the rows, not on the table.
/// Throws, when decoding: WireError for rows that do not ascend or lie outside the sizes.
template <> struct WEFT_API Codec<RowGrad> {
  static std::string name() { return "RowGrad"; }
  /// `place`: the receiver's device for the values.
  static void encode(Encoder& out, const RowGrad& v, std::optional<Device> place = std::nullopt);
  static RowGrad decode(Decoder& in);
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

/// A Future has no codec: wait for it, or return it from the function, which then answers with its value.
template <class T> struct Codec<Future<T>> {
  static_assert(
      sizeof(T) == 0,
      "a Future cannot travel: wait for it first; a function that returns one answers with its value");
};

}  // namespace weft::rpc

#include <weft/distributed/wire/codec_std.h>
#include <weft/distributed/wire/fields.h>
