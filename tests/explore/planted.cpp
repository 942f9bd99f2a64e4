// The planted faults: receivers between the network and an agent, which change, repeat or swallow messages as
// a worker without the guarantee would. The library has no switch for this.
#include <weft/distributed/autograd/dist_autograd.h>
#include <weft/distributed/launch/inner/group_keys.h>

#include <map>
#include <set>

#include "explore/between.h"
#include "explore/world.h"
#include "support/around_store.h"

namespace weft::explore {

namespace {

using test::AroundStore;

/// Requests of a kind are answered, and nothing is done.
template <Kind kKind> class Swallow final : public Between {
 public:
  using Between::Between;
  void on_message(Inbound message) override {
    if (!is(message, kKind)) return Between::on_message(std::move(message));
    pretend(message);
  }
};

/// As Swallow, for the gradients of passes in FAST mode.
class FastGradientsLost final : public Between {
 public:
  using Between::Between;
  void on_message(Inbound message) override {
    if (!is(message, Kind::kGradients) || !is_fast(message)) return Between::on_message(std::move(message));
    pretend(message);
  }

 private:
  static bool is_fast(const Inbound& message) {
    const rpc::Message m = rpc::unseal(message.header, {}, envelope(message));
    rpc::Decoder in(m);
    for (int i = 0; i < 6; ++i) in.number<uint64_t>();  // context, pass and send, each with its life
    return in.number<uint8_t>() == static_cast<uint8_t>(dist_autograd::Backward::kFast);
  }
};

class ForgetsRequests final : public Between {
 public:
  using Between::Between;
  void on_message(Inbound message) override {
    if (is_request(message) &&
        !seen_.insert({message.from, message.incarnation, envelope(message).sequence}).second)
      return Between::on_message(again(message));
    Between::on_message(std::move(message));
  }

 private:
  std::set<std::tuple<rpc::WorkerId, rpc::Incarnation, uint64_t>> seen_;
};

class GradientsTwice final : public Between {
 public:
  using Between::Between;
  void on_message(Inbound message) override {
    if (is(message, Kind::kGradients)) Between::on_message(again(message));
    Between::on_message(std::move(message));
  }
};

class NoStatus final : public Between {
 public:
  using Between::Between;
  void on_message(Inbound message) override {
    if (!is(message, Kind::kStatus)) return Between::on_message(std::move(message));
    // that the sender lives is known all the same
    Envelope e = envelope(message);
    rpc::Message answer;
    {
      rpc::Encoder out(answer);
      out.number(e.floor);
      out.put(std::vector<uint64_t>());
      out.finish();
    }
    rpc::seal(answer);
    e = {};
    rpc::stamp(answer, e);
    send_(message.from, static_cast<uint8_t>(Kind::kStatusReply), std::move(answer.bytes));
  }
};

class FloorTooHigh final : public Between {
 public:
  using Between::Between;
  void on_message(Inbound message) override {
    if (is_request(message)) {
      Envelope e = envelope(message);
      if (e.sequence % 8 == 0) e.floor = e.sequence + 1;
      set_envelope(message, e);
    }
    Between::on_message(std::move(message));
  }
};

/// Announces more room than the callee has.
class WindowIgnored final : public Between {
 public:
  using Between::Between;
  void on_message(Inbound message) override {
    if (Envelope e = envelope(message); e.window != 0) {
      e.window = Envelope::pack_window(int64_t{1} << 36);
      set_envelope(message, e);
    }
    Between::on_message(std::move(message));
  }
};

/// The callee never hears that a call of Step::Op::kCancel has ended at its caller.
class CancelUnheard final : public Between {
 public:
  using Between::Between;
  void on_message(Inbound message) override {
    std::set<uint64_t>& kept = kept_[{message.from, message.incarnation}];
    Envelope e = envelope(message);
    if (runs(message, kUntilCancelled)) kept.insert(e.sequence);
    if (is(message, Kind::kStatus)) {
      message.header = with(kept, message);
    } else if (!kept.empty()) {
      e.floor = std::min(e.floor, *kept.begin());
      set_envelope(message, e);
    }
    Between::on_message(std::move(message));
  }

 private:
  /// The status with the kept requests among the open ones.
  static std::string with(const std::set<uint64_t>& kept, const Inbound& message) {
    const Status told = status(message);
    std::set<uint64_t> open(told.open.begin(), told.open.end());
    for (const uint64_t sequence : kept)
      if (sequence < told.upto) open.insert(sequence);
    rpc::Message longer;
    {
      rpc::Encoder out(longer);
      out.number(told.wants_answer);
      out.number(told.upto);
      out.put(std::vector<uint64_t>(open.begin(), open.end()));
    }
    rpc::seal(longer);
    rpc::stamp(longer, envelope(message));
    return longer.bytes;
  }
  std::map<std::pair<rpc::WorkerId, rpc::Incarnation>, std::set<uint64_t>> kept_;
};

/// A large result that has no room any more is forgotten with its request, which then runs again.
class ResultForgotten final : public Between {
 public:
  using Between::Between;
  void on_message(Inbound message) override {
    auto& requests = requests_[{message.from, message.incarnation}];
    if (runs(message, kLargeResult)) requests.try_emplace(envelope(message).sequence, again(message));
    if (is(message, Kind::kStatus))
      for (const uint64_t open : status(message).open) {
        const auto found = requests.find(open);
        if (found == requests.end() || std::distance(found, requests.end()) <= kRoom) continue;
        Between::on_message(std::move(found->second));
        requests.erase(found);
      }
    Between::on_message(std::move(message));
  }

 private:
  static constexpr ptrdiff_t kRoom = 4;  // of the worker with a small budget (run.cpp)
  std::map<std::pair<rpc::WorkerId, rpc::Incarnation>, std::map<uint64_t, Inbound>> requests_;
};

/// The decisions on prepared steps.
class Decisions : public Between {
 public:
  using Between::Between;

 protected:
  static bool is_decision(const Inbound& message) { return runs(message, "OwnerOptimizer::decide"); }
  /// The last argument: true to commit.
  static char& commit(Inbound& message) { return message.header[envelope(message).body_end - 1]; }
};

class CommitForgotten final : public Decisions {
 public:
  using Decisions::Decisions;
  void on_message(Inbound message) override {
    if (is_decision(message)) commit(message) = 0;
    Decisions::on_message(std::move(message));
  }
};

class AbortCommits final : public Decisions {
 public:
  using Decisions::Decisions;
  void on_message(Inbound message) override {
    if (is_decision(message)) commit(message) = 1;
    Decisions::on_message(std::move(message));
  }
};

/// A life takes its lease for renewed when the store does not answer.
class LeaseForged final : public AroundStore {
 public:
  using AroundStore::AroundStore;
  void hold(const std::string& key, const std::string& value, rpc::Duration lease, Deadline until) override {
    try {
      AroundStore::hold(key, value, lease, until);
    } catch (const Timeout&) {
    }
  }
};

/// A life takes a name for free while another one holds it.
class NameTakenEarly final : public AroundStore {
 public:
  using AroundStore::AroundStore;
  void hold(const std::string& key, const std::string& value, rpc::Duration lease, Deadline until) override {
    try {
      AroundStore::hold(key, value, lease, until);
    } catch (const ValueError&) {
    }
  }
};

/// A change of a value that somebody else has changed meanwhile.
class UpdateLost final : public AroundStore {
 public:
  using AroundStore::AroundStore;
  bool compare_and_set(const std::string& key, const Text&, const std::string& value,
                       Deadline until) override {
    set(key, value, until);
    return true;
  }
};

/// The commit of a step in two phases goes to the owners alone.
class CommitUnwritten final : public AroundStore {
 public:
  using AroundStore::AroundStore;
  void hold(const std::string& key, const std::string& value, rpc::Duration lease, Deadline until) override {
    if (key.rfind(rpc::inner::kStepBegin, 0) == 0 && value == rpc::inner::kStepCommit) return;
    AroundStore::hold(key, value, lease, until);
  }
};

}  // namespace

const std::vector<Planted>& planted_faults() {
  static const std::vector<Planted> all = [] {
    std::vector<Planted> out = {
        {.name = "requests_forgotten",
         .guarantee = "a request runs at most once",
         .before = make_receiver<ForgetsRequests>},
        {.name = "no_status",
         .guarantee = "a lost message is asked for again",
         .before = make_receiver<NoStatus>},
        {.name = "floor_too_high",
         .guarantee = "an open request is not forgotten",
         .before = make_receiver<FloorTooHigh>},
        {.name = "fork_forgotten",
         .guarantee = "a value lives while a reference to it does",
         .before = make_receiver<Swallow<Kind::kFork>>},
        {.name = "delete_forgotten",
         .guarantee = "a value ends with its last reference",
         .before = make_receiver<Swallow<Kind::kDelete>>},
        {.name = "accept_forgotten",
         .guarantee = "a shared reference is kept until its child is confirmed",
         .before = make_receiver<Swallow<Kind::kAccept>>},
        {.name = "gradients_twice",
         .guarantee = "a gradient is added once",
         .before = make_receiver<GradientsTwice>},
        {.name = "gradients_lost",
         .guarantee = "a pass ends when all gradients have come",
         .before = make_receiver<Swallow<Kind::kGradients>>},
        {.name = "fast_gradients_lost",
         .guarantee = "a FAST pass ends when every recorded send has its gradients",
         .before = make_receiver<FastGradientsLost>},
        {.name = "abort_forgotten",
         .guarantee = "a failed pass leaves no gradients",
         .before = make_receiver<Swallow<Kind::kPassAbort>>},
        {.name = "mark_skipped",
         .guarantee = "a SMART pass marks every edge that it needs",
         .before = make_receiver<Swallow<Kind::kMark>>},
        {.name = "release_forgotten",
         .guarantee = "a context ends on every worker that it reached",
         .before = make_receiver<Swallow<Kind::kRelease>>},
        {.name = "late_loss",
         .guarantee = "the loss of a life leaves its successor alone",
         .late_loss_us = 3000},
        {.name = "window_ignored",
         .guarantee = "the open requests of a worker fit in its budget",
         .before = make_receiver<WindowIgnored>},
        {.name = "nested_waits", .guarantee = "a nested call never waits for credit", .nested_waits = true},
        {.name = "cancel_unheard",
         .guarantee = "the function of a cancelled call learns of it",
         .before = make_receiver<CancelUnheard>},
        {.name = "result_forgotten",
         .guarantee = "a result that was dropped for room leaves its request executed",
         .before = make_receiver<ResultForgotten>},
        {.name = "commit_forgotten",
         .guarantee = "a prepared step that is committed is taken",
         .before = make_receiver<CommitForgotten>},
        {.name = "abort_commits",
         .guarantee = "a step that an owner did not prepare is taken by none",
         .before = make_receiver<AbortCommits>},
        {.name = "lease_forged",
         .guarantee = "a life without its lease serves nothing",
         .store = make_store<LeaseForged>},
        {.name = "name_taken_early",
         .guarantee = "a successor serves once the old lease has run out",
         .store = make_store<NameTakenEarly>},
        {.name = "update_lost",
         .guarantee = "of two changes of a value at the store none is lost",
         .store = make_store<UpdateLost>},
        {.name = "commit_unwritten",
         .guarantee = "a decision is in the store before an owner commits",
         .store = make_store<CommitUnwritten>},
        {.name = "no_lease", .guarantee = "a dead worker is noticed", .lease_s = 100000},
    };
    for (Planted& each : planted_lives()) out.push_back(std::move(each));
    return out;
  }();
  return all;
}

}  // namespace weft::explore
