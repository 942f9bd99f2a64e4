// A client of the store. It sends a request again until the answer, the deadline or the end of the server.
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
    std::shared_ptr<PendingAnswer> pending;
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
  void watch_host(const std::string& process) override {
    watch_.watch(process, [this] {
      std::unordered_map<uint64_t, std::shared_ptr<PendingAnswer>> open;
      {
        MutexLock lock(mutex_);
        host_ended_ = true;
        open.swap(pending_);
      }
      for (auto& [number, pending] : open) {
        pending->status = kHostEnded;
        pending->fields = ended_text();
        pending->done.set();
      }
    });
  }
  std::string ended_text() const {
    return str("store at ", where_, ": the process that serves it has ended");
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
    if (last && pending->status == kHostEnded) return {};
    return open_reply(pending->status, std::move(pending->fields));
  }

  Runtime& runtime_;
  const std::string where_;
  Mutex mutex_;
  std::unordered_map<uint64_t, std::shared_ptr<PendingAnswer>> pending_ WEFT_GUARDED_BY(mutex_);
  uint64_t next_ WEFT_GUARDED_BY(mutex_) = 1;
  std::string trouble_ WEFT_GUARDED_BY(mutex_);
  bool was_up_ WEFT_GUARDED_BY(mutex_) = false;
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
