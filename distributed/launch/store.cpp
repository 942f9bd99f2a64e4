// The server of the store. StoreHost holds the tables and executes requests; a changed key wakes the waits
// that it may complete. A timer ends leases. The last wills of clients wait for the end of their processes.
// With a log, changes and the answers that may depend on them go to a task that writes the log first. It
// takes all changes that arrived while it wrote. StoreServer is the end that the serving worker itself uses.
#include <weft/distributed/launch/store.h>

#include <iterator>

#include <weft/distributed/launch/inner/store_log.h>
#include <weft/distributed/launch/inner/store_names.h>
#include <weft/distributed/launch/inner/store_table.h>
#include <weft/distributed/rpc/rpc_error.h>

namespace weft::rpc {
namespace inner {
namespace {

constexpr Duration kLastWrite = std::chrono::seconds(10);  // of the log, when the store ends

class StoreHost final : public Receiver, public std::enable_shared_from_this<StoreHost> {
 public:
  StoreHost(Runtime& runtime, const StoreOptions& options)
      : runtime_(runtime),
        options_(options),
        log_(options.log.empty() ? nullptr : std::make_unique<StoreLog>(options.log, new_identity(runtime))),
        identity_(log_ ? log_->identity() : new_identity(runtime)),
        host_(log_ ? "" : process_identity()) {
    if (!log_ && host_.empty()) host_ = "?";  // of a host that does not report it
    if (log_) read_log();
    MutexLock lock(mutex_);
    for (const auto& [key, value] : options.first_keys) keys_.put(key, value);
  }

  void open(const TransportFactory& factory) {
    auto transport = factory(*this);
    MutexLock lock(mutex_);
    transport_ = std::move(transport);
    arm();
  }
  /// No callback and no answer follows.
  void close(std::optional<Duration> linger) {
    watch_.stop();
    const auto transport = this->transport();
    if (linger) transport->close(*linger);
    else transport->close();
    std::shared_ptr<Event> written;
    {
      MutexLock lock(mutex_);
      stopped_ = true;
      if (timer_.value != 0) runtime_.cancel(std::exchange(timer_, {}));
      if (writing_) written = written_ = std::make_shared<Event>(runtime_, "the log of the store");
    }
    try {
      if (written) written->wait_until(runtime_.now() + kLastWrite);
    } catch (const Error&) {  // the runtime has stopped, and the writing task with it
    }
    MutexLock lock(mutex_);
    if (log_ && !writing_) log_->close();
  }
  void close_transport(Duration linger) { transport()->close(linger); }

  Block allocate(WorkerId, uint8_t, const std::string&, int64_t, int32_t) override {
    throw WireError("store: a message with payloads");
  }
  void on_peer(WorkerId peer, Incarnation incarnation, PeerState state, const std::string&) override {
    if (state == PeerState::kUp) return;
    MutexLock lock(mutex_);
    waits_.remove_below({peer, incarnation}, UINT64_MAX);  // a client that comes back sends them again
  }
  void on_message(Inbound message) override {
    if (message.kind != kRequest) throw WireError("store: a message that is no request");
    StoreReader in(message.header);
    const auto number = in.number<uint64_t>();
    const auto store = in.number<uint64_t>();
    const auto floor = in.number<uint64_t>();
    std::vector<Answer> answers;
    const Life client(message.from, message.incarnation);
    if (store != identity_) {
      answers.push_back({client, number, status_bytes(kOtherStore, StoreWriter().number(identity_).bytes)});
    } else {
      MutexLock lock(mutex_);
      const auto heard = clients_.hear(client, number, floor);
      if (heard.forgotten) waits_.remove_below(*heard.forgotten, UINT64_MAX);
      waits_.remove_below(client, floor);
      if (heard.over) return;
      if (heard.answer && failed_.empty()) answers.push_back({client, number, *heard.answer});
      else handle(client, number, in.rest(), answers, message.names.get());
    }
    watch_wills();
    deliver(answers);
  }

  /// A request of the server's own worker.
  std::string ask(const std::string& request, TimePoint deadline, const std::string& what) {
    auto pending = std::make_shared<PendingAnswer>(runtime_);
    std::vector<Answer> answers;
    uint64_t number = 0;
    {
      MutexLock lock(mutex_);
      number = next_own_++;
      own_[number] = pending;
      handle({}, number, request, answers);
    }
    deliver(answers);
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

 private:
  struct Answer {
    Life client;  // incarnation 0: the server's own worker
    uint64_t number;
    std::string bytes;  // status and fields
  };

  static std::string status_bytes(StoreStatus status, const std::string& fields) {
    return std::string(1, static_cast<char>(status)) + fields;
  }

  /// Executes a request. Adds its answer, and those of the waits that it completes, to `answers`. `names`: as
  /// Inbound::names.
  void handle(const Life& client, uint64_t number, std::string_view request, std::vector<Answer>& answers,
              const std::vector<std::string>* names = nullptr) WEFT_REQUIRES(mutex_) {
    if (!failed_.empty()) return answers.push_back({client, number, status_bytes(kFailed, failed_)});
    end_leases(answers);
    StoreReader in(request);
    try {
      if (names) check_names(keys_, *names, request);
      const auto op = in.number<uint8_t>();
      if (client.incarnation.value != 0) {
        waits_.remove(client, number);  // it was sent again
        clients_.check_room(client, waits_.count(client));
      }
      if (op == kWait) {
        wait({.client = client, .number = number, .keys = in.texts(), .abort_key = in.text()}, answers);
      } else if (op == kWatch) {
        wait({.client = client, .number = number, .watch = true, .keys = {in.text()}, .known = in.optional()},
             answers);
      } else if (op == kPeek) {
        StoreWriter reply;
        const auto keys = in.texts();
        keys_.check_answer(keys);
        for (const auto& key : keys) reply.optional(keys_.text(key));
        answers.push_back({client, number, status_bytes(kOk, reply.bytes)});
      } else if (op == kSetAtEnd) {
        if (client.incarnation.value != 0) add_will(client, in);
        answers.push_back({client, number, status_bytes(kOk, StoreWriter().text(host_).bytes)});
      } else {
        change(op, client, number, in, answers);
      }
    } catch (const ValueError& e) {
      answers.push_back({client, number, status_bytes(kRefused, e.what())});
    } catch (const StoreFull& e) {
      answers.push_back({client, number, status_bytes(kFull, e.what())});
    } catch (const NotAllowed& e) {
      answers.push_back({client, number, status_bytes(kDenied, e.what())});
    } catch (const WireError& e) {
      answers.push_back({client, number, status_bytes(kFailed, e.what())});
    }
    arm();
  }

  void add_will(const Life& client, StoreReader& in) WEFT_REQUIRES(mutex_) {
    StoreWill will{.process = in.text(), .key = in.text(), .value = in.text(), .done = in.text()};
    keys_.check_sizes(will.key, will.value);
    keys_.check_sizes(will.done, "");
    if (keys_.find(will.done)) return;
    std::string process = will.process;
    std::vector<uint64_t> unneeded;
    if (wills_.add(client, std::move(will), unneeded)) unwatched_.push_back(std::move(process));
    for (const uint64_t watch : unneeded) watch_.unwatch(watch);
  }

  /// Executes a request that may change a key.
  void change(uint8_t op, const Life& client, uint64_t number, StoreReader& in, std::vector<Answer>& answers)
      WEFT_REQUIRES(mutex_) {
    const std::string key = in.text();
    StoreWriter reply;
    bool changed = true, journal = true;
    if (op == kSet) {
      keys_.put(key, in.text());
    } else if (op == kAdd) {
      const int64_t sum = keys_.sum(key, in.number<int64_t>());
      keys_.put(key, std::to_string(sum));
      reply.number(sum);
    } else if (op == kCompareAndSet) {
      const auto expected = in.optional();
      std::string value = in.text();
      changed = keys_.text(key) == expected;
      if (changed) keys_.put(key, std::move(value));
      reply.number(static_cast<uint8_t>(changed));
    } else if (op == kUnset) {
      keys_.erase(key);
    } else if (op == kHold) {
      std::string value = in.text();
      const Duration lease(in.number<int64_t>());
      journal = !hold(key, std::move(value), lease);
      reply.text(host_);
    } else {
      throw WireError(str("store: unknown request ", int{op}));
    }
    std::string bytes = status_bytes(kOk, reply.bytes);
    if (client.incarnation.value != 0) clients_.remember(client, number, bytes, journal);
    answers.push_back({client, number, std::move(bytes)});
    if (changed) wake(key, answers);
  }

  /// True: it only renewed the lease.
  bool hold(const std::string& key, std::string value, Duration lease) WEFT_REQUIRES(mutex_) {
    if (lease <= Duration::zero())
      throw ValueError(str("store: hold of ", key, ": the lease of ", lease.count(), " ns is not positive"));
    const auto* now = keys_.find(key);
    const bool held = now && now->lease > Duration::zero();
    if (held && now->text != value)
      throw ValueError(str("store: hold of ", key, ", which is held with the value '",
                           now->text.substr(0, kShownBytes), "'"));
    const bool renewal = held && now->lease == lease;
    const TimePoint time = runtime_.now();
    keys_.put(key, std::move(value), lease, lease < kNever - time ? time + lease : kNever);
    return renewal;
  }

  /// The key has changed.
  void wake(const std::string& key, std::vector<Answer>& answers) WEFT_REQUIRES(mutex_) {
    if (keys_.find(key))
      for (const uint64_t watch : wills_.remove_done(key)) watch_.unwatch(watch);
    for (auto& waiting : waits_.take(key)) wait(std::move(waiting), answers);
  }

  /// Answers a wait that is complete and parks any other.
  void wait(StoreWait w, std::vector<Answer>& answers) WEFT_REQUIRES(mutex_) {
    const auto* abort = w.abort_key.empty() ? nullptr : keys_.find(w.abort_key);
    StoreWriter reply;
    if (abort) {
      answers.push_back({w.client, w.number, status_bytes(kAborted, abort->text)});
    } else if (w.watch && keys_.text(w.keys.front()) != w.known) {
      reply.optional(keys_.text(w.keys.front()));
      answers.push_back({w.client, w.number, status_bytes(kOk, reply.bytes)});
    } else if (!w.watch && all_set(w)) {
      try {
        keys_.check_answer(w.keys);
      } catch (const StoreFull& e) {
        return answers.push_back({w.client, w.number, status_bytes(kFull, e.what())});
      }
      reply.number(static_cast<uint32_t>(w.keys.size()));
      for (const auto& key : w.keys) reply.text(keys_.find(key)->text);
      answers.push_back({w.client, w.number, status_bytes(kOk, reply.bytes)});
    } else {
      waits_.park(std::move(w));
    }
  }
  /// Looks for the next key that is not set. One that was seen may have been unset since: the last look is at
  /// all of them.
  bool all_set(StoreWait& w) WEFT_REQUIRES(mutex_) {
    while (w.next < w.keys.size() && keys_.find(w.keys[w.next])) ++w.next;
    if (w.next < w.keys.size()) return false;
    for (w.next = 0; w.next < w.keys.size(); ++w.next)
      if (!keys_.find(w.keys[w.next])) return false;
    return true;
  }

  void end_leases(std::vector<Answer>& answers) WEFT_REQUIRES(mutex_) {
    if (keys_.next_end() == kNever) return;
    for (const auto& key : keys_.end_leases(runtime_.now())) wake(key, answers);
  }
  /// Sets the timer to the first end of a lease.
  void arm() WEFT_REQUIRES(mutex_) {
    const TimePoint first = keys_.next_end();
    if (stopped_ || first == kNever || (timer_.value != 0 && timer_at_ <= first)) return;
    if (timer_.value != 0) runtime_.cancel(timer_);
    timer_at_ = first;
    timer_ = runtime_.call_at(first, [weak = weak_from_this()] {
      if (const auto host = weak.lock()) host->due();
    });
  }
  void due() {
    std::vector<Answer> answers;
    {
      MutexLock lock(mutex_);
      timer_ = {};
      if (stopped_) return;
      end_leases(answers);
      arm();
    }
    deliver(answers);
  }

  /// Begins the watches of new wills, outside the lock: a process that has ended calls back at once.
  void watch_wills() {
    MutexLock all(mutex_);
    const auto processes = std::exchange(unwatched_, {});
    all.unlock();
    for (const std::string& process : processes) {
      const uint64_t watch = watch_.watch(process, [this, process] { process_ended(process); });
      MutexLock lock(mutex_);
      if (watch == 0) wills_.take(process);  // its end will not be known
      else if (!wills_.watched(process, watch)) watch_.unwatch(watch);
    }
  }
  void process_ended(const std::string& process) {
    std::vector<Answer> answers;
    const std::string none;
    {
      MutexLock lock(mutex_);
      for (const StoreWill& will : wills_.take(process)) {
        if (keys_.find(will.done)) continue;
        for (const auto& [name, text] : {std::pair(will.key, will.value), std::pair(will.done, none)})
          if (!keys_.find(name))
            handle({}, 0, StoreWriter().number(kSet).text(name).text(text).bytes, answers);
      }
    }
    deliver(answers);
  }

  static uint64_t new_identity(Runtime& runtime) { return std::max<uint64_t>(runtime.random(), 1); }

  /// Makes keys and answers again from the records of the log.
  void read_log() {
    MutexLock lock(mutex_);
    const TimePoint now = runtime_.now();
    for (const std::string& record : log_->take_records()) {
      for (StoreReader in(record); !in.rest().empty();) {
        const auto kind = in.number<uint8_t>();
        if (kind == kPutEntry) {
          const std::string key = in.text();
          std::string text = in.text();
          const Duration lease(in.number<int64_t>());
          keys_.put(key, std::move(text), lease, lease < kNever - now ? now + lease : kNever);
        } else if (kind == kEraseEntry) {
          keys_.erase(in.text());
        } else if (kind == kAnswerEntry) {
          const WorkerId id{in.number<int32_t>()};
          const Life client(id, {in.number<uint64_t>()});
          const auto floor = in.number<uint64_t>(), number = in.number<uint64_t>();
          if (!clients_.hear(client, number, floor).over) clients_.remember(client, number, in.text(), false);
          else in.text();
        } else {
          throw IoError(str("store log ", options_.log, ": an entry of the unknown kind ", int{kind}));
        }
      }
    }
    journal_.kept = true;
  }

  /// Writes the journal, delivers the answers that waited for it, and begins again until there is
  /// nothing. One task at a time.
  void write_log() {
    while (true) {
      std::string entries, error;
      std::vector<Answer> answers;
      bool all = false;
      {
        MutexLock lock(mutex_);
        error = failed_;
        answers.swap(unwritten_);
        entries = std::move(std::exchange(journal_.entries, {}).bytes);
        if (entries.empty() && answers.empty()) {
          writing_ = false;
          const auto written = written_;
          lock.unlock();
          if (written) written->set();
          return;
        }
        if (!error.empty()) entries.clear();
        all = !entries.empty() && log_->bytes() > 2 * log_->first_bytes() + options_.log_growth;
        if (all) {
          StoreWriter everything;
          keys_.write_all(everything);
          clients_.write_all(everything);
          entries = std::move(everything.bytes);
        }
      }
      try {
        if (all) log_->replace(entries);
        else if (!entries.empty()) log_->append(entries);
      } catch (const std::exception& e) {
        error = e.what();
        MutexLock lock(mutex_);
        failed_ = error;
      }
      for (auto& a : answers)
        if (!error.empty()) a.bytes = status_bytes(kFailed, error);
      send(answers);
    }
  }

  /// Sends answers once the changes that they may show are in the log.
  void deliver(std::vector<Answer>& answers) {
    if (log_) {
      MutexLock lock(mutex_);
      if (writing_ || !journal_.entries.bytes.empty()) {
        std::move(answers.begin(), answers.end(), std::back_inserter(unwritten_));
        answers.clear();
        if (std::exchange(writing_, true)) return;
        lock.unlock();
        runtime_.post([self = shared_from_this()] { self->write_log(); });
      }
    }
    send(answers);
  }

  std::shared_ptr<Transport> transport() {
    MutexLock lock(mutex_);
    return transport_;
  }
  void send(std::vector<Answer>& answers) {
    if (answers.empty()) return;
    const auto transport = this->transport();
    for (auto& a : answers) {
      if (a.client.incarnation.value == 0) {
        answer_own(a);
      } else if (transport != nullptr) {  // else it came before open() ended: it will be resent
        try {
          transport->send(a.client.id, kReply, StoreWriter().number(a.number).bytes + a.bytes);
        } catch (const Error&) {  // the client is gone; otherwise it will resend
        }
      }
    }
  }
  void answer_own(const Answer& a) {
    std::shared_ptr<PendingAnswer> pending;
    {
      MutexLock lock(mutex_);
      const auto found = own_.find(a.number);
      if (found == own_.end()) return;
      pending = found->second;
      own_.erase(found);
    }
    pending->status = static_cast<uint8_t>(a.bytes[0]);
    pending->fields = a.bytes.substr(1);
    pending->done.set();
  }
  void forget(uint64_t number) {
    MutexLock lock(mutex_);
    own_.erase(number);
    waits_.remove({}, number);
  }

  Runtime& runtime_;
  const StoreOptions options_;
  const std::unique_ptr<StoreLog> log_;  // null: none; after the constructor the writing task has it
  const uint64_t identity_;
  std::string host_;  // its process, for clients; empty: with the log another process may continue
  Mutex mutex_;
  StoreJournal journal_ WEFT_GUARDED_BY(mutex_);
  StoreKeys keys_ WEFT_GUARDED_BY(mutex_){options_.limits, journal_};
  StoreClients clients_ WEFT_GUARDED_BY(mutex_){options_.limits, journal_};
  StoreWaits waits_ WEFT_GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, std::shared_ptr<PendingAnswer>> own_ WEFT_GUARDED_BY(mutex_);
  uint64_t next_own_ WEFT_GUARDED_BY(mutex_) = 1;
  bool writing_ WEFT_GUARDED_BY(mutex_) = false;            // a task writes the log
  std::vector<Answer> unwritten_ WEFT_GUARDED_BY(mutex_);   // wait for it
  std::shared_ptr<Event> written_ WEFT_GUARDED_BY(mutex_);  // set at its end
  std::string failed_ WEFT_GUARDED_BY(mutex_);              // the error of a write
  std::shared_ptr<Transport> transport_ WEFT_GUARDED_BY(mutex_);
  bool stopped_ WEFT_GUARDED_BY(mutex_) = false;
  TimerId timer_ WEFT_GUARDED_BY(mutex_);  // rings at or before the first end of a lease
  TimePoint timer_at_ WEFT_GUARDED_BY(mutex_) = kNever;
  StoreWills wills_ WEFT_GUARDED_BY(mutex_){options_.limits};
  std::vector<std::string> unwatched_ WEFT_GUARDED_BY(mutex_);  // processes of new wills
  ProcessWatch watch_;
};

class StoreServer final : public StoreCalls {
 public:
  StoreServer(Runtime& runtime, const TransportFactory& factory, const StoreOptions& options)
      : host_(std::make_shared<StoreHost>(runtime, options)) {
    host_->open(factory);
  }
  ~StoreServer() override { host_->close({}); }
  void close(Duration linger) override { host_->close_transport(linger); }

 private:
  std::string ask(std::string request, TimePoint deadline, const std::string& what, bool) override {
    return host_->ask(request, deadline, what);
  }
  const std::shared_ptr<StoreHost> host_;  // a timer that rings may be its last owner
};

}  // namespace
}  // namespace inner

std::unique_ptr<Store> make_store_server(Runtime& runtime, const TransportFactory& factory,
                                         const StoreOptions& options) {
  return std::make_unique<inner::StoreServer>(runtime, factory, options);
}

}  // namespace weft::rpc
