// compile(): the guards of a call, and the way from recordings to a program. A program replays once two
// recordings of its signature agree and a replay has given the bits of the second one. A guard looks at the
// arguments and at the state of the calling thread only; the program knows its captured tensors.
#include <weft/autograd/tape/compile.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <optional>

#include <weft/autograd/tape/autocast.h>
#include <weft/autograd/tape/grad_mode.h>
#include <weft/autograd/tape/inner/recorder.h>
#include <weft/autograd/tape/inner/turns.h>
#include <weft/tensor/inner/launch.h>

namespace weft {
namespace {

using trace::Copies;
using trace::Difference;
using trace::Exclusive;
using trace::Program;
using trace::Recorder;
using Arguments = std::span<const Tensor* const>;

/// Recordings of one signature that gave no program, and recordings without a replay between them. After so
/// many, its calls run f.
constexpr int kMostFailures = 4, kMostRecordings = 16;

constexpr const char* kUnderWay = "another call is under way";

std::atomic<uint64_t>& modes() {
  static std::atomic<uint64_t> changes{0};
  return changes;
}

/// An argument as a program depends on it.
struct ArgumentKey {
  bool defined = false, requires_grad = false, read_only = false;
  DType dtype = kFloat32;
  Shape sizes, strides;
  size_t same_as = 0;      ///< the first argument over the same storage
  int64_t apart = 0;       ///< bytes between the first elements of the two
  size_t same_tensor = 0;  ///< the first argument that is this tensor
  friend bool operator==(const ArgumentKey&, const ArgumentKey&) = default;
};

ArgumentKey key_of(Arguments all, size_t i) {
  const Tensor& x = *all[i];
  ArgumentKey key;
  if (!x.defined()) return key;
  const TensorBody& b = x.body();
  key.defined = true;
  key.requires_grad = x.requires_grad();
  key.read_only = b.storage->is_read_only();
  key.dtype = b.dtype;
  key.sizes = b.sizes;
  key.strides = b.strides;
  key.same_as = key.same_tensor = i;
  for (size_t j = i; j-- > 0;) {
    if (!all[j]->defined() || all[j]->body().storage != b.storage) continue;
    key.same_as = j;
    key.apart = static_cast<const char*>(x.address()) - static_cast<const char*>(all[j]->address());
    if (all[j]->is_same(x)) key.same_tensor = j;
  }
  return key;
}

/// The address of the first element, null if there is none.
const void* first_of(const Tensor& x) { return x.defined() && x.numel() != 0 ? x.address() : nullptr; }

/// The memory of an argument in a recording. An address alone does not identify it: another tensor may get
/// the address of a destroyed tensor.
class ArgumentMemory {
 public:
  ArgumentMemory() = default;  ///< of any argument
  explicit ArgumentMemory(const Tensor& x) : first_(first_of(x)) {
    if (!first_ || x.body().storage->is_borrowed()) return;  // the caller's memory may outlive the storage
    watch_ = std::make_shared<detail::StorageWatch>();
    detail::watch_storage(*x.body().storage, watch_);
  }
  ArgumentMemory(ArgumentMemory&&) noexcept = default;
  ArgumentMemory& operator=(ArgumentMemory&& other) noexcept {
    std::swap(first_, other.first_);
    std::swap(watch_, other.watch_);
    return *this;
  }
  ~ArgumentMemory() {
    if (watch_) detail::forget_storages(watch_);
  }
  bool admits(const Tensor& x) const { return !first_ || (first_ == first_of(x) && !is(&Watch::gone)); }
  /// Whether no tensor in this memory is also in the memory of the later recording.
  bool is_apart_from(const ArgumentMemory& later) const {
    return first_ != later.first_ || is(&Watch::destroyed);
  }

 private:
  using Watch = detail::StorageWatch;
  bool is(bool Watch::*state) const {
    if (!watch_) return false;
    const std::lock_guard lock(watch_->mutex);
    return (*watch_).*state;
  }
  const void* first_ = nullptr;  // null: any memory will do
  std::shared_ptr<Watch> watch_;
};

std::vector<ArgumentMemory> memory_of(Arguments given) {
  std::vector<ArgumentMemory> out;
  out.reserve(given.size());
  for (const Tensor* x : given) out.emplace_back(*x);
  return out;
}

bool same_bits(double a, double b) { return std::memcmp(&a, &b, sizeof a) == 0; }
bool same_bits(const Tensor& a, const Tensor& b) {
  if (a.defined() != b.defined()) return false;
  if (!a.defined()) return true;
  if (a.dtype() != b.dtype() || !(a.sizes() == b.sizes()) || !(a.strides() == b.strides())) return false;
  const Tensor x = launch::contiguous(a), y = launch::contiguous(b);
  return x.numel() == 0 ||
         std::memcmp(x.address(), y.address(), static_cast<size_t>(x.numel() * size_of(x.dtype()))) == 0;
}

struct Entry {
  // the signature
  const std::type_info* types = nullptr;
  std::vector<ArgumentKey> arguments;
  std::vector<Scalar> numbers;
  bool grad = false, inference = false;

  std::unique_ptr<Program> program;    ///< replayed
  std::unique_ptr<Program> candidate;  ///< of one recording
  uint64_t modes = 0;                  ///< of the program or the candidate
  /// Of the arguments in the last recording; any where recordings have agreed for two that lie apart. Until
  /// then f may also have captured the tensor, or a part of it, and a replay for another one would be wrong.
  std::vector<ArgumentMemory> memory;
  int failures = 0, recordings = 0;
  int64_t replays = 0;
  bool checked = false;  ///< a replay of the program has given the bits of f
  std::string refused;   ///< for good

  bool matches(const detail::CompiledArguments& in) const {
    if (*types != *in.types || grad != grad_enabled() || inference != autograd_state().inference ||
        arguments.size() != in.tensors.size() || numbers.size() != in.numbers.size())
      return false;
    for (size_t i = 0; i < numbers.size(); ++i)
      if (!same_bits(numbers[i].d, in.numbers[i].d) || numbers[i].i != in.numbers[i].i ||
          numbers[i].integral != in.numbers[i].integral)
        return false;
    for (size_t i = 0; i < arguments.size(); ++i)
      if (!(arguments[i] == key_of(in.tensors, i))) return false;
    return true;
  }
  bool knows_memory(Arguments given) const {
    for (size_t i = 0; i < given.size(); ++i)
      if (!memory[i].admits(*given[i])) return false;
    return true;
  }
};

/// Keeps the captured storages of a program for its lifetime: other threads may drop them meanwhile.
struct Held {
  std::vector<Ref<Storage>> storages;
  bool current;  ///< there is a program, and it may run
  explicit Held(const Program* p) : current(p && p->hold(storages) && p->is_current()) {}
};

/// The reason for which no program may run on this thread, or for these arguments; null if there is none.
const char* obstacle(Arguments arguments) {
  const AutogradState& state = autograd_state();
  if (state.autocast != kFloat32 || detail::keeps_casts()) return "an Autocast is open outside of f";
  if (state.saved_hooks) return "SavedTensorHooks are open outside of f";
  if (state.anomaly) return "DetectAnomaly is open outside of f";
  if (draw_scope()) return "its random draws are noted or repeated (a checkpoint)";
  for (size_t i = 0; i < arguments.size(); ++i) {
    const Tensor& x = *arguments[i];
    if (!x.defined()) continue;
    if (!x.device().is_cpu()) return "an argument is not on the CPU";
    if (x.body().storage->lock()) return "an argument is a parameter marked concurrent";
    if (x.requires_grad() && state.grad_enabled && !x.is_leaf()) return "an argument has a history";
    for (size_t j = 0; j < i; ++j)
      if (arguments[j]->defined() && arguments[j]->body().storage != x.body().storage &&
          launch::share_memory(*arguments[j], x))
        return "two arguments share memory without sharing a storage";
  }
  return nullptr;
}

}  // namespace

void detail::note_mode_change() noexcept {
  refuse_trace("changes the train() flag of a module");
  modes().fetch_add(1, std::memory_order_relaxed);
}

struct detail::CompiledPrograms::Impl {
  CompileOptions options;
  trace::Turns turns;  // the call that has the turn uses `entries`
  std::vector<std::unique_ptr<Entry>> entries;
  mutable std::mutex said;  // of the rest
  std::string why = "it was not called yet";
  CompileStats counts;

  void note(std::string reason, int64_t CompileStats::*count, int64_t fused = 0) {
    const std::lock_guard lock(said);
    why = std::move(reason);
    ++(counts.*count);
    counts.fused += fused;
  }
  std::vector<Tensor> eager(std::string reason, const CompiledFunction& f) {
    note(std::move(reason), &CompileStats::eager);
    return f();
  }

  Entry* find(const CompiledArguments& in) {
    for (const auto& e : entries)
      if (e->matches(in)) return e.get();
    if (static_cast<int>(entries.size()) >= options.max_programs) return nullptr;
    entries.push_back(std::make_unique<Entry>());
    Entry& e = *entries.back();
    e.types = in.types;
    for (size_t i = 0; i < in.tensors.size(); ++i) e.arguments.push_back(key_of(in.tensors, i));
    e.numbers = in.numbers;
    e.grad = grad_enabled();
    e.inference = autograd_state().inference;
    e.memory.resize(in.tensors.size());
    return &e;
  }

  void fail(Entry& e, const std::string& reason) {
    e.program.reset();
    e.candidate.reset();
    if (++e.failures >= kMostFailures) e.refused = reason;
  }

  /// Compares a new recording with the one before. Returns the reason why there is no program yet.
  std::string accept(Entry& e, std::unique_ptr<Program> fresh, uint64_t now, const Recorder& recorder,
                     const std::vector<Tensor>& results, Arguments given) {
    if (e.modes != now) e.program.reset(), e.candidate.reset();
    e.modes = now;
    Program* const before = e.program ? e.program.get() : e.candidate.get();
    const std::vector<ArgumentMemory> earlier = std::exchange(e.memory, memory_of(given));
    if (!before) {
      e.candidate = std::move(fresh);
      return "the first of two recordings";
    }
    const Difference found = trace::compare(*before, *fresh);
    if (found.kind == Difference::Kind::kNumber) {
      fail(e, found.text);
      e.refused = found.text + "; pass it as an argument";
      return e.refused;
    }
    if (found.kind != Difference::Kind::kNone) {
      fail(e, found.text);
      e.candidate = std::move(fresh);
      return found.text;
    }
    if (!fresh->writes_outside()) {  // else the inputs have changed, and the first replay is checked
      const std::vector<Tensor> again = fresh->run(given, &recorder.keys());
      for (size_t i = 0; i < again.size(); ++i)
        if (!same_bits(again[i], results[i])) {
          e.refused = "a replay gives other values: f computes outside of the operations";
          fail(e, e.refused);
          return e.refused;
        }
    }
    for (size_t i = 0; i < given.size(); ++i)
      if (earlier[i].is_apart_from(e.memory[i])) e.memory[i] = ArgumentMemory();
    e.checked = !fresh->writes_outside();
    e.failures = 0;
    e.program = std::move(fresh);
    e.candidate.reset();
    return "the second of two recordings";
  }

  std::vector<Tensor> record(Entry& e, Arguments given, const CompiledFunction& f) {
    for (const Tensor* x : given)
      if (x->defined() && x->body().storage->has(Storage::kCaptured))
        for (const auto& other : entries) {
          const Held held(other->program.get());
          if (held.current && other->program->overlaps_captured({&x, 1}))
            return eager("an argument shares memory with a tensor that f captures", f);
        }
    if (++e.recordings > kMostRecordings) {
      e.refused = "it was recorded too often";
      return eager(e.refused, f);
    }
    const uint64_t now = modes().load(std::memory_order_relaxed);
    const Program* const before = e.program ? e.program.get() : e.candidate.get();
    Recorder recorder(given);
    if (before) recorder.expect(*before);
    std::vector<Tensor> results = recorder.record(f);
    std::unique_ptr<Program> fresh = recorder.finish(results);
    std::string reason;
    if (fresh) {
      reason = accept(e, std::move(fresh), now, recorder, results, given);
    } else {
      reason = "f " + recorder.reason();
      fail(e, reason);
    }
    note(std::move(reason), &CompileStats::recordings);
    return results;
  }

  /// Runs f, and a replay on copies of the tensors that both write. Returns the part in which their bits
  /// differ, "" if in none; `out` gets f's part. Returns nothing if other calls may have written meanwhile.
  /// The caller holds the captured storages.
  std::optional<std::string> check(Program& p, Arguments given, const CompiledFunction& f,
                                   std::vector<Tensor>& out) {
    Copies before;
    const uint64_t guests = turns.guests();
    const bool alone = [&] {
      const Exclusive now(turns);
      if (now) before = p.copies_of_written(given);
      return static_cast<bool>(now);
    }();
    Draws keys;
    {
      const DrawScope noted(keys, DrawScope::Mode::kNote);
      out = f();
    }
    const Exclusive now(turns);
    if (!alone || !now || guests != turns.guests()) return std::nullopt;
    if (!p.is_current()) return "a captured tensor, which f gives other memory or another history";
    if (keys.size() != p.draws.size()) return "the number of random draws";
    std::vector<Tensor> wanted = out, got;
    for (const Tensor& g : p.leaf_grads()) wanted.push_back(g);
    try {
      got = p.run(given, &keys, &before);
    } catch (const IndexError& error) {
      return str("an error, ", error.what());
    }
    if (wanted.size() != got.size()) return "the number of results";
    for (size_t i = 0; i < got.size(); ++i)
      if (!same_bits(got[i], wanted[i])) return i < out.size() ? str("result ", i) : "the grad() of a leaf";
    return before.match() ? "" : "a tensor that it writes to";
  }

  std::vector<Tensor> replay(Entry& e, Arguments given, const CompiledFunction& f) {
    Program& p = *e.program;
    try {
      p.check_steps();
    } catch (const ValueError&) {  // the optimizer's state was replaced
      e.program.reset();
      return record(e, given, f);
    }
    e.recordings = 0;
    const bool asked = options.check_every > 0 && ++e.replays % options.check_every == 0;
    std::vector<Tensor> out;
    if (asked || !e.checked) {
      const std::optional<std::string> part = check(p, given, f, out);
      if (!part) return note(kUnderWay, &CompileStats::eager), out;
      e.checked = true;
      if (!part->empty()) {
        e.refused = "a replay differs from f in " + *part +
                    ": f depends on more than its arguments and the values of captured tensors";
        e.program.reset();
        if (asked) throw ValueError("compile: " + e.refused);
        note(e.refused, &CompileStats::eager);
        return out;
      }
    } else if (p.writes_outside()) {
      const Exclusive now(turns);
      if (!now) return eager(kUnderWay, f);
      out = p.run(given);
    } else if (!p.draws.empty()) {
      out = p.run(given);
    } else {
      try {
        out = p.run(given);
      } catch (const IndexError&) {  // f names the operation
        return eager("a call of the replay has thrown", f);
      }
    }
    note("", &CompileStats::replays, p.fused_calls());
    return out;
  }

  /// A replay or a recording, or nothing with a reason if f has to run.
  std::optional<std::vector<Tensor>> run(const CompiledArguments& in, const CompiledFunction& f,
                                         std::string& why) {
    const Arguments given(in.tensors);
    Entry* const e = find(in);
    if (!e) why = str("it has ", options.max_programs, " other signatures already");
    else if (!e->refused.empty()) why = e->refused;
    if (!why.empty()) return std::nullopt;
    const Held held(e->program ? e->program.get() : e->candidate.get());  // there is one of them at most
    if (!held.current) e->program.reset(), e->candidate.reset();
    if (e->program && e->program->overlaps_captured(given))
      why = "an argument shares memory with a tensor that f captures";
    else if (e->program && !e->program->grads_are_empty())
      why = "a leaf has a grad() already, to which f would add";
    if (!why.empty()) return std::nullopt;
    const bool recorded = e->program && e->modes == modes().load(std::memory_order_relaxed);
    return recorded && e->knows_memory(given) && e->program->has_leaves(given) ? replay(*e, given, f)
                                                                               : record(*e, given, f);
  }
};

detail::CompiledPrograms::CompiledPrograms(CompileOptions options) : impl_(std::make_unique<Impl>()) {
  if (options.check_every < 0 || options.max_programs < 0)
    throw ValueError(str("compile: check_every is ", options.check_every, ", max_programs ",
                         options.max_programs, "; neither may be negative"));
  impl_->options = options;
}
detail::CompiledPrograms::~CompiledPrograms() = default;
detail::CompiledPrograms::CompiledPrograms(CompiledPrograms&&) noexcept = default;

std::vector<Tensor> detail::CompiledPrograms::call(const CompiledArguments& in, const CompiledFunction& f) {
  Impl& own = *impl_;
  struct Turn {
    trace::Turns& turns;
    bool taken;
    explicit Turn(trace::Turns& t) : turns(t), taken(t.enter()) {}
    ~Turn() { turns.leave(taken); }
    void yield() {
      if (std::exchange(taken, false)) turns.yield();
    }
  } turn(own.turns);
  if (tracer()) return turn.yield(), f();  // part of a recording
  std::string why;
  if (const char* const reason = obstacle(in.tensors)) why = reason;
  else if (!turn.taken) why = kUnderWay;
  else if (auto results = own.run(in, f, why)) return std::move(*results);
  turn.yield();
  return own.eager(std::move(why), f);
}

std::string detail::CompiledPrograms::reason() const {
  const std::lock_guard lock(impl_->said);
  return impl_->why;
}
CompileStats detail::CompiledPrograms::stats() const {
  const std::lock_guard lock(impl_->said);
  return impl_->counts;
}

}  // namespace weft
