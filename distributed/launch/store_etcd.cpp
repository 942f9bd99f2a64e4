// A store over etcd. Each change is one transaction that also writes a marker, a key of this client and the
// request's number. A request that is sent again finds its marker and changes nothing; the marker's value is
// the answer. Markers are deleted by a later change, or expire with a lease of an hour. Waits read their
// keys, watch the missing keys from that revision on, and read again.
#include <weft/distributed/launch/store_etcd.h>

#include <etcd.pb.h>

#include <charconv>

#include <weft/distributed/launch/inner/etcd_calls.h>

namespace weft::rpc {
namespace inner {
namespace {

constexpr char kTxn[] = "/etcdserverpb.KV/Txn";
constexpr char kLeaseGrant[] = "/etcdserverpb.Lease/LeaseGrant";
constexpr size_t kKeysAtOnce = 100;  // of a transaction; etcd takes 128 operations
constexpr int64_t kMarkerSeconds = 3600;

/// A key in etcd. Revision 0: it is not set.
struct EtcdKey {
  std::optional<std::string> value{};
  int64_t revision = 0, lease = 0;
};

etcd::Compare compare_with(etcd::Compare::Target target, const std::string& key) {
  etcd::Compare compare;
  compare.set_target(target);
  compare.set_key(key);
  return compare;
}
etcd::Compare is_unset(const std::string& key) {
  etcd::Compare compare = compare_with(etcd::Compare::VERSION, key);
  compare.set_version(0);
  return compare;
}
etcd::Compare has_revision(const std::string& key, int64_t revision) {
  etcd::Compare compare = compare_with(etcd::Compare::MOD, key);
  compare.set_mod_revision(revision);
  return compare;
}
etcd::Compare has_value(const std::string& key, const std::string& value) {
  etcd::Compare compare = compare_with(etcd::Compare::VALUE, key);
  compare.set_value(value);
  return compare;
}
etcd::RequestOp range_op(const std::string& key) {
  etcd::RequestOp op;
  op.mutable_request_range()->set_key(key);
  return op;
}
etcd::RequestOp put_op(const std::string& key, const std::string& value, int64_t lease = 0) {
  etcd::RequestOp op;
  op.mutable_request_put()->set_key(key);
  op.mutable_request_put()->set_value(value);
  op.mutable_request_put()->set_lease(lease);
  return op;
}
etcd::RequestOp delete_op(const std::string& key) {
  etcd::RequestOp op;
  op.mutable_request_delete_range()->set_key(key);
  return op;
}

EtcdKey read_range(const etcd::RangeResponse& range) {
  if (range.kvs().empty()) return {};
  const etcd::KeyValue& key = range.kvs(0);
  return {.value = key.value(), .revision = key.mod_revision(), .lease = key.lease()};
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
    return change({expected ? has_value(at, *expected) : is_unset(at)}, {put_op(at, value)}, deadline,
                  "compare and set " + key);
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
      if (change({has_revision(at, now.revision)}, {put_op(at, std::to_string(sum))}, deadline, "add " + key))
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
      const int64_t fresh = grant(seconds, deadline, "hold " + key);
      if (change({has_revision(at, now.revision)}, {put_op(at, value, fresh)}, deadline, "hold " + key))
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
    int64_t revision = 0;  ///< of the first look
  };

  /// Calls until a member has answered.
  template <typename Reply, typename Request>
  Reply ask(const char* method, const Request& request, TimePoint deadline, const std::string& what) {
    std::string bytes;
    while (true) {
      const EtcdStatus status = calls_->call(method, request.SerializeAsString(), bytes, deadline);
      if (status.code == 0) {
        Reply reply;
        if (!reply.ParseFromString(bytes)) throw WireError("etcd: an answer that cannot be read: " + what);
        return reply;
      }
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
      etcd::TxnRequest txn;
      const size_t end = std::min(keys.size(), at + kKeysAtOnce);
      for (size_t i = at; i < end; ++i) *txn.add_success() = range_op(prefix_ + keys[i]);
      const auto reply = ask<etcd::TxnResponse>(kTxn, txn, deadline, what);
      if (looked.revision == 0) looked.revision = reply.header().revision();
      for (const auto& answer : reply.responses())
        if (answer.has_response_range()) looked.keys.push_back(read_range(answer.response_range()));
      if (looked.keys.size() != end) throw WireError("etcd: a transaction has another number of answers");
    }
    return looked;
  }

  int64_t grant(int64_t seconds, TimePoint deadline, const std::string& what) {
    etcd::LeaseGrantRequest request;
    request.set_ttl(seconds);
    const int64_t lease = ask<etcd::LeaseGrantResponse>(kLeaseGrant, request, deadline, what).id();
    if (lease == 0) throw RpcError(str("etcd at ", where_, ": ", what, ": no lease was granted"));
    return lease;
  }

  /// Makes the changes if the comparisons hold, once. False: they do not.
  bool change(const std::vector<etcd::Compare>& compares, const std::vector<etcd::RequestOp>& changes,
              TimePoint deadline, const std::string& what) {
    const int64_t lease = marker_lease(deadline, what);
    std::string marker;
    std::vector<std::string> past;
    {
      MutexLock lock(mutex_);
      marker = str(prefix_, "\x01marker/", client_, "/", next_++);
      past.swap(past_);
    }
    past.resize(std::min<size_t>(past.size(), kKeysAtOnce));  // others go with their lease
    etcd::TxnRequest txn;
    *txn.add_compare() = is_unset(marker);
    etcd::TxnRequest& inside = *txn.add_success()->mutable_request_txn();
    for (const auto& compare : compares) *inside.add_compare() = compare;
    for (const auto& one : changes) *inside.add_success() = one;
    *inside.add_success() = put_op(marker, "1", lease);
    *inside.add_failure() = put_op(marker, "0", lease);
    for (const auto& old : past) *txn.add_success() = delete_op(old);
    *txn.add_failure() = range_op(marker);
    const auto reply = ask<etcd::TxnResponse>(kTxn, txn, deadline, what);
    {
      MutexLock lock(mutex_);
      past_.push_back(marker);
    }
    if (reply.responses().empty()) throw WireError("etcd: a transaction without an answer");
    const etcd::ResponseOp& answer = reply.responses(0);
    return reply.succeeded() ? answer.response_txn().succeeded()
                             : read_range(answer.response_range()).value == "1";
  }
  /// The lease of this client's markers, with half an hour left at least.
  int64_t marker_lease(TimePoint deadline, const std::string& what) {
    {
      MutexLock lock(mutex_);
      if (lease_ != 0 && runtime_.now() < lease_until_) return lease_;
    }
    const TimePoint asked = runtime_.now();
    const int64_t fresh = grant(kMarkerSeconds, deadline, what);
    MutexLock lock(mutex_);
    lease_until_ = asked + std::chrono::seconds(kMarkerSeconds / 2);
    return lease_ = fresh;
  }

  /// Returns when one of the keys may have changed since the revision.
  void await_change(const std::vector<std::string>& keys, int64_t revision, TimePoint deadline,
                    const std::string& what) {
    std::vector<std::string> requests;
    for (const auto& key : keys) {
      etcd::WatchRequest request;
      request.mutable_create_request()->set_key(prefix_ + key);
      request.mutable_create_request()->set_start_revision(revision + 1);
      requests.push_back(request.SerializeAsString());
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
  int64_t lease_ WEFT_GUARDED_BY(mutex_) = 0;              // of the markers
  TimePoint lease_until_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace
}  // namespace inner

std::shared_ptr<Store> make_etcd_store(const std::string& address, EtcdOptions options) {
  return std::make_shared<inner::EtcdStore>(address, options);
}

}  // namespace weft::rpc
