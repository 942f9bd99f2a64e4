// Laying out, comparing and running recorded programs. A temporary lives from its first call to its last. The
// arena places it at the lowest address that no other temporary has at that time. All calls of a chain count
// as one call. Temporaries used only inside a chain get no place. Constants that the host wrote also lie in
// the arena, for the whole run.
#include <weft/autograd/tape/inner/program.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include <weft/autograd/tape/inner/pointwise_chain.h>
#include <weft/autograd/tape/inner/slot.h>
#include <weft/autograd/tape/record.h>
#include <weft/kernels/cpu/cpu_backend.h>
#include <weft/tensor/inner/launch.h>
#include <weft/tensor/inner/tracer.h>

namespace weft::trace {
namespace {

constexpr size_t kAlign = 64;
size_t aligned(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

/// Replaces the grad() of a leaf that is still there.
void set_grad(const LeafGrad& leaf, Tensor g) {
  const Tensor x = static_cast<AccumulateGrad&>(*leaf.node).leaf();
  if (!x.defined()) return;
  Slot& slot = *detail::slot_of(x);
  const std::lock_guard lock(slot.grad_mutex());
  std::swap(slot.grad, g);  // the old one goes after the lock
}

/// Keeps packs away from storages that a run writes to: their versions count the writes when it is over.
class PausedPacks {
 public:
  ~PausedPacks() {
    for (const Storage* s : paused_) s->resume_packs();
  }
  void add(const Storage& s) {
    if (!s.has(Storage::kWatched)) return;
    paused_.reserve(paused_.size() + 1);
    s.pause_packs();
    paused_.push_back(&s);
  }

 private:
  std::vector<const Storage*> paused_;
};

/// The address of views without elements, which is never read.
void* nowhere() {
  alignas(kAlign) static std::byte block[kAlign];
  return block;
}

}  // namespace

void Copies::add(void* data, size_t bytes) {
  Ref<Storage> copy = Storage::allocate(kCpu, bytes);
  std::memcpy(copy->data(), data, bytes);
  parts_.push_back({static_cast<std::byte*>(data), bytes, std::move(copy)});
}

std::byte* Copies::at(void* p) const {
  auto* const byte = static_cast<std::byte*>(p);
  for (const Part& part : parts_)
    if (part.data <= byte && byte < part.data + part.bytes)
      return static_cast<std::byte*>(part.copy->data()) + (byte - part.data);
  return byte;
}

bool Copies::match() const {
  return std::all_of(parts_.begin(), parts_.end(), [](const Part& part) {
    return std::memcmp(part.data, part.copy->data(), part.bytes) == 0;
  });
}

Program::Program() : backend_(&kernels::cpu_backend()) {}
Program::~Program() {
  detail::forget_storages(watch_);
  if (arena_) backend_->deallocate(arena_, arena_bytes_);
}

void Program::watch() {
  for (const Captured& c : captured) detail::watch_storage(*c.storage, watch_);
}

bool Program::hold(std::vector<Ref<Storage>>& held) const {
  held.reserve(held.size() + captured.size());
  const std::lock_guard lock(watch_->mutex);
  if (watch_->gone) return false;
  for (const Captured& c : captured) {
    if (!c.storage->try_retain()) return false;  // its end is under way
    held.push_back(Ref<Storage>::adopt(const_cast<Storage*>(c.storage)));
  }
  return true;
}

int64_t Program::fused_calls() const {
  size_t count = 0;
  for (const PointwiseChain& chain : chains_) count += chain.end() - chain.begin();
  return static_cast<int64_t>(count);
}

void Program::lay_out() {
  chains_ = PointwiseChain::find(*this);
  std::vector<bool> left_out(blocks.size());
  std::vector<std::pair<size_t, size_t>> lives;
  for (const Block& b : blocks) lives.emplace_back(b.first, b.last);
  for (const PointwiseChain& chain : chains_) {
    for (const uint32_t i : chain.temporaries()) left_out[i] = true;
    const auto has = [&](size_t call) { return chain.begin() <= call && call < chain.end(); };
    for (auto& [first, last] : lives) {
      if (has(first)) first = chain.begin();
      if (has(last)) last = chain.end() - 1;
    }
  }
  struct Piece {
    size_t block, begin, end, first, last;
  };
  std::vector<Piece> placed;
  std::vector<size_t> order(blocks.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return blocks[a].bytes > blocks[b].bytes; });
  for (const size_t i : order) {
    Block& b = blocks[i];
    if (b.result) {
      made_.push_back(i);
      continue;
    }
    if (left_out[i]) continue;
    Piece piece{i, 0, aligned(b.bytes), lives[i].first, lives[i].second};
    if (!b.constant.empty()) piece.first = 0, piece.last = calls.size();
    // `placed` is sorted by address; the first gap among those of its time takes it
    for (const Piece& other : placed)
      if (other.first <= piece.last && piece.first <= other.last && other.begin < piece.end &&
          piece.begin < other.end)
        piece = {i, other.end, other.end + aligned(b.bytes), piece.first, piece.last};
    placed.insert(std::upper_bound(placed.begin(), placed.end(), piece,
                                   [](const Piece& a, const Piece& c) { return a.begin < c.begin; }),
                  piece);
    arena_bytes_ = std::max(arena_bytes_, piece.end);
  }
  if (arena_bytes_ > 0) arena_ = static_cast<std::byte*>(backend_->allocate(arena_bytes_));
  for (const Piece& piece : placed) {
    Block& b = blocks[piece.block];
    b.at = arena_ + piece.begin;
    if (b.constant.empty()) continue;
    std::memcpy(b.at, b.constant.data(), b.constant.size());
    if (b.written) restored_.push_back(piece.block);
  }
  for (const auto& call : calls) {
    size_t next = 0;
    call->each_view([&](View& v) {
      const Place& place = call->places[next++];
      switch (place.kind) {
        case Place::Kind::kAbsent: break;
        case Place::Kind::kEmpty: v.data = nowhere(); break;
        case Place::Kind::kCaptured:
          v.data = static_cast<std::byte*>(captured[place.index].data) + place.offset;
          break;
        case Place::Kind::kArgument: patches_.push_back({&v, place}); break;
        case Place::Kind::kBlock:
          if (left_out[place.index]) v.data = nowhere();
          else if (blocks[place.index].result) patches_.push_back({&v, place});
          else v.data = blocks[place.index].at + place.offset;
          break;
      }
    });
  }
}

bool Program::is_current() const {
  if (backend_ != &kernels::cpu_backend()) return false;
  for (const Captured& c : captured)
    if (c.storage->data() != c.data || c.storage->lock() || c.storage->history() != c.history ||
        (c.written && c.storage->is_read_only()))
      return false;
  for (const LeafGrad& leaf : leaves)
    if (!static_cast<AccumulateGrad&>(*leaf.node).leaf().defined() ||
        leaf.node->extras.load(std::memory_order_acquire))  // hooks
      return false;
  return std::none_of(draws.begin(), draws.end(), [](const DrawSource& d) { return d.life.expired(); });
}

bool Program::has_leaves(std::span<const Tensor* const> given) const {
  return std::all_of(leaves.begin(), leaves.end(), [&](const LeafGrad& leaf) {
    return leaf.argument < 0 ||
           detail::slot_of(*given[static_cast<size_t>(leaf.argument)])->edge.node == leaf.node;
  });
}

bool Program::grads_are_empty() const {
  const std::vector<Tensor> grads = leaf_grads();
  for (size_t i = 0; i < leaves.size(); ++i)
    if (leaves[i].starts_empty && grads[i].defined()) return false;
  return true;
}

std::vector<Tensor> Program::leaf_grads() const {
  std::vector<Tensor> out;
  for (const LeafGrad& leaf : leaves) {
    const Tensor x = static_cast<AccumulateGrad&>(*leaf.node).leaf();
    out.push_back(x.defined() ? x.grad() : Tensor());
  }
  return out;
}

void Program::check_steps() const {
  if (steps)
    for (const auto& call : calls) call->check_step();
}

bool Program::writes_outside() const {
  if (steps || !leaves.empty()) return true;
  const auto written = [](const auto& use) { return use.written || use.bumps != 0; };
  return std::any_of(captured.begin(), captured.end(), written) ||
         std::any_of(arguments.begin(), arguments.end(), written);
}

bool Program::overlaps_captured(std::span<const Tensor* const> given) const {
  for (const Tensor* x : given) {
    if (!x->defined()) continue;
    const Storage& s = *x->body().storage;
    const auto* const begin = static_cast<const std::byte*>(s.data());
    for (const Captured& c : captured) {
      const auto* const other = static_cast<const std::byte*>(c.data);
      if (begin < other + c.bytes && other < begin + s.bytes()) return true;
    }
  }
  return false;
}

Copies Program::copies_of_written(std::span<const Tensor* const> given) const {
  Copies out;
  for (size_t i = 0; i < given.size(); ++i)
    if (arguments[i].written) {
      const Storage& s = *given[i]->body().storage;
      out.add(s.data(), s.bytes());
    }
  for (const Captured& c : captured)
    if (c.written) out.add(c.data, c.bytes);
  return out;
}

void Program::point_at_captured(const Copies* copies) {
  for (const auto& call : calls) {
    size_t next = 0;
    call->each_view([&](View& v) {
      const Place& place = call->places[next++];
      if (place.kind != Place::Kind::kCaptured) return;
      auto* const at = static_cast<std::byte*>(captured[place.index].data) + place.offset;
      v.data = copies ? copies->at(at) : at;
    });
  }
}

std::vector<Tensor> Program::run(std::span<const Tensor* const> given, const Draws* keys,
                                 const Copies* copies) {
  static std::atomic<uint64_t> replays{uint64_t{1} << 62};  // apart from those of a cuda::Graph
  const uint64_t replay = keys ? 0 : ++replays;
  if (steps)  // check_steps() has ensured that they can be taken
    for (const auto& call : calls) call->begin(replay);
  std::vector<Ref<Storage>> fresh;
  fresh.reserve(made_.size());
  for (const size_t i : made_) {
    Block& b = blocks[i];
    fresh.push_back(Storage::allocate(kCpu, b.bytes));
    b.at = static_cast<std::byte*>(fresh.back()->data());
    if (!b.constant.empty()) std::memcpy(b.at, b.constant.data(), b.constant.size());
  }
  for (const size_t i : restored_)
    std::memcpy(blocks[i].at, blocks[i].constant.data(), blocks[i].constant.size());
  for (const Patch& p : patches_) {
    std::byte* const base = p.place.kind == Place::Kind::kBlock
                                ? blocks[p.place.index].at
                                : static_cast<std::byte*>(given[p.place.index]->address());
    std::byte* const at = base + p.place.offset;
    p.view->data = copies && p.place.kind == Place::Kind::kArgument ? copies->at(at) : at;
  }
  struct Pointed {
    Program* program;
    ~Pointed() {
      if (program) program->point_at_captured(nullptr);
    }
  } const pointed{copies ? this : nullptr};
  if (copies) point_at_captured(copies);
  PausedPacks paused;
  for (size_t i = 0; i < arguments.size(); ++i)
    if (arguments[i].written) paused.add(*given[i]->body().storage);
  for (const Captured& c : captured)
    if (c.written) paused.add(*c.storage);
  Draws taken;
  taken.reserve(draws.size());
  const auto take = [&](size_t count) {
    while (taken.size() < count)
      taken.push_back(keys ? (*keys)[taken.size()]
                           : draws[taken.size()].from->take(draws[taken.size()].count));
  };
  const auto count_writes = [&] {
    if (keys) return;
    for (size_t i = 0; i < arguments.size(); ++i)
      for (uint32_t n = 0; n < arguments[i].bumps; ++n) given[i]->body().storage->bump_version();
    for (const Captured& c : captured)
      for (uint32_t n = 0; n < c.bumps; ++n) const_cast<Storage*>(c.storage)->bump_version();
  };
  Backend& backend = kernels::cpu_backend();
  Context context;
  size_t at = 0;
  auto chain = chains_.begin();
  try {
    while (at < calls.size()) {
      if (chain != chains_.end() && chain->begin() == at) {
        chain->run(backend);
        at = (chain++)->end();
        continue;
      }
      Call& call = *calls[at];
      if (call.draw >= 0) {
        take(static_cast<size_t>(call.draw) + 1);
        *call.key() = taken[static_cast<size_t>(call.draw)];
      }
      call.run(backend, context);
      ++at;
    }
  } catch (...) {
    count_writes();  // some of them have happened
    if (!keys) clear_grads(at);
    try {
      throw;
    } catch (const IndexError& e) {
      throw IndexError(str(calls[at]->op, ": ", e.what()));
    }
  }
  take(draws.size());
  count_writes();

  std::vector<Tensor> out;
  out.reserve(results.size() + (keys ? leaves.size() : 0));
  make_results(given, fresh, out);
  for (const LeafGrad& leaf : leaves) {
    Tensor g = tensor_of(leaf.grad, given, fresh);
    if (keys) {
      out.push_back(std::move(g));
      continue;
    }
    set_grad(leaf, std::move(g));
  }
  return out;
}

void Program::clear_grads(size_t calls_made) const {
  for (const LeafGrad& leaf : leaves)
    if (!leaf.starts_empty && leaf.cleared <= calls_made) set_grad(leaf, Tensor());
}

void Program::make_results(std::span<const Tensor* const> given, const std::vector<Ref<Storage>>& fresh,
                           std::vector<Tensor>& out) const {
  for (const Result& r : results)
    out.push_back(r.same_as < 0 ? tensor_of(r, given, fresh) : out[static_cast<size_t>(r.same_as)]);
  std::vector<Tensor> bases;
  for (const Result& h : hidden) bases.push_back(tensor_of(h, given, fresh));
  for (size_t i = 0; i < results.size(); ++i) {
    const Result& r = results[i];
    if (r.base == Result::Base::kArgument) detail::note_view(out[i], *given[r.place.index]);
    if (r.base == Result::Base::kResult) detail::note_view(out[i], out[r.base_index]);
    if (r.base == Result::Base::kHidden) detail::note_view(out[i], bases[r.base_index]);
  }
}

Tensor Program::tensor_of(const Result& r, std::span<const Tensor* const> given,
                          const std::vector<Ref<Storage>>& fresh) const {
  const Place& p = r.place;
  if (r.itself) return *given[p.index];
  switch (p.kind) {
    case Place::Kind::kAbsent:
    case Place::Kind::kCaptured: return Tensor();
    case Place::Kind::kEmpty: return alias(empty({0}, {.dtype = r.dtype}), r.sizes, r.strides, 0);
    case Place::Kind::kArgument: {
      const Tensor& x = *given[p.index];
      return alias(x, r.sizes, r.strides, x.storage_offset() + p.offset / size_of(x.dtype()));
    }
    case Place::Kind::kBlock: break;
  }
  const auto at = static_cast<size_t>(std::find(made_.begin(), made_.end(), static_cast<size_t>(p.index)) -
                                      made_.begin());
  return Tensor(Ref<TensorBody>::adopt(
      new TensorBody(fresh[at], p.offset / size_of(r.dtype), r.sizes, r.strides, r.dtype)));
}

Difference compare(Program& a, Program& b) {
  using Kind = Difference::Kind;
  const auto other = [](const std::string& text) { return Difference{Kind::kOther, text}; };
  for (size_t i = 0; i < std::min(a.calls.size(), b.calls.size()); ++i) {
    Call &x = *a.calls[i], &y = *b.calls[i];
    const std::string at = str("call ", i + 1, ", ", y.op, ", ");
    if (!x.same_method(y) || x.op != y.op || x.places.size() != y.places.size())
      return other(str("call ", i + 1, " of one run is ", x.op, ", of the next ", y.op));
    std::vector<const View*> views;
    x.each_view([&](View& v) { views.push_back(&v); });
    size_t next = 0;
    bool geometry = true;
    y.each_view([&](View& v) {
      const View& u = *views[next++];
      geometry = geometry && u.dtype == v.dtype && u.sizes == v.sizes && u.strides == v.strides;
    });
    if (!geometry) return other(at + "has other sizes, strides or dtypes in the next run");
    if (!x.same_numbers(y))
      return {Kind::kNumber, str(y.op, ": a number of this call differs between two runs")};
    if (x.places != y.places) return other(at + "uses other tensors in the next run");
    if (x.draw != y.draw) return other(at + "draws in another order in the next run");
  }
  if (a.calls.size() != b.calls.size())
    return other(str("one run makes ", a.calls.size(), " calls, the next ", b.calls.size()));
  for (size_t i = 0; i < std::min(a.blocks.size(), b.blocks.size()); ++i)
    if (a.blocks[i].constant != b.blocks[i].constant)
      return {Kind::kNumber, str(a.blocks[i].first < a.calls.size() ? a.calls[a.blocks[i].first]->op
                                                                    : std::string("a result"),
                                 ": a tensor of numbers given by the host differs between two runs")};
  const auto same_capture = [](const Captured& c, const Captured& d) {
    return c.storage == d.storage && c.data == d.data && c.bumps == d.bumps;
  };
  if (!std::equal(a.captured.begin(), a.captured.end(), b.captured.begin(), b.captured.end(), same_capture))
    return other("one run uses other tensors from outside than the next");
  if (a.results != b.results || a.hidden != b.hidden)
    return other("the results of one run are laid out in another way than those of the next");
  const auto same_leaf = [&](const LeafGrad& k, const LeafGrad& l) {
    return k.node == l.node && k.starts_empty == l.starts_empty && k.cleared == l.cleared &&
           k.argument == l.argument && k.grad == l.grad;
  };
  if (!std::equal(a.leaves.begin(), a.leaves.end(), b.leaves.begin(), b.leaves.end(), same_leaf))
    return other("one run makes other gradients of leaves than the next");
  const auto same_use = [](const ArgumentUse& u, const ArgumentUse& v) {
    return u.written == v.written && u.bumps == v.bumps;
  };
  if (!std::equal(a.arguments.begin(), a.arguments.end(), b.arguments.begin(), b.arguments.end(), same_use) ||
      a.draws != b.draws)
    return other("one run writes or draws more often than the next");
  return {};
}

}  // namespace weft::trace
