// The rendezvous over a Store. Keys (under "init/"):
//   rendezvous                   set from the beginning: the store is a rendezvous
//   name/<name>, rank/<rank>     counters; a worker that counts to 2 found a duplicate and sets `abort`
//   abort                        ends every wait with its text; different world sizes set it too
//   member/<rank>                name, world size, incarnation, host key, device maps, process, engines of
//                                products and addresses
//   barrier/<name>/<who>/<round>/<rank>
//   left/<rank>                  the worker has left
#include <weft/distributed/launch/rendezvous.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <map>

#include <weft/distributed/launch/inner/group_keys.h>
#include <weft/distributed/launch/inner/rendezvous_store.h>
#include <weft/distributed/launch/store_service.h>
#include <weft/distributed/transport/address.h>
#include <weft/distributed/transport/inner/unprotected.h>

namespace weft::rpc {
namespace {

constexpr char kAbort[] = "init/abort";
constexpr char kEnded[] = "ended\n";  // begins the abort text of a worker that ended; its name follows
constexpr Duration kHolderAnswers = std::chrono::seconds(1);
constexpr Duration kAnswersRead = std::chrono::seconds(10);

std::string no_rendezvous(const std::string& where) {
  return str("init: ", where, " is a store, as an elastic group has, and no rendezvous of a static group; ",
             "to join an elastic group there, set InitOptions::store to \"", where,
             "\" and give no world_size; a static group meets at another address");
}

std::string left_key(int rank) { return str("init/left/", rank); }

/// Packs fields as lines; names and addresses contain no line ends.
std::string pack(const std::vector<std::string>& fields) {
  std::string out;
  for (const auto& f : fields) out += f + "\n";
  return out;
}
std::vector<std::string> unpack(const std::string& text) {
  std::vector<std::string> fields;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    fields.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return fields;
}

class StoreRendezvous final : public Rendezvous {
 public:
  /// `where`: the address of a store that must have the mark; empty: any store will do.
  StoreRendezvous(Runtime& runtime, std::shared_ptr<Runtime> held, int rank, int world_size,
                  std::unique_ptr<Store> store, std::string where = {})
      : runtime_(runtime),
        held_(std::move(held)),
        rank_(rank),
        size_(world_size),
        where_(std::move(where)),
        store_(std::move(store)) {}

  std::vector<Member> join(Member self, TimePoint deadline) override {
    if (self.name.find('\n') != std::string::npos || self.name.empty())
      throw ValueError(str("init: '", self.name, "' is no worker name"));
    try {
      check_store(deadline);
      if (store_->add(inner::kAnnouncedName + self.name, 1, deadline) > 1)
        abort(str("init: worker name '", self.name, "' is not unique"), deadline);
      if (store_->add(str("init/rank/", rank_), 1, deadline) > 1)
        abort(str("init: rank ", rank_, " is taken twice"), deadline);
      std::vector<std::string> fields{self.name,
                                      std::to_string(size_),
                                      to_string(self.address.incarnation),
                                      self.address.host_key,
                                      to_line(self.plan),
                                      self.process,
                                      self.engines};
      fields.insert(fields.end(), self.address.addresses.begin(), self.address.addresses.end());
      if (!self.process.empty())
        store_->set_at_end(kAbort, kEnded + self.name + "\n" + ended_text(self.name, rank_), left_key(rank_),
                           deadline);
      store_->set(member_key(rank_), pack(fields), deadline);
    } catch (const HostEnded&) {
      throw_host_ended();
    } catch (const Timeout& e) {
      throw Timeout(str("init: rank ", rank_, " ('", self.name, "') could not announce itself: ", e.what(),
                        "; nobody listens there any more once a group has formed: it takes no new worker, "
                        "nor one that comes back"));
    }
    std::vector<std::string> keys;
    for (int r = 0; r < size_; ++r) keys.push_back(member_key(r));
    const auto values = wait_all(keys, deadline, "init");
    std::vector<Member> members;
    for (int r = 0; r < size_; ++r) {
      const auto fields = unpack(values[static_cast<size_t>(r)]);
      if (fields.size() < 7) throw RpcError(str("init: the announcement of rank ", r, " cannot be read"));
      if (fields[1] != std::to_string(size_)) {
        abort(str("init: rank ", r, " ('", fields[0], "') has world size ", fields[1], ", rank ", rank_,
                  " has ", size_),
              deadline);
      }
      Member m{.name = fields[0], .id = WorkerId{r}};
      const auto& number = fields[2];
      std::from_chars(number.data(), number.data() + number.size(), m.address.incarnation.value);
      m.address.host_key = fields[3];
      m.plan = read_device_plan(fields[4]);
      m.process = fields[5];
      m.engines = fields[6];
      m.address.addresses.assign(fields.begin() + 7, fields.end());
      members.push_back(std::move(m));
    }
    return members;
  }

  void barrier(const std::string& name, TimePoint deadline, const std::vector<WorkerId>& who) override {
    std::vector<int> ranks;
    for (const WorkerId id : who) ranks.push_back(id.value);
    for (int r = 0; who.empty() && r < size_; ++r) ranks.push_back(r);
    std::sort(ranks.begin(), ranks.end());
    std::string prefix = "init/barrier/" + name + "/";
    if (!who.empty()) {
      for (const int r : ranks) prefix += str(r, ",");
    }
    uint64_t round = 0;
    {
      MutexLock lock(mutex_);
      round = ++rounds_[prefix];
    }
    prefix += str("/", round, "/");
    try {
      store_->set(prefix + std::to_string(rank_), "", deadline);
    } catch (const HostEnded&) {
      throw_host_ended();
    }
    std::vector<std::string> keys;
    for (const int r : ranks) keys.push_back(prefix + std::to_string(r));
    wait_all(keys, deadline, "barrier '" + name + "'", ranks);
  }

  bool leave(TimePoint deadline) override {
    if (other_store_) return true;  // it has nothing of this group
    try {
      store_->set_last(left_key(rank_), "", deadline);
      if (rank_ != 0) return true;
      std::vector<std::string> keys;
      for (int r = 0; r < size_; ++r) keys.push_back(left_key(r));
      store_->wait(keys, "", deadline);
      store_->close(std::min(deadline - runtime_.now(), kAnswersRead));  // then the process may end
      return true;
    } catch (const RpcError&) {
      return false;
    }
  }

  Store& store() override { return *store_; }
  int rank() const override { return rank_; }
  int world_size() const override { return size_; }

 private:
  static std::string member_key(int rank) { return str(inner::kAnnounced, rank); }

  static std::string ended_text(const std::string& name, int rank) {
    return str("init: worker '", name, "' (rank ", rank, ") ended while the group formed");
  }
  /// Throws: ValueError for a store that is no rendezvous, before anything is written to it.
  void check_store(TimePoint deadline) {
    if (rank_ == 0 || where_.empty() || store_->peek({inner::kRendezvousKey}, deadline).front()) return;
    other_store_ = true;
    throw ValueError(no_rendezvous(where_));
  }
  [[noreturn]] static void throw_host_ended() {
    throw PeerLost("rank 0", "init: rank 0, which serves the rendezvous, ended while the group formed");
  }
  /// Throws the error that the abort text means.
  [[noreturn]] static void throw_aborted(const std::string& text) {
    const std::string_view begin = kEnded;
    if (text.compare(0, begin.size(), begin) != 0) throw ValueError(text);
    const size_t end = text.find('\n', begin.size());
    throw PeerLost(text.substr(begin.size(), end - begin.size()), text.substr(end + 1));
  }

  [[noreturn]] void abort(const std::string& text, TimePoint deadline) {
    try {
      store_->set(kAbort, text, deadline);
    } catch (const Error&) {  // then the others do not get the error
    }
    throw ValueError(text);
  }

  /// Waits for a key per rank; a timeout names the ranks without one.
  std::vector<std::string> wait_all(const std::vector<std::string>& keys, TimePoint deadline,
                                    const std::string& what, std::vector<int> ranks = {}) {
    try {
      return store_->wait(keys, kAbort, deadline);
    } catch (const Aborted& e) {
      throw_aborted(e.what());
    } catch (const HostEnded&) {
      throw_host_ended();
    } catch (const Timeout&) {
    }
    std::string missing;
    int count = 0;
    try {
      const auto values = store_->peek(keys, runtime_.now() + std::chrono::seconds(2));
      for (size_t i = 0; i < keys.size(); ++i) {
        if (values[i]) continue;
        ++count;
        if (count <= 20)
          missing += str(missing.empty() ? "" : ", ", ranks.empty() ? static_cast<int>(i) : ranks[i]);
      }
    } catch (const Timeout& e) {
      throw Timeout(str(what, ": rank ", rank_, " got no answer in time: ", e.what()));
    }
    throw Timeout(str(what, ": ", count, " of ", keys.size(),
                      " workers have not come in time; missing: rank ", missing, count > 20 ? ", ..." : ""));
  }

  Runtime& runtime_;
  const std::shared_ptr<Runtime> held_;
  const int rank_;
  const int size_;
  const std::string where_;
  std::atomic<bool> other_store_{false};
  Mutex mutex_;
  std::map<std::string, uint64_t> rounds_ WEFT_GUARDED_BY(mutex_);
  const std::unique_ptr<Store> store_;
};

/// Rank 0 cannot listen at `where`. Throws: ValueError if a store that is no rendezvous does.
void check_holder(const std::shared_ptr<Runtime>& runtime, const std::string& where,
                  const RendezvousOptions& options) {
  bool other = false;
  try {
    const auto holder = connect_store(where, {runtime, options.tls, options.insecure});
    other = !holder->peek({inner::kRendezvousKey}, runtime->now() + kHolderAnswers).front();
  } catch (const Error&) {  // some other program listens there
  }
  if (other) throw ValueError(no_rendezvous(where));
}

/// Throws: RpcError if this rank needs the address of the master, and the system knows none. With credentials
/// or consent rank 0 needs none: it listens on all interfaces, and the name may be one that only others use.
void check_master(const LaunchInfo& launch, const RendezvousOptions& options) {
  if (is_loopback_host(launch.master_addr)) return;
  if (launch.rank == 0 && (options.tls || options.insecure)) return;
  if (const std::string why = why_unresolved(launch.master_addr); !why.empty())
    throw RpcError(str("init: the address of the master, MASTER_ADDR '", launch.master_addr,
                       "', cannot be resolved: ", why));
}

}  // namespace

std::unique_ptr<Rendezvous> make_rendezvous(std::shared_ptr<Runtime> runtime, const LaunchInfo& launch,
                                            const RendezvousOptions& options) {
  if (launch.rank < 0 || launch.rank >= launch.world_size) {
    throw ValueError(str("make_rendezvous: rank ", launch.rank, " is not in 0..", launch.world_size - 1));
  }
  check_master(launch, options);
  Runtime& rt = *runtime;
  const std::string where = to_string(HostPort{launch.master_addr, launch.master_port});
  inner::tell_unprotected("the rendezvous at " + where, options.tls, options.insecure,
                          "announce itself as any rank");
  const inner::UnprotectedTold told;
  GrpcOptions grpc{.unix_socket = false,
                   .tls = options.tls,
                   .insecure = options.insecure,
                   .connect_timeout = std::chrono::hours(1),
                   .shared_poller = false};
  std::unique_ptr<Store> store;
  if (launch.rank == 0) {
    grpc.id = WorkerId{0};
    grpc.admit_strangers = true;  // the members are not known before they have met
    // A loopback name opens only loopback. Any other opens all interfaces, since the name may be one that
    // only other hosts use.
    grpc.listen = is_loopback_host(launch.master_addr) ? where : str("0.0.0.0:", launch.master_port);
    try {
      store = make_store_server(
          rt, [&](Receiver& receiver) { return make_grpc_transport(runtime, grpc, receiver); },
          inner::rendezvous_store());
    } catch (const RpcError&) {
      check_holder(runtime, where, options);
      throw;
    }
  } else {
    // Clients use random ids in place of their ranks. So two clients of one rank can both get the error.
    grpc.id = WorkerId{static_cast<int32_t>(rt.random() & 0x3fffffff) | 0x40000000};
    grpc.listen.clear();
    store = make_store_client(
        rt, [&](Receiver& receiver) { return make_grpc_transport(runtime, grpc, receiver); },
        PeerAddress{.addresses = {where}}, where);
  }
  return std::make_unique<StoreRendezvous>(rt, runtime, launch.rank, launch.world_size, std::move(store),
                                           where);
}

void abort_rendezvous(std::shared_ptr<Runtime> runtime, const LaunchInfo& launch, const std::string& why,
                      TimePoint deadline, const RendezvousOptions& options) {
  LaunchInfo client = launch;
  // a client of the store; it does not join
  client.rank = 1, client.world_size = std::max(launch.world_size, 2);
  const auto outside = make_rendezvous(std::move(runtime), client, options);
  for (int r = 1; r < launch.world_size; ++r) outside->store().set(left_key(r), "", deadline);
  outside->store().set(kAbort, why, deadline);
}

std::unique_ptr<Rendezvous> make_rendezvous_over(Runtime& runtime, int rank, int world_size,
                                                 std::unique_ptr<Store> store) {
  return std::make_unique<StoreRendezvous>(runtime, nullptr, rank, world_size, std::move(store));
}

}  // namespace weft::rpc
