// The tables of a serving store: keys with leases, answers by client, waits by key, last wills. They take no
// lock: the server calls them under its mutex.
#include <weft/distributed/launch/inner/store_table.h>

#include <algorithm>
#include <charconv>

namespace weft::rpc::inner {
namespace {
constexpr size_t kMaxClients = 1 << 16;
}

const StoreKeys::Value* StoreKeys::find(const std::string& key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

std::optional<std::string> StoreKeys::text(const std::string& key) const {
  const Value* value = find(key);
  return value ? std::optional(value->text) : std::nullopt;
}

int64_t StoreKeys::sum(const std::string& key, int64_t delta) const {
  const Value* old = find(key);
  const std::string value = old ? old->text : "0";
  int64_t sum = 0;
  const char* end = value.data() + value.size();
  const auto parsed = std::from_chars(value.data(), end, sum);
  if (parsed.ec != std::errc() || parsed.ptr != end)
    throw ValueError(
        str("store: add to ", key, ", whose value '", value.substr(0, kShownBytes), "' is no number"));
  if (__builtin_add_overflow(sum, delta, &sum))
    throw ValueError(str("store: add to ", key, ": the sum does not fit"));
  return sum;
}

void StoreKeys::check_answer(const std::vector<std::string>& keys) const {
  size_t bytes = 0, most = 0;
  for (const auto& key : keys) {
    const Value* value = find(key);
    if (value == nullptr) continue;
    bytes += value->text.size();
    most = std::max(most, value->text.size());
  }
  if (bytes > std::max(limits_.answer_bytes, most))
    throw StoreFull(str("store: the values of ", keys.size(), " keys have ", bytes, " bytes; the limit is ",
                        limits_.answer_bytes, " bytes of one answer"));
}

void StoreKeys::check_sizes(const std::string& key, const std::string& text) const {
  if (key.size() > limits_.key_bytes)
    throw StoreFull(str("store: a key has ", key.size(), " bytes; the limit is ", limits_.key_bytes));
  if (text.size() > limits_.value_bytes)
    throw StoreFull(
        str("store: the value of ", key, " has ", text.size(), " bytes; the limit is ", limits_.value_bytes));
}

void StoreKeys::check(const std::string& key, const std::string& text) const {
  check_sizes(key, text);
  const Value* old = find(key);
  if (old == nullptr && values_.size() >= limits_.keys)
    throw StoreFull(str("store: no room for ", key, ": the limit is ", limits_.keys, " keys"));
  const size_t now = bytes_ - (old ? key.size() + old->text.size() : 0);
  if (now + key.size() + text.size() > limits_.bytes)
    throw StoreFull(
        str("store: no room for ", key, ": the limit is ", limits_.bytes, " bytes of keys and values"));
}

void StoreKeys::put(const std::string& key, std::string text, Duration lease, TimePoint until) {
  check(key, text);
  const auto [at, fresh] = values_.try_emplace(key);
  Value& value = at->second;
  // A renewal is not written: after a restart a held key has one whole lease in any case.
  if (journal_.kept && (fresh || lease == Duration::zero() || lease != value.lease || text != value.text))
    journal_.entries.number(kPutEntry).text(key).text(text).number(int64_t{lease.count()});
  if (value.lease > Duration::zero()) ends_.erase({value.until, key});
  bytes_ += text.size() - value.text.size() + (fresh ? key.size() : 0);
  value = {std::move(text), lease, lease > Duration::zero() ? until : kNever};
  if (lease > Duration::zero()) ends_.emplace(until, key);
}

void StoreKeys::erase(const std::string& key) {
  const auto at = values_.find(key);
  if (at == values_.end()) return;
  if (journal_.kept) journal_.entries.number(kEraseEntry).text(key);
  if (at->second.lease > Duration::zero()) ends_.erase({at->second.until, key});
  bytes_ -= key.size() + at->second.text.size();
  values_.erase(at);
}

std::vector<std::string> StoreKeys::end_leases(TimePoint now) {
  std::vector<std::string> ended;
  while (next_end() <= now) {
    ended.push_back(ends_.begin()->second);
    erase(ended.back());
  }
  return ended;
}

void StoreKeys::write_all(StoreWriter& out) const {
  for (const auto& [key, value] : values_)
    out.number(kPutEntry).text(key).text(value.text).number(int64_t{value.lease.count()});
}

StoreClients::Heard StoreClients::hear(const Life& client, uint64_t number, uint64_t floor) {
  Heard heard;
  auto at = known_.find(client);
  if (at == known_.end()) {
    if (known_.size() >= kMaxClients) {
      heard.forgotten = order_.front();
      known_.erase(order_.front());
      order_.pop_front();
    }
    order_.push_back(client);
    at = known_.emplace(client, Known{.floor = floor, .answers = {}, .order = std::prev(order_.end())}).first;
  }
  Known& known = at->second;
  order_.splice(order_.end(), order_, known.order);
  if (floor > known.floor) {
    known.floor = floor;
    known.answers.erase(known.answers.begin(), known.answers.lower_bound(floor));
  }
  heard.over = number < known.floor;
  const auto answer = known.answers.find(number);
  if (answer != known.answers.end()) heard.answer = &answer->second;
  return heard;
}

void StoreClients::check_room(const Life& client, size_t parked) const {
  const auto at = known_.find(client);
  const size_t open = parked + (at == known_.end() ? 0 : at->second.answers.size());
  if (open >= limits_.open_requests)
    throw StoreFull(
        str("store: a client has ", open, " open requests; the limit is ", limits_.open_requests));
}

void StoreClients::remember(const Life& client, uint64_t number, std::string answer, bool journal) {
  Known& known = known_.at(client);
  if (journal && journal_.kept) write(journal_.entries, client, known.floor, number, answer);
  known.answers[number] = std::move(answer);
}

void StoreClients::write(StoreWriter& out, const Life& client, uint64_t floor, uint64_t number,
                         const std::string& answer) {
  out.number(kAnswerEntry).number(client.id.value).number(client.incarnation.value);
  out.number(floor).number(number).text(answer);
}

void StoreClients::write_all(StoreWriter& out) const {
  for (const Life& client : order_) {
    const Known& known = known_.at(client);
    for (const auto& [number, answer] : known.answers) write(out, client, known.floor, number, answer);
  }
}

void StoreWaits::park(StoreWait wait) {
  const std::pair who(wait.client, wait.number);
  by_key_[wait.keys[wait.next]].insert(who);
  if (!wait.abort_key.empty()) by_key_[wait.abort_key].insert(who);
  clients_[wait.client].waits.emplace(wait.number, std::move(wait));
}

StoreWait StoreWaits::take_out(Of& of, std::map<uint64_t, StoreWait>::iterator at) {
  StoreWait wait = std::move(at->second);
  of.waits.erase(at);
  for (const auto* key : {&wait.keys[wait.next], &wait.abort_key}) {
    const auto found = by_key_.find(*key);
    if (found == by_key_.end()) continue;
    found->second.erase({wait.client, wait.number});
    if (found->second.empty()) by_key_.erase(found);
  }
  return wait;
}

void StoreWaits::drop_if_empty(std::unordered_map<Life, Of>::iterator of) {
  if (of->second.waits.empty()) clients_.erase(of);
}

std::vector<StoreWait> StoreWaits::take(const std::string& key) {
  std::vector<StoreWait> taken;
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return taken;
  const auto who = found->second;  // take_out changes it
  for (const auto& [client, number] : who) {
    const auto of = clients_.find(client);
    taken.push_back(take_out(of->second, of->second.waits.find(number)));
    drop_if_empty(of);
  }
  return taken;
}

void StoreWaits::remove(const Life& client, uint64_t number) {
  const auto of = clients_.find(client);
  if (of == clients_.end()) return;
  const auto at = of->second.waits.find(number);
  if (at != of->second.waits.end()) take_out(of->second, at);
  drop_if_empty(of);
}

void StoreWaits::remove_below(const Life& client, uint64_t floor) {
  const auto of = clients_.find(client);
  if (of == clients_.end()) return;
  auto& waits = of->second.waits;
  while (!waits.empty() && waits.begin()->first < floor) take_out(of->second, waits.begin());
  drop_if_empty(of);
}

size_t StoreWaits::count(const Life& client) const {
  const auto of = clients_.find(client);
  return of == clients_.end() ? 0 : of->second.waits.size();
}

namespace {
size_t bytes_of(const StoreWill& w) {
  return w.process.size() + w.key.size() + w.value.size() + w.done.size();
}
}  // namespace

bool StoreWills::add(const Life& client, StoreWill will, std::vector<uint64_t>& unneeded) {
  const Key key(client, will.key);
  const auto old = wills_.find(key);
  if (old != wills_.end()) unneeded.push_back(remove(old));
  if (const auto mine = counts_.find(client); mine != counts_.end() && mine->second >= limits_.open_requests)
    throw StoreFull(str("store: a client has ", mine->second, " last wills; that is the limit"));
  if (wills_.size() >= limits_.keys)
    throw StoreFull(str("store: no room for a last will: the limit is ", limits_.keys, " of them"));
  if (bytes_ + bytes_of(will) > limits_.bytes)
    throw StoreFull(str("store: no room for a last will: the limit is ", limits_.bytes, " bytes of them"));
  bytes_ += bytes_of(will);
  Process& process = processes_[will.process];
  process.wills.insert(key);
  by_done_[will.done].insert(key);
  ++counts_[client];
  wills_.emplace(key, std::move(will));
  return process.watch == 0;
}

uint64_t StoreWills::remove(std::map<Key, StoreWill>::iterator at) {
  const auto& [key, will] = *at;
  bytes_ -= bytes_of(will);
  const auto done = by_done_.find(will.done);
  done->second.erase(key);
  if (done->second.empty()) by_done_.erase(done);
  const auto count = counts_.find(key.first);
  if (--count->second == 0) counts_.erase(count);
  uint64_t unneeded = 0;
  const auto process = processes_.find(will.process);
  process->second.wills.erase(key);
  if (process->second.wills.empty()) {
    unneeded = process->second.watch;
    processes_.erase(process);
  }
  wills_.erase(at);
  return unneeded;
}

std::vector<StoreWill> StoreWills::take(const std::string& process) {
  std::vector<StoreWill> taken;
  const auto found = processes_.find(process);
  if (found == processes_.end()) return taken;
  const auto keys = found->second.wills;  // remove changes it
  for (const Key& key : keys) {
    const auto at = wills_.find(key);
    taken.push_back(at->second);
    remove(at);
  }
  return taken;
}

std::vector<uint64_t> StoreWills::remove_done(const std::string& done) {
  std::vector<uint64_t> unneeded;
  const auto found = by_done_.find(done);
  if (found == by_done_.end()) return unneeded;
  const auto keys = found->second;  // remove changes it
  for (const Key& key : keys) unneeded.push_back(remove(wills_.find(key)));
  return unneeded;
}

bool StoreWills::watched(const std::string& process, uint64_t watch) {
  const auto found = processes_.find(process);
  if (found == processes_.end() || found->second.watch != 0) return false;
  found->second.watch = watch;
  return true;
}

}  // namespace weft::rpc::inner
