// Server and client of the store. A request is `number u64 | op u8 | fields`, a reply `number u64 | status
// u8 | fields`; a text is a u32 length and its bytes. The server parks waits and answers them when their
// keys are set. A resent wait replaces the parked one.
#include <weft/distributed/launch/store.h>

#include <charconv>
#include <cstring>
#include <deque>

namespace weft::rpc {
namespace {

constexpr uint8_t kRequest = 1, kReply = 2;
enum Op : uint8_t { kSet = 1, kAdd = 2, kWait = 3, kPeek = 4 };
enum Status : uint8_t { kOk = 0, kAborted = 1 };
constexpr size_t kMaxKeys = 1 << 20;
constexpr size_t kRemembered = 64;                   // answers kept per client
constexpr Duration kGone = std::chrono::seconds(2);  // a server that is unreachable for this long has ended

class StoreWriter {
 public:
  template <class T> StoreWriter& number(T value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  StoreWriter& text(const std::string& value) {
    number(static_cast<uint32_t>(value.size()));
    bytes += value;
    return *this;
  }
  std::string bytes;
};

class StoreReader {
 public:
  explicit StoreReader(const std::string& bytes) : bytes_(bytes) {}
  template <class T> T number() {
    if (bytes_.size() - at_ < sizeof(T)) throw WireError("store: a message ends early");
    T value;
    std::memcpy(&value, bytes_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  std::string text() {
    const auto n = number<uint32_t>();
    if (bytes_.size() - at_ < n) throw WireError("store: a message ends early");
    at_ += n;
    return bytes_.substr(at_ - n, n);
  }
  std::vector<std::string> texts() {
    const auto n = number<uint32_t>();
    if (n > (bytes_.size() - at_) / 4) throw WireError("store: a message ends early");
    std::vector<std::string> all;
    for (uint32_t i = 0; i < n; ++i) all.push_back(text());
    return all;
  }

 private:
  const std::string& bytes_;
  size_t at_ = 0;
};

std::string wait_request(const std::vector<std::string>& keys, const std::string& abort_key) {
  StoreWriter w;
  w.number(kWait).number(static_cast<uint32_t>(keys.size()));
  for (const auto& key : keys) w.text(key);
  return w.text(abort_key).bytes;
}

/// Turns the calls of Store into requests. `ask` sends one and waits for the reply.
class StoreCalls : public Store {
 public:
  void set(const std::string& key, const std::string& value, TimePoint deadline) override {
    ask(StoreWriter().number(kSet).text(key).text(value).bytes, deadline, "set " + key);
  }
  void set_last(const std::string& key, const std::string& value, TimePoint deadline) override {
    ask(StoreWriter().number(kSet).text(key).text(value).bytes, deadline, "set " + key, true);
  }
  int64_t add(const std::string& key, int64_t delta, TimePoint deadline) override {
    const std::string reply =
        ask(StoreWriter().number(kAdd).text(key).number(delta).bytes, deadline, "add " + key);
    return StoreReader(reply).number<int64_t>();
  }
  std::vector<std::string> wait(const std::vector<std::string>& keys, const std::string& abort_key,
                                TimePoint deadline) override {
    if (keys.empty()) return {};
    const std::string reply = ask(wait_request(keys, abort_key), deadline, "wait for " + keys.front());
    StoreReader in(reply);
    auto values = in.texts();
    if (values.size() != keys.size())
      throw WireError("store: a wait was answered with another number of values");
    return values;
  }
  std::vector<std::optional<std::string>> peek(const std::vector<std::string>& keys,
                                               TimePoint deadline) override {
    StoreWriter w;
    w.number(kPeek).number(static_cast<uint32_t>(keys.size()));
    for (const auto& key : keys) w.text(key);
    const std::string reply = ask(w.bytes, deadline, "peek");
    StoreReader in(reply);
    std::vector<std::optional<std::string>> values;
    for (size_t i = 0; i < keys.size(); ++i) {
      const bool there = in.number<uint8_t>() != 0;
      values.push_back(there ? std::optional(in.text()) : std::nullopt);
    }
    return values;
  }

 protected:
  /// Returns the fields of the answer. `last`: an empty answer if the server is gone.
  /// Throws: Timeout, Aborted.
  virtual std::string ask(std::string request, TimePoint deadline, const std::string& what,
                          bool last = false) = 0;

  static std::string open_reply(uint8_t status, std::string fields) {
    if (status == kAborted) throw Aborted(fields);
    return fields;
  }
};

/// An awaited answer.
struct Pending {
  explicit Pending(Runtime& runtime) : done(runtime, "an answer of the store") {}
  Event done;
  uint8_t status = kOk;
  std::string fields;
};

class StoreServer final : public StoreCalls, public Receiver {
 public:
  StoreServer(Runtime& runtime, const TransportFactory& factory)
      : runtime_(runtime), transport_(factory(*this)) {
    MutexLock lock(mutex_);
    ready_ = transport_;
  }
  ~StoreServer() override { transport_->close(); }
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

  static std::string status_bytes(Status status, const std::string& fields) {
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
    } else {
      throw WireError(str("store: unknown request ", int{op}));
    }
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
      std::shared_ptr<Pending> pending;
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
    auto pending = std::make_shared<Pending>(runtime_);
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
  std::unordered_map<uint64_t, std::shared_ptr<Pending>> own_ WEFT_GUARDED_BY(mutex_);
  uint64_t next_own_ WEFT_GUARDED_BY(mutex_) = 1;
  std::shared_ptr<Transport> ready_ WEFT_GUARDED_BY(mutex_);
  const std::shared_ptr<Transport> transport_;  // made last, closed first
};

class StoreClient final : public StoreCalls, public Receiver {
 public:
  StoreClient(Runtime& runtime, const TransportFactory& factory, PeerAddress server, std::string where)
      : runtime_(runtime), where_(std::move(where)), server_(std::move(server)), transport_(factory(*this)) {
    try {
      transport_->add_peer(WorkerId{0}, server_);
    } catch (...) {
      transport_->close(Duration::zero());
      throw;
    }
  }
  ~StoreClient() override { transport_->close(); }
  void close(Duration linger) override { transport_->close(linger); }

  Block allocate(WorkerId, uint8_t, const std::string&, int64_t, int32_t) override {
    throw WireError("store: a message with payloads");
  }
  void on_peer(WorkerId, Incarnation incarnation, PeerState state, const std::string& reason) override {
    PeerAddress host = server_;
    {
      MutexLock lock(mutex_);
      trouble_ = state == PeerState::kUp ? "" : reason;
      if (state != PeerState::kUp) {
        if (down_since_ == kNever) down_since_ = runtime_.now();
        return;
      }
      down_since_ = kNever;
      if (std::exchange(was_up_, true)) return;
    }
    host.incarnation = incarnation;
    transport_->add_peer(WorkerId{0}, std::move(host));  // accept only this incarnation
  }
  void on_message(Inbound message) override {
    StoreReader in(message.header);
    const auto number = in.number<uint64_t>();
    const auto status = in.number<uint8_t>();
    std::shared_ptr<Pending> pending;
    {
      MutexLock lock(mutex_);
      auto found = pending_.find(number);
      if (found == pending_.end()) return;  // answered already
      pending = found->second;
      pending_.erase(found);
    }
    pending->status = status;
    pending->fields = message.header.substr(sizeof number + 1);
    pending->done.set();
  }

 private:
  bool is_host_gone() {
    MutexLock lock(mutex_);
    return was_up_ && down_since_ != kNever && runtime_.now() - down_since_ >= kGone;
  }

  std::string ask(std::string request, TimePoint deadline, const std::string& what, bool last) override {
    auto pending = std::make_shared<Pending>(runtime_);
    uint64_t number = 0;
    {
      MutexLock lock(mutex_);
      number = next_++;
      pending_[number] = pending;
    }
    const std::string bytes = StoreWriter().number(number).bytes + request;
    Duration patience = std::chrono::milliseconds(200);
    try {
      while (true) {
        try {
          transport_->send(WorkerId{0}, kRequest, bytes);
        } catch (const Overloaded&) {  // the queue empties or is dropped; send again later
        }
        if (pending->done.wait_until(std::min(deadline, runtime_.now() + patience))) break;
        if (last && is_host_gone()) {
          MutexLock lock(mutex_);
          pending_.erase(number);
          return {};
        }
        if (runtime_.now() >= deadline) {
          MutexLock lock(mutex_);
          throw Timeout(str("store at ", where_, ": no answer in time to: ", what,
                            trouble_.empty() ? "" : "; ", trouble_));
        }
        patience = std::min<Duration>(patience * 2, last ? kGone / 4 : std::chrono::seconds(5));
      }
    } catch (...) {
      MutexLock lock(mutex_);
      pending_.erase(number);
      throw;
    }
    return open_reply(pending->status, std::move(pending->fields));
  }

  Runtime& runtime_;
  const std::string where_;
  Mutex mutex_;
  std::unordered_map<uint64_t, std::shared_ptr<Pending>> pending_ WEFT_GUARDED_BY(mutex_);
  uint64_t next_ WEFT_GUARDED_BY(mutex_) = 1;
  std::string trouble_ WEFT_GUARDED_BY(mutex_);
  bool was_up_ WEFT_GUARDED_BY(mutex_) = false;
  TimePoint down_since_ WEFT_GUARDED_BY(mutex_) = kNever;  // kNever: connected, or never was
  const PeerAddress server_;
  const std::shared_ptr<Transport> transport_;  // made last, closed first
};

}  // namespace

std::unique_ptr<Store> make_store_server(Runtime& runtime, const TransportFactory& factory) {
  return std::make_unique<StoreServer>(runtime, factory);
}
std::unique_ptr<Store> make_store_client(Runtime& runtime, const TransportFactory& factory,
                                         PeerAddress server, std::string where) {
  return std::make_unique<StoreClient>(runtime, factory, std::move(server), std::move(where));
}

}  // namespace weft::rpc
