// The frames between compare_cases and scripts/compare_torch.py, little-endian.
// A request is its length (uint32) and
//   name:       uint8 length, bytes
//   arguments:  uint8 count, each a tag and its value: 'T' tensor, 'U' undefined tensor, 'L' list (uint16
//               count, each 'T' or 'U'), 'i' int64, 'd' double, 'b' uint8 (0 or 1), 'S' shape (uint8 count,
//               int64s), 's' text (uint16 length, bytes)
//   cotangents: uint16 count, each 'T' or 'U', one per output
// A tensor is uint8 requires_grad, uint8 dtype, uint8 rank, sizes, strides, offset and an element count
// (int64), and the storage. An answer is its length (uint32), a status (uint8) and, by status,
//   kOk: outputs, gradients; kBackwardError: outputs, error; kCallError, kMalformed: error.
// Outputs and gradients are uint16 count, each 'U' or 'T'. A 'T' has uint8 flags (1: requires grad, 2: shares
// the first argument's storage), uint8 dtype, uint8 rank, sizes, row-major bytes. Gradients follow the
// tensors that require grad in their order. An error is two texts (uint32 length, bytes): the type and the
// message.
#pragma once

#include <string>
#include <vector>

#include <weft/weft.h>

namespace weft::test {

enum class Status : uint8_t { kOk, kCallError, kBackwardError, kMalformed };

/// A frame that does not follow the layout above.
class FrameError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Reads a request. Every read throws FrameError beyond the end or on a wrong tag.
class Request {
 public:
  explicit Request(const std::string& body) : at_(body.data()), end_(at_ + body.size()) {}
  std::string name();
  int count() { return byte(); }
  /// The number of cotangents.
  int long_count() { return number<uint16_t>(); }
  /// Throws: FrameError when bytes remain.
  void finish() const;

  Tensor tensor();
  std::vector<Tensor> tensors();
  Scalar scalar();
  int64_t integer();
  double real();
  bool flag();
  Shape shape();
  std::string text();

  /// The tensors that require grad, in order. A row that copies one into a module's parameter replaces it
  /// by the parameter.
  std::vector<Tensor> leaves;
  /// The first tensor of the request.
  Tensor first;

 private:
  template <class T> T number();
  uint8_t byte() { return number<uint8_t>(); }
  char tag(const char* allowed);
  Tensor tensor_body();
  std::string bytes(size_t count);
  const char* at_;
  const char* end_;
};

/// Writes an answer.
class Answer {
 public:
  void status(Status s) { byte(static_cast<uint8_t>(s)); }
  void tensors(const std::vector<Tensor>& list, const Tensor& first);
  void error(const std::string& type, const std::string& text);
  const std::string& body() const { return out_; }

 private:
  template <class T> void number(T value) {
    out_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void byte(uint8_t value) { number(value); }
  std::string out_;
};

}  // namespace weft::test
