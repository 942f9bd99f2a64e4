// The rules of inner/store_names.h. The hard part is the list of members, one value that all members write:
// each change is compared with the previous list. The worker of a name adds and removes its own life. Any
// member may remove another life, but only once its lease at this store has run out. Nothing else in the list
// may change.
#include <weft/distributed/launch/inner/store_names.h>

#include <algorithm>
#include <charconv>
#include <set>

#include <weft/distributed/launch/inner/group_keys.h>
#include <weft/distributed/launch/inner/member_list.h>
#include <weft/distributed/rpc/rpc_error.h>

namespace weft::rpc::inner {
namespace {

bool starts(const std::string& text, std::string_view begin) { return text.starts_with(begin); }
std::string after(const std::string& text, std::string_view begin) { return text.substr(begin.size()); }

bool is_number(const std::string& text, int64_t& value) {
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value);
  return parsed.ec == std::errc() && parsed.ptr == end && std::to_string(value) == text;
}

/// True if a will may not set the key: it would act later, and for any client.
bool is_of_group(const std::string& key) {
  for (const char* begin : {kLifeBegin, kIdBegin, kStepBegin, kRunBegin, kAnnouncedName, kAnnounced})
    if (starts(key, begin)) return true;
  return key == kIdsKey || key == kMembersKey;
}

/// The bytes of one member, for a comparison.
std::string bytes_of(const Member& member) {
  MemberList one;
  one.members.push_back(member);
  return encode_members(one);
}
std::string bytes_of(std::vector<Departure> departures) {
  MemberList none;
  none.departures = std::move(departures);
  return encode_members(none);
}

/// The checks of one request.
class NameCheck {
 public:
  NameCheck(const StoreKeys& keys, const std::vector<std::string>& names) : keys_(keys), names_(names) {}

  void set(uint8_t op, const std::string& key, StoreReader& in) const {
    if (starts(key, kLifeBegin)) return require(after(key, kLifeBegin), key);
    if (starts(key, kIdBegin)) return check_id(op, key, in);
    if (key == kIdsKey) {
      if (op != kAdd || in.number<int64_t>() != 1) deny(key, "it only counts up by one");
    } else if (key == kMembersKey) {
      check_list(op, in);
    } else if (starts(key, kStepBegin)) {
      check_step(op, key, in);
    } else if (starts(key, kRunBegin)) {
      check_returned(op, key, in);
    } else if (starts(key, kAnnouncedName)) {
      require(after(key, kAnnouncedName), key);
    } else if (starts(key, kAnnounced)) {
      check_announced(op, key, in);
    }
  }
  [[noreturn]] void deny(const std::string& key, const std::string& why) const {
    throw NotAllowed(str("store: a change of ", key, " is refused: ", why));
  }

 private:
  bool has(const std::string& name) const {
    return std::find(names_.begin(), names_.end(), name) != names_.end();
  }
  void require(const std::string& name, const std::string& key) const {
    if (has(name)) return;
    std::string shown;
    for (const std::string& one : names_) shown += (shown.empty() ? "" : ", ") + one;
    deny(key, str("it is of worker '", name, "', and the certificate of this client is for ",
                  shown.empty() ? "no name" : shown));
  }

  /// The id of a name: given once, counted before, and of no other name.
  void check_id(uint8_t op, const std::string& key, StoreReader& in) const {
    require(after(key, kIdBegin), key);
    if (op != kCompareAndSet || in.optional()) deny(key, "an id is given once");
    if (keys_.find(key)) return;  // the comparison fails
    const std::string text = in.text();
    int64_t id = 0, given = 0;
    if (!is_number(text, id) || !is_number(keys_.text(kIdsKey).value_or(""), given) || id < 0 || id >= given)
      deny(key, str("'", text.substr(0, 20), "' is no id that was counted"));
    keys_.for_each([&](const std::string& other, const std::string& value) {
      if (value == text && starts(other, kIdBegin)) deny(key, str("the id ", id, " is of ", other));
    });
  }

  void check_list(uint8_t op, StoreReader& in) const {
    if (op != kCompareAndSet) deny(kMembersKey, "the list changes by compare-and-set");
    const auto expected = in.optional();
    if (keys_.text(kMembersKey) != expected) return;  // the comparison fails
    MemberList before, now;
    try {
      if (expected) before = decode_members(*expected);
      now = decode_members(in.text());
    } catch (const Error& e) {
      deny(kMembersKey, e.what());
    }
    if (now.epoch != before.epoch + 1) deny(kMembersKey, "the epoch counts up by one");
    std::set<WorkerId> ids;
    for (const Member& m : now.members) {
      if (!ids.insert(m.id).second) deny(kMembersKey, str("the id ", m.id, " stands there twice"));
      const Member* const old = before.find(m.id);
      if (!old || life_of(*old) != life_of(m)) check_entry(m);
      else if (bytes_of(*old) != bytes_of(m)) deny(kMembersKey, str("the entry of '", m.name, "' differs"));
    }
    check_departures(before, now);
  }
  void check_entry(const Member& m) const {
    require(m.name, kMembersKey);
    if (keys_.text(kIdBegin + m.name) != std::to_string(m.id.value))
      deny(kMembersKey, str("the id ", m.id, " is not that of '", m.name, "'"));
    const auto holder = keys_.text(kLifeBegin + m.name);
    if (holder && *holder != to_string(m.address.incarnation))
      deny(kMembersKey, str("another life holds the lease of '", m.name, "'"));
  }
  /// The departures are those before and one of each life that has gone, without the oldest.
  void check_departures(const MemberList& before, const MemberList& now) const {
    std::set<Life> gone;
    for (const Member& m : before.members) {
      const Member* const same = now.find(m.id);
      if (same && life_of(*same) == life_of(m)) continue;
      gone.insert(life_of(m));
      if (keys_.text(kLifeBegin + m.name) == to_string(m.address.incarnation)) require(m.name, kMembersKey);
    }
    if (now.departures.size() < gone.size()) deny(kMembersKey, "a departure is missing");
    const auto first = now.departures.end() - std::ssize(gone);
    std::vector<Departure> wanted = before.departures;
    for (auto one = first; one != now.departures.end(); ++one) {
      if (gone.erase(one->life) == 0) deny(kMembersKey, "a departure is of no life that has gone");
      wanted.push_back(*one);
    }
    if (wanted.size() > kMaxDepartures) wanted.erase(wanted.begin(), wanted.end() - kMaxDepartures);
    if (bytes_of(wanted) != bytes_of(now.departures)) deny(kMembersKey, "the departures before differ");
  }

  /// A worker decides its own steps. Any member may end one that is in doubt.
  void check_step(uint8_t op, const std::string& key, StoreReader& in) const {
    if (op == kHold && in.text() == kStepAbort) return;
    const std::string rest = after(key, kStepBegin), id = rest.substr(0, rest.find('.'));
    int64_t worker = 0;
    if (id.size() == rest.size() || !is_number(id, worker)) return;  // a key of no group
    for (const std::string& name : names_)
      if (keys_.text(kIdBegin + name) == id) return;
    deny(key, "the certificate of this client is of another worker");
  }

  /// The value is the name of the worker of the rank that has returned. A worker may report this for one rank
  /// only.
  void check_returned(uint8_t op, const std::string& key, StoreReader& in) const {
    const size_t at = key.rfind(kReturned);
    if (key != kRunKey && at == std::string::npos) return;  // a key of no group
    if (key == kRunKey || op != kSet) deny(key, "the server of the store has it");
    const std::string name = in.text(), begin = key.substr(0, at) + kReturned;
    require(name, key);
    const auto now = keys_.text(key);
    if (now && *now != name && !now->empty()) deny(key, str("it is of worker '", *now, "'"));
    keys_.for_each([&](const std::string& other, const std::string& value) {
      if (other != key && value == name && starts(other, begin))
        deny(key, str("worker '", name, "' has set ", other));
    });
  }

  /// The announcement of a rank begins with a line of its name.
  void check_announced(uint8_t op, const std::string& key, StoreReader& in) const {
    if (op != kSet) deny(key, "an announcement is set");
    const auto name_of = [](const std::string& text) { return text.substr(0, text.find('\n')); };
    if (const auto now = keys_.text(key)) require(name_of(*now), key);
    require(name_of(in.text()), key);
  }

  const StoreKeys& keys_;
  const std::vector<std::string>& names_;
};

}  // namespace

void check_names(const StoreKeys& keys, const std::vector<std::string>& names, std::string_view request) {
  StoreReader in(request);
  const auto op = in.number<uint8_t>();
  if (op == kWait || op == kWatch || op == kPeek) return;
  const NameCheck check(keys, names);
  if (op != kSetAtEnd) {
    const std::string key = in.text();
    return check.set(op, key, in);
  }
  const std::string process = in.text(), key = in.text(), value = in.text(), done = in.text();
  for (const std::string& one : {key, done})
    if (is_of_group(one)) check.deny(one, "no last will sets it");
}

}  // namespace weft::rpc::inner
