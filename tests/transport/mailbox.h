// A Receiver for tests: keeps every message, can be waited for, can answer every message.
#pragma once

#include <atomic>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <weft/distributed/runtime/sync.h>
#include <weft/distributed/transport/transport.h>

namespace weft::rpc {

/// Thread safety: any thread; read the vectors directly only when no transport runs, or under the mutex.
class Mailbox : public Receiver {
 public:
  explicit Mailbox(Runtime& runtime) : runtime_(runtime), changed_(runtime, "mail") {}

  Block allocate(WorkerId, uint8_t, const std::string&, int64_t bytes, int32_t) override {
    if (bytes > most) throw OutOfMemoryError("no memory");
    void* memory = std::malloc(static_cast<size_t>(bytes));
    return {memory, bytes, kHostDevice, Release(std::free, memory)};
  }
  void on_message(Inbound message) override {
    Transport* reply = nullptr;
    {
      MutexLock lock(mutex);
      ++count;
      reply = reply_with_;
      if (handler_) {
        auto h = handler_;
        lock.unlock();
        h(std::move(message));
        lock.lock();
      } else {
        if (reply != nullptr) reply->send(message.from, message.kind, message.header);
        messages.push_back(std::move(message));
      }
    }
    changed_.set();
  }
  void on_unread(Inbound message) override {
    {
      MutexLock lock(mutex);
      ++count;
      unread.push_back(std::move(message));
    }
    changed_.set();
  }
  void on_peer(WorkerId peer, Incarnation, PeerState state, const std::string& reason) override {
    {
      MutexLock lock(mutex);
      auto& text = states_[peer];
      text += (text.empty() ? "" : " ") + std::string(to_string(state));
      reasons[peer] = reason;
    }
    changed_.set();
  }

  void on_failed_attempt(WorkerId peer, Incarnation, const std::string& reason) override {
    {
      MutexLock lock(mutex);
      failures_[peer].push_back(reason);
    }
    changed_.set();
  }

  /// Answers each message through this transport; messages may be under way.
  void reply_with(Transport& transport) {
    MutexLock lock(mutex);
    reply_with_ = &transport;
  }
  /// Gives each message to this function in place of keeping it; empty keeps them again.
  void handle_with(std::function<void(Inbound)> handler) {
    MutexLock lock(mutex);
    handler_ = std::move(handler);
  }

  /// The states a peer has gone through, as words.
  std::string states(WorkerId peer) {
    MutexLock lock(mutex);
    return states_[peer];
  }
  /// The reasons of failed attempts to connect.
  std::vector<std::string> failures(WorkerId peer) {
    MutexLock lock(mutex);
    return failures_[peer];
  }
  std::string reason(WorkerId peer) {
    MutexLock lock(mutex);
    return reasons[peer];
  }

  /// Waits until `n` messages have come. False: not within `limit`.
  bool wait_for(size_t n, Duration limit = std::chrono::seconds(60)) {
    return wait([&] { return count >= n; }, limit);
  }
  bool wait_for_state(WorkerId peer, const std::string& words, Duration limit = std::chrono::seconds(60)) {
    return wait([&] { return states_[peer] == words; }, limit);
  }
  bool wait_for_failures(WorkerId peer, size_t n, Duration limit = std::chrono::seconds(60)) {
    return wait([&] { return failures_[peer].size() >= n; }, limit);
  }

  Mutex mutex;
  std::vector<Inbound> messages, unread;
  std::atomic<int64_t> most{int64_t{1} << 40};  ///< larger payloads find no memory
  std::atomic<size_t> count{0};
  std::map<WorkerId, std::string> reasons;

 private:
  template <class Done> bool wait(Done done, Duration limit) {
    const TimePoint end = runtime_.now() + limit;
    while (true) {
      changed_.reset();
      {
        MutexLock lock(mutex);
        if (done()) return true;
      }
      if (!changed_.wait_until(end)) return false;
    }
  }

  Runtime& runtime_;
  Event changed_;
  Transport* reply_with_ = nullptr;
  std::function<void(Inbound)> handler_;
  std::map<WorkerId, std::string> states_;
  std::map<WorkerId, std::vector<std::string>> failures_;
};

/// Payloads over vectors that the caller keeps alive.
template <class... Vectors> std::vector<Payload> payloads_of(const Vectors&... vectors) {
  std::vector<Payload> out;
  (out.push_back(
       {vectors.data(), static_cast<int64_t>(vectors.size() * sizeof(vectors[0])), kHostDevice, {}}),
   ...);
  return out;
}

}  // namespace weft::rpc
