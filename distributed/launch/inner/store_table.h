// The contents of a serving store: keys with values and leases, the answers that clients may ask for again,
// parked waits, and last wills. Each wait stands under the one key that it needs next, so a change wakes only
// those that it may complete. The server guards all four with its mutex. Keys and answers write each change
// of theirs to a journal, from which a log can make them again.
#pragma once

#include <functional>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include <weft/distributed/launch/inner/store_calls.h>
#include <weft/distributed/transport/ids.h>

namespace weft::rpc::inner {

/// Kinds of entries of the journal: `kind u8 | fields`.
enum StoreEntry : uint8_t {
  kPutEntry = 1,     ///< key, value, lease i64
  kEraseEntry = 2,   ///< key
  kAnswerEntry = 3,  ///< worker i32, incarnation u64, floor u64, number u64, answer
};

/// The changes since the log last took them; without a log nothing is kept.
struct StoreJournal {
  bool kept = false;
  StoreWriter entries;
};

inline constexpr size_t kShownBytes = 200;  ///< of a value in an error

/// Keys, values and leases. Thread safety: none.
class StoreKeys {
 public:
  StoreKeys(const StoreLimits& limits, StoreJournal& journal) : limits_(limits), journal_(journal) {}
  struct Value {
    std::string text;
    Duration lease{};  ///< zero: not held
    TimePoint until = kNever;
  };
  /// Null for a key that is not set.
  const Value* find(const std::string& key) const;
  std::optional<std::string> text(const std::string& key) const;
  /// Throws: StoreFull.
  void put(const std::string& key, std::string text, Duration lease = {}, TimePoint until = kNever);
  void erase(const std::string& key);
  /// The first end of a lease; kNever without one.
  TimePoint next_end() const { return ends_.empty() ? kNever : ends_.begin()->first; }
  /// Unsets the keys whose lease has ended, and returns them.
  std::vector<std::string> end_leases(TimePoint now);
  /// Adds an entry for each key.
  void write_all(StoreWriter& out) const;
  /// The value as a number, 0 for none, plus `delta`. Throws: ValueError.
  int64_t sum(const std::string& key, int64_t delta) const;
  /// Throws: StoreFull when the values of these keys are too large for one answer.
  void check_answer(const std::vector<std::string>& keys) const;
  /// Throws: StoreFull for a key or a value beyond its limit.
  void check_sizes(const std::string& key, const std::string& text) const;
  template <class F> void for_each(const F& f) const {
    for (const auto& [key, value] : values_) f(key, value.text);
  }

 private:
  void check(const std::string& key, const std::string& text) const;
  const StoreLimits& limits_;
  StoreJournal& journal_;
  std::unordered_map<std::string, Value> values_;
  std::set<std::pair<TimePoint, std::string>> ends_;
  size_t bytes_ = 0;
};

/// The clients, each with the answers that it may not have read. Thread safety: none.
class StoreClients {
 public:
  StoreClients(const StoreLimits& limits, StoreJournal& journal) : limits_(limits), journal_(journal) {}
  struct Heard {
    bool over = false;                    ///< the request is over for its client
    const std::string* answer = nullptr;  ///< the earlier answer
    std::optional<Life> forgotten{};      ///< a client that made room, the one longest silent
  };
  /// A request has come.
  Heard hear(const Life& client, uint64_t number, uint64_t floor);
  /// Throws: StoreFull when the client has too many open requests.
  void check_room(const Life& client, size_t parked) const;
  /// `journal`: the answer must outlive a restart.
  void remember(const Life& client, uint64_t number, std::string answer, bool journal);
  void write_all(StoreWriter& out) const;

 private:
  struct Known {
    uint64_t floor = 0;
    std::map<uint64_t, std::string> answers;  ///< status and fields, by number
    std::list<Life>::iterator order;
  };
  static void write(StoreWriter& out, const Life& client, uint64_t floor, uint64_t number,
                    const std::string& answer);
  const StoreLimits& limits_;
  StoreJournal& journal_;
  std::unordered_map<Life, Known> known_;
  std::list<Life> order_;  ///< the longest silent first
};

/// A parked wait or watch.
struct StoreWait {
  Life client;  ///< incarnation 0: the server's own worker
  uint64_t number = 0;
  bool watch = false;
  std::vector<std::string> keys;       ///< of a watch: one
  std::string abort_key{};             ///< may be empty
  std::optional<std::string> known{};  ///< of a watch
  size_t next = 0;                     ///< the key that it waits for
};

/// Parked waits by key. Thread safety: none.
class StoreWaits {
 public:
  void park(StoreWait wait);
  /// Takes out the waits for this key.
  std::vector<StoreWait> take(const std::string& key);
  void remove(const Life& client, uint64_t number);
  /// Removes the waits of a client below `floor`.
  void remove_below(const Life& client, uint64_t floor);
  size_t count(const Life& client) const;

 private:
  struct Of {
    std::map<uint64_t, StoreWait> waits;  ///< by number
  };
  StoreWait take_out(Of& of, std::map<uint64_t, StoreWait>::iterator at);
  void drop_if_empty(std::unordered_map<Life, Of>::iterator of);
  std::unordered_map<Life, Of> clients_;
  std::unordered_map<std::string, std::set<std::pair<Life, uint64_t>>> by_key_;
};

/// The last will of a process (Store::set_at_end).
struct StoreWill {
  std::string process, key, value, done;
};

/// Last wills by client and key, and the watch of each process that has one. Thread safety: none.
class StoreWills {
 public:
  explicit StoreWills(const StoreLimits& limits) : limits_(limits) {}
  /// Replaces the will of the client for that key. True: its process has no watch yet. Adds a watch without
  /// a will to `unneeded`. Throws: StoreFull.
  bool add(const Life& client, StoreWill will, std::vector<uint64_t>& unneeded);
  /// Takes out the wills of a process that has ended.
  std::vector<StoreWill> take(const std::string& process);
  /// `done` is set: removes the wills that end with it. Returns the watches without a will, and zeros.
  std::vector<uint64_t> remove_done(const std::string& done);
  /// That process has a watch now. False: it has no will any more, or has another watch.
  bool watched(const std::string& process, uint64_t watch);

 private:
  using Key = std::pair<Life, std::string>;
  struct Process {
    uint64_t watch = 0;  ///< 0: none yet
    std::set<Key> wills;
  };
  /// Removes a will. Returns the watch of its process if that has no other will, else 0.
  uint64_t remove(std::map<Key, StoreWill>::iterator at);
  const StoreLimits& limits_;
  std::map<Key, StoreWill> wills_;
  std::unordered_map<std::string, Process> processes_;
  std::unordered_map<std::string, std::set<Key>> by_done_;
  std::unordered_map<Life, size_t> counts_;
  size_t bytes_ = 0;
};

}  // namespace weft::rpc::inner
