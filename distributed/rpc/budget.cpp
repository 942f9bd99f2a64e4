// The room for the bytes of open calls: charges, queues and windows. The caller's and the callee's side of a
// call use it (caller_waiting.cpp, server.cpp, server_replies.cpp).
#include <weft/distributed/rpc/inner/budget.h>

#include <algorithm>
#include <limits>

#include <weft/distributed/rpc/inner/peers.h>

namespace weft::rpc {

namespace {
/// the window of a callee that has not announced one
constexpr int64_t kFirstWindow = int64_t{256} << 10;
/// most bytes of replies that wait for an acknowledgement
constexpr int64_t kUnacknowledged = int64_t{16} << 20;
}  // namespace

struct Charge {
  Peer* const to;
  const int64_t bytes;
  const bool in_handler;
  // guarded by the budget's mutex
  enum class State : uint8_t { kNew, kWaits, kHolds, kEnded } state = State::kNew;
  uint64_t sequence = 0;
};

int64_t Budget::window(const Account& a) const {
  return std::min(limits_.per_peer, a.window > 0 ? a.window : kFirstWindow);
}

bool Budget::fits(const Account& a, int64_t bytes) const {
  return a.open == 0 || bytes <= window(a) - a.open;
}

bool Budget::fits_in_all(int64_t bytes) const {
  return outside_ == 0 || bytes <= limits_.in_all / 2 - outside_;
}

// ---- at the caller

std::shared_ptr<Charge> Budget::open(Peer& to, int64_t bytes, bool in_handler, bool& waits) {
  auto charge = std::make_shared<Charge>(Charge{&to, bytes, in_handler});
  MutexLock lock(mutex_);
  Account& a = accounts_[&to];
  waits = false;
  if (in_handler) {
    if (open_ > 0 && bytes > limits_.in_all - open_)
      throw Overloaded(str("a call of ", bytes, " bytes inside a served function: this worker's calls have ",
                           open_, " of ", limits_.in_all, " bytes in use (BudgetLimits::in_all)"));
  } else if (full_ || !a.waiting.empty() || !fits(a, bytes) || !fits_in_all(bytes)) {
    waits = true;
    return charge;
  } else {
    a.open += bytes;
    outside_ += bytes;
  }
  open_ += bytes;
  charge->state = Charge::State::kHolds;
  return charge;
}

bool Budget::wait(const std::shared_ptr<Charge>& charge, uint64_t sequence) {
  MutexLock lock(mutex_);
  if (charge->state == Charge::State::kEnded) return false;
  Account& a = accounts_[charge->to];
  if (!a.listed) queues_.push_back(&a);
  a.listed = true;
  a.waiting.emplace(sequence, charge);
  charge->state = Charge::State::kWaits;
  charge->sequence = sequence;
  ++waiting_;
  ++waits_;
  waiting_bytes_ += charge->bytes;
  return a.window == 0 && !std::exchange(a.asked, true);
}

Budget::Ended Budget::end(const std::shared_ptr<Charge>& charge, int64_t bytes) {
  MutexLock lock(mutex_);
  const Charge::State before = std::exchange(charge->state, Charge::State::kEnded);
  Account& a = accounts_[charge->to];
  if (before == Charge::State::kWaits) {
    a.waiting.erase(charge->sequence);
    --waiting_;
    waiting_bytes_ -= charge->bytes;
  } else if (before == Charge::State::kHolds) {
    open_ -= charge->bytes;
    outside_ -= charge->in_handler ? 0 : charge->bytes;
    a.open -= charge->in_handler ? 0 : charge->bytes;
  }
  Ended out;
  a.unacknowledged += bytes;
  if (bytes > 0 && a.unacknowledged >= std::min(kUnacknowledged, window(a) / 4)) {
    a.unacknowledged = 0;
    out.acknowledge = true;
  }
  out.start = !queues_.empty() && !std::exchange(starting_, true);
  drop_empty(*charge->to, a);
  return out;
}

std::string Budget::explain(const Charge& charge) const {
  MutexLock lock(mutex_);
  const auto found = accounts_.find(charge.to);
  if (found == accounts_.end()) return {};
  const Account& a = found->second;
  return str("it has ", charge.bytes, " bytes; ", a.open, " of ", window(a),
             " bytes of that worker's window and ", outside_, " of ", limits_.in_all / 2,
             " bytes in all are in use");
}

bool Budget::announced(Peer& by, int64_t bytes) {
  MutexLock lock(mutex_);
  Account& a = accounts_[&by];
  const bool grows = bytes > a.window;
  a.window = bytes;
  return grows && !a.waiting.empty();
}

bool Budget::begin_starting() {
  MutexLock lock(mutex_);
  return !queues_.empty() && !std::exchange(starting_, true);
}

std::optional<Budget::Ready> Budget::next() {
  MutexLock lock(mutex_);
  full_ = false;
  for (auto it = queues_.begin(); it != queues_.end();) {
    Account& a = **it;
    if (a.waiting.empty()) {
      a.listed = false;
      it = queues_.erase(it);
      continue;
    }
    Charge& charge = *a.waiting.begin()->second;
    if (!fits(a, charge.bytes)) {
      ++it;
      continue;
    }
    if (!fits_in_all(charge.bytes)) {
      full_ = true;
      queues_.splice(queues_.begin(), queues_, it);
      break;
    }
    const Ready ready{charge.to, charge.sequence};
    charge.state = Charge::State::kHolds;
    open_ += charge.bytes;
    outside_ += charge.bytes;
    a.open += charge.bytes;
    --waiting_;
    waiting_bytes_ -= charge.bytes;
    a.waiting.erase(a.waiting.begin());
    queues_.splice(queues_.end(), queues_, it);
    return ready;
  }
  starting_ = false;
  return std::nullopt;
}

// ---- at the callee

bool Budget::has_room_now(int64_t bytes) const {
  return served_ == 0 || bytes <= limits_.in_all - served_ - kept_;
}

bool Budget::has_room(int64_t bytes) const {
  MutexLock lock(mutex_);
  return has_room_now(bytes);
}

bool Budget::arrive(int64_t held, int64_t bytes) {
  MutexLock lock(mutex_);
  const bool alone = served_ == 0 && arriving_ == held;
  if (!alone && bytes > limits_.in_all - served_ - kept_ - arriving_) return false;
  arriving_ += bytes;
  return true;
}

void Budget::arrived(int64_t held) {
  MutexLock lock(mutex_);
  arriving_ -= held;
}

bool Budget::serve(Peer& from, int64_t bytes) {
  if (from.charged.fetch_add(1) == 0) ++callers_;
  const int64_t before = served_.fetch_add(bytes);
  return before == 0 || bytes <= limits_.in_all - before - kept_;
}

int64_t Budget::served(Peer& from, int64_t bytes) {
  if (from.charged.fetch_sub(1) == 1) --callers_;
  served_ -= bytes;
  return window_for(from);
}

std::exception_ptr Budget::no_room(int64_t bytes) const {
  MutexLock lock(mutex_);
  return std::make_exception_ptr(
      Overloaded(str("no room for a request of ", bytes, " bytes: open requests have ", served_.load(),
                     " bytes, incomplete ones ", arriving_, " and kept replies ", kept_.load(),
                     ", and the limit in all is ", limits_.in_all)));
}

int64_t Budget::window_for(const Peer& caller) const {
  const int64_t callers = std::max<int64_t>(0, callers_) + (caller.charged == 0 ? 1 : 0);
  return std::max<int64_t>(1, std::min(limits_.per_peer, limits_.in_all / 2 / std::max<int64_t>(1, callers)));
}

void Budget::keep(Peer& caller, int64_t bytes) {
  if (bytes == 0) return;
  MutexLock lock(mutex_);
  Account& a = accounts_[&caller];
  a.kept += bytes;
  kept_ += bytes;
  drop_empty(caller, a);
}

bool Budget::keeps_too_much(Peer& caller) {
  MutexLock lock(mutex_);
  return accounts_[&caller].kept > limits_.per_peer || kept_ > limits_.in_all / 2;
}

void Budget::count_dropped() {
  MutexLock lock(mutex_);
  ++dropped_;
}

void Budget::drop_empty(const Peer& of, const Account& a) {
  if (of.keeps_no_account && a.empty()) accounts_.erase(&of);
}

void Budget::lost(Peer& peer) {
  peer.keeps_no_account = true;
  MutexLock lock(mutex_);
  const auto found = accounts_.find(&peer);
  if (found == accounts_.end()) return;
  Account& a = found->second;
  a.window = a.unacknowledged = 0;
  a.asked = false;
  if (a.waiting.empty() && std::exchange(a.listed, false)) queues_.remove(&a);
  drop_empty(peer, a);
}

size_t Budget::accounts() const {
  MutexLock lock(mutex_);
  return accounts_.size();
}

// ---- with the reserve

Room Budget::room(const Total& total, int64_t bytes) {
  *total += bytes;  // without memory for the room, its constructor takes that back
  return Room(total.get(), [total, bytes](void*) { *total -= bytes; });
}

int64_t Budget::limit_with_reserve() const {
  const int64_t most = std::numeric_limits<int64_t>::max();
  return limits_.reserve > most - limits_.in_all ? most : limits_.in_all + limits_.reserve;
}

bool Budget::fits_reserve(int64_t bytes) const {
  return bytes <= limit_with_reserve() - served_ - arriving_ - *standing_ - *reserved_[0] - *reserved_[1];
}

Room Budget::stand(int64_t bytes) {
  MutexLock lock(mutex_);
  if (*standing_ != 0 && !fits_reserve(bytes)) return nullptr;
  return room(standing_, bytes);
}

bool Budget::arrive(Reserved sort, int64_t held, int64_t bytes) {
  std::atomic<int64_t>& total = *reserved_[static_cast<size_t>(sort)];
  MutexLock lock(mutex_);
  if (total != held && !fits_reserve(bytes)) return false;
  total += bytes;
  return true;
}

void Budget::arrived(Reserved sort, int64_t held) { *reserved_[static_cast<size_t>(sort)] -= held; }

Room Budget::take(int64_t bytes) {
  const Total& total = reserved_[static_cast<size_t>(Reserved::kOther)];
  MutexLock lock(mutex_);
  if (*total != 0 && !fits_reserve(bytes)) return nullptr;
  return room(total, bytes);
}

void Budget::count_put_off() {
  MutexLock lock(mutex_);
  ++put_off_;
}

std::string Budget::in_use() const {
  MutexLock lock(mutex_);
  return str("open requests have ", served_ + arriving_, " bytes, results ", standing_->load(),
             ", arriving messages ", *reserved_[0] + *reserved_[1], ", and the limit with the reserve is ",
             limit_with_reserve());
}

void Budget::add_counters(std::map<std::string, int64_t>& out) const {
  MutexLock lock(mutex_);
  out["agent.open_bytes"] = open_;
  out["agent.waiting_calls"] = waiting_;
  out["agent.waiting_bytes"] = waiting_bytes_;
  out["agent.credit_waits"] = waits_;
  out["agent.served_bytes"] = served_;
  out["agent.arriving_bytes"] = arriving_;
  out["agent.kept_bytes"] = kept_;
  out["agent.dropped_results"] = dropped_;
  out["agent.standing_bytes"] = *standing_;
  out["agent.reserved_bytes"] = *reserved_[0] + *reserved_[1];
  out["agent.put_off"] = put_off_;
}

}  // namespace weft::rpc
