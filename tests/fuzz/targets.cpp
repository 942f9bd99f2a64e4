// The targets (targets.h) below the store: frames of a connection, the message above them, and values in its
// body.
#include "fuzz/targets.h"

#include <cstdlib>
#include <map>
#include <optional>

#include <weft/distributed/launch/inner/store_calls.h>
#include <weft/distributed/rpc/rpc.h>
#include <weft/distributed/sim/sim_runtime.h>
#include <weft/distributed/transport/inner/frame.h>
#include <weft/distributed/wire/inner/wire_format.h>
#include <weft/tensor/factories.h>

namespace weft::fuzz {

namespace {

using namespace rpc;

/// Memory that a test of malformed input may take for one payload.
constexpr int64_t kMostBytes = 1 << 20;

Block small_block(int64_t bytes, int32_t device) {
  if (bytes < 0) throw Defect("a payload of negative size");
  if (bytes > kMostBytes) throw OutOfMemoryError("no memory");
  void* memory = std::malloc(static_cast<size_t>(bytes) + 1);
  return {memory, bytes, device, Release(std::free, memory)};
}

/// Runs `f`; bad input may end it.
template <class F> void refused_or_read(F f) {
  try {
    f();
  } catch (const Defect&) {
    throw;
  } catch (const Error&) {  // typed errors of weft: WireError, DTypeError of a bad tensor and so on
  }
}

std::string bytes_of(const inner::Frame& frame) { return frame.flat(); }

/// The records of a connection: a hello and some messages.
std::string conversation(int messages) {
  inner::Hello hello;
  hello.id = WorkerId{0};
  hello.incarnation = Incarnation{7};
  hello.target = WorkerId{1};
  hello.host_key = "here";
  hello.addresses = {"127.0.0.1:4711", "unix:socket"};
  std::string all = inner::encode_hello(inner::RecordType::kHello, hello);
  static const std::string payload(3000, 'p');
  for (int i = 0; i < messages; ++i) {
    std::vector<Payload> payloads;
    if (i % 2 == 1)
      payloads.push_back({payload.data(), static_cast<int64_t>(payload.size()), kHostDevice, {}});
    inner::OutCursor cursor{inner::make_out_message(8, str("header ", i), std::move(payloads), {})};
    inner::Frame frame;
    inner::append_message(frame, cursor);
    all += bytes_of(frame);
  }
  return all;
}

/// A segment of shared memory, a message with a payload in it, and the end of the segment.
std::string shared_conversation() {
  const std::string stub("\3\0\0\0", 4), large(3000, 'p');
  std::vector<Payload> payloads(1);
  payloads[0].data = large.data(), payloads[0].bytes = 3000;
  const auto message = inner::make_out_message(8, "shared", std::move(payloads), {});
  message->head[inner::kBeginBytes + 7] |= static_cast<char>(inner::kSharedMark >> 56);
  message->payloads[0] = {stub.data(), inner::kStubBytes, kHostDevice, {}};
  message->bytes = static_cast<int64_t>(message->head.size() + stub.size());
  inner::OutCursor cursor{message};
  inner::Frame frame;
  inner::append_message(frame, cursor);
  return inner::encode_segment(inner::RecordType::kSegment, 3) + bytes_of(frame) +
         inner::encode_segment(inner::RecordType::kForget, 3);
}

Message sample_message() {
  Message m;
  Encoder out(m);
  out.put(std::string("text"));
  out.put(std::vector<int64_t>{1, 2, 3});
  out.put(tensor({1., 2., 3.}));
  out.finish();
  m.extension(Tag::kAutograd) = std::string(25, '\1');
  seal(m);
  stamp(m, {.sequence = 5, .floor = 3, .remaining_ns = 1000});
  return m;
}

using Everything = std::tuple<std::vector<std::string>, std::map<std::string, std::vector<double>>,
                              std::optional<int32_t>, std::vector<std::optional<Tensor>>, std::vector<bool>,
                              std::pair<Shape, Scalar>, WorkerInfo, std::array<float, 3>>;

Everything everything() {
  Everything e;
  std::get<0>(e) = {"a", "", std::string(300, 'x')};
  std::get<1>(e) = {{"k", {1, 2}}, {"l", {}}};
  std::get<2>(e) = 7;
  std::get<3>(e) = {zeros({2, 3}), std::nullopt, Tensor()};
  std::get<4>(e) = {true, false, true};
  std::get<5>(e) = {{2, 3}, Scalar(1.5)};
  std::get<6>(e) = {"w", WorkerId{1}};
  return e;
}

}  // namespace

std::vector<std::string> pieces_of(const uint8_t* data, size_t size) {
  std::vector<std::string> all;
  for (size_t at = 0; at < size;) {
    const size_t n = std::min<size_t>(data[at], size - at - 1);
    all.emplace_back(reinterpret_cast<const char*>(data + at + 1), n);
    at += n + 1;
  }
  return all;
}

std::string join(const std::vector<std::string>& pieces) {
  std::string all;
  for (const std::string& p : pieces) {
    all += static_cast<char>(std::min<size_t>(p.size(), 255));
    all += p.substr(0, 255);
  }
  return all;
}

// ---- frames. The first byte is the length of the pieces in which the bytes arrive.

void frame(const uint8_t* data, size_t size) {
  struct Sink final : inner::DecoderSink {
    void on_hello(inner::RecordType, inner::Hello) override {}
    void on_text(inner::RecordType, std::string) override {}
    Block allocate(uint8_t, const std::string&, int64_t bytes, int32_t device) override {
      return small_block(bytes, device);
    }
    void on_segment(inner::RecordType, uint32_t number) override {
      if (number > 9) throw WireError("wire: an unknown segment");
    }
    Block borrow(uint32_t number, int64_t bytes) override {
      if (number > 99) throw WireError("wire: an unknown segment");
      if (number > 9) throw OutOfMemoryError("a segment without memory");
      return small_block(bytes, kHostDevice);
    }
    void on_message(uint8_t, std::string, std::vector<Block> payloads) override {
      for (const Block& b : payloads)
        if (b.bytes > 0 && b.data == nullptr) throw Defect("a payload without memory");
    }
    void on_unread(uint8_t, std::string, std::exception_ptr error) override {
      if (!error) throw Defect("an unread message without its error");
    }
  };
  if (size == 0) return;
  const size_t step = data[0] % 64 + 1;
  Sink sink;
  WireLimits limits;
  limits.max_message_bytes = int64_t{1} << 24;
  limits.max_header_bytes = int64_t{1} << 22;
  limits.max_payloads = 1 << 12;
  inner::Decoder decoder(limits, sink);
  try {
    for (size_t at = 1; at < size; at += step) decoder.feed(data + at, std::min(step, size - at));
    decoder.end_frame();
  } catch (const WireError&) {
  }
}

std::vector<std::string> frame_seeds() {
  std::vector<std::string> all;
  for (const int messages : {0, 1, 4}) all.push_back("\x40" + conversation(messages));
  all.push_back("\x05" + conversation(2));
  all.push_back("\x40" + conversation(1) + shared_conversation());
  all.push_back("\x40" + inner::encode_text(inner::RecordType::kReject, "another life"));
  return all;
}

// ---- messages of agents. The bytes are a header.

void envelope(const uint8_t* data, size_t size) {
  const std::string header(reinterpret_cast<const char*>(data), size);
  refused_or_read([&] {
    const Envelope e = open_envelope(header);
    Message m = unseal(header, {}, e);
    for (const Tensor& t : m.tensors)
      if (t.defined() && t.numel() > 0 && t.numel() < 1000) static_cast<void>(t.clone());
    Decoder in(m);
    const auto text = in.get<std::string>();
    const auto numbers = in.get<std::vector<int64_t>>();
    const auto t = in.get<Tensor>();
    in.expect_end();
  });
}

std::vector<std::string> envelope_seeds() {
  Message error;
  {
    Encoder out(error);
    put_error(out, std::make_exception_ptr(ValueError("no")));
  }
  seal(error);
  stamp(error, {.sequence = 9, .error = 1});
  return {sample_message().bytes, error.bytes};
}

// ---- values. The first byte chooses the type.

void codec(const uint8_t* data, size_t size) {
  if (size == 0) return;
  Message m;
  m.bytes.assign(kEnvelopeBytes, '\0');
  m.bytes.append(reinterpret_cast<const char*>(data + 1), size - 1);
  m.body_end = m.bytes.size();
  m.tensors = {zeros({2, 3}), Tensor()};
  refused_or_read([&] {
    Decoder in(m, nullptr, WorkerId{1});
    switch (data[0] % 5) {
      case 0: static_cast<void>(in.get<Everything>()); break;
      case 1: static_cast<void>(in.get<std::vector<std::vector<std::string>>>()); break;
      case 2: static_cast<void>(get_error(in, "worker1")); break;
      case 3: static_cast<void>(open_call(in)); break;
      default: static_cast<void>(in.get<std::map<int64_t, std::vector<std::pair<bool, Shape>>>>());
    }
    in.expect_end();
  });
}

std::vector<std::string> codec_seeds() {
  const auto body = [](char first, auto put) {
    Message m;
    Encoder out(m);
    put(out);
    return first + std::string(m.bytes.substr(kEnvelopeBytes));
  };
  return {
      body(0, [](Encoder& out) { out.put(everything()); }),
      body(1,
           [](Encoder& out) {
             out.put(std::vector<std::vector<std::string>>{{"x", "y"}, {}, {"z"}});
           }),
      body(2, [](Encoder& out) { put_error(out, std::make_exception_ptr(PeerLost("w", "lost"))); }),
      body(3, [](Encoder& out) { put_function(out, *all_functions().front()); }),
      body(4,
           [](Encoder& out) {
             out.put(std::map<int64_t, std::vector<std::pair<bool, Shape>>>{{1, {{true, {2}}}}});
           }),
  };
}

}  // namespace weft::fuzz
