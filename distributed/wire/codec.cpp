// Encoder, Decoder and the codecs of plain values (codec.h). wire_format.cpp adds envelope and tensors to
// the body that they write.
#include <weft/distributed/wire/codec.h>

#include <weft/autograd/tape/inner/packed_rows.h>
#include <weft/autograd/tape/record.h>
#include <weft/distributed/wire/inner/staging.h>
#include <weft/kernels/backend.h>
#include <weft/tensor/inner/tracer.h>

namespace weft::rpc {

namespace detail {
void malformed(const std::string& what) { throw WireError("malformed message: " + what); }
}  // namespace detail

std::string to_string(Kind kind) {
  switch (kind) {
    case Kind::kStatus: return "status";
    case Kind::kStatusReply: return "status reply";
    case Kind::kGoodbye: return "goodbye";
    case Kind::kFenced: return "fenced";
    case Kind::kCall: return "call";
    case Kind::kGather: return "gather";
    case Kind::kReturn: return "return of a loan";
    case Kind::kRound: return "round";
    case Kind::kRemote: return "remote";
    case Kind::kFetch: return "fetch";
    case Kind::kMethod: return "method";
    case Kind::kFork: return "fork";
    case Kind::kAccept: return "accept";
    case Kind::kDelete: return "delete";
    case Kind::kGradients: return "gradients";
    case Kind::kRelease: return "release";
    case Kind::kMark: return "mark";
    case Kind::kPassDone: return "pass done";
    case Kind::kPassAbort: return "pass abort";
    case Kind::kUser: break;
  }
  return "kind " + std::to_string(static_cast<int>(kind));  // a user's, or of another version
}

std::string to_string(const WorkerInfo& info) {
  return str("worker '", info.name, "' (", info.id.value, ")");
}

void check_worker_name(std::string_view name) {
  if (name.empty()) throw ValueError("worker name: must be non-empty");
  if (name.size() > 127)
    throw ValueError(str("worker name: must be shorter than 128 characters, got ", name.size()));
  for (const char c : name) {
    const bool fits = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                      c == '-' || c == '_' || c == ':';
    if (!fits) throw ValueError(str("worker name: '", name, "' must match [A-Za-z0-9-_:]+"));
  }
}

Encoder::Encoder(Message& message, Endpoint* endpoint, Life to, bool reply)
    : message_(message), endpoint_(endpoint), to_(to), reply_(reply) {
  if (message_.bytes.size() < kEnvelopeBytes) {
    message_.bytes.reserve(256);
    message_.bytes.resize(kEnvelopeBytes);
  }
}

void Encoder::size(uint64_t n) {
  if (n < 255) return number(static_cast<uint8_t>(n));
  number(uint8_t{255});
  number(n);
}

void Encoder::tensor(const Tensor& value) {
  number(static_cast<uint8_t>(value.defined()));
  if (!value.defined()) return;
  const Device source = value.device();
  Device target = place_.value_or(source);
  if (!place_ && endpoint_ && to_.id.value >= 0)
    target = endpoint_->target_device(to_.id, reply_, source, unmapped_to_cpu_);
  else if (!place_ && source.is_cuda())
    throw DeviceError(
        str("a tensor on ", source, " cannot travel to nobody in particular: move it to the cpu first"));
  if (source.is_cuda() && backend(source).recording({}))
    throw CudaError(str("a tensor on ", source,
                        " cannot be sent while the calling thread records a graph there: its value is made "
                        "by the replays; send it after end()"));
  weft::detail::refuse_trace("sends a tensor to another worker");
  const In pinned(value);
  message_.tensors.push_back(pinned.get());
  if (message_.linked_argument == 0 && value.requires_grad() && !value.is_leaf())
    message_.linked_argument = argument_;
  if (source.is_cpu() && target.is_cpu() && message_.places.empty()) return;
  message_.places.resize(message_.tensors.size());
  message_.places.back() = {source, target, {}, {}};
}

Decoder::Decoder(const Message& message, Endpoint* endpoint, Life from, bool reply)
    : message_(message), body_(message.body()), endpoint_(endpoint), from_(from), reply_(reply) {}

std::string_view Decoder::raw(size_t bytes) {
  if (bytes > body_.size())
    detail::malformed(str("it ends where ", bytes, " more bytes should be, ", body_.size(), " are left"));
  const std::string_view out = body_.substr(0, bytes);
  body_.remove_prefix(bytes);
  return out;
}

size_t Decoder::size() {
  uint64_t n = number<uint8_t>();
  if (n == 255) n = number<uint64_t>();
  if (n > body_.size()) detail::malformed(str("a count of ", n, " where ", body_.size(), " bytes are left"));
  return static_cast<size_t>(n);
}

Tensor Decoder::tensor() {
  const uint8_t defined = number<uint8_t>();
  if (defined > 1) detail::malformed("not a tensor");
  if (defined == 0) return {};
  if (next_tensor_ >= message_.tensors.size())
    detail::malformed(str("it names more tensors than the ", message_.tensors.size(), " it carries"));
  const Tensor& t = message_.tensors[next_tensor_++];
  if (t.device().is_cuda()) {
    if (message_.staging && message_.staging->arrival && !std::exchange(awaits_arrival_, true))
      await(*message_.staging->arrival);
    Accelerator& device = accelerator(t.device());
    device.record_stream(t.body().storage->allocation(), device.current_stream());
  }
  return t;
}

void Decoder::expect_end() const {
  if (!body_.empty()) detail::malformed(str(body_.size(), " bytes too many"));
}

void Codec<RowGrad>::encode(Encoder& out, const RowGrad& v, std::optional<Device> place) {
  out.number(static_cast<uint8_t>(v.defined()));
  if (!v.defined()) return;
  out.put(v.sizes);
  if (place) out.place_on(kCpu);
  out.tensor(v.rows);
  if (place) out.place_on(place);
  out.tensor(v.values.detach());
}

RowGrad Codec<RowGrad>::decode(Decoder& in) {
  if (in.number<uint8_t>() == 0) return {};
  RowGrad v;
  v.sizes = in.get<Shape>();
  v.rows = in.tensor();
  v.values = in.tensor();
  try {
    weft::detail::check_rows("RowGrad", v);
  } catch (const Error& e) {
    detail::malformed(e.what());
  }
  return v;
}

void Codec<std::string>::encode(Encoder& out, const std::string& v) {
  out.size(v.size());
  out.raw(v.data(), v.size());
}
std::string Codec<std::string>::decode(Decoder& in) { return std::string(in.raw(in.size())); }

void Codec<Scalar>::encode(Encoder& out, const Scalar& v) {
  out.number(v.d);
  out.number(v.i);
  out.number(static_cast<uint8_t>(v.integral));
}
Scalar Codec<Scalar>::decode(Decoder& in) {
  Scalar v;
  v.d = in.number<double>();
  v.i = in.number<int64_t>();
  v.integral = in.number<uint8_t>() != 0;
  return v;
}

void Codec<Shape>::encode(Encoder& out, const Shape& v) {
  out.size(static_cast<uint64_t>(v.size()));
  for (const int64_t n : v) out.number(n);
}
Shape Codec<Shape>::decode(Decoder& in) {
  const size_t n = in.size();
  if (n > kMaxDims) detail::malformed(str("a shape of ", n, " dimensions"));
  Shape v;
  for (size_t i = 0; i < n; ++i) v.push_back(in.number<int64_t>());
  return v;
}

void Codec<WorkerInfo>::encode(Encoder& out, const WorkerInfo& v) {
  out.put(v.name);
  out.number(v.id.value);
}
WorkerInfo Codec<WorkerInfo>::decode(Decoder& in) {
  WorkerInfo v;
  v.name = in.get<std::string>();
  v.id.value = in.number<int32_t>();
  return v;
}

}  // namespace weft::rpc
