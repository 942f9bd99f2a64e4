// Reading and writing of frames (frame.h). Every length is checked against the remaining bytes
// before its use.
#include "support/compare/frame.h"

#include <cstring>

namespace weft::test {

namespace {
constexpr int64_t kMaxElements = int64_t{1} << 28;
}

template <class T> T Request::number() {
  if (end_ - at_ < static_cast<ptrdiff_t>(sizeof(T))) throw FrameError("the frame ends within a value");
  T value;
  std::memcpy(&value, at_, sizeof value);
  at_ += sizeof value;
  return value;
}

std::string Request::bytes(size_t count) {
  if (static_cast<size_t>(end_ - at_) < count) throw FrameError("the frame ends within a text");
  const std::string text(at_, count);
  at_ += count;
  return text;
}

std::string Request::name() { return bytes(byte()); }

void Request::finish() const {
  if (at_ != end_) throw FrameError(str(end_ - at_, " bytes too many"));
}

char Request::tag(const char* allowed) {
  const char found = static_cast<char>(byte());
  if (found == '\0' || !std::strchr(allowed, found))
    throw FrameError(str("the tag ", static_cast<int>(found), " is not one of ", allowed));
  return found;
}

Tensor Request::tensor() { return tag("TU") == 'U' ? Tensor() : tensor_body(); }

Tensor Request::tensor_body() {
  const bool requires_grad = byte() != 0;
  const uint8_t type = byte();
  const int rank = byte();
  if (type >= kDTypeCount) throw FrameError(str("no dtype has the number ", static_cast<int>(type)));
  if (rank > kMaxDims) throw FrameError(str("rank ", rank, " is above ", kMaxDims));
  const auto dtype = static_cast<DType>(type);
  Shape sizes, strides;
  int64_t elements = 1;  // of the tensor; an expanded one has more than its storage
  for (int d = 0; d < rank; ++d) {
    sizes.push_back(number<int64_t>());
    if (sizes.back() < 0 || sizes.back() > kMaxElements) throw FrameError(str("a tensor of sizes ", sizes));
    elements *= sizes.back();
    if (elements > kMaxElements) throw FrameError(str("a tensor of sizes ", sizes));
  }
  for (int d = 0; d < rank; ++d) {
    strides.push_back(number<int64_t>());
    if (strides.back() < 0 || strides.back() > kMaxElements)
      throw FrameError(str("a tensor of strides ", strides));
  }
  const auto offset = number<int64_t>();
  const auto count = number<int64_t>();
  if (count < 0 || count > kMaxElements) throw FrameError(str("a storage of ", count, " elements"));
  const std::string data = bytes(static_cast<size_t>(count * size_of(dtype)));
  Tensor storage = empty({count}, {.dtype = dtype});
  if (count > 0) std::memcpy(storage.raw(), data.data(), data.size());
  Tensor x;
  try {
    x = alias(storage, sizes, strides, offset);
  } catch (const Error& e) {
    throw FrameError(str("a tensor outside its storage: ", e.what()));
  }
  if (requires_grad) {
    if (!is_floating(dtype)) throw FrameError("an integer tensor cannot require grad");
    x.requires_grad_();
    leaves.push_back(x);
  }
  if (!first.defined()) first = x;
  return x;
}

std::vector<Tensor> Request::tensors() {
  tag("L");
  std::vector<Tensor> list(number<uint16_t>());
  for (Tensor& x : list) x = tensor();
  return list;
}

Scalar Request::scalar() {
  switch (tag("idb")) {
    case 'i': return number<int64_t>();
    case 'd': return number<double>();
    default: return byte() != 0;
  }
}

int64_t Request::integer() {
  tag("i");
  return number<int64_t>();
}

double Request::real() {
  tag("d");
  return number<double>();
}

bool Request::flag() {
  tag("b");
  return byte() != 0;
}

Shape Request::shape() {
  tag("S");
  Shape shape;
  const int count = byte();
  if (count > kMaxDims) throw FrameError(str("a list of ", count, " sizes"));
  for (int i = 0; i < count; ++i) shape.push_back(number<int64_t>());
  return shape;
}

std::string Request::text() {
  tag("s");
  return bytes(number<uint16_t>());
}

void Answer::tensors(const std::vector<Tensor>& list, const Tensor& first) {
  if (list.size() > UINT16_MAX) throw ValueError(str(list.size(), " tensors do not fit a frame"));
  number(static_cast<uint16_t>(list.size()));
  for (const Tensor& x : list) {
    byte(x.defined() ? 'T' : 'U');
    if (!x.defined()) continue;
    const bool shares = first.defined() && x.shares_storage(first);
    byte(static_cast<uint8_t>((x.requires_grad() ? 1 : 0) | (shares ? 2 : 0)));
    byte(static_cast<uint8_t>(x.dtype()));
    byte(static_cast<uint8_t>(x.dim()));
    for (const int64_t size : x.sizes()) number(size);
    const Tensor row_major = x.detach().contiguous();
    if (x.numel() > 0)
      out_.append(static_cast<const char*>(row_major.raw()),
                  static_cast<size_t>(x.numel() * size_of(x.dtype())));
  }
}

void Answer::error(const std::string& type, const std::string& text) {
  for (const std::string& part : {type, text}) {
    number(static_cast<uint32_t>(part.size()));
    out_ += part;
  }
}

}  // namespace weft::test
