// The peers of an agent, and the numbers of requests that a caller has finished. The table and each Peer have
// a mutex. Only PeerTable takes both, the table's first.
#include <weft/distributed/rpc/inner/peers.h>

namespace weft::rpc {

void FinishedSet::add(uint64_t upto, const std::vector<uint64_t>& open) {
  // A request is open if both sets list it, or if only one set's horizon covers it and lists it.
  std::vector<uint64_t> merged;
  for (const uint64_t s : open_)
    if (s >= upto || std::binary_search(open.begin(), open.end(), s)) merged.push_back(s);
  for (const uint64_t s : open)
    if (s >= horizon_ && s < upto) merged.push_back(s);
  std::sort(merged.begin(), merged.end());
  open_ = std::move(merged);
  horizon_ = std::max(horizon_, upto);
}

bool FinishedSet::add_floor(uint64_t floor) {
  const auto first = std::lower_bound(open_.begin(), open_.end(), floor);
  const bool news = first != open_.begin() || floor > horizon_;
  open_.erase(open_.begin(), first);
  horizon_ = std::max(horizon_, floor);
  return news;
}

Peer* PeerTable::find(WorkerId id) { return current_.find(id); }

Peer& PeerTable::at(WorkerId id) {
  if (id.value < 0 || id.value > kMaxWorkerId)
    throw ValueError(str("could not find destination: no worker has the id ", id.value));
  if (Peer* const found = find(id)) return *found;
  MutexLock lock(mutex_);
  auto& place = peers_[id.value];
  if (!place) {
    auto fresh = make({id, {}}, str("#", id.value), true);
    current_.set(id, fresh.get());
    place = std::move(fresh);
  }
  return *place;
}

Peer* PeerTable::find(Life life) {
  Peer* p = find(life.id);
  if (!p || life.incarnation.value == 0) return p;
  const Incarnation current = p->incarnation.load();
  if (current.value == 0 || current == life.incarnation) return p;
  MutexLock lock(mutex_);
  const auto expected = expected_.find(life);
  if (expected != expected_.end()) return expected->second.get();
  const auto past = past_.find(life);
  if (past == past_.end()) return nullptr;
  MutexLock inner(past->second->mutex);
  return past->second->told ? nullptr : past->second.get();
}

bool PeerTable::is_waiting(Peer& p) {
  MutexLock lock(p.mutex);
  return !p.told && !p.lost;
}

std::unique_ptr<Peer> PeerTable::make(Life life, const std::string& name, bool told) {
  auto fresh = std::make_unique<Peer>(life.id);
  fresh->incarnation = life.incarnation;  // before others can see it: a late message must not decide it
  MutexLock inner(fresh->mutex);
  fresh->name = name;
  fresh->told = told;
  return fresh;
}

Peer& PeerTable::of(Life life, Hold* hold) {
  Peer& current = at(life.id);
  const Incarnation known = current.incarnation.load();
  if (life.incarnation.value == 0 || known.value == 0 || known == life.incarnation) return current;
  auto fresh = make(life, name(current), false);
  MutexLock lock(mutex_);
  Peer& now = *peers_[life.id.value];
  if (now.life() == life) return now;
  auto place = expected_.find(life);
  if (place == expected_.end()) {
    const auto past = past_.find(life);
    if (past != past_.end() && !is_waiting(*past->second)) return *past->second;
    if (expected_.size() >= kMostExpected)
      throw PeerLost(str("#", life.id.value),
                     "too many lives are named here that this worker was not told of");
    place = past != past_.end() ? expected_.insert(past_.extract(past)).position
                                : expected_.emplace(life, std::move(fresh)).first;
  }
  Peer& p = *place->second;
  if (hold) {
    MutexLock inner(p.mutex);
    ++p.holds;
    hold->peer_ = &p;
  }
  return p;
}

PeerTable::Hold::~Hold() {
  if (!peer_) return;
  {
    MutexLock lock(peer_->mutex);
    --peer_->holds;
  }
  table_.give_up(peer_->life());
}

Peer& PeerTable::succeed(Peer& before, Incarnation next, TimePoint now) {
  const Life life{before.id, next};
  auto fresh = make(life, name(before), true);
  Lives one;
  one.emplace(life, nullptr);
  auto left = one.extract(one.begin());  // the memory for a past life: below, no allocation may fail
  MutexLock lock(mutex_);
  auto& place = peers_[before.id.value];
  if (place.get() != &before) return *place;
  if (auto expected = expected_.extract(life)) fresh = std::move(expected.mapped());
  else if (auto given_up = past_.extract(life)) fresh = std::move(given_up.mapped());
  {  // before its messages are taken, so that none finds it lost
    MutexLock inner(fresh->mutex);
    if (!fresh->told) {
      fresh->told = fresh->ask_now = true;  // for the calls that have waited
      fresh->lost = false;
      fresh->why.clear();
      fresh->heard = now;
    }
  }
  current_.set(before.id, fresh.get());
  left.key() = place->life();
  left.mapped() = std::move(place);
  past_.insert(std::move(left));
  place = std::move(fresh);
  return *place;
}

Peer* PeerTable::past(Life life) {
  MutexLock lock(mutex_);
  const auto found = past_.find(life);
  return found == past_.end() ? nullptr : found->second.get();
}

void PeerTable::give_up(Life life) noexcept {
  MutexLock lock(mutex_);
  const auto expected = expected_.find(life);
  if (expected == expected_.end()) return;
  {
    Peer& p = *expected->second;
    MutexLock inner(p.mutex);
    if (p.holds > 0 || (!p.lost && p.wanted())) return;
  }
  past_.insert(expected_.extract(expected));
}

bool PeerTable::told(Life life) {
  Peer* found = find(life);
  if (!found) found = past(life);
  if (!found) return false;
  MutexLock lock(found->mutex);
  return found->told;
}

bool PeerTable::lost(Life life) {
  Peer* found = find(life);
  if (!found) found = past(life);
  if (!found) return false;
  MutexLock lock(found->mutex);
  return found->lost;
}

std::vector<Peer*> PeerTable::all() {
  std::vector<Peer*> out = shown();
  visits.fetch_add(static_cast<int64_t>(out.size()), std::memory_order_relaxed);
  return out;
}

std::vector<Peer*> PeerTable::shown() {
  std::vector<Peer*> out;
  {
    MutexLock lock(mutex_);
    for (const auto& [id, p] : peers_)
      if (p) out.push_back(p.get());  // null: there was no memory for it
    for (const auto& [life, p] : expected_) out.push_back(p.get());
  }
  std::stable_sort(out.begin(), out.end(), [](const Peer* a, const Peer* b) { return a->id < b->id; });
  return out;
}

std::string PeerTable::name(WorkerId id) { return name(at(id)); }

std::string PeerTable::name(Peer& p) {
  MutexLock lock(p.mutex);
  return p.name;
}

std::string PeerTable::trouble(Peer& p) {
  MutexLock lock(p.mutex);
  return p.trouble.empty() ? "" : str("; worker '", p.name, "' is ", p.trouble);
}

WorkerId PeerTable::id_of(const To& who) {
  if (who.by_id()) {
    if (Peer* p = find(who.id()); p && p->known) return p->id;
    throw ValueError(str("could not find destination: no worker has the id ", who.id().value));
  }
  if (const auto id = ids_by_name_.find(who.name())) return *id;
  throw ValueError(str("could not find destination: no worker is called '", who.name(), "'"));
}

void PeerTable::check(const std::vector<Member>& members) const {
  std::map<std::string, int32_t> names;
  std::map<int32_t, std::string> ids;
  ids_by_name_.each(
      [&](const std::string& name, WorkerId id) { names[name] = id.value, ids[id.value] = name; });
  for (const Member& m : members) {
    check_worker_name(m.name);
    if (m.id.value < 0 || m.id.value > kMaxWorkerId)
      throw ValueError(str("worker '", m.name, "': bad id ", m.id.value));
    const auto [by_name, fresh_name] = names.emplace(m.name, m.id.value);
    if (!fresh_name && by_name->second != m.id.value)
      throw ValueError(str("worker name '", m.name, "' is not unique: workers ", by_name->second, " and ",
                           m.id.value, " have it"));
    const auto [by_id, fresh_id] = ids.emplace(m.id.value, m.name);
    if (!fresh_id && by_id->second != m.name)
      throw ValueError(
          str("worker id ", m.id.value, " is not unique: '", by_id->second, "' and '", m.name, "' have it"));
  }
}

void PeerTable::add_name(const std::string& name, WorkerId id) {
  if (ids_by_name_.find(name) != id) ids_by_name_.set(name, id);
}

}  // namespace weft::rpc
