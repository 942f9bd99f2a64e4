// The server of the store. It parks waits and answers them when their keys are set. A resent wait replaces
// the parked one. The last wills of clients wait for the end of their processes.
#include <weft/distributed/launch/store.h>

#include <charconv>
#include <deque>

#include <weft/distributed/launch/inner/store_calls.h>

namespace weft::rpc {
namespace inner {
namespace {

constexpr size_t kMaxKeys = 1 << 20;
constexpr size_t kRemembered = 64;  // answers kept per client

class StoreServer final : public StoreCalls, public Receiver {
 public:
  StoreServer(Runtime& runtime, const TransportFactory& factory)
      : runtime_(runtime), transport_(factory(*this)) {
    MutexLock lock(mutex_);
    ready_ = transport_;
  }
  ~StoreServer() override {
    watch_.stop();
    transport_->close();
  }
  void close(Duration linger) override { transport_->close(linger); }

  Block allocate(WorkerId, uint8_t, const std::string&, int64_t, int32_t) override {
    throw WireError("store: a message with payloads");
  }
  void on_peer(WorkerId, Incarnation, PeerState, const std::string&) override {}
  void on_message(Inbound message) override {
    if (message.kind != kRequest) throw WireError("store: a message that is no request");
    StoreReader in(message.header);
    const auto number = in.number<uint64_t>();
    const Client client{message.from, message.incarnation};
    std::vector<Answer> answers;
    std::shared_ptr<Transport> transport;
    {
      MutexLock lock(mutex_);
      transport = ready_;
      auto& known = clients_[client];
      auto old = known.answers.find(number);
      if (old != known.answers.end()) {
        answers.push_back({client, number, old->second});
      } else {
        handle(client, number, message.header.substr(sizeof number), answers);
      }
    }
    watch_wills();
    if (transport == nullptr) return;  // a request before the constructor ended: it will be resent
    for (auto& a : answers) answer(*transport, a);
  }

 private:
  using Client = std::pair<WorkerId, Incarnation>;
  struct Answer {
    Client client;  // incarnation 0: a wait of the server's own worker
    uint64_t number;
    std::string bytes;  // status and fields
  };
  struct Parked {
    Client client;
    uint64_t number;
    std::vector<std::string> keys;
    std::string abort_key;
  };
  struct Known {
    std::map<uint64_t, std::string> answers;
    std::deque<uint64_t> order;
  };

  static std::string status_bytes(StoreStatus status, const std::string& fields) {
    return std::string(1, static_cast<char>(status)) + fields;
  }

  /// Executes a request. Adds its answer, and those of the waits that it completes, to `answers`.
  void handle(const Client& client, uint64_t number, const std::string& request, std::vector<Answer>& answers)
      WEFT_REQUIRES(mutex_) {
    StoreReader in(request);
    const auto op = in.number<uint8_t>();
    StoreWriter reply;
    if (op == kSet || op == kAdd) {
      const std::string key = in.text();
      if (values_.size() >= kMaxKeys && values_.count(key) == 0) throw WireError("store: too many keys");
      if (op == kSet) {
        values_[key] = in.text();
      } else {
        auto& value = values_[key];
        int64_t sum = 0;
        const auto parsed = std::from_chars(value.data(), value.data() + value.size(), sum);
        if (!value.empty() && parsed.ec != std::errc())
          throw WireError(str("store: add to ", key, ", which is no number"));
        sum += in.number<int64_t>();
        value = std::to_string(sum);
        reply.number(sum);
      }
      finish(client, number, status_bytes(kOk, reply.bytes), answers);
      auto parked = std::exchange(parked_, {});
      for (auto& p : parked) {
        if (!try_wait(p, answers)) parked_.push_back(std::move(p));
      }
    } else if (op == kWait) {
      Parked p{client, number, in.texts(), in.text()};
      std::erase_if(parked_, [&](const Parked& q) { return q.client == client && q.number == number; });
      if (!try_wait(p, answers)) parked_.push_back(std::move(p));
    } else if (op == kPeek) {
      for (const auto& key : in.texts()) {
        auto found = values_.find(key);
        reply.number(static_cast<uint8_t>(found != values_.end()));
        if (found != values_.end()) reply.text(found->second);
      }
      finish(client, number, status_bytes(kOk, reply.bytes), answers);
    } else if (op == kSetAtEnd) {
      const std::string process = in.text(), key = in.text(), value = in.text(), done = in.text();
      if (client.second.value != 0)
        wills_.push_back({process, [this, key, value, done] { process_ended(key, value, done); }});
      reply.text(process_identity());
      finish(client, number, status_bytes(kOk, reply.bytes), answers);
    } else {
      throw WireError(str("store: unknown request ", int{op}));
    }
  }

  /// Begins the watches of new wills, outside the lock: a process that has ended calls back at once.
  void watch_wills() {
    std::vector<std::pair<std::string, std::function<void()>>> wills;
    {
      MutexLock lock(mutex_);
      wills.swap(wills_);
    }
    for (auto& [process, ended] : wills) watch_.watch(process, std::move(ended));
  }

  void process_ended(const std::string& key, const std::string& value, const std::string& done) {
    std::vector<Answer> answers;
    {
      MutexLock lock(mutex_);
      if (values_.count(done) != 0) return;
      for (const auto& [name, text] : {std::pair(key, value), std::pair(done, std::string())})
        if (values_.count(name) == 0)
          handle({}, 0, StoreWriter().number(kSet).text(name).text(text).bytes, answers);
    }
    for (auto& a : answers) answer(*transport_, a);
  }

  bool try_wait(const Parked& p, std::vector<Answer>& answers) WEFT_REQUIRES(mutex_) {
    auto abort = p.abort_key.empty() ? values_.end() : values_.find(p.abort_key);
    if (abort != values_.end()) {
      finish(p.client, p.number, status_bytes(kAborted, abort->second), answers);
      return true;
    }
    StoreWriter reply;
    reply.number(static_cast<uint32_t>(p.keys.size()));
    for (const auto& key : p.keys) {
      auto found = values_.find(key);
      if (found == values_.end()) return false;
      reply.text(found->second);
    }
    finish(p.client, p.number, status_bytes(kOk, reply.bytes), answers);
    return true;
  }

  void finish(const Client& client, uint64_t number, std::string bytes, std::vector<Answer>& answers)
      WEFT_REQUIRES(mutex_) {
    if (client.second.value != 0) {
      auto& known = clients_[client];
      known.answers[number] = bytes;
      known.order.push_back(number);
      if (known.order.size() > kRemembered) {
        known.answers.erase(known.order.front());
        known.order.pop_front();
      }
    }
    answers.push_back({client, number, std::move(bytes)});
  }

  void answer(Transport& transport, Answer& a) {
    if (a.client.second.value == 0) {
      std::shared_ptr<PendingAnswer> pending;
      {
        MutexLock lock(mutex_);
        auto found = own_.find(a.number);
        if (found == own_.end()) return;
        pending = found->second;
        own_.erase(found);
      }
      pending->status = static_cast<uint8_t>(a.bytes[0]);
      pending->fields = a.bytes.substr(1);
      pending->done.set();
      return;
    }
    try {
      transport.send(a.client.first, kReply, StoreWriter().number(a.number).bytes + a.bytes);
    } catch (const Error&) {  // the client is gone; otherwise it will resend
    }
  }

  std::string ask(std::string request, TimePoint deadline, const std::string& what, bool) override {
    auto pending = std::make_shared<PendingAnswer>(runtime_);
    std::vector<Answer> answers;
    uint64_t number = 0;
    {
      MutexLock lock(mutex_);
      number = next_own_++;
      own_[number] = pending;
      handle({}, number, request, answers);
    }
    for (auto& a : answers) answer(*transport_, a);
    bool in_time = false;
    try {
      in_time = pending->done.wait_until(deadline);
    } catch (...) {
      forget(number);
      throw;
    }
    if (!in_time) {
      forget(number);
      throw Timeout(str("store: no answer in time to: ", what));
    }
    return open_reply(pending->status, std::move(pending->fields));
  }
  void forget(uint64_t number) {
    MutexLock lock(mutex_);
    own_.erase(number);
    std::erase_if(parked_, [&](const Parked& p) { return p.client.second.value == 0 && p.number == number; });
  }

  Runtime& runtime_;
  Mutex mutex_;
  std::map<std::string, std::string> values_ WEFT_GUARDED_BY(mutex_);
  std::deque<Parked> parked_ WEFT_GUARDED_BY(mutex_);
  std::map<Client, Known> clients_ WEFT_GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, std::shared_ptr<PendingAnswer>> own_ WEFT_GUARDED_BY(mutex_);
  uint64_t next_own_ WEFT_GUARDED_BY(mutex_) = 1;
  std::shared_ptr<Transport> ready_ WEFT_GUARDED_BY(mutex_);
  std::vector<std::pair<std::string, std::function<void()>>> wills_
      WEFT_GUARDED_BY(mutex_);  // not yet watched
  ProcessWatch watch_;
  const std::shared_ptr<Transport> transport_;  // made last, closed first
};

}  // namespace
}  // namespace inner

std::unique_ptr<Store> make_store_server(Runtime& runtime, const TransportFactory& factory) {
  return std::make_unique<inner::StoreServer>(runtime, factory);
}

}  // namespace weft::rpc
