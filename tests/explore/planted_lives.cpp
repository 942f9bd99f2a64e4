// The planted faults of guarantees about lives. A worker takes the things of one life for those of another
// life, or a life misses its own loss.
#include <weft/distributed/launch/inner/group_keys.h>
#include <weft/distributed/launch/inner/member_list.h>

#include <algorithm>
#include <map>
#include <optional>

#include "explore/between.h"
#include "support/around_store.h"

namespace weft::explore {

namespace {

using test::AroundStore;

/// The contexts and passes that messages name. Each is a number and the life that made it, 16 bytes.
class Named : public Between {
 public:
  using Between::Between;

 protected:
  struct Made {
    int64_t number = -1;
    uint64_t life = 0;
    rpc::WorkerId maker() const { return rpc::WorkerId{static_cast<int32_t>(number >> 48)}; }
  };
  /// The place of a message's context in its header; 0: there is none.
  static size_t context_at(const Inbound& message) {
    if (is(message, Kind::kRelease) || is_of_pass(message)) return rpc::kEnvelopeBytes;
    if (!is_recorded(message) || !message.payloads.empty()) return 0;
    const Envelope e = envelope(message);
    const rpc::Message m = rpc::unseal(message.header, {}, e);
    const std::string* const recorded = m.find(rpc::Tag::kAutograd);
    const size_t at = recorded ? message.header.find(*recorded, e.body_end) : 0;
    return at != 0 && read(message, at).number >= 0 ? at : 0;
  }
  /// The same for its pass.
  static size_t pass_at(const Inbound& message) {
    return is_of_pass(message) ? rpc::kEnvelopeBytes + sizeof(Made) : 0;
  }
  static Made read(const Inbound& message, size_t at) {
    Made made;
    std::memcpy(&made, message.header.data() + at, sizeof made);
    return made;
  }
  static void write(Inbound& message, size_t at, const Made& made) {
    std::memcpy(message.header.data() + at, &made, sizeof made);
  }
  /// The number was heard before with another life.
  bool is_of_successor(const Made& made) {
    return lives_.emplace(made.number, made.life).first->second != made.life;
  }
  static bool is_recorded(const Inbound& message) {
    return is(message, Kind::kCall) || is(message, Kind::kMethod) || is(message, Kind::kRemote) ||
           is(message, Kind::kFetch);
  }

 private:
  static bool is_of_pass(const Inbound& message) {
    return is(message, Kind::kGradients) || is(message, Kind::kMark) || is(message, Kind::kPassDone) ||
           is(message, Kind::kPassAbort);
  }
  std::map<int64_t, uint64_t> lives_;  // the first one of each number
};

/// A successor's contexts count as those of its predecessor, which have ended.
class ContextsEnded final : public Named {
 public:
  using Named::Named;
  void on_message(Inbound message) override {
    constexpr size_t kState = 24;
    constexpr char kEnded = 2;  // dist_record.cpp
    const size_t at = is_recorded(message) ? context_at(message) : 0;
    if (at != 0 && is_of_successor(read(message, at))) message.header[at + kState] = kEnded;
    Named::on_message(std::move(message));
  }
};

/// Every context counts as one of the newest life of its maker.
class ContextsMixed final : public Named {
 public:
  using Named::Named;
  void on_message(Inbound message) override {
    hear(message.from, message.incarnation);
    if (const size_t at = context_at(message)) {
      Made made = read(message, at);
      if (const auto heard = heard_.find(made.maker()); heard != heard_.end())
        made.life = heard->second.back().value;
      write(message, at, made);
    }
    Named::on_message(std::move(message));
  }
  void on_peer(rpc::WorkerId peer, rpc::Incarnation incarnation, rpc::PeerState state,
               const std::string& reason) override {
    if (state == rpc::PeerState::kUp) hear(peer, incarnation);
    Named::on_peer(peer, incarnation, state, reason);
  }

 private:
  void hear(rpc::WorkerId from, rpc::Incarnation life) {
    std::vector<rpc::Incarnation>& all = heard_[from];
    if (std::find(all.begin(), all.end(), life) == all.end()) all.push_back(life);
  }
  std::map<rpc::WorkerId, std::vector<rpc::Incarnation>> heard_;
};

/// The gradients of a successor's passes are answered as those of passes that have ended.
class PassesEnded final : public Named {
 public:
  using Named::Named;
  void on_message(Inbound message) override {
    const size_t at = is(message, Kind::kGradients) ? pass_at(message) : 0;
    if (at != 0 && is_of_successor(read(message, at))) pretend(message);
    else Named::on_message(std::move(message));
  }
};

/// A worker does not hear that others have lost it.
class FencedUnheard final : public Between {
 public:
  using Between::Between;
  void on_message(Inbound message) override {
    if (!is(message, Kind::kFenced)) Between::on_message(std::move(message));
  }
};

/// A life that was removed from the list of members sees itself in it all the same.
class RemovalUnseen final : public AroundStore {
 public:
  using AroundStore::AroundStore;
  void hold(const std::string& key, const std::string& value, rpc::Duration lease, Deadline until) override {
    if (key.rfind(rpc::inner::kLifeBegin, 0) == 0) life_ = value;
    AroundStore::hold(key, value, lease, until);
  }
  Text watch(const std::string& key, const Text& known, Deadline until) override {
    if (key != rpc::inner::kMembersKey) return AroundStore::watch(key, known, until);
    return seen(AroundStore::watch(key, known && known == shown_ ? stored_ : known, until));
  }
  std::vector<std::string> wait(const std::vector<std::string>& keys, const std::string& abort_key,
                                Deadline until) override {
    std::vector<std::string> out = AroundStore::wait(keys, abort_key, until);
    for (size_t i = 0; i < keys.size(); ++i)
      if (keys[i] == rpc::inner::kMembersKey) out[i] = *seen(out[i]);
    return out;
  }

 private:
  Text seen(const Text& stored) {
    if (!stored) return stored;
    rpc::inner::MemberList list = rpc::inner::decode_members(*stored);
    for (const rpc::Member& m : list.members)
      if (to_string(m.address.incarnation) == life_) mine_ = m;
    if (!mine_ || list.find(mine_->id)) return stored;
    list.add(*mine_);
    stored_ = stored;
    shown_ = rpc::inner::encode_members(list);
    return shown_;
  }
  std::string life_;
  std::optional<rpc::Member> mine_;
  Text stored_, shown_;  // the last list without this life, and the one with it
};

}  // namespace

std::vector<Planted> planted_lives() {
  return {
      {.name = "contexts_ended",
       .guarantee = "the contexts of a successor are not those of its predecessor",
       .before = make_receiver<ContextsEnded>},
      {.name = "contexts_mixed",
       .guarantee = "a message of a past life's context leaves those of its successor alone",
       .before = make_receiver<ContextsMixed>},
      {.name = "passes_ended",
       .guarantee = "the passes of a successor are not those of its predecessor",
       .before = make_receiver<PassesEnded>},
      {.name = "fenced_unheard",
       .guarantee = "a worker that others have lost hears so at its first message",
       .before = make_receiver<FencedUnheard>},
      {.name = "removal_unseen",
       .guarantee = "a life that was lost and removed stays out",
       .store = make_store<RemovalUnseen>},
  };
}

}  // namespace weft::explore
