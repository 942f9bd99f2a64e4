// The list of members of an elastic group: its bytes and its changes. change_members repeats a
// compare-and-set on one key of the store; membership.cpp calls it.
#include <weft/distributed/launch/inner/member_list.h>

#include <algorithm>

#include <weft/distributed/launch/inner/store_calls.h>

namespace weft::rpc::inner {

namespace {
constexpr uint32_t kListVersion = 2;
}  // namespace

const Member* MemberList::find(WorkerId id) const {
  const auto found =
      std::find_if(members.begin(), members.end(), [&](const Member& m) { return m.id == id; });
  return found == members.end() ? nullptr : &*found;
}

const Member* MemberList::find(const std::string& name) const {
  const auto found =
      std::find_if(members.begin(), members.end(), [&](const Member& m) { return m.name == name; });
  return found == members.end() ? nullptr : &*found;
}

const Departure* MemberList::departure(Life life) const {
  const auto found =
      std::find_if(departures.begin(), departures.end(), [&](const Departure& d) { return d.life == life; });
  return found == departures.end() ? nullptr : &*found;
}

void MemberList::add(const Member& member) {
  std::erase_if(members, [&](const Member& m) { return m.id == member.id; });
  members.push_back(member);
  std::sort(members.begin(), members.end(), [](const Member& a, const Member& b) { return a.id < b.id; });
}

bool MemberList::remove(const Departure& gone) {
  if (std::erase_if(members, [&](const Member& m) { return life_of(m) == gone.life; }) == 0) return false;
  departures.push_back(gone);
  if (departures.size() > kMaxDepartures) departures.erase(departures.begin());
  return true;
}

std::string encode_members(const MemberList& list) {
  StoreWriter out;
  out.number(kListVersion).number(list.epoch).number(static_cast<uint32_t>(list.members.size()));
  for (const Member& m : list.members) {
    out.text(m.name).number(m.id.value).number(m.address.incarnation.value).text(m.address.host_key);
    out.text(to_line(m.plan)).text(m.process).text(m.engines);
    out.number(static_cast<uint32_t>(m.address.addresses.size()));
    for (const std::string& address : m.address.addresses) out.text(address);
  }
  out.number(static_cast<uint32_t>(list.departures.size()));
  for (const Departure& d : list.departures)
    out.number(d.life.id.value)
        .number(d.life.incarnation.value)
        .number(static_cast<uint8_t>(d.left))
        .text(d.why);
  return out.bytes;
}

MemberList decode_members(const std::string& text) {
  StoreReader in(text);
  if (in.number<uint32_t>() != kListVersion) throw WireError("the list of members has another version");
  MemberList list;
  list.epoch = in.number<uint64_t>();
  for (auto n = in.number<uint32_t>(); n > 0; --n) {
    Member m;
    m.name = in.text();
    m.id.value = in.number<int32_t>();
    m.address.incarnation.value = in.number<uint64_t>();
    m.address.host_key = in.text();
    m.plan = read_device_plan(in.text());
    m.process = in.text();
    m.engines = in.text();
    m.address.addresses = in.texts();
    list.members.push_back(std::move(m));
  }
  for (auto n = in.number<uint32_t>(); n > 0; --n) {
    Departure d;
    d.life.id.value = in.number<int32_t>();
    d.life.incarnation.value = in.number<uint64_t>();
    d.left = in.number<uint8_t>() != 0;
    d.why = in.text();
    list.departures.push_back(std::move(d));
  }
  return list;
}

void change_members(Store& store, const std::string& key, TimePoint deadline,
                    const std::function<bool(MemberList&)>& change) {
  for (;;) {
    const std::optional<std::string> before = store.peek({key}, deadline).front();
    MemberList list = before ? decode_members(*before) : MemberList();
    if (!change(list)) return;
    ++list.epoch;
    if (store.compare_and_set(key, before, encode_members(list), deadline)) return;
  }
}

}  // namespace weft::rpc::inner
