// The messages of the store, for its server and its client. A request is `number u64 | store u64 | floor u64
// | op u8 | fields`, a reply `number u64 | status u8 | fields`. A text is a u32 length and its bytes. `store`
// is the identity of the store that shall execute the request. A store answers another number with its own
// identity and executes nothing. All requests of the client below `floor` are over. StoreCalls turns the
// calls of Store into requests.
#pragma once

#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <weft/distributed/launch/inner/process_watch.h>
#include <weft/distributed/launch/store.h>
#include <weft/distributed/rpc/rpc_error.h>

namespace weft::rpc::inner {

inline constexpr uint8_t kRequest = 1, kReply = 2;
enum StoreOp : uint8_t {
  kSet = 1,
  kAdd = 2,
  kWait = 3,
  kPeek = 4,
  kSetAtEnd = 5,
  kCompareAndSet = 6,
  kUnset = 7,
  kWatch = 8,
  kHold = 9
};
enum StoreStatus : uint8_t {
  kOk = 0,
  kAborted = 1,
  kHostEnded = 2,
  kOtherStore = 3,  ///< not executed; the field is the identity of the store that answers
  kRefused = 4,     ///< a ValueError with that text
  kFull = 5,        ///< a StoreFull with that text
  kFailed = 6,      ///< an RpcError with that text
  kDenied = 7       ///< a NotAllowed with that text
};

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
  StoreWriter& optional(const std::optional<std::string>& value) {
    number(static_cast<uint8_t>(value.has_value()));
    return value ? text(*value) : *this;
  }
  std::string bytes;
};

class StoreReader {
 public:
  explicit StoreReader(std::string_view bytes) : bytes_(bytes) {}
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
    return std::string(bytes_.substr(at_ - n, n));
  }
  std::optional<std::string> optional() {
    return number<uint8_t>() != 0 ? std::optional(text()) : std::nullopt;
  }
  std::vector<std::string> texts() {
    const auto n = number<uint32_t>();
    if (n > (bytes_.size() - at_) / 4) throw WireError("store: a message ends early");
    std::vector<std::string> all;
    for (uint32_t i = 0; i < n; ++i) all.push_back(text());
    return all;
  }
  std::string_view rest() const { return bytes_.substr(at_); }

 private:
  const std::string_view bytes_;
  size_t at_ = 0;
};

inline std::string wait_request(const std::vector<std::string>& keys, const std::string& abort_key) {
  StoreWriter w;
  w.number(kWait).number(static_cast<uint32_t>(keys.size()));
  for (const auto& key : keys) w.text(key);
  return w.text(abort_key).bytes;
}

/// Throws: Aborted, HostEnded, ValueError, StoreFull, NotAllowed, RpcError, according to the status.
inline std::string open_reply(uint8_t status, std::string fields) {
  if (status == kAborted) throw Aborted(fields);
  if (status == kHostEnded) throw HostEnded(fields);
  if (status == kRefused) throw ValueError(fields);
  if (status == kFull) throw StoreFull(fields);
  if (status == kDenied) throw NotAllowed(fields);
  if (status != kOk) throw RpcError(fields);
  return fields;
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
  bool compare_and_set(const std::string& key, const std::optional<std::string>& expected,
                       const std::string& value, TimePoint deadline) override {
    const std::string reply =
        ask(StoreWriter().number(kCompareAndSet).text(key).optional(expected).text(value).bytes, deadline,
            "compare and set " + key);
    return StoreReader(reply).number<uint8_t>() != 0;
  }
  void unset(const std::string& key, TimePoint deadline) override {
    ask(StoreWriter().number(kUnset).text(key).bytes, deadline, "unset " + key);
  }
  std::optional<std::string> watch(const std::string& key, const std::optional<std::string>& known,
                                   TimePoint deadline) override {
    const std::string reply =
        ask(StoreWriter().number(kWatch).text(key).optional(known).bytes, deadline, "watch " + key);
    return StoreReader(reply).optional();
  }
  void hold(const std::string& key, const std::string& value, Duration lease, TimePoint deadline) override {
    const std::string reply =
        ask(StoreWriter().number(kHold).text(key).text(value).number(int64_t{lease.count()}).bytes, deadline,
            "hold " + key);
    watch_host(StoreReader(reply).text());
  }
  int64_t add(const std::string& key, int64_t delta, TimePoint deadline) override {
    const std::string reply =
        ask(StoreWriter().number(kAdd).text(key).number(delta).bytes, deadline, "add " + key);
    return StoreReader(reply).number<int64_t>();
  }
  void set_at_end(const std::string& key, const std::string& value, const std::string& done,
                  TimePoint deadline) override {
    StoreWriter w;
    w.number(kSetAtEnd).text(process_identity()).text(key).text(value).text(done);
    const std::string reply = ask(w.bytes, deadline, "set at the end " + key);
    watch_host(StoreReader(reply).text());
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
    for (size_t i = 0; i < keys.size(); ++i) values.push_back(in.optional());
    return values;
  }

 protected:
  /// Takes the identity of the server's process; empty: a server with a log, which may come back.
  virtual void watch_host(const std::string&) {}
  /// Returns the fields of the answer. `last`: an empty answer if the server is gone.
  /// Throws: Timeout, and the errors of open_reply.
  virtual std::string ask(std::string request, TimePoint deadline, const std::string& what,
                          bool last = false) = 0;
};

/// An awaited answer.
struct PendingAnswer {
  explicit PendingAnswer(Runtime& runtime) : done(runtime, "an answer of the store") {}
  Event done;
  uint8_t status = kOk;
  std::string fields;
};

}  // namespace weft::rpc::inner
