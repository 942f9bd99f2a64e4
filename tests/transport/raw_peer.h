// A peer of the gRPC transport that writes the bytes of a test: a hello, and frames of its own.
#pragma once

#include <string>

#include <weft/distributed/transport/inner/grpc_link.h>

namespace weft::rpc {

class RawPeer final : private inner::LinkEvents {
 public:
  /// Connects to a unix socket or a port and sends the hello.
  RawPeer(const std::shared_ptr<Runtime>& runtime, const std::string& address, const inner::Hello& hello)
      : runtime_(*runtime),
        answered_(*runtime, "an answer to a raw peer"),
        written_(*runtime, "the write of a raw peer"),
        closed_(*runtime, "the end of a raw peer's stream"),
        engine_(*runtime, {}, *this) {
    engine_.start();
    const std::string target = address.rfind("unix:", 0) == 0 ? address : "dns:///" + address;
    link_ =
        engine_.connect({.address = target}, nullptr, inner::encode_hello(inner::RecordType::kHello, hello));
  }
  ~RawPeer() { engine_.shutdown(); }

  /// The hello was answered. False: not within a minute.
  bool wait_answered() { return in_time(answered_); }
  bool wait_closed() { return in_time(closed_); }
  /// Writes one frame. Not after the end.
  bool write(const std::string& bytes) {
    written_.reset();
    engine_.write(*link_, frame_of(bytes), true);
    return in_time(written_);
  }

 private:
  static inner::Frame frame_of(const std::string& bytes) {
    inner::Frame frame;
    frame.append_own(bytes.data(), bytes.size());
    return frame;
  }
  bool in_time(Event& event) { return event.wait_until(runtime_.now() + std::chrono::minutes(1)); }
  bool on_accepted(inner::Link&, const std::string&) override { return false; }
  bool on_bytes(inner::Link&, const void*, size_t, bool last) override {
    if (last) answered_.set();
    return true;
  }
  void on_written(inner::Link&) override { written_.set(); }
  void on_read_end(inner::Link&) override {}
  void on_closed(inner::Link&, const std::string&) override { closed_.set(); }

  Runtime& runtime_;
  Event answered_, written_, closed_;
  inner::Link* link_ = nullptr;
  inner::GrpcEngine engine_;
};

/// A message as one frame, cut after `bytes`.
inline std::string begin_of_message(uint8_t kind, const std::string& header, std::vector<Payload> payloads,
                                    int64_t bytes) {
  inner::OutCursor cursor{inner::make_out_message(kind, header, std::move(payloads), {})};
  inner::Frame frame;
  inner::append_message(frame, cursor, bytes);
  return frame.flat();
}

}  // namespace weft::rpc
