// The Pass. One mutex guards its state. The mutex is not held while a node runs, so other threads can deliver
// gradients meanwhile. A pass that one thread owns (Options::shared = false) takes no lock. Nothing recurses:
// marking uses an explicit stack, and ready nodes wait in a heap.
#include <weft/autograd/tape/engine.h>

#include <mutex>
#include <optional>

#include <weft/autograd/tape/autocast.h>
#include <weft/autograd/tape/inner/extras.h>
#include <weft/autograd/tape/inner/grad_math.h>
#include <weft/autograd/tape/inner/packed_rows.h>
#include <weft/autograd/tape/inner/pass_table.h>

namespace weft {

using detail::PassRow;
using detail::PassTable;

namespace {

thread_local std::unique_ptr<PassTable> t_spare_table;

std::unique_ptr<PassTable> take_table() {
  return t_spare_table ? std::move(t_spare_table) : std::make_unique<PassTable>();
}

/// Whether x is the only holder of its memory, so that it may be overwritten.
bool unshared(const Tensor& g) {
  const Storage& s = *g.body().storage;
  return g.ref()->use_count() == 1 && s.use_count() == 1 && !s.is_borrowed() && !g.body().slot &&
         g.is_contiguous();
}

/// Sets the thread's current node and restores the previous one.
struct Current {
  explicit Current(Node* node) : before(std::exchange(autograd_state().current, node)) {}
  ~Current() { autograd_state().current = before; }
  Node* before;
};

std::string origin_of(const Node& node) {
  Node::Extras* extras = node.extras.load(std::memory_order_acquire);
  return extras && !extras->origin.empty() ? str("; forward call: ", extras->origin)
                                           : std::string("; made outside DetectAnomaly");
}

/// The source of a gradient: an input of a node, or a caller of deliver().
struct GradSource {
  const Node* node = nullptr;
  size_t input = 0;
};

}  // namespace

struct Pass::Impl {
  struct Wanted {
    uint32_t slot;
    int32_t next;
  };

  Pass& pass;
  Options options;
  std::mutex mutex;
  std::unique_ptr<PassTable> table = take_table();
  std::vector<Wanted> wanted;
  std::vector<Tensor> captured;
  std::atomic<size_t> pending{0};
  bool running = false;
  std::exception_ptr error;

  static void* operator new(size_t bytes) { return pool_allocate(bytes); }
  static void operator delete(void* p, size_t bytes) noexcept { pool_free(p, bytes); }

  Impl(Pass& p, Options o) : pass(p), options(o) {}
  ~Impl() {
    if (table->reset()) t_spare_table = std::move(table);
  }

  std::unique_lock<std::mutex> lock() {
    return options.shared ? std::unique_lock(mutex) : std::unique_lock(mutex, std::defer_lock);
  }
  PassRow& row(uint32_t r) { return table->rows[r]; }
  /// Changes `pending`; a pass that one thread owns needs no locked operation for it.
  void count(size_t by) {
    if (options.shared) pending.fetch_add(by, std::memory_order_release);
    else pending.store(pending.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
  }

  // ---- marking

  /// Adds the children of a row to the table; called once per row.
  void walk(uint32_t r) {
    Node* node = row(r).node;
    row(r).walked = true;
    row(r).children = static_cast<uint32_t>(table->children.size());
    if (node->is_boundary()) return;
    for (const Edge& e : node->edges()) {
      const uint32_t child = e.node ? table->insert(e.node.get()) : PassTable::kNone;
      table->children.push_back(child);
    }
  }
  size_t child_count(uint32_t r) { return row(r).node->is_boundary() ? 0 : row(r).node->edges().size(); }
  uint32_t child(uint32_t r, size_t i) { return table->children[row(r).children + i]; }

  /// Expects one more delivery to `slot` of `r`. A row that is new, or has run before, is pushed on the
  /// stack.
  void owe(uint32_t r, uint32_t slot, const Boundary& boundary) {
    PassRow& to = row(r);
    if (!to.needed) return;
    ++to.awaited;
    if (!to.marked || to.executed) {
      to.marked = true;
      to.executed = false;
      count(1);
      table->stack.push_back(r);
    }
    if (boundary && to.node->is_boundary() && !(slot < 64 && (to.seen >> slot & 1))) {
      if (slot < 64) to.seen |= uint64_t{1} << slot;
      boundary(*to.node, slot);
    }
  }

  /// With captures: finds the rows that lead to a wanted edge, children before parents.
  void find_needed(uint32_t root) {
    std::vector<std::pair<uint32_t, size_t>> path;
    if (row(root).walked) return;
    const auto enter = [&](uint32_t r) {
      walk(r);
      path.emplace_back(r, 0);
      row(r).leads = false;
    };
    enter(root);
    while (!path.empty()) {
      const uint32_t r = path.back().first;
      if (path.back().second == child_count(r)) {
        row(r).needed = row(r).leads || row(r).wanted >= 0;
        path.pop_back();
        if (!path.empty() && row(r).needed) row(path.back().first).leads = true;
        continue;
      }
      const uint32_t c = child(r, path.back().second++);
      if (c == PassTable::kNone) continue;
      if (!row(c).walked) enter(c);
      else if (row(c).needed) row(r).leads = true;
    }
  }

  void mark(std::span<const Edge> edges, const Boundary& boundary) {
    for (const Edge& e : edges) {
      if (!e.node) continue;
      const uint32_t r = table->insert(e.node.get());
      if (!row(r).walked) table->roots.push_back(e.node);
      if (!wanted.empty()) find_needed(r);
      owe(r, e.slot, boundary);
    }
    while (!table->stack.empty()) {
      const uint32_t r = table->stack.back();
      table->stack.pop_back();
      if (!row(r).walked) walk(r);
      const Node* node = row(r).node;
      for (size_t i = 0, n = child_count(r); i < n; ++i)
        if (const uint32_t c = child(r, i); c != PassTable::kNone) owe(c, node->edges()[i].slot, boundary);
    }
  }

  // ---- delivery

  [[noreturn]] static void throw_misfit(const Node& node, GradSource from, const std::string& got,
                                        const std::string& wanted) {
    if (from.node)
      throw AutogradError(str(from.node->name(), ": backward returned a gradient ", got, " for input ",
                              static_cast<int64_t>(from.input), ", which ", wanted));
    throw AutogradError(str(node.name(), ": a gradient ", got, " arrived for an output that ", wanted));
  }

  static bool fits(const Node& node, uint32_t slot, const Tensor& g) {
    if (slot >= node.slots().size()) return true;
    const SlotMeta& meta = node.slots()[slot];
    return g.sizes() == meta.sizes && g.dtype() == meta.dtype && g.device() == meta.device;
  }
  static Tensor fitted(const Node& node, uint32_t slot, Tensor g, GradSource from) {
    const SlotMeta& meta = node.slots()[slot];
    if (detail::is_row_wise(g)) {
      // rows as they are for leaves and other workers alone
      if ((node.is_accumulate() || node.is_boundary()) && detail::grad_sizes(g) == meta.sizes &&
          g.dtype() == meta.dtype && g.device() == meta.device)
        return g;
      Tensor all = detail::dense(g);
      return fits(node, slot, all) ? all : fitted(node, slot, std::move(all), from);
    }
    if (g.device() != meta.device)
      throw_misfit(node, from, str("on ", g.device()), str("lies on ", meta.device));
    if (!g.is_floating_point()) throw_misfit(node, from, str("of ", g.dtype()), str("is ", meta.dtype));
    try {
      if (g.sizes() != meta.sizes) g = detail::sum_to(g, meta.sizes);
    } catch (const AutogradError&) {
      throw_misfit(node, from, str("of sizes ", g.sizes()), str("has sizes ", meta.sizes));
    }
    return detail::cast_to(g, meta.dtype);
  }

  /// Accepts a gradient, possibly undefined, for one slot of a row.
  void accept(uint32_t r, uint32_t slot, Tensor g, GradSource from = {}) {
    PassRow& to = row(r);
    if (!to.needed) return;
    if (to.awaited == 0) throw AutogradError(str("deliver: ", to.node->name(), " awaits no gradient"));
    if (g.defined()) {
      if (!fits(*to.node, slot, g)) [[unlikely]]
        g = fitted(*to.node, slot, std::move(g), from);
      const size_t slots = std::max<size_t>(to.node->slots().size(), slot + 1);
      if (to.buffers.size() < slots) to.buffers.resize(slots);
      Tensor& have = to.buffers[slot];
      if (!have.defined()) have = std::move(g);
      else if (grad_enabled() && (have.requires_grad() || g.requires_grad()))
        have = detail::add_gradients(have, g);
      else if (unshared(have)) detail::add_into(have, g);
      else if (unshared(g)) {
        detail::add_into(g, have);
        have = std::move(g);
      } else have = detail::add_gradients(have, g);
    }
    if (--to.awaited == 0) table->push_ready(r);
  }

  // ---- execution

  GradList apply(Node& node, GradList& grads) {
    Node::Extras* const extras = node.extras.load(std::memory_order_acquire);
    const GradList given = extras ? grads : GradList();
    GradList out = node.apply(std::move(grads), pass);
    if (extras) detail::run_post_hooks(*extras, out, given);
    if (!out.empty() && out.size() != node.edges().size())
      throw AutogradError(str(node.name(), ": backward returned ", static_cast<int64_t>(out.size()),
                              " gradients for ", static_cast<int64_t>(node.edges().size()), " inputs"));
    if (autograd_state().anomaly)
      for (size_t i = 0; i < out.size(); ++i)
        if (out[i].defined() && detail::has_nan(out[i]))
          throw AutogradError(
              str(node.name(), ": the gradient of input ", static_cast<int64_t>(i), " has a NaN"));
    return out;
  }

  GradList call(Node& node, GradList& grads, int32_t first_wanted, bool leads) {
    if (Node::Extras* extras = node.extras.load(std::memory_order_acquire))
      detail::run_pre_hooks(*extras, grads);
    for (int32_t w = first_wanted; w >= 0; w = wanted[static_cast<size_t>(w)].next) {
      const uint32_t slot = wanted[static_cast<size_t>(w)].slot;
      if (slot < grads.size()) captured[static_cast<size_t>(w)] = detail::dense(grads[slot]);
    }
    if (!leads) return {};
    bool any = node.is_boundary();
    for (const Tensor& g : grads) any = any || g.defined();
    GradList out = any ? apply(node, grads) : GradList();
    if (!options.retain_graph) node.release_saved();
    return out;
  }

  void execute(uint32_t r, std::unique_lock<std::mutex>& held) {
    PassRow& mine = row(r);
    Node& node = *mine.node;
    GradList grads = std::move(mine.buffers);
    mine.executed = true;
    const int32_t first_wanted = mine.wanted;
    const bool leads = mine.leads;
    if (grads.size() < node.slots().size()) grads.resize(node.slots().size());
    if (options.shared) held.unlock();
    bool called = false;
    try {
      GradList out = [&] {
        const Current current(&node);
        return call(node, grads, first_wanted, leads);
      }();
      called = true;
      if (options.shared) held.lock();
      if (error) return;
      for (size_t i = 0, n = child_count(r); i < n; ++i)
        if (const uint32_t c = child(r, i); c != PassTable::kNone)
          accept(c, node.edges()[i].slot, i < out.size() ? std::move(out[i]) : Tensor(), {&node, i});
      count(static_cast<size_t>(-1));
    } catch (const std::exception& e) {
      if (options.shared && !called) held.lock();
      end(!called && autograd_state().anomaly
              ? std::make_exception_ptr(AutogradError(str(e.what(), origin_of(node))))
              : std::current_exception());
    } catch (...) {
      if (options.shared && !called) held.lock();
      end(std::current_exception());
    }
  }

  void end(std::exception_ptr why) {
    if (!error) error = std::move(why);
    table->clear_ready();
    for (PassRow& r : table->rows) r.buffers = GradList();
  }
};

Pass::Pass(Options options) {
  options.retain_graph = options.retain_graph || options.create_graph;
  impl_ = std::make_unique<Impl>(*this, options);
}
Pass::~Pass() = default;

const Pass::Options& Pass::options() const { return impl_->options; }

void Pass::mark(std::span<const Edge> edges, const Boundary& boundary) {
  const auto held = impl_->lock();
  impl_->mark(edges, boundary);
}

void Pass::capture(std::span<const Edge> edges) {
  const auto held = impl_->lock();
  for (const Edge& e : edges) {
    const auto index = static_cast<int32_t>(impl_->wanted.size());
    int32_t next = -1;
    if (e.node) {
      impl_->table->roots.push_back(e.node);
      PassRow& row = impl_->row(impl_->table->insert(e.node.get()));
      next = std::exchange(row.wanted, index);
    }
    impl_->wanted.push_back({e.slot, next});
  }
  impl_->captured.resize(impl_->wanted.size());
}

const std::vector<Tensor>& Pass::captured() const { return impl_->captured; }

void Pass::deliver(const Edge& edge, Tensor grad) {
  if (!edge.node) return;
  const GradMode mode(impl_->options.create_graph);
  const auto held = impl_->lock();
  if (impl_->error) return;
  const uint32_t r = impl_->table->find(edge.node.get());
  if (r == PassTable::kNone)
    throw AutogradError(str("deliver: ", edge.node->name(), " is not part of this pass"));
  impl_->accept(r, edge.slot, std::move(grad));
}

void Pass::run() {
  Impl& me = *impl_;
  auto held = me.lock();
  if (me.error) std::rethrow_exception(me.error);
  if (me.running) return;
  me.running = true;
  {
    const GradMode mode(me.options.create_graph);
    std::optional<NoAutocast> plain;  // backward uses the dtypes of forward
    if (autocast_dtype() != kFloat32) plain.emplace();
    while (!me.error && !me.table->ready_empty()) me.execute(me.table->pop_ready(), held);
  }
  me.running = false;
  if (me.error) std::rethrow_exception(me.error);
}

size_t Pass::pending() const { return impl_->pending.load(std::memory_order_acquire); }

void Pass::fail(std::exception_ptr why) {
  const auto held = impl_->lock();
  impl_->end(std::move(why));
}

}  // namespace weft
