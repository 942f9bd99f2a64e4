// A store over etcd. Each change is one transaction that also writes a marker, a key of this client and the
// request's number. A request that is sent again finds its marker and changes nothing; the marker's value is
// the answer. Markers are deleted by a later change, or go with a lease of an hour. Waits look at their keys,
// watch the missing keys from that revision on, and look again.
#include <weft/distributed/launch/store_etcd.h>

#include <charconv>
#include <set>

#include <weft/distributed/launch/inner/etcd_calls.h>
#include <weft/distributed/launch/inner/etcd_wire.h>

namespace weft::rpc {
namespace inner {
namespace {

constexpr char kTxn[] = "/etcdserverpb.KV/Txn";
constexpr char kLeaseGrant[] = "/etcdserverpb.Lease/LeaseGrant";
constexpr size_t kKeysAtOnce = 100;  // of a transaction; etcd takes 128 operations
constexpr int64_t kMarkerSeconds = 3600;
enum Target : uint64_t { kVersion = 0, kModRevision = 2, kValue = 3 };

/// A key in etcd. Revision 0: it is not set.
struct EtcdKey {
  std::optional<std::string> value{};
  uint64_t revision = 0, lease = 0;
};

EtcdMessage compare_number(Target target, const std::string& key, uint64_t number) {
  return EtcdMessage().number(1, 0).number(2, target).text(3, key).number(target == kVersion ? 4 : 6, number);
}
EtcdMessage compare_value(const std::string& key, const std::string& value) {
  return EtcdMessage().number(1, 0).number(2, kValue).text(3, key).text(7, value);
}
EtcdMessage range_op(const std::string& key) { return EtcdMessage().message(1, EtcdMessage().text(1, key)); }
EtcdMessage put_op(const std::string& key, const std::string& value, uint64_t lease = 0) {
  return EtcdMessage().message(2, EtcdMessage().text(1, key).text(2, value).number(3, lease));
}
EtcdMessage delete_op(const std::string& key) { return EtcdMessage().message(3, EtcdMessage().text(1, key)); }

EtcdKey read_range(std::string_view range) {
  EtcdKey key;
  for (EtcdFields f(range); f.next();) {
    if (f.field != 2) continue;
    key.value.emplace();
    for (EtcdFields k(f.text); k.next();) {
      if (k.field == 3) key.revision = k.number;
      if (k.field == 5) key.value = std::string(k.text);
      if (k.field == 6) key.lease = k.number;
    }
  }
  return key;
}

class EtcdStore final : public Store {
 public:
  EtcdStore(const std::string& address, const EtcdOptions& options)
      : held_(options.runtime ? options.runtime : make_threaded_runtime({.threads = 2})),
        runtime_(*held_),
        where_(address),
        prefix_(options.prefix),
        client_(runtime_.random()),
        calls_(make_etcd_calls(runtime_, address, options)) {}

  void set(const std::string& key, const std::string& value, TimePoint deadline) override {
    change({}, {put_op(prefix_ + key, value)}, deadline, "set " + key);
  }
  void set_last(const std::string& key, const std::string& value, TimePoint deadline) override {
    set(key, value, deadline);
  }
  void unset(const std::string& key, TimePoint deadline) override {
    change({}, {delete_op(prefix_ + key)}, deadline, "unset " + key);
  }
  bool compare_and_set(const std::string& key, const std::optional<std::string>& expected,
                       const std::string& value, TimePoint deadline) override {
    const std::string at = prefix_ + key;
    return change({expected ? compare_value(at, *expected) : compare_number(kVersion, at, 0)},
                  {put_op(at, value)}, deadline, "compare and set " + key);
  }
  int64_t add(const std::string& key, int64_t delta, TimePoint deadline) override {
    const std::string at = prefix_ + key;
    while (true) {
      const EtcdKey now = look({key}, deadline, "add " + key).keys[0];
      const std::string text = now.value.value_or("0");
      int64_t sum = 0;
      const auto parsed = std::from_chars(text.data(), text.data() + text.size(), sum);
      if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size())
        throw ValueError(
            str("store: add to ", key, ", whose value '", text.substr(0, 200), "' is no number"));
      if (__builtin_add_overflow(sum, delta, &sum))
        throw ValueError(str("store: add to ", key, ": the sum does not fit"));
      if (change({compare_number(kModRevision, at, now.revision)}, {put_op(at, std::to_string(sum))},
                 deadline, "add " + key))
        return sum;
    }
  }
  void hold(const std::string& key, const std::string& value, Duration lease, TimePoint deadline) override {
    if (lease <= Duration::zero())
      throw ValueError(str("store: hold of ", key, ": the lease of ", lease.count(), " ns is not positive"));
    const std::string at = prefix_ + key;
    while (true) {
      const EtcdKey now = look({key}, deadline, "hold " + key).keys[0];
      if (now.lease != 0 && now.value != value)
        throw ValueError(
            str("store: hold of ", key, ", which is held with the value '", now.value->substr(0, 200), "'"));
      // A fresh lease renews as well: the old one has no key then, and ends unseen.
      const auto seconds = std::chrono::ceil<std::chrono::seconds>(lease).count();
      const uint64_t fresh = grant(seconds, deadline, "hold " + key);
      if (change({compare_number(kModRevision, at, now.revision)}, {put_op(at, value, fresh)}, deadline,
                 "hold " + key))
        return;
    }
  }

  std::optional<std::string> watch(const std::string& key, const std::optional<std::string>& known,
                                   TimePoint deadline) override {
    while (true) {
      const Looked now = look({key}, deadline, "watch " + key);
      if (now.keys[0].value != known) return now.keys[0].value;
      await_change({key}, now.revision, deadline, "watch " + key);
    }
  }
  std::vector<std::string> wait(const std::vector<std::string>& keys, const std::string& abort_key,
                                TimePoint deadline) override {
    if (keys.empty()) return {};
    const std::string what = "wait for " + keys.front();
    std::vector<std::string> asked = keys;
    if (!abort_key.empty()) asked.push_back(abort_key);
    while (true) {
      const Looked now = look(asked, deadline, what);
      if (!abort_key.empty() && now.keys.back().value) throw Aborted(*now.keys.back().value);
      std::vector<std::string> values, missing;
      for (size_t i = 0; i < keys.size(); ++i) {
        if (now.keys[i].value) values.push_back(*now.keys[i].value);
        else if (missing.empty()) missing.push_back(keys[i]);
      }
      if (missing.empty()) return values;
      if (!abort_key.empty()) missing.push_back(abort_key);
      await_change(missing, now.revision, deadline, what);
    }
  }
  std::vector<std::optional<std::string>> peek(const std::vector<std::string>& keys,
                                               TimePoint deadline) override {
    std::vector<std::optional<std::string>> values;
    for (auto& key : look(keys, deadline, "peek").keys) values.push_back(std::move(key.value));
    return values;
  }
  void set_at_end(const std::string&, const std::string&, const std::string&, TimePoint) override {}
  void close(Duration) override {}

 private:
  struct Looked {
    std::vector<EtcdKey> keys;
    uint64_t revision = 0;  ///< of the first look
  };

  /// Calls until a member has answered.
  std::string ask(const char* method, const EtcdMessage& request, TimePoint deadline,
                  const std::string& what) {
    std::string reply;
    while (true) {
      const EtcdStatus status = calls_->call(method, request.bytes, reply, deadline);
      if (status.code == 0) return reply;
      const std::string text = str("etcd at ", where_, ": ", what, ": ", status.text);
      if (status.code == 8 || status.text.find("too large") != std::string::npos) throw StoreFull(text);
      if (!status.again()) throw RpcError(text);
      if (runtime_.now() >= deadline)
        throw Timeout(str("etcd at ", where_, ": no answer in time to: ", what, "; ", status.text));
      runtime_.sleep_for(std::min<Duration>(std::chrono::milliseconds(100), deadline - runtime_.now()));
    }
  }

  Looked look(const std::vector<std::string>& keys, TimePoint deadline, const std::string& what) {
    Looked looked;
    for (size_t at = 0; at < keys.size(); at += kKeysAtOnce) {
      EtcdMessage txn;
      const size_t end = std::min(keys.size(), at + kKeysAtOnce);
      for (size_t i = at; i < end; ++i) txn.message(2, range_op(prefix_ + keys[i]));
      const std::string reply = ask(kTxn, txn, deadline, what);
      for (EtcdFields f(reply); f.next();) {
        if (f.field == 1 && looked.revision == 0) looked.revision = read_revision(f.text);
        if (f.field != 3) continue;
        for (EtcdFields r(f.text); r.next();)
          if (r.field == 1) looked.keys.push_back(read_range(r.text));
      }
      if (looked.keys.size() != end) throw WireError("etcd: a transaction has another number of answers");
    }
    return looked;
  }
  static uint64_t read_revision(std::string_view header) {
    uint64_t revision = 0;
    for (EtcdFields f(header); f.next();)
      if (f.field == 3) revision = f.number;
    return revision;
  }

  uint64_t grant(int64_t seconds, TimePoint deadline, const std::string& what) {
    const std::string reply =
        ask(kLeaseGrant, EtcdMessage().number(1, static_cast<uint64_t>(seconds)), deadline, what);
    for (EtcdFields f(reply); f.next();)
      if (f.field == 2) return f.number;
    throw RpcError(str("etcd at ", where_, ": ", what, ": no lease was granted"));
  }

  /// Makes the changes if the comparisons hold, once. False: they do not.
  bool change(const std::vector<EtcdMessage>& compares, const std::vector<EtcdMessage>& changes,
              TimePoint deadline, const std::string& what) {
    const uint64_t lease = marker_lease(deadline, what);
    std::string marker;
    std::vector<std::string> past;
    {
      MutexLock lock(mutex_);
      marker = str(prefix_, "\x01marker/", client_, "/", next_++);
      past.swap(past_);
    }
    past.resize(std::min<size_t>(past.size(), kKeysAtOnce));  // others go with their lease
    EtcdMessage inside;
    for (const auto& compare : compares) inside.message(1, compare);
    for (const auto& one : changes) inside.message(2, one);
    inside.message(2, put_op(marker, "1", lease)).message(3, put_op(marker, "0", lease));
    EtcdMessage txn;
    txn.message(1, compare_number(kVersion, marker, 0)).message(2, EtcdMessage().message(4, inside));
    for (const auto& old : past) txn.message(2, delete_op(old));
    txn.message(3, range_op(marker));
    const std::string reply = ask(kTxn, txn, deadline, what);
    {
      MutexLock lock(mutex_);
      past_.push_back(marker);
    }
    bool first = false;
    std::string_view answer;
    for (EtcdFields f(reply); f.next();) {
      if (f.field == 2) first = f.number != 0;
      if (f.field == 3 && answer.empty()) answer = f.text;
    }
    for (EtcdFields r(answer); r.next();) {
      if (!first && r.field == 1) return read_range(r.text).value == "1";
      if (!first || r.field != 4) continue;
      bool held = false;
      for (EtcdFields t(r.text); t.next();)
        if (t.field == 2) held = t.number != 0;
      return held;
    }
    throw WireError("etcd: a transaction without an answer");
  }
  /// The lease of this client's markers, with half an hour left at least.
  uint64_t marker_lease(TimePoint deadline, const std::string& what) {
    {
      MutexLock lock(mutex_);
      if (lease_ != 0 && runtime_.now() < lease_until_) return lease_;
    }
    const TimePoint asked = runtime_.now();
    const uint64_t fresh = grant(kMarkerSeconds, deadline, what);
    MutexLock lock(mutex_);
    lease_until_ = asked + std::chrono::seconds(kMarkerSeconds / 2);
    return lease_ = fresh;
  }

  /// Returns when one of the keys may have changed since the revision.
  void await_change(const std::vector<std::string>& keys, uint64_t revision, TimePoint deadline,
                    const std::string& what) {
    std::vector<std::string> requests;
    for (const auto& key : keys) {
      const EtcdMessage create = EtcdMessage().text(1, prefix_ + key).number(3, revision + 1);
      requests.push_back(EtcdMessage().message(1, create).bytes);
    }
    const auto changed = std::make_shared<Event>(runtime_, "a change at etcd");
    const TimePoint begun = runtime_.now();
    {
      const auto stream = calls_->watch(std::move(requests), changed);
      // A member that is gone without a word ends no stream: look again now and then.
      changed->wait_until(std::min(deadline, begun + std::chrono::seconds(10)));
    }
    if (runtime_.now() >= deadline && !changed->is_set())
      throw Timeout(str("etcd at ", where_, ": no answer in time to: ", what));
    const Duration least = std::chrono::milliseconds(20);  // between two streams that break at once
    if (runtime_.now() - begun < least) runtime_.sleep_for(least);
  }

  const std::shared_ptr<Runtime> held_;
  Runtime& runtime_;
  const std::string where_, prefix_;
  const uint64_t client_;
  const std::unique_ptr<EtcdCalls> calls_;
  Mutex mutex_;
  uint64_t next_ WEFT_GUARDED_BY(mutex_) = 1;
  std::vector<std::string> past_ WEFT_GUARDED_BY(mutex_);  // markers of answered changes
  uint64_t lease_ WEFT_GUARDED_BY(mutex_) = 0;             // of the markers
  TimePoint lease_until_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace
}  // namespace inner

std::shared_ptr<Store> make_etcd_store(const std::string& address, EtcdOptions options) {
  return std::make_shared<inner::EtcdStore>(address, options);
}

}  // namespace weft::rpc
