// Finding and running chains of pointwise calls. The order of two accesses to one element stays that of the
// program, since both fall into one block. Where a call writes elements that another one reaches at other
// positions, the chain ends before the second call. Arguments overlap in a replay as in the recording, since
// their distance is part of the signature. For arguments that overlap in other ways compile() runs f.
#include <weft/autograd/tape/inner/pointwise_chain.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>

#include <weft/kernels/cpu/pool.h>

namespace weft::trace {
namespace {

constexpr size_t kMostCalls = 32, kMostViews = 4;
constexpr size_t kMostSlots = kMostCalls * kMostViews;
/// Elements below which temporaries stay in the first-level cache by themselves.
constexpr int64_t kLeastElements = 2048;
/// Elements of a block: as many as fit in the room of a task, within these bounds.
constexpr int64_t kRoomBytes = 16384, kLeastBlock = 512, kMostBlock = 2048;
/// Elements that a task of the pool takes at least.
constexpr int64_t kTaskElements = 8192;

constexpr size_t kLine = 64;
size_t lines_of(int64_t bytes) { return (static_cast<size_t>(bytes) + kLine - 1) / kLine * kLine; }

/// The number of elements after which a view repeats in row-major order. If the last dims are row-major and
/// all other dims are broadcast, that is the number of elements of the last dims. 0 for other strides.
int64_t period_of(const View& v) {
  int64_t period = 1;
  int d = v.ndim() - 1;
  for (; d >= 0 && (v.sizes[d] == 1 || v.strides[d] == period); --d) period *= v.sizes[d];
  for (; d >= 0; --d)
    if (v.sizes[d] != 1 && v.strides[d] != 0) return 0;
  return period;
}

/// Fills `to` with repetitions of the first bytes.
void repeat_bytes(std::byte* to, size_t from, size_t bytes) {
  for (size_t done = from; done < bytes; done += std::min(done, bytes - done))
    std::memcpy(to + done, to, std::min(done, bytes - done));
}

}  // namespace

// ---- finding

/// The call of this number; without a call if no chain can have it.
PointwiseChain::Step PointwiseChain::step_of(const Program& program, size_t number) {
  Call& call = *program.calls[number];
  Step step;
  if (!call.is_pointwise()) return step;
  call.each_view([&](View& v) {
    const Place& place = call.places[step.operands.size()];
    step.operands.push_back({&v, place, false, period_of(v), static_cast<int64_t>(size_of(v.dtype))});
  });
  Operand& out = step.operands.back();
  out.written = true;
  const int64_t count = out.view->numel();
  if (count < kLeastElements || out.period != count) return step;
  for (const Operand& o : step.operands) {
    if (o.period == 0 || o.place.kind == Place::Kind::kAbsent || o.place.kind == Place::Kind::kEmpty)
      return step;
    if (mixed(program, o, out)) return step;
  }
  step.call = &call;
  return step;
}

/// Whether one of two operands is written, and they share memory at different elements.
bool PointwiseChain::mixed(const Program& program, const Operand& a, const Operand& b) {
  if ((!a.written && !b.written) || a.place.kind != b.place.kind) return false;
  if (a.place.kind == Place::Kind::kBlock && a.place.index != b.place.index) return false;
  const auto from = [&](const Operand& o) {
    const void* const base = o.place.kind == Place::Kind::kCaptured   ? program.captured[o.place.index].data
                             : o.place.kind == Place::Kind::kArgument ? program.arguments[o.place.index].first
                                                                      : nullptr;
    return reinterpret_cast<intptr_t>(base) + o.place.offset;
  };
  const int64_t x = from(a), y = from(b);
  if (x + a.period * a.width <= y || y + b.period * b.width <= x) return false;
  return x != y || a.period != b.period || a.width != b.width;
}

bool PointwiseChain::admits(const Program& program, const Step& step) const {
  if (steps_.empty()) return true;
  if (steps_.size() == kMostCalls || step.operands.back().view->numel() != count_) return false;
  for (const Step& earlier : steps_)
    for (const Operand& a : earlier.operands)
      for (const Operand& b : step.operands)
        if (mixed(program, a, b)) return false;
  return true;
}

/// Whether two calls use one tensor.
bool PointwiseChain::pays() const {
  for (size_t i = 0; i < steps_.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      for (const Operand& a : steps_[i].operands)
        for (const Operand& b : steps_[j].operands)
          if (a.period == count_ && b.period == count_ && a.place == b.place) return true;
  return false;
}

int PointwiseChain::take_slot(const Slot& wanted) {
  for (size_t i = 0; i < slots_.size(); ++i)
    if (slots_[i].free && slots_[i].width == wanted.width) {
      slots_[i].free = false;
      return static_cast<int>(i);
    }
  slots_.push_back(wanted);
  return static_cast<int>(slots_.size()) - 1;
}

void PointwiseChain::place_operands(const Program& program) {
  struct Temporary {
    Operand first;
    bool whole = true;  // each use has all elements
    size_t last = 0;
    int slot = -1;
  };
  std::map<uint32_t, Temporary> all;
  for (size_t s = 0; s < steps_.size(); ++s)
    for (const Operand& o : steps_[s].operands) {
      if (o.place.kind != Place::Kind::kBlock) continue;
      Temporary& t = all.try_emplace(o.place.index, Temporary{o}).first->second;
      t.whole = t.whole && o.period == count_ && o.place == t.first.place && o.width == t.first.width;
      t.last = s;
    }
  std::erase_if(all, [&](const auto& entry) {
    const Block& b = program.blocks[entry.first];
    return !entry.second.whole || b.result || !b.constant.empty() || b.first < begin_ || b.last >= end();
  });
  for (const auto& [block, t] : all) temporaries_.push_back(block);
  for (size_t s = 0; s < steps_.size(); ++s) {
    for (Operand& o : steps_[s].operands) {
      if (o.period != count_) {
        const auto same = [&](const Operand& r) {
          return r.place == o.place && r.period == o.period && r.width == o.width;
        };
        const auto known = std::find_if(repeated_.begin(), repeated_.end(), same);
        o.slot = known != repeated_.end() ? known->slot : static_cast<int>(slots_.size());
        if (known != repeated_.end()) continue;
        slots_.push_back({o.width, o.period});
        repeated_.push_back(o);
      } else if (const auto t = all.find(o.place.index);
                 o.place.kind == Place::Kind::kBlock && t != all.end()) {
        if (t->second.slot < 0) t->second.slot = take_slot({o.width});
        o.slot = t->second.slot;
      }
    }
    for (const auto& [block, t] : all)
      if (t.last == s) slots_[static_cast<size_t>(t.slot)].free = true;
  }
  int64_t width = 0;
  for (const Slot& slot : slots_) width += slot.width;
  block_ = std::clamp(kRoomBytes / std::max<int64_t>(width, 1) / kLeastBlock * kLeastBlock, kLeastBlock,
                      kMostBlock);
}

std::vector<PointwiseChain> PointwiseChain::find(const Program& program) {
  std::vector<PointwiseChain> out;
  PointwiseChain open;
  const auto close = [&] {
    if (open.pays()) {
      open.place_operands(program);
      out.push_back(std::move(open));
    }
    open = PointwiseChain();
  };
  for (size_t i = 0; i < program.calls.size(); ++i) {
    Step step = step_of(program, i);
    if (!step.call || !open.admits(program, step)) close();
    if (!step.call) continue;
    if (open.steps_.empty()) open.begin_ = i, open.count_ = step.operands.back().view->numel();
    open.steps_.push_back(std::move(step));
  }
  close();
  return out;
}

// ---- running

void PointwiseChain::run(Backend& backend) const {
  kernels::parallel_for(count_, kTaskElements,
                        [&](int64_t begin, int64_t end) { run_range(backend, begin, end); });
}

void PointwiseChain::run_range(Backend& backend, int64_t begin, int64_t end) const {
  const int64_t block = std::min(block_, end - begin);
  struct Room {
    Room(Backend& b, size_t n) : backend(b), bytes(n), at(static_cast<std::byte*>(b.allocate(n))) {}
    ~Room() { backend.deallocate(at, bytes); }
    Room(const Room&) = delete;
    Backend& backend;
    const size_t bytes;
    std::byte* const at;
  };
  const auto room_of = [&](const Slot& slot) {
    return lines_of((block + (slot.period <= block ? slot.period : 0)) * slot.width);
  };
  size_t bytes = 0;
  for (const Slot& slot : slots_) bytes += room_of(slot);
  const Room room(backend, bytes);
  std::array<std::byte*, kMostSlots> rooms{};
  std::byte* next = room.at;
  for (size_t i = 0; i < slots_.size(); ++i) {
    rooms[i] = next;
    next += room_of(slots_[i]);
  }
  for (const Operand& o : repeated_) {
    if (o.period > block) continue;
    const auto once = static_cast<size_t>(o.period * o.width);
    std::byte* const to = rooms[static_cast<size_t>(o.slot)];
    std::memcpy(to, o.view->data, once);
    repeat_bytes(to, once, static_cast<size_t>((block + o.period) * o.width));
  }
  Context context;
  for (int64_t at = begin; at < end; at += block) {
    const int64_t count = std::min(block, end - at);
    for (const Step& step : steps_) {
      void* operands[kMostViews];
      for (size_t k = 0; k < step.operands.size(); ++k)
        operands[k] = locate(step.operands[k], at, count, block, rooms.data());
      step.call->run_part(backend, context, operands, count);
    }
  }
}

/// The address of `count` elements from the position `at`.
void* PointwiseChain::locate(const Operand& o, int64_t at, int64_t count, int64_t block,
                             std::byte* const* rooms) const {
  auto* const memory = static_cast<std::byte*>(o.view->data);
  if (o.slot < 0) return memory + at * o.width;
  std::byte* const room = rooms[o.slot];
  if (o.period == count_) return room;
  const int64_t phase = at % o.period;
  if (o.period <= block) return room + phase * o.width;
  if (phase + count <= o.period) return memory + phase * o.width;
  const auto head = static_cast<size_t>((o.period - phase) * o.width);
  std::memcpy(room, memory + phase * o.width, head);
  std::memcpy(room + head, memory, static_cast<size_t>(count * o.width) - head);
  return room;
}

}  // namespace weft::trace
