// Laying out a recorded program, comparing two, and running one. A temporary lives from its first call to its
// last, so the arena places one at the lowest address that no other of its time has. Constants that the host
// wrote lie there too, for the whole run.
#include <weft/autograd/tape/inner/program.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include <weft/autograd/tape/inner/slot.h>
#include <weft/autograd/tape/record.h>
#include <weft/kernels/cpu/cpu_backend.h>
#include <weft/tensor/inner/launch.h>
#include <weft/tensor/inner/tracer.h>

namespace weft::trace {
namespace {

constexpr size_t kAlign = 64;
size_t aligned(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

/// The address of views without elements, which is never read.
void* nowhere() {
  alignas(kAlign) static std::byte block[kAlign];
  return block;
}

}  // namespace

Program::Program() : backend_(&kernels::cpu_backend()), gone_(std::make_shared<std::atomic<bool>>(false)) {}
Program::~Program() {
  detail::forget_storages(gone_);
  if (arena_) kernels::cpu_backend().deallocate(arena_, arena_bytes_);
}

void Program::watch() {
  for (const Captured& c : captured) detail::watch_storage(*c.storage, gone_);
}

void Program::lay_out() {
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
    Piece piece{i, 0, aligned(b.bytes), b.first, b.last};
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
  if (arena_bytes_ > 0) arena_ = static_cast<std::byte*>(kernels::cpu_backend().allocate(arena_bytes_));
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
          if (blocks[place.index].result) patches_.push_back({&v, place});
          else v.data = blocks[place.index].at + place.offset;
          break;
      }
    });
    if (call->draw >= 0) keyed_.push_back({call->key(), static_cast<size_t>(call->draw)});
  }
}

bool Program::is_current() const {
  if (gone_->load(std::memory_order_acquire) || backend_ != &kernels::cpu_backend()) return false;
  for (const Captured& c : captured)
    if (c.storage->data() != c.data || c.storage->lock() || c.storage->history() != c.history) return false;
  for (const LeafGrad& leaf : leaves)
    if (!static_cast<AccumulateGrad&>(*leaf.node).leaf().defined() ||
        leaf.node->extras.load(std::memory_order_acquire))  // hooks
      return false;
  return true;
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

std::vector<Tensor> Program::run(std::span<const Tensor* const> given, const Draws* keys) {
  // the steps of optimizers count from here on; check_steps() has told that they can be taken
  static std::atomic<uint64_t> replays{uint64_t{1} << 62};
  const uint64_t replay = keys ? 0 : ++replays;
  if (steps)
    for (const auto& call : calls) call->next_step(replay);

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
                                : static_cast<std::byte*>(given[p.place.index]->raw());
    p.view->data = base + p.place.offset;
  }
  if (!draws.empty()) {
    Draws made;
    if (!keys)
      for (const int64_t count : draws) made.push_back(default_generator().take(count));
    const Draws& taken = keys ? *keys : made;
    for (const Keyed& k : keyed_) *k.key = taken[k.draw];
  }
  const auto count_writes = [&] {
    if (keys) return;
    for (size_t i = 0; i < arguments.size(); ++i)
      for (uint32_t n = 0; n < arguments[i].bumps; ++n) given[i]->body().storage->bump_version();
    for (const Captured& c : captured)
      for (uint32_t n = 0; n < c.bumps; ++n) const_cast<Storage*>(c.storage)->bump_version();
  };
  Backend& backend = kernels::cpu_backend();
  Context context;
  try {
    for (const auto& call : calls) call->run(backend, context);
  } catch (...) {
    count_writes();  // some of them have happened
    throw;
  }
  count_writes();

  std::vector<Tensor> out;
  out.reserve(results.size() + (keys ? leaves.size() : 0));
  for (const Result& r : results) out.push_back(tensor_of(r, given, fresh));
  for (const LeafGrad& leaf : leaves) {
    Tensor g = tensor_of(leaf.grad, given, fresh);
    if (keys) {
      out.push_back(std::move(g));
      continue;
    }
    const Tensor x = static_cast<AccumulateGrad&>(*leaf.node).leaf();
    if (!x.defined()) continue;
    Slot& slot = *detail::slot_of(x);
    const std::lock_guard lock(slot.grad_mutex());
    std::swap(slot.grad, g);
  }
  return out;
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
      Tensor y = alias(x, r.sizes, r.strides, x.storage_offset() + p.offset / size_of(x.dtype()));
      if (!autograd_state().inference) detail::note_view(y, x);
      return y;
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
  const auto same_result = [](const Result& r, const Result& s) {
    return r.place == s.place && r.sizes == s.sizes && r.strides == s.strides && r.dtype == s.dtype &&
           r.itself == s.itself;
  };
  if (!std::equal(a.results.begin(), a.results.end(), b.results.begin(), b.results.end(), same_result))
    return other("the results of one run are laid out in another way than those of the next");
  const auto same_leaf = [&](const LeafGrad& k, const LeafGrad& l) {
    return k.node == l.node && k.starts_empty == l.starts_empty && same_result(k.grad, l.grad);
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
