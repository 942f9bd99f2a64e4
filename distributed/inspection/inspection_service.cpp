// The methods of inspection.proto. Each takes one of a few seats, has a deadline, and turns the errors of
// weft into gRPC's. A trace goes out in pieces. A client that reads slowly holds one seat and no worker, and
// its call is cancelled at the deadline.
#include <weft/distributed/inspection/inner/inspection_service.h>

#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <ostream>
#include <streambuf>

#include <weft/distributed/rpc/agent.h>
#include <weft/distributed/rpc/current_agent.h>
#include <weft/distributed/rpc/trace.h>
#include <weft/distributed/runtime/sync.h>

#include <inspection.grpc.pb.h>

namespace weft::rpc::inner {
namespace {

namespace v1 = ::weft::inspection::v1;

constexpr size_t kMostCalls = 10'000;          ///< in a message
constexpr size_t kMostText = size_t{2} << 20;  ///< bytes of a graph of waits; clients take 4 MiB
constexpr size_t kChunk = 64 << 10;

/// Protobuf takes UTF-8 only, and names of functions are free.
std::string ascii(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) >= 0x80) c = '?';
  return text;
}

int64_t micros_of(Duration d) { return std::chrono::duration_cast<std::chrono::microseconds>(d).count(); }

/// Takes one of a number of seats while it lives.
class Seat {
 public:
  Seat(std::atomic<int>& taken, int most) : taken_(taken), granted_(++taken <= most) {}
  ~Seat() { --taken_; }
  Seat(const Seat&) = delete;
  bool granted() const { return granted_; }

 private:
  std::atomic<int>& taken_;
  const bool granted_;
};

/// The time that a call may spend on other workers: a part of `most` and of its client's limit, so that
/// the answer arrives.
Duration time_of(const grpc::ServerContext& context, Duration most) {
  const auto deadline = context.deadline();
  Duration left = most;
  if (deadline != std::chrono::system_clock::time_point::max())
    left =
        std::clamp<Duration>(deadline - std::chrono::system_clock::now(), std::chrono::milliseconds(1), most);
  return left - left / 8;
}

grpc::Status status_of(const std::exception& error) {
  const auto status = [&](grpc::StatusCode code) { return grpc::Status(code, ascii(error.what())); };
  if (dynamic_cast<const Timeout*>(&error) != nullptr) return status(grpc::StatusCode::DEADLINE_EXCEEDED);
  if (dynamic_cast<const PeerLost*>(&error) != nullptr) return status(grpc::StatusCode::UNAVAILABLE);
  if (dynamic_cast<const NotAllowed*>(&error) != nullptr) return status(grpc::StatusCode::PERMISSION_DENIED);
  if (dynamic_cast<const ValueError*>(&error) != nullptr) return status(grpc::StatusCode::INVALID_ARGUMENT);
  return status(grpc::StatusCode::INTERNAL);
}

/// Cancels a call that lives longer than it may, although its client does not read.
class Cutoff {
 public:
  Cutoff(grpc::ServerContext& context, Duration time) : state_(std::make_shared<State>()) {
    {
      MutexLock lock(state_->mutex);
      state_->context = &context;
    }
    alarm_.Set(std::chrono::system_clock::now() + std::chrono::ceil<std::chrono::milliseconds>(time),
               [state = state_](bool due) {
                 MutexLock lock(state->mutex);
                 if (due && state->context != nullptr) state->context->TryCancel();
               });
  }
  ~Cutoff() {
    {
      MutexLock lock(state_->mutex);
      state_->context = nullptr;
    }
    alarm_.Cancel();
  }
  Cutoff(const Cutoff&) = delete;

 private:
  struct State {
    Mutex mutex;
    grpc::ServerContext* context WEFT_GUARDED_BY(mutex) = nullptr;  ///< null once the call has ended
  };
  const std::shared_ptr<State> state_;
  grpc::Alarm alarm_;
};

/// Hands the bytes written to it to `send`, in pieces. False of `send` ends the stream.
class Pieces final : public std::streambuf {
 public:
  explicit Pieces(std::function<bool(const std::string& piece)> send) : send_(std::move(send)) {
    piece_.reserve(kChunk);
  }

 private:
  int overflow(int c) override {
    if (c == traits_type::eof()) return 0;
    const char byte = traits_type::to_char_type(c);
    return xsputn(&byte, 1) == 1 ? c : traits_type::eof();
  }
  std::streamsize xsputn(const char* data, std::streamsize n) override {
    piece_.append(data, static_cast<size_t>(n));
    return piece_.size() < kChunk || flush() ? n : 0;
  }
  int sync() override { return piece_.empty() || flush() ? 0 : -1; }
  bool flush() {
    const bool sent = send_(piece_);
    piece_.clear();
    return sent;
  }

  const std::function<bool(const std::string& piece)> send_;
  std::string piece_;
};

void add_latencies(const std::string& function, const Latencies& of, v1::FunctionLatencies& to) {
  to.set_function(ascii(function));
  to.set_count(of.count);
  to.set_errors(of.errors);
  to.set_total_us(micros_of(of.total));
  to.set_longest_us(micros_of(of.longest));
  to.set_median_us(micros_of(of.quantile(0.5)));
  to.set_percentile99_us(micros_of(of.quantile(0.99)));
  size_t used = of.calls.size();
  while (used > 0 && of.calls[used - 1] == 0) --used;
  for (size_t i = 0; i < used; ++i) to.add_buckets(of.calls[i]);
}

}  // namespace

class InspectionService::Calls final : public v1::Inspection::Service {
 public:
  explicit Calls(CallLimits limits) : limits_(limits) {
    const std::shared_ptr<Agent> agent = current_agent_or_null();
    by_default_ = agent == default_agent();
    if (!by_default_) of_scope_ = agent;
  }

 private:
  grpc::Status Members(grpc::ServerContext* context, const v1::MembersRequest*,
                       v1::MembersReply* reply) override {
    return answer(*context, [&](Agent& agent, Duration) {
      reply->set_self(agent.self().name);
      for (const WorkerInfo& worker : agent.worker_infos()) {
        v1::Member& member = *reply->add_members();
        member.set_name(worker.name);
        member.set_id(worker.id.value);
        member.set_lost(worker.id != agent.self().id && agent.is_lost(agent.life_of(worker.id)));
      }
    });
  }

  grpc::Status Counters(grpc::ServerContext* context, const v1::CountersRequest*,
                        v1::CountersReply* reply) override {
    return answer(*context, [&](Agent& agent, Duration) {
      for (const auto& [name, value] : agent.debug_info()) (*reply->mutable_counters())[ascii(name)] = value;
    });
  }

  grpc::Status OpenCalls(grpc::ServerContext* context, const v1::OpenCallsRequest*,
                         v1::OpenCallsReply* reply) override {
    return answer(*context, [&](Agent& agent, Duration) {
      std::vector<CallRecord> calls = agent.calls();
      reply->set_total(static_cast<int64_t>(calls.size()));
      std::stable_sort(calls.begin(), calls.end(),
                       [](const CallRecord& a, const CallRecord& b) { return a.age > b.age; });
      if (calls.size() > kMostCalls) calls.resize(kMostCalls);
      for (const CallRecord& call : calls) {
        v1::OpenCall& to = *reply->add_calls();
        to.set_outgoing(call.outgoing);
        to.set_worker(ascii(call.peer.name));
        to.set_function(ascii(call.what));
        to.set_age_us(micros_of(call.age));
        to.set_number(call.number);
        to.set_within(call.within);
      }
    });
  }

  grpc::Status WaitGraph(grpc::ServerContext* context, const v1::WaitGraphRequest*,
                         v1::WaitGraphReply* reply) override {
    return answer(*context, [&](Agent&, Duration time) {
      std::string text = ascii(wait_graph(time));
      reply->set_cut(text.size() > kMostText);
      if (reply->cut()) text.resize(kMostText);
      reply->set_text(std::move(text));
    });
  }

  grpc::Status Latencies(grpc::ServerContext* context, const v1::LatenciesRequest*,
                         v1::LatenciesReply* reply) override {
    return answer(*context, [&](Agent&, Duration) {
      for (const auto& [function, latencies] : call_latencies())
        add_latencies(function, latencies, *reply->add_functions());
    });
  }

  grpc::Status Trace(grpc::ServerContext* context, const v1::TraceRequest* request,
                     grpc::ServerWriter<v1::TraceChunk>* writer) override {
    const Seat trace(traces_, 1);
    if (!trace.granted())
      return {grpc::StatusCode::RESOURCE_EXHAUSTED, "another client reads a trace of this inspection"};
    return answer(*context, [&](Agent&, Duration time) {
      const Cutoff cutoff(*context, limits_.time);
      Pieces pieces([&](const std::string& piece) {
        v1::TraceChunk chunk;
        chunk.set_data(piece);
        return writer->Write(chunk);
      });
      std::ostream out(&pieces);
      write_trace(out, {request->workers().begin(), request->workers().end()}, time);
    });
  }

  /// Runs `call` with the agent. Its errors become the status.
  template <class Call> grpc::Status answer(grpc::ServerContext& context, Call call) {
    const Seat seat(calls_, limits_.calls);
    if (!seat.granted())
      return {grpc::StatusCode::RESOURCE_EXHAUSTED,
              str("this inspection answers ", limits_.calls, limits_.calls == 1 ? " call" : " calls",
                  " at a time")};
    const std::shared_ptr<Agent> agent = by_default_ ? default_agent() : of_scope_.lock();
    if (agent == nullptr || !agent->is_running())
      return {grpc::StatusCode::FAILED_PRECONDITION, "this process is no worker of a group now"};
    try {
      const AgentScope scope(agent);
      call(*agent, time_of(context, limits_.time));
    } catch (const std::exception& error) {
      return status_of(error);
    }
    return grpc::Status::OK;
  }

  const CallLimits limits_;
  bool by_default_ = true;
  std::weak_ptr<Agent> of_scope_;
  std::atomic<int> calls_{0}, traces_{0};
};

InspectionService::InspectionService(CallLimits limits) : calls_(std::make_unique<Calls>(limits)) {}
InspectionService::~InspectionService() = default;
grpc::Service& InspectionService::service() { return *calls_; }

}  // namespace weft::rpc::inner
