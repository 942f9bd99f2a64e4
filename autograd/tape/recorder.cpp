// The recording of a run: where the memory of each view comes from, and the reasons for which a run cannot be
// replayed. A reason is found at once or at the end. A block that outlives the run was kept by f. A block
// that is read before a call has written it was written by the host.
#include <weft/autograd/tape/inner/recorder.h>

#include <algorithm>
#include <utility>

#include <weft/autograd/tape/inner/packed_rows.h>
#include <weft/autograd/tape/inner/slot.h>
#include <weft/kernels/inner/replaced_backend.h>
#include <weft/tensor/inner/launch.h>

namespace weft::trace {
namespace {

struct Reach {
  uintptr_t begin, end;
};

/// The bytes from the first to the last element; v has elements.
Reach reach_of(const View& v) {
  int64_t first = 0, last = 0;
  for (int d = 0; d < v.ndim(); ++d) (v.strides[d] < 0 ? first : last) += (v.sizes[d] - 1) * v.strides[d];
  const auto at = reinterpret_cast<uintptr_t>(v.data);
  const auto size = static_cast<int64_t>(size_of(v.dtype));
  return {at + static_cast<uintptr_t>(first * size), at + static_cast<uintptr_t>((last + 1) * size)};
}

uintptr_t address(const void* p) { return reinterpret_cast<uintptr_t>(p); }

/// The entry of a map by address whose range holds the reach, or null.
template <class Map, class End> auto holder(Map& map, const Reach& r, End&& end) {
  auto at = map.upper_bound(r.begin);
  if (at == map.begin()) return map.end();
  --at;
  return r.end <= end(at) ? at : map.end();
}

}  // namespace

Recorder::Recorder(std::span<const Tensor* const> arguments)
    : real_(kernels::cpu_backend()), arguments_(arguments), program_(std::make_unique<Program>()) {
  program_->arguments.resize(arguments.size());
  for (const Tensor* x : arguments_) {
    const bool there = x->defined();
    const bool any = there && x->numel() != 0;
    const Reach r = any ? reach_of(x->view_of()) : Reach{0, 0};
    const void* const first = any ? x->address() : nullptr;
    program_->arguments[ranges_.size()].first = first;
    ranges_.push_back({r.begin, r.end, address(first)});
    versions_.push_back(there ? x->version() : 0);
    require_grad_.push_back(there && x->requires_grad());
  }
}

Recorder::~Recorder() = default;

std::vector<Tensor> Recorder::record(const std::function<std::vector<Tensor>()>& f) {
  struct Replaced {
    explicit Replaced(Backend* by) { kernels::replaced_cpu_backend = by; }
    ~Replaced() { kernels::replaced_cpu_backend = nullptr; }
  };
  struct Open {
    explicit Open(bool& flag) : flag(flag) { flag = true; }
    ~Open() { flag = false; }
    bool& flag;
  };
  const DrawScope draws(keys_, DrawScope::Mode::kNote, &sources_);
  const Open open(open_);
  const detail::TracerScope scope(*this);
  const Replaced replaced(this);
  return f();
}

// ---- memory

void Recorder::expect(const Program& earlier) {
  for (const Captured& c : earlier.captured) expected_.emplace(c.storage, c.storage->version());
}

void Recorder::made(const Storage& s, void* data) {
  if (!s.device().is_cpu()) return refuse("makes a tensor that is not on the CPU");
  s.mark(Storage::kMadeInTrace);
  const uintptr_t begin = address(data), end = begin + std::max<size_t>(s.bytes(), 1);
  // blocks that were destroyed, on another thread perhaps, and whose memory is used again
  auto at = blocks_.lower_bound(begin);
  if (at != blocks_.begin() && std::prev(at)->second.end > begin) --at;
  while (at != blocks_.end() && at->first < end) at = blocks_.erase(at);
  blocks_.emplace(begin, Live{end, &s, -1, s.bytes(), {}, false});
}

bool Recorder::owns(const Storage& s, const void* data) const {
  const auto found = blocks_.find(address(data));
  return found != blocks_.end() && found->second.storage == &s;
}

void Recorder::dropped(const Storage& s, const void* data) noexcept {
  if (owns(s, data)) blocks_.erase(address(data));
}

void Recorder::used(const Storage& s, void* data) {
  if (!open_ || owns(s, data)) return;
  if (!s.device().is_cpu()) return refuse("uses a tensor that is not on the CPU");
  if (s.lock()) return refuse("uses a parameter marked concurrent");
  if (outside_.contains(address(data))) return;
  const auto expected = expected_.find(&s);
  const uint32_t version = expected == expected_.end() ? s.version() : expected->second;
  outside_.emplace(address(data),
                   Outside{Ref<Storage>::share(const_cast<Storage*>(&s)), data, s.bytes(), version, -1});
}

void Recorder::filled(const Tensor& y) {
  if (y.numel() == 0) return;
  const auto found = blocks_.find(address(y.address()));
  if (found == blocks_.end()) return refuse("writes to memory of no tensor");
  const auto* const first = static_cast<const std::byte*>(y.address());
  found->second.constant.assign(first, first + found->second.bytes);
  found->second.filled = true;
}

bool Recorder::is_fixed(const void* data) const {
  const auto found =
      holder(blocks_, {address(data), address(data) + 1}, [](auto at) { return at->second.end; });
  if (found == blocks_.end()) return false;
  const Live& block = found->second;
  return block.index < 0 ? block.filled : program_->blocks[static_cast<size_t>(block.index)].fixed;
}

void Recorder::refuse(const char* why) noexcept {
  if (open_ && reason_.empty()) reason_ = why;
}

uint32_t Recorder::index_of(Live& block) {
  if (block.index < 0) {
    block.index = static_cast<int64_t>(program_->blocks.size());
    Block made;
    made.bytes = block.bytes;
    made.constant = block.constant;
    made.first = made.last = program_->calls.size();
    program_->blocks.push_back(std::move(made));
  }
  return static_cast<uint32_t>(block.index);
}

Place Recorder::place_of(const View& v) {
  using Kind = Place::Kind;
  if (!v.defined()) return {};
  if (v.numel() == 0) return {Kind::kEmpty, 0, 0};
  const Reach r = reach_of(v);
  const auto from = [&](uintptr_t begin) { return static_cast<int64_t>(address(v.data) - begin); };
  const auto block = holder(blocks_, r, [](auto at) { return at->second.end; });
  if (block != blocks_.end()) return {Kind::kBlock, index_of(block->second), from(block->first)};
  for (size_t i = 0; i < ranges_.size(); ++i)
    if (ranges_[i].begin <= r.begin && r.end <= ranges_[i].end)
      return {Kind::kArgument, static_cast<uint32_t>(i), from(ranges_[i].first)};
  for (const Tensor* x : arguments_) {
    if (!x->defined()) continue;
    const uintptr_t begin = address(x->body().storage->data());
    if (begin <= r.begin && r.end <= begin + x->body().storage->bytes()) {
      refuse("reaches memory beside the elements of an argument");
      return {};
    }
  }
  const auto outside = holder(outside_, r, [](auto at) { return at->first + at->second.bytes; });
  if (outside == outside_.end()) {
    refuse("uses memory that no tensor of the run holds");
    return {};
  }
  Outside& found = outside->second;
  if (found.index < 0) {
    found.index = static_cast<int64_t>(program_->captured.size());
    program_->captured.push_back({found.kept.get(), found.data, found.bytes, false, 0, nullptr});
  }
  return {Kind::kCaptured, static_cast<uint32_t>(found.index), from(outside->first)};
}

void Recorder::note_use(const Place& place, char role, bool fills) {
  const bool reads = role != 'w', writes = role != 'r';
  switch (place.kind) {
    case Place::Kind::kAbsent:
    case Place::Kind::kEmpty: return;
    case Place::Kind::kBlock: {
      Block& b = program_->blocks[place.index];
      if (reads && !b.written && b.constant.empty()) refuse("reads memory that no operation has written");
      b.written = b.written || writes;
      b.fixed = b.fixed && (!writes || fills);
      b.last = program_->calls.size();
      return;
    }
    case Place::Kind::kArgument: {
      ArgumentUse& use = program_->arguments[place.index];
      use.written = use.written || writes;
      return;
    }
    case Place::Kind::kCaptured: {
      Captured& use = program_->captured[place.index];
      use.written = use.written || writes;
      return;
    }
  }
}

// ---- calls

void Recorder::note(std::unique_ptr<Call> call, std::string_view roles) {
  if (!reason_.empty()) return;
  size_t next = 0;
  const bool fills = call->op == "fill";
  call->each_view([&](View& v) {
    const Place place = place_of(v);
    note_use(place, roles[std::min(next++, roles.size() - 1)], fills);
    call->places.push_back(place);
  });
  if (const PhiloxKey* const key = call->key()) {
    for (size_t i = keys_.size(); i-- > 0 && call->draw < 0;)
      if (keys_[i].seed == key->seed && keys_[i].offset == key->offset) call->draw = static_cast<int>(i);
    if (call->draw < 0) refuse("draws random numbers that no generator gave in this run");
  }
  program_->calls.push_back(std::move(call));
}

// ---- gradients of leaves

Recorder::Leaf* Recorder::noted(const TensorBody& leaf) {
  const auto found =
      std::find_if(leaves_.begin(), leaves_.end(), [&](const Leaf& l) { return &l.kept.body() == &leaf; });
  return found == leaves_.end() ? nullptr : &*found;
}

void Recorder::grad_read(const Tensor& x) {
  const Storage& s = *x.body().storage;
  if (!owns(s, s.data()) && !noted(x.body())) refuse("reads a grad() that it has not made");
}

void Recorder::grad_cleared(const Tensor& leaf) {
  const Storage& s = *leaf.body().storage;
  if (owns(s, s.data()) || noted(leaf.body())) return;
  if (!detail::slot_of(leaf)->owns_accumulator)
    return refuse("clears the grad() of a tensor that is no leaf");
  leaves_.push_back({leaf, false, program_->calls.size()});
}

void Recorder::grad_added(TensorBody& leaf, bool has_grad) {
  if (owns(*leaf.storage, leaf.storage->data()) || noted(leaf)) return;
  if (has_grad) return refuse("adds to a grad() that is there already (f may call zero_grad() first)");
  if (!leaf.try_retain()) return refuse("makes a gradient of a leaf that is gone");
  leaves_.push_back({Tensor(Ref<TensorBody>::adopt(&leaf)), true});
}

void Recorder::stepping(std::vector<size_t> functor_bytes, StepReplay replay) {
  stepping_ = Stepping{std::move(functor_bytes), std::move(replay)};
}

/// Subtracts the writes that the optimizer counts for a step, also in a replay, from the program's writes.
void Recorder::count_steps(const Call& step) {
  for (size_t i = 0; i < step.places.size(); i += StepCall::kViews) {
    const Place& param = step.places[i];
    if (param.kind == Place::Kind::kArgument) --program_->arguments[param.index].bumps;
    if (param.kind == Place::Kind::kCaptured) --program_->captured[param.index].bumps;
  }
}

void Recorder::find_leaf_grads(std::vector<Tensor>& grads) {
  for (Leaf& leaf : leaves_) {
    Slot& slot = *detail::slot_of(leaf.kept);
    if (!slot.owns_accumulator) return refuse("changes whether a tensor requires grad");
    if (slot.edge.node->extras.load(std::memory_order_acquire))
      return refuse("makes a gradient of a leaf that has hooks");
    LeafGrad made{slot.edge.node, leaf.starts_empty, leaf.cleared, -1, {}};
    for (size_t i = 0; i < arguments_.size(); ++i)
      if (arguments_[i]->is_same(leaf.kept)) made.argument = static_cast<int64_t>(i);
    {
      const std::lock_guard lock(slot.grad_mutex());
      grads.push_back(slot.grad);
    }
    const Tensor& g = grads.back();
    if (g.defined()) {
      if (detail::is_row_wise(g)) return refuse("makes a row-wise gradient");
      if (!find_result(g, made.grad)) return;
      if (made.grad.place.kind == Place::Kind::kArgument)
        return refuse("makes a grad() that shares memory with an argument");
    }
    program_->leaves.push_back(std::move(made));
    if (leaf.kept.ref()->use_count() == 1) return refuse("makes a gradient of a leaf that is gone");
  }
}

// ---- the end

bool Recorder::find_result(const Tensor& y, Result& to) {
  to.sizes = y.sizes();
  to.strides = y.strides();
  to.dtype = y.dtype();
  for (size_t i = 0; i < arguments_.size(); ++i)
    if (y.is_same(*arguments_[i])) {
      to.itself = true;
      to.place = {Place::Kind::kArgument, static_cast<uint32_t>(i), 0};
      return true;
    }
  if (y.requires_grad()) return refuse("gives a result that requires grad"), false;
  if (!y.device().is_cpu()) return refuse("gives a result that is not on the CPU"), false;
  if (y.numel() == 0) return to.place = {Place::Kind::kEmpty, 0, 0}, true;
  to.place = place_of(y.view_of());
  if (to.place.kind == Place::Kind::kArgument && arguments_[to.place.index]->requires_grad())
    return refuse("gives a view of an argument that requires grad"), false;
  if (to.place.kind == Place::Kind::kCaptured)
    return refuse("gives a tensor that shares memory with a captured one"), false;
  if (to.place.kind != Place::Kind::kBlock) return reason_.empty();
  Block& b = program_->blocks[to.place.index];
  if (!b.written && b.constant.empty()) return refuse("gives memory that no operation has written"), false;
  b.result = true;
  return true;
}

void Recorder::find_results(const std::vector<Tensor>& results) {
  for (size_t i = 0; i < results.size(); ++i) {
    Result to;
    const Tensor& y = results[i];
    if (y.defined() && reason_.empty()) {
      for (size_t j = 0; j < i && to.same_as < 0; ++j)
        if (y.is_same(results[j])) to.same_as = static_cast<int64_t>(j);
      if (to.same_as < 0) find_result(y, to);
    }
    program_->results.push_back(to);
  }
}

/// Which results are views of each other, or of an argument.
void Recorder::find_bases(const std::vector<Tensor>& results) {
  std::vector<std::pair<Tensor, std::vector<size_t>>> hidden;  // each with its views
  for (size_t i = 0; i < results.size(); ++i) {
    Result& r = program_->results[i];
    if (!results[i].defined() || r.itself || r.same_as >= 0 || !results[i].body().follows_base) continue;
    if (r.place.kind == Place::Kind::kArgument) r.base = Result::Base::kArgument;
    if (r.place.kind != Place::Kind::kBlock) continue;
    const Tensor& base = detail::slot_of(results[i])->base;
    const auto is_base = [&](const Tensor& y) { return y.is_same(base); };
    const auto shown = std::find_if(results.begin(), results.end(), is_base);
    if (shown != results.end()) {
      r.base = Result::Base::kResult;
      r.base_index = static_cast<uint32_t>(shown - results.begin());
      continue;
    }
    auto known = std::find_if(hidden.begin(), hidden.end(), [&](const auto& h) { return is_base(h.first); });
    if (known == hidden.end()) known = hidden.insert(known, {base, {}});
    known->second.push_back(i);
  }
  for (const auto& [base, views] : hidden) {
    if (views.size() < 2) continue;  // nothing else will see a write
    Result to;
    if (!find_result(base, to)) return;
    for (const size_t i : views) {
      program_->results[i].base = Result::Base::kHidden;
      program_->results[i].base_index = static_cast<uint32_t>(program_->hidden.size());
    }
    program_->hidden.push_back(to);
  }
}

/// The versions that a run adds, and the captured tensors that it may not use.
void Recorder::find_writes() {
  for (size_t i = 0; i < arguments_.size(); ++i) {
    const Tensor& x = *arguments_[i];
    if (!x.defined()) continue;
    ArgumentUse& use = program_->arguments[i];
    if (x.requires_grad() != require_grad_[i]) refuse("changes whether an argument requires grad");
    bool first = true, written = false;
    uint32_t bumps = x.version() - versions_[i];
    for (size_t j = 0; j < arguments_.size(); ++j) {
      if (!arguments_[j]->defined() || arguments_[j]->body().storage != x.body().storage) continue;
      if (j < i) first = false;
      written = written || program_->arguments[j].written;
      bumps += program_->arguments[j].bumps;
    }
    use.bumps = first ? bumps : 0;  // one count per storage
    if (use.bumps != 0 && !written && x.numel() != 0)
      refuse("gets an argument that something else writes to");
  }
  for (const auto& [begin, out] : outside_) {
    if (out.index < 0) continue;
    Captured& c = program_->captured[static_cast<size_t>(out.index)];
    c.bumps += out.kept->version() - out.version;
    c.history = out.kept->history();
    if (c.bumps != 0 && !c.written) refuse("reads a tensor from outside that something else writes to");
    if (out.kept->use_count() == 1) refuse("reads a tensor from outside that is gone after the call");
  }
}

std::unique_ptr<Program> Recorder::finish(const std::vector<Tensor>& results) {
  open_ = true;  // for reasons
  struct Close {
    bool& flag;
    ~Close() { flag = false; }
  } const close{open_};
  find_results(results);
  if (reason_.empty()) find_bases(results);
  std::vector<Tensor> grads;
  if (reason_.empty()) find_leaf_grads(grads);
  for (auto& [begin, live] : blocks_) {
    const Storage* const s = live.storage;
    const auto holds = [s](const Tensor& y) { return y.defined() && y.body().storage.get() == s; };
    if (std::none_of(results.begin(), results.end(), holds) &&
        std::none_of(grads.begin(), grads.end(), holds))
      refuse("makes a tensor that outlives the call and is no result");
  }
  for (size_t i = 0; i < sources_.size(); ++i) {
    if (sources_[i].life.expired()) refuse("draws from a generator that is gone after the call");
    for (size_t j = 0; j < i; ++j)
      if (sources_[i].from != sources_[j].from && keys_[i].seed == keys_[j].seed &&
          keys_[i].offset == keys_[j].offset)
        refuse("draws from two generators of one state");  // a call is identified by its key
  }
  program_->draws = std::move(sources_);
  find_writes();
  if (!reason_.empty()) return nullptr;
  program_->watch();
  program_->lay_out();
  return std::move(program_);
}

}  // namespace weft::trace
