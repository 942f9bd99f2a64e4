// Tensors in messages. A descriptor has: dtype, flags, number of dims, sizes, strides, bytes of the span.
// The span is the memory from the first to the last element, so views keep their strides without the
// memory around them. A view that uses less than half of a span of 8 KiB or more is copied first. A tensor
// on a device, at either end, has two more bytes in its descriptor. Its bytes are a payload that goes
// through host memory (staging.h). A lent tensor (lending.h) has a loan and a block instead.
#include <weft/distributed/wire/inner/wire_format.h>

#include <cstring>

#include <weft/autograd/tape/grad_mode.h>
#include <weft/distributed/transport/inner/frame.h>
#include <weft/distributed/wire/codec.h>
#include <weft/distributed/wire/inner/lending.h>
#include <weft/distributed/wire/inner/staging.h>
#include <weft/kernels/backend.h>
#include <weft/tensor/inner/parameter_lock.h>

namespace weft::rpc {

namespace {

constexpr int64_t kCompactAbove = 8192;
constexpr int64_t kMaxTensorBytes = int64_t{1} << 40;
enum Flag : uint8_t { kRequiresGrad = 1, kInline = 2, kPlaced = 4, kLent = 8 };
constexpr uint8_t kCpuCode = 255;

uint8_t code_of(Device d) { return d.is_cpu() ? kCpuCode : static_cast<uint8_t>(d.index); }

template <class T> void append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

/// Elements between the first and the last one, both included; -1 where a stride is negative.
int64_t span_of(const Tensor& t) {
  if (t.numel() == 0) return 0;
  int64_t span = 1;
  for (int d = 0; d < t.dim(); ++d) {
    if (t.strides()[d] < 0) return -1;
    span += (t.sizes()[d] - 1) * t.strides()[d];
  }
  return span;
}

int64_t span_bytes(const Tensor& t) { return span_of(t) * size_of(t.dtype()); }

/// Reads the tail.
class Tail {
 public:
  explicit Tail(std::string_view bytes) : left_(bytes) {}
  template <class T> T number() {
    T value;
    std::memcpy(&value, raw(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::string_view raw(uint64_t bytes) {
    if (bytes > left_.size()) detail::malformed("its tail is cut short");
    const std::string_view out = left_.substr(0, bytes);
    left_.remove_prefix(bytes);
    return out;
  }
  bool empty() const { return left_.empty(); }
  size_t size() const { return left_.size(); }

 private:
  std::string_view left_;
};

void release_block(void* storage) { Ref<Storage>::adopt(static_cast<Storage*>(storage)).reset(); }

void release_sent(void* storage) {
  auto* s = static_cast<Storage*>(storage);
  s->drop_save();
  Ref<Storage>::adopt(s).reset();
}

Device get_device(Tail& tail) {
  const auto code = tail.number<uint8_t>();
  if (code == kCpuCode) return kCpu;
  if (code > 127) detail::malformed(str("a tensor on the device ", code));
  return Device(DeviceType::kCuda, code);
}

bool travels_inline(const Place* place, int64_t bytes) {
  return bytes <= kInlineTensorBytes && (!place || place->source.is_cpu() || bytes == 0);
}

Tensor open_tensor(Message& m, Tail& tail, std::vector<Block>& payloads, size_t& next_payload) {
  const auto dtype_number = tail.number<uint8_t>();
  const auto flags = tail.number<uint8_t>();
  const auto dims = tail.number<uint8_t>();
  if (dtype_number >= kDTypeCount) detail::malformed(str("a tensor of the unknown dtype ", dtype_number));
  if (dims > kMaxDims) detail::malformed(str("a tensor of ", dims, " dimensions"));
  const auto dtype = static_cast<DType>(dtype_number);
  const int64_t item = size_of(dtype);
  Shape sizes, strides;
  for (int d = 0; d < dims; ++d) sizes.push_back(tail.number<int64_t>());
  for (int d = 0; d < dims; ++d) strides.push_back(tail.number<int64_t>());
  const auto bytes = tail.number<int64_t>();
  if (bytes < 0 || bytes % item != 0) detail::malformed(str("a tensor of ", bytes, " bytes of ", dtype));

  int64_t numel = 1;
  for (int d = 0; d < dims; ++d) {
    if (sizes[d] < 0 || __builtin_mul_overflow(numel, sizes[d], &numel) || numel > kMaxTensorBytes / item)
      detail::malformed(str("a tensor of sizes ", sizes));
  }
  int64_t span = numel == 0 ? 0 : 1;
  for (int d = 0; d < dims && numel > 0; ++d) {
    int64_t step = 0;
    if (strides[d] < 0 || __builtin_mul_overflow(sizes[d] - 1, strides[d], &step) ||
        __builtin_add_overflow(span, step, &span))
      detail::malformed(str("a tensor of strides ", strides));
  }
  if (span > bytes / item)
    detail::malformed(str("a tensor of sizes ", sizes, " and strides ", strides, " in ", bytes, " bytes"));
  if ((flags & kRequiresGrad) && !is_floating(dtype))
    detail::malformed("a tensor of integers that requires grad");
  Place place;
  if (flags & kPlaced) {
    place.source = get_device(tail);
    place.target = get_device(tail);
    try {
      backend(place.target);
    } catch (const DeviceError& e) {  // workers agree on their maps at the start, so this is malformed
      detail::malformed(str("a tensor for ", place.target, ", which is not here: ", e.what()));
    }
    m.places.resize(m.tensors.size() + 1);
    m.places.back() = place;
  }
  if (place.target.is_cuda() && bytes > 0 && !m.staging) m.staging = std::make_shared<Staging>();

  Ref<Storage> storage;
  if (bytes == 0) {
    storage = Storage::allocate(place.target, 0);
  } else if (flags & kLent) {
    if (!place.target.is_cuda()) detail::malformed("a lent tensor for the cpu");
    m.staging->loans.push_back(tail.number<uint64_t>());
    SharedBlock block;
    block.handle = tail.number<decltype(block.handle)>();
    block.offset = tail.number<int64_t>();
    block.segment_bytes = tail.number<int64_t>();
    block.segment = tail.number<uint64_t>();
    if (block.offset < 0 || block.segment_bytes < bytes || block.offset > block.segment_bytes - bytes)
      detail::malformed("a lent tensor that reaches beyond its allocation");
    storage = m.staging->borrow(place.target, block, bytes);
  } else if (flags & kInline) {
    const std::string_view data = tail.raw(static_cast<uint64_t>(bytes));
    if (place.target.is_cuda()) {
      // the call returns after the bytes were read, since they are not in pinned memory
      storage = m.staging->upload(place.target, data.data(), bytes, {});
    } else {
      storage = Storage::allocate(kCpu, data.size());
      std::memcpy(storage->data(), data.data(), data.size());
    }
  } else {
    if (next_payload >= payloads.size()) detail::malformed("a tensor without its payload");
    Block& block = payloads[next_payload++];
    if (block.bytes != bytes)
      detail::malformed(str("a payload of ", block.bytes, " bytes for a tensor of ", bytes));
    if (place.target.is_cuda()) {
      storage = m.staging->upload(place.target, block.data, bytes, std::move(block.release));
    } else if (block.shared && !is_floating(dtype)) {
      // The sender could still write to it. Integers are checked before they serve as indices.
      storage = Storage::allocate(kCpu, static_cast<size_t>(bytes));
      std::memcpy(storage->data(), block.data, static_cast<size_t>(bytes));
      block.release.reset();
    } else {
      const auto [release, context] = block.release.take();
      storage = release == &release_block
                    ? Ref<Storage>::adopt(static_cast<Storage*>(context))
                    : Storage::take_over(kCpu, block.data, static_cast<size_t>(bytes), release, context);
    }
  }
  Tensor t(Ref<TensorBody>::adopt(new TensorBody(std::move(storage), 0, sizes, strides, dtype)));
  if (flags & kRequiresGrad) t.requires_grad_();
  return t;
}

}  // namespace

void seal(Message& message, Lending* lending, WorkerId to) {
  if (message.bytes.size() < kEnvelopeBytes) message.bytes.resize(kEnvelopeBytes);
  message.body_end = message.bytes.size();
  std::string& out = message.bytes;
  append(out, static_cast<uint8_t>(message.extensions.size()));
  for (const Extension& e : message.extensions) {
    append(out, e.tag);
    append(out, static_cast<uint64_t>(e.bytes.size()));
    out += e.bytes;
  }
  std::vector<bool> wants_grad;
  // These copies come first: a copy to host memory waits for the work issued here.
  for (Tensor& t : message.tensors) {
    wants_grad.push_back(t.requires_grad());
    t = weft::detail::held(t);
    const int64_t span = span_of(t);
    // a local optimizer may step before the message is sent
    if (t.body().storage->history_is_leaf() && span * size_of(t.dtype()) > kInlineTensorBytes) {
      const NoGrad off;
      t = t.detach().clone();
    } else if (span < 0 || (span * size_of(t.dtype()) >= kCompactAbove && span > 2 * t.numel())) {
      const NoGrad off;
      t = t.detach().contiguous();
    }
  }
  for (size_t i = 0; i < message.tensors.size(); ++i) {
    const Tensor& t = message.tensors[i];
    Place* const place = i < message.places.size() ? &message.places[i] : nullptr;
    const bool placed = place && (place->source.is_cuda() || place->target.is_cuda());
    const int64_t bytes = span_bytes(t);
    const bool in_line = travels_inline(place, bytes);
    append(out, static_cast<uint8_t>(t.dtype()));
    if (placed && lending) place->loan = lending->lend(to, *place, t, bytes);
    const bool lent = placed && place->loan;
    append(out, static_cast<uint8_t>((wants_grad[i] ? kRequiresGrad : 0) | (in_line ? kInline : 0) |
                                     (placed ? kPlaced : 0) | (lent ? kLent : 0)));
    append(out, static_cast<uint8_t>(t.dim()));
    out.append(reinterpret_cast<const char*>(t.sizes().data()),
               sizeof(int64_t) * static_cast<size_t>(t.dim()));
    out.append(reinterpret_cast<const char*>(t.strides().data()),
               sizeof(int64_t) * static_cast<size_t>(t.dim()));
    append(out, bytes);
    if (placed) append(out, code_of(place->source)), append(out, code_of(place->target));
    if (in_line && bytes > 0) out.append(static_cast<const char*>(t.address()), static_cast<size_t>(bytes));
    if (in_line || !t.device().is_cuda()) continue;
    if (!message.staging) message.staging = std::make_shared<Staging>();
    if (lent) {
      append(out, place->loan->number);
      append(out, place->loan->block.handle);
      append(out, place->loan->block.offset);
      append(out, place->loan->block.segment_bytes);
      append(out, place->loan->block.segment);
      message.staging->follow(t.device());
      continue;
    }
    place->host = message.staging->download(t.body().storage, t.address(), bytes);
  }
  if (message.staging) message.staging->close();
  Envelope e;
  e.body_end = message.body_end;
  e.tensors = static_cast<uint32_t>(message.tensors.size());
  stamp(message, e);
}

void stamp(Message& message, const Envelope& envelope) {
  Envelope e = envelope;
  e.body_end = message.body_end;
  e.tensors = static_cast<uint32_t>(message.tensors.size());
  std::memcpy(message.bytes.data(), &e, sizeof e);
}

std::string header_of(const Message& message) {
  std::string header = inner::spare_header();
  header.reserve(message.bytes.size() + kHeaderRoom);
  header.append(message.bytes);
  return header;
}

std::vector<Payload> payloads_of(const Message& message) {
  std::vector<Payload> out;
  for (size_t i = 0; i < message.tensors.size(); ++i) {
    const Tensor& t = message.tensors[i];
    const Place* const place = i < message.places.size() ? &message.places[i] : nullptr;
    const int64_t bytes = span_bytes(t);
    if (travels_inline(place, bytes) || (place && place->loan)) continue;
    Payload p;
    p.bytes = bytes;
    if (place && place->target.is_cuda()) p.device = place->target.index;
    if (place && place->host) {
      p.data = place->host.get();
      p.release = Release::keep(place->host);
      out.push_back(std::move(p));
      continue;
    }
    Storage* storage = t.body().storage.get();
    storage->retain();
    storage->add_save();
    p.data = t.address();
    p.release = Release(&release_sent, storage);
    out.push_back(std::move(p));
  }
  return out;
}

uint16_t Envelope::pack_window(int64_t bytes) {
  uint16_t exponent = 0;
  for (; bytes > 0x7ff && exponent < 31; ++exponent) bytes >>= 1;
  return static_cast<uint16_t>(exponent << 11 | std::min<int64_t>(bytes, 0x7ff));
}

int64_t wire_bytes(const Message& message) {
  auto bytes = static_cast<int64_t>(message.bytes.size());
  for (size_t i = 0; i < message.tensors.size(); ++i) {
    const Place* const place = i < message.places.size() ? &message.places[i] : nullptr;
    const int64_t large = span_bytes(message.tensors[i]);
    if (!travels_inline(place, large) && !(place && place->loan)) bytes += large;
  }
  return bytes;
}

int64_t bytes_of(const Inbound& message) {
  auto bytes = static_cast<int64_t>(message.header.size());
  for (const Block& block : message.payloads) bytes += block.bytes;
  return bytes;
}

Block allocate_payload(int64_t bytes, int32_t device) {
  Block block;
  block.bytes = bytes;
  block.device = device;
  if (auto pinned = device == kHostDevice ? nullptr : pinned_memory(device, bytes)) {
    block.data = pinned.get();
    block.release = Release::keep(std::move(pinned));
    return block;
  }
  Ref<Storage> storage = Storage::allocate(kCpu, static_cast<size_t>(bytes));
  block.data = storage->data();
  block.release = Release(&release_block, storage.detach());
  return block;
}

Envelope open_envelope(const std::string& header) {
  Envelope e;
  if (header.size() < sizeof e) detail::malformed(str("a header of ", header.size(), " bytes"));
  std::memcpy(&e, header.data(), sizeof e);
  if (e.body_end < kEnvelopeBytes || e.body_end > header.size())
    detail::malformed(str("a body that ends at ", e.body_end, " of ", header.size()));
  return e;
}

Message unseal(std::string header, std::vector<Block> payloads, const Envelope& envelope) {
  Message m;
  m.bytes = std::move(header);
  m.body_end = envelope.body_end;
  Tail tail(std::string_view(m.bytes).substr(m.body_end));
  if (tail.empty() && envelope.tensors == 0) return m;
  for (int n = tail.number<uint8_t>(); n > 0; --n) {
    Extension e;
    e.tag = tail.number<Tag>();
    e.bytes = tail.raw(tail.number<uint64_t>());
    m.extensions.push_back(std::move(e));
  }
  if (envelope.tensors > tail.size() / 11)
    detail::malformed(str(envelope.tensors, " tensors in ", tail.size(), " bytes"));
  m.tensors.reserve(envelope.tensors);
  size_t next_payload = 0;
  for (uint32_t i = 0; i < envelope.tensors; ++i)
    m.tensors.push_back(open_tensor(m, tail, payloads, next_payload));
  if (!tail.empty() || next_payload != payloads.size())
    detail::malformed("more in it than its descriptors say");
  if (!m.places.empty()) m.places.resize(m.tensors.size());
  if (m.staging) m.staging->close();
  return m;
}

}  // namespace weft::rpc
