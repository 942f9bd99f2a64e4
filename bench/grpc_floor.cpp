// Bare gRPC between two processes, as a floor of weft's calls over it: one bidirectional stream, whose
// messages the other end sends back. Nothing is parsed, and payloads stay in their slices.
//   floor/grpc/tcp/BYTES, floor/grpc/unix/BYTES   a message there and back
#include <benchmark/benchmark.h>

#include <grpcpp/create_channel.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <iostream>
#include <string>
#include <vector>

namespace {

/// Blocks until the next event of a queue; false: the operation failed.
bool next(grpc::CompletionQueue& queue) {
  void* tag = nullptr;
  bool ok = false;
  return queue.Next(&tag, &ok) && ok;
}

/// The process at the other end: tells the port, serves one stream after the other.
int serve(int told, const std::string& path) {
  grpc::AsyncGenericService service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.AddListeningPort("unix:" + path, grpc::InsecureServerCredentials());
  builder.SetMaxReceiveMessageSize(-1);
  builder.RegisterAsyncGenericService(&service);
  const auto queue = builder.AddCompletionQueue();
  const auto server = builder.BuildAndStart();
  if (!server || write(told, &port, sizeof port) != sizeof port) return 1;
  while (true) {
    grpc::GenericServerContext context;
    grpc::GenericServerAsyncReaderWriter stream(&context);
    service.RequestCall(&context, &stream, queue.get(), queue.get(), nullptr);
    if (!next(*queue)) return 1;
    grpc::ByteBuffer message;
    while (true) {
      stream.Read(&message, nullptr);
      if (!next(*queue)) break;
      stream.Write(message, nullptr);
      if (!next(*queue)) break;
    }
    stream.Finish(grpc::Status::OK, nullptr);
    next(*queue);
  }
}

void round_trips(benchmark::State& state, const std::string& address, size_t bytes) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  const auto channel = grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  const auto stream = stub.PrepareCall(&context, "/floor/Stream", &queue);
  stream->StartCall(nullptr);
  if (!next(queue)) return state.SkipWithError("no stream");
  const std::vector<char> payload(bytes, 'x');
  std::vector<double> us;
  const auto once = [&] {
    const auto start = std::chrono::steady_clock::now();
    const grpc::Slice slice(payload.data(), payload.size(), grpc::Slice::STATIC_SLICE);
    grpc::ByteBuffer answer;
    // both at once: each has its own event
    stream->Write(grpc::ByteBuffer(&slice, 1), nullptr);
    stream->Read(&answer, nullptr);
    if (!next(queue) || !next(queue)) return false;
    us.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
    return answer.Length() == bytes;
  };
  for (int i = 0; i < 5; ++i) once();
  us.clear();
  for (auto _ : state)
    if (!once()) return state.SkipWithError("the stream broke");
  std::sort(us.begin(), us.end());
  state.counters["p50_us"] = us[us.size() / 2];
  state.counters["p99_us"] = us[us.size() * 99 / 100];
  context.TryCancel();
  grpc::Status status;
  stream->Finish(&status, nullptr);
  next(queue);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string path = "/tmp/weft_grpc_floor_" + std::to_string(getpid());
  int told[2];
  if (pipe(told) != 0) return 1;
  const pid_t child = fork();  // before gRPC has threads
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(told[0]);
    _exit(serve(told[1], path));
  }
  close(told[1]);
  int port = 0;
  if (read(told[0], &port, sizeof port) != sizeof port) {
    std::cerr << "bench_grpc_floor: the other process did not start\n";
    return 1;
  }
  benchmark::Initialize(&argc, argv);
  for (const auto& [name, address] :
       {std::pair<std::string, std::string>{"tcp", "127.0.0.1:" + std::to_string(port)},
        {"unix", "unix:" + path}})
    for (const size_t bytes : {size_t{64}, size_t{1} << 20, size_t{16} << 20, size_t{64} << 20})
      benchmark::RegisterBenchmark(
          ("floor/grpc/" + name + "/" + std::to_string(bytes)).c_str(),
          [address = address, bytes](benchmark::State& state) { round_trips(state, address, bytes); })
          ->Unit(benchmark::kMicrosecond)
          ->UseRealTime();
  benchmark::RunSpecifiedBenchmarks();
  kill(child, SIGKILL);
  unlink(path.c_str());
  return 0;
}
