// A gRPC client of the inspection service for its tests, as a user's program would have one, generated from
// inspection.proto. Another one sends plain bytes to any method.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <inspection.grpc.pb.h>

namespace weft::test {

namespace v1 = ::weft::inspection::v1;

inline std::string contents_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream bytes;
  bytes << in.rdbuf();
  return bytes.str();
}

/// The certificates that a client shows; files.
struct Shown {
  std::string ca, certificate, key;
};

/// A channel with a connection of its own. Without `shown` it is plain.
inline std::shared_ptr<grpc::Channel> channel_to(const std::string& address,
                                                 const std::optional<Shown>& shown = {}) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  if (!shown) return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
  arguments.SetSslTargetNameOverride("localhost");
  grpc::SslCredentialsOptions tls{contents_of(shown->ca), "", ""};
  if (!shown->key.empty())
    tls.pem_private_key = contents_of(shown->key), tls.pem_cert_chain = contents_of(shown->certificate);
  return grpc::CreateCustomChannel(address, grpc::SslCredentials(tls), arguments);
}

/// A context with a deadline.
struct Call : grpc::ClientContext {
  explicit Call(std::chrono::milliseconds time = std::chrono::seconds(60)) {
    set_deadline(std::chrono::system_clock::now() + time);
  }
};

struct Client {
  explicit Client(const std::string& address, const std::optional<Shown>& shown = {})
      : channel(channel_to(address, shown)), stub(v1::Inspection::NewStub(channel)) {}

  /// The status of a call of Members; the reply goes to `reply`.
  grpc::Status members(v1::MembersReply* reply = nullptr) {
    Call call;
    v1::MembersReply mine;
    return stub->Members(&call, {}, reply != nullptr ? reply : &mine);
  }
  /// The whole trace; the status goes to `status`.
  std::string trace(const std::vector<std::string>& workers = {}, grpc::Status* status = nullptr) {
    Call call;
    v1::TraceRequest request;
    for (const std::string& name : workers) request.add_workers(name);
    auto reader = stub->Trace(&call, request);
    std::string all;
    for (v1::TraceChunk chunk; reader->Read(&chunk);) all += chunk.data();
    const grpc::Status end = reader->Finish();
    if (status != nullptr) *status = end;
    else EXPECT_TRUE(end.ok()) << end.error_message();
    return all;
  }
  /// Sends the bytes of one message to any method and returns those of the first answer. The status goes to
  /// `status`.
  std::string exchange(const std::string& method, const std::string& bytes, grpc::Status* status = nullptr) {
    grpc::GenericStub any(channel);
    grpc::CompletionQueue queue;
    Call call;
    const auto step = [&] {
      void* tag = nullptr;
      bool ok = false;
      return queue.Next(&tag, &ok) && ok;
    };
    auto stream = any.PrepareCall(&call, method, &queue);
    stream->StartCall(nullptr);
    step();
    const grpc::Slice slice(bytes);
    stream->WriteLast(grpc::ByteBuffer(&slice, 1), {}, nullptr);
    step();
    grpc::ByteBuffer answer;
    stream->Read(&answer, nullptr);
    std::string out;
    grpc::Slice whole;
    if (step() && answer.DumpToSingleSlice(&whole).ok())
      out.assign(reinterpret_cast<const char*>(whole.begin()), whole.size());
    grpc::Status end;
    stream->Finish(&end, nullptr);
    step();
    if (status != nullptr) *status = end;
    else EXPECT_TRUE(end.ok()) << method << ": " << end.error_message();
    queue.Shutdown();
    while (step()) {
    }
    return out;
  }

  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::Inspection::Stub> stub;
};

}  // namespace weft::test
