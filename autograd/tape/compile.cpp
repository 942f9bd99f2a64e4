// compile(): the guards of a call, and the way from recordings to a program. A program replays once two
// recordings of its signature agree and a replay has given the bits of the second one. A guard looks at the
// arguments and at the state of the calling thread only; the program knows its captured tensors.
#include <weft/autograd/tape/compile.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <optional>

#include <weft/autograd/tape/grad_mode.h>
#include <weft/autograd/tape/inner/recorder.h>
#include <weft/tensor/inner/launch.h>

namespace weft {
namespace {

using trace::Difference;
using trace::Program;
using trace::Recorder;
using Arguments = std::span<const Tensor* const>;

/// Recordings of one signature that gave no program, and recordings without a replay between them. After so
/// many, its calls run f.
constexpr int kMostFailures = 4, kMostRecordings = 16;

std::atomic<uint64_t>& modes() {
  static std::atomic<uint64_t> changes{0};
  return changes;
}

/// An argument as a program depends on it.
struct ArgumentKey {
  bool defined = false, requires_grad = false, read_only = false;
  DType dtype = kFloat32;
  Shape sizes, strides;
  size_t same_as = 0;  ///< the first argument over the same storage
  int64_t apart = 0;   ///< bytes between the first elements of the two
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
  key.same_as = i;
  for (size_t j = 0; j < i; ++j)
    if (all[j]->defined() && all[j]->body().storage == b.storage) {
      key.same_as = j;
      key.apart = static_cast<const char*>(x.raw()) - static_cast<const char*>(all[j]->raw());
      break;
    }
  return key;
}

bool same_bits(double a, double b) { return std::memcmp(&a, &b, sizeof a) == 0; }
bool same_bits(const Tensor& a, const Tensor& b) {
  if (a.defined() != b.defined()) return false;
  if (!a.defined()) return true;
  if (a.dtype() != b.dtype() || !(a.sizes() == b.sizes()) || !(a.strides() == b.strides())) return false;
  const Tensor x = launch::contiguous(a), y = launch::contiguous(b);
  return x.numel() == 0 ||
         std::memcmp(x.raw(), y.raw(), static_cast<size_t>(x.numel() * size_of(x.dtype()))) == 0;
}

/// The bytes of storages, to be put back or compared.
class Bytes {
 public:
  void add(void* data, size_t bytes) {
    const auto* const first = static_cast<const std::byte*>(data);
    parts_.push_back({data, std::vector<std::byte>(first, first + bytes)});
  }
  void put_back() const {
    for (const Part& p : parts_) std::memcpy(p.at, p.bytes.data(), p.bytes.size());
  }
  bool still_there() const {
    return std::all_of(parts_.begin(), parts_.end(),
                       [](const Part& p) { return std::memcmp(p.at, p.bytes.data(), p.bytes.size()) == 0; });
  }

 private:
  struct Part {
    void* at;
    std::vector<std::byte> bytes;
  };
  std::vector<Part> parts_;
};

Bytes written_bytes(const Program& p, Arguments arguments) {
  Bytes out;
  for (size_t i = 0; i < arguments.size(); ++i)
    if (p.arguments[i].written) {
      const Storage& s = *arguments[i]->body().storage;
      out.add(s.data(), s.bytes());
    }
  for (const trace::Captured& c : p.captured)
    if (c.written) out.add(c.data, c.bytes);
  return out;
}

struct Entry {
  // the signature
  std::vector<ArgumentKey> arguments;
  std::vector<Scalar> numbers;
  bool grad = false, inference = false;

  std::unique_ptr<Program> program;    ///< replayed
  std::unique_ptr<Program> candidate;  ///< of one recording
  uint64_t modes = 0;                  ///< of the program or the candidate
  /// The storages of the arguments in the last recording, null where recordings have agreed for two different
  /// ones. Until then f may also have captured the tensor, and a replay for another one would be wrong.
  std::vector<const Storage*> storages;
  int failures = 0, recordings = 0;
  int64_t replays = 0;
  bool checked = false;  ///< a replay of the program has given the bits of f
  std::string refused;   ///< for good

  bool matches(const detail::CompiledArguments& in) const {
    if (grad != grad_enabled() || inference != autograd_state().inference ||
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
  bool knows_storages(Arguments given) const {
    for (size_t i = 0; i < given.size(); ++i)
      if (storages[i] && storages[i] != given[i]->body().storage.get()) return false;
    return true;
  }
};

/// The reason for which no program may run on this thread, or for these arguments; null if there is none.
const char* obstacle(Arguments arguments) {
  const AutogradState& state = autograd_state();
  if (state.autocast != kFloat32) return "an Autocast is open outside of f";
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

void detail::note_mode_change() noexcept { modes().fetch_add(1, std::memory_order_relaxed); }

struct detail::CompiledPrograms::Impl {
  CompileOptions options;
  std::atomic<bool> busy{false};  // a call uses `entries`; others do not wait
  std::vector<std::unique_ptr<Entry>> entries;
  mutable std::mutex said;  // of the rest
  std::string why = "it was not called yet";
  CompileStats counts;

  void note(std::string reason, int64_t CompileStats::*count) {
    const std::lock_guard lock(said);
    why = std::move(reason);
    ++(counts.*count);
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
    for (size_t i = 0; i < in.tensors.size(); ++i) e.arguments.push_back(key_of(in.tensors, i));
    e.numbers = in.numbers;
    e.grad = grad_enabled();
    e.inference = autograd_state().inference;
    e.storages.resize(in.tensors.size());
    return &e;
  }

  void fail(Entry& e, const std::string& reason) {
    e.program.reset();
    e.candidate.reset();
    if (++e.failures >= kMostFailures) e.refused = reason;
  }

  /// Compares a new recording with the one before. Returns the reason why there is no program yet.
  std::string accept(Entry& e, std::unique_ptr<Program> fresh, const Recorder& recorder,
                     const std::vector<Tensor>& results, Arguments given) {
    const uint64_t now = modes().load(std::memory_order_relaxed);
    if (e.modes != now) e.program.reset(), e.candidate.reset();
    e.modes = now;
    Program* const before = e.program ? e.program.get() : e.candidate.get();
    const std::vector<const Storage*> earlier = e.storages;
    for (size_t i = 0; i < given.size(); ++i)
      e.storages[i] = given[i]->defined() ? given[i]->body().storage.get() : nullptr;
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
      if (earlier[i] != e.storages[i]) e.storages[i] = nullptr;
    e.checked = !fresh->writes_outside();
    e.failures = 0;
    e.program = std::move(fresh);
    e.candidate.reset();
    return "the second of two recordings";
  }

  std::vector<Tensor> record(Entry& e, Arguments given, const CompiledFunction& f) {
    for (const Tensor* x : given)
      if (x->defined() && x->body().storage->has(Storage::kCaptured))
        for (const auto& other : entries)
          if (other->program && other->program->is_current() && other->program->overlaps_captured({&x, 1}))
            return eager("an argument shares memory with a tensor that f captures", f);
    if (++e.recordings > kMostRecordings) {
      e.refused = "it was recorded too often";
      return eager(e.refused, f);
    }
    Recorder recorder(given);
    std::vector<Tensor> results = recorder.record(f);
    std::unique_ptr<Program> fresh = recorder.finish(results);
    std::string reason;
    if (fresh) {
      reason = accept(e, std::move(fresh), recorder, results, given);
    } else {
      reason = "f " + recorder.reason();
      fail(e, reason);
    }
    note(std::move(reason), &CompileStats::recordings);
    return results;
  }

  /// Runs f and a replay from the same values. Returns the part in which their bits differ, "" if in none;
  /// `out` is that of f, and so is all that f writes.
  std::string check(Program& p, Arguments given, const CompiledFunction& f, std::vector<Tensor>& out) {
    const Bytes before = written_bytes(p, given);
    Draws keys;
    {
      const DrawScope noted(keys, DrawScope::Mode::kNote);
      out = f();
    }
    if (keys.size() != p.draws.size()) return "the number of random draws";
    std::vector<Tensor> wanted = out;
    for (const Tensor& g : p.leaf_grads()) wanted.push_back(g);
    const Bytes after = written_bytes(p, given);
    before.put_back();
    const std::vector<Tensor> got = p.run(given, &keys);
    const bool same_writes = after.still_there();
    after.put_back();
    if (wanted.size() != got.size()) return "the number of results";
    for (size_t i = 0; i < got.size(); ++i)
      if (!same_bits(got[i], wanted[i])) return i < out.size() ? str("result ", i) : "the grad() of a leaf";
    return same_writes ? "" : "a tensor that it writes to";
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
      const std::string part = check(p, given, f, out);
      e.checked = true;
      if (!part.empty()) {
        e.refused = "a replay differs from f in " + part +
                    ": f depends on more than its arguments and the values of captured tensors";
        e.program.reset();
        if (asked) throw ValueError("compile: " + e.refused);
        note(e.refused, &CompileStats::eager);
        return out;
      }
    } else if (p.writes_outside() || !p.draws.empty()) {
      out = p.run(given);
    } else {
      try {
        out = p.run(given);
      } catch (const IndexError&) {  // f names the operation
        return eager("a call of the replay has thrown", f);
      }
    }
    note("", &CompileStats::replays);
    return out;
  }

  /// The program's replay, or a recording; null with a reason if f has to run.
  Entry* choose(const CompiledArguments& in, std::string& why) {
    Entry* const e = find(in);
    if (!e) why = str("it has ", options.max_programs, " other signatures already");
    else if (!e->refused.empty()) why = e->refused;
    else if (e->program && e->program->is_current() && e->program->overlaps_captured(in.tensors))
      why = "an argument shares memory with a tensor that f captures";
    else if (e->program && !e->program->grads_are_empty())
      why = "a leaf has a grad() already, to which f would add";
    return why.empty() ? e : nullptr;
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
  if (tracer()) return f();  // part of a recording
  Impl& own = *impl_;
  const Arguments given(in.tensors);
  if (const char* const why = obstacle(given)) return own.eager(why, f);
  if (own.busy.exchange(true, std::memory_order_acquire)) return own.eager("another call is under way", f);
  struct Done {
    std::atomic<bool>& busy;
    ~Done() { busy.store(false, std::memory_order_release); }
  };
  std::string why;
  {
    const Done done{own.busy};
    if (Entry* const e = own.choose(in, why)) {
      if (e->program && !e->program->is_current()) e->program.reset();
      if (e->candidate && !e->candidate->is_current()) e->candidate.reset();
      const bool recorded = e->program && e->modes == modes().load(std::memory_order_relaxed);
      return recorded && e->knows_storages(given) ? own.replay(*e, given, f) : own.record(*e, given, f);
    }
  }
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
