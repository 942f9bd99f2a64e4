// A client of the store. It sends a request again until the answer, the deadline or the end of the server.
// The first request has no identity of a store, so it is not executed: its answer has the identity, which all
// later requests contain.
#include <map>
#include <utility>

#include <weft/distributed/launch/inner/store_calls.h>

namespace weft::rpc {
namespace inner {
namespace {

constexpr Duration kGone = std::chrono::seconds(2);  // a server that is unreachable for this long has ended

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
  ~StoreClient() override {
    watch_.stop();
    transport_->close();
  }
  void close(Duration linger) override { transport_->close(linger); }
  bool may_come_back() const override {
    MutexLock lock(mutex_);
    return host_.empty() || watches_host_;
  }

  Block allocate(WorkerId, uint8_t, const std::string&, int64_t, int32_t) override {
    throw WireError("store: a message with payloads");
  }
  void on_peer(WorkerId, Incarnation, PeerState state, const std::string& reason) override {
    {
      MutexLock lock(mutex_);
      trouble_ = state == PeerState::kUp ? "" : reason;
      if (state == PeerState::kUp) {
        down_since_ = kNever;
        was_up_ = true;
      } else if (down_since_ == kNever) {
        down_since_ = runtime_.now();
      }
    }
    if (state == PeerState::kRejected) fail_all(kFailed, str("store at ", where_, ": ", reason));
    if (state == PeerState::kBroken) resend_all();  // messages under way may be lost; it also reconnects
  }
  void on_failed_attempt(WorkerId, Incarnation, const std::string& reason) override {
    MutexLock lock(mutex_);
    trouble_ = reason;
  }
  void on_message(Inbound message) override {
    StoreReader in(message.header);
    const auto number = in.number<uint64_t>();
    const auto status = in.number<uint8_t>();
    if (status == kOtherStore) return on_other_store(number, in.number<uint64_t>());
    std::shared_ptr<PendingAnswer> pending;
    {
      MutexLock lock(mutex_);
      auto found = pending_.find(number);
      if (found == pending_.end()) return;  // answered already
      pending = found->second.answer;
      pending_.erase(found);
    }
    pending->status = status;
    pending->fields = message.header.substr(sizeof number + 1);
    pending->done.set();
  }

 private:
  struct Pending {
    std::shared_ptr<PendingAnswer> answer;
    std::string request;
  };

  /// The store that answers has another identity than the request.
  void on_other_store(uint64_t number, uint64_t identity) {
    {
      MutexLock lock(mutex_);
      if (store_ == 0) store_ = identity;
      if (store_ == identity) {
        lock.unlock();
        return send(number);
      }
      trouble_ = "another store answers there";
      if (down_since_ == kNever) down_since_ = runtime_.now();
      if (host_.empty()) return;
    }
    end_host();
  }
  void send(uint64_t number) {
    std::string bytes;
    {
      MutexLock lock(mutex_);
      const auto found = pending_.find(number);
      if (found == pending_.end()) return;  // answered
      const uint64_t floor = pending_.begin()->first;
      bytes = StoreWriter().number(number).number(store_).number(floor).bytes + found->second.request;
    }
    try {
      transport_->send(WorkerId{0}, kRequest, std::move(bytes));
    } catch (const Overloaded&) {  // the queue empties or is dropped; it is sent again later
    }
  }
  void resend_all() {
    std::vector<uint64_t> open;
    {
      MutexLock lock(mutex_);
      for (const auto& [number, pending] : pending_) open.push_back(number);
    }
    for (const uint64_t number : open) send(number);
  }

  /// Ends the open requests with an error.
  void fail_all(StoreStatus status, const std::string& text) {
    std::map<uint64_t, Pending> open;
    {
      MutexLock lock(mutex_);
      open.swap(pending_);
    }
    for (auto& [number, pending] : open) {
      pending.answer->status = status;
      pending.answer->fields = text;
      pending.answer->done.set();
    }
  }
  void watch_host(const std::string& process) override {
    {
      MutexLock lock(mutex_);
      if (process.empty() || !host_.empty()) return;
      host_ = process;
    }
    if (process == process_identity()) return;
    const bool watched = watch_.watch(process, [this] { end_host(); }) != 0;
    MutexLock lock(mutex_);
    watches_host_ = watched;
  }
  void end_host() {
    {
      MutexLock lock(mutex_);
      host_ended_ = true;
    }
    fail_all(kHostEnded, ended_text());
  }
  std::string ended_text() const {
    return str("store at ", where_, ": the process that served it has ended, and it kept no log");
  }

  bool is_host_gone() {
    MutexLock lock(mutex_);
    return host_ended_ || (was_up_ && down_since_ != kNever && runtime_.now() - down_since_ >= kGone);
  }

  std::string ask(std::string request, TimePoint deadline, const std::string& what, bool last) override {
    auto pending = std::make_shared<PendingAnswer>(runtime_);
    uint64_t number = 0;
    {
      MutexLock lock(mutex_);
      if (host_ended_ && last) return {};
      if (host_ended_) throw HostEnded(ended_text());
      number = next_++;
      pending_[number] = {pending, std::move(request)};
    }
    Duration patience = std::chrono::milliseconds(200);
    try {
      while (true) {
        send(number);
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
    if (last && pending->status == kHostEnded) return {};
    return open_reply(pending->status, std::move(pending->fields));
  }

  Runtime& runtime_;
  const std::string where_;
  mutable Mutex mutex_;
  std::map<uint64_t, Pending> pending_ WEFT_GUARDED_BY(mutex_);  // by number
  uint64_t store_ WEFT_GUARDED_BY(mutex_) = 0;                   // its identity; 0: none has answered
  uint64_t next_ WEFT_GUARDED_BY(mutex_) = 1;
  std::string trouble_ WEFT_GUARDED_BY(mutex_);
  bool was_up_ WEFT_GUARDED_BY(mutex_) = false;
  std::string host_ WEFT_GUARDED_BY(mutex_);  // the server's process, if the store ends with it
  bool watches_host_ WEFT_GUARDED_BY(mutex_) = false;
  bool host_ended_ WEFT_GUARDED_BY(mutex_) = false;
  TimePoint down_since_ WEFT_GUARDED_BY(mutex_) = kNever;  // kNever: connected, or never was
  ProcessWatch watch_;
  const PeerAddress server_;
  const std::shared_ptr<Transport> transport_;  // made last, closed first
};

}  // namespace
}  // namespace inner

std::unique_ptr<Store> make_store_client(Runtime& runtime, const TransportFactory& factory,
                                         PeerAddress server, std::string where) {
  return std::make_unique<inner::StoreClient>(runtime, factory, std::move(server), std::move(where));
}

}  // namespace weft::rpc
