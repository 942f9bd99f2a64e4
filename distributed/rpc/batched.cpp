// The groups of calls that wait for a joined run (batched.h), and the run. A group runs when it is full, on
// the thread of the call that filled it, or after its longest wait, on the pool. Its timer alone owns a
// waiting group, so the end of the runtime drops it. Counters of debug_info: batch.calls, batch.runs,
// batch.left_out (callers that had given up), batch.waiting.
#include <weft/distributed/rpc/batched.h>

#include <algorithm>

#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/grad_mode.h>
#include <weft/distributed/rpc/agent.h>
#include <weft/distributed/rpc/current_agent.h>
#include <weft/distributed/rpc/inner/batched_graph.h>
#include <weft/distributed/rpc/inner/services.h>
#include <weft/distributed/runtime/sync.h>

namespace weft::rpc {

using detail::BatchedCallItem;
using detail::BatchedFunction;

namespace {

int64_t rows_of(const BatchedCallItem& item) { return item.tensors.front().size(0); }

/// Throws: ValueError for tensors that have no rows to join.
void check_batched(const BatchedFunction& f, const BatchedCallItem& item) {
  if (f.options.max_batch < 1 || f.options.max_wait < Duration::zero())
    throw ValueError(str("batched function '", f.entry->name, "': max_batch is ", f.options.max_batch,
                         " and max_wait ", f.options.max_wait.count(), " ns; at least 1 and 0 are needed"));
  for (const Tensor& t : item.tensors) {
    if (!t.defined() || t.dim() == 0)
      throw ValueError(str("batched function '", f.entry->name, "': its tensors are joined along dim 0; got ",
                           t.defined() ? "one without dims" : "an undefined one"));
    if (t.size(0) != rows_of(item))
      throw ShapeError(str("batched function '", f.entry->name, "': tensors of one call have ", rows_of(item),
                           " and ", t.size(0), " rows"));
  }
}

void answer_error(BatchedCallItem& item, std::exception_ptr error) {
  Outcome outcome;
  outcome.error = std::move(error);
  item.finisher->done(outcome);
}

/// Calls that wait for one joined run.
struct Group {
  Group(const BatchedFunction& f, void* o) : function(f), object(o) {}
  bool takes(const BatchedFunction& f, void* o, const BatchedCallItem& item) const {
    if (&f != &function || o != object || items.empty()) return false;
    const BatchedCallItem& mine = items.front();
    for (size_t k = 0; k < mine.tensors.size(); ++k) {
      const Tensor &a = mine.tensors[k], &b = item.tensors[k];
      if (a.dtype() != b.dtype() || a.device() != b.device() || a.dim() != b.dim()) return false;
      for (int64_t d = 1; d < a.dim(); ++d)
        if (a.size(d) != b.size(d)) return false;
    }
    return f.same_values(mine.values.get(), item.values.get());
  }

  const BatchedFunction& function;
  void* const object;
  std::vector<BatchedCallItem> items;  // this and all below: guarded by the table's mutex
  int64_t rows = 0;
  TimerId timer{};
};
using GroupPtr = std::shared_ptr<Group>;

/// The waiting groups of one agent.
class BatchTable : public std::enable_shared_from_this<BatchTable> {
 public:
  void submit(const BatchedFunction& f, void* object, BatchedCallItem item) {
    Runtime& runtime = *item.context.endpoint->runtime();
    const int64_t rows = rows_of(item);
    const GroupPtr mine = std::make_shared<Group>(f, object);
    std::vector<std::pair<TimerId, std::vector<BatchedCallItem>>> full;
    bool waits = false;
    calls.fetch_add(1, std::memory_order_relaxed);
    {
      MutexLock lock(mutex_);
      GroupPtr joined = mine;
      for (const std::weak_ptr<Group>& one : open_)
        if (const GroupPtr group = one.lock(); group && group->takes(f, object, item)) joined = group;
      if (joined != mine && joined->rows + rows > f.options.max_batch) {
        full.emplace_back(joined->timer, take(*joined));
        joined = mine;
      }
      joined->items.push_back(std::move(item));
      joined->rows += rows;
      if (joined->rows >= f.options.max_batch || f.options.max_wait == Duration::zero()) {
        full.emplace_back(joined->timer, take(*joined));
      } else if (joined == mine) {
        open_.push_back(mine);
        waits = true;
      }
    }
    if (waits) wait_for_others(runtime, mine);
    for (auto& [timer, items] : full) {
      runtime.cancel(timer);
      run(f, object, std::move(items));
    }
  }

  int64_t waiting() {
    MutexLock lock(mutex_);
    int64_t n = 0;
    for (const std::weak_ptr<Group>& one : open_)
      if (const GroupPtr group = one.lock()) n += static_cast<int64_t>(group->items.size());
    return n;
  }

  std::atomic<int64_t> calls{0}, runs{0}, left_out{0};

 private:
  /// Takes the calls of a group, which no further call joins.
  std::vector<BatchedCallItem> take(Group& group) WEFT_REQUIRES(mutex_) {
    std::erase_if(open_, [&](const std::weak_ptr<Group>& one) {
      const GroupPtr held = one.lock();
      return !held || held.get() == &group;
    });
    return std::exchange(group.items, {});
  }

  void wait_for_others(Runtime& runtime, const GroupPtr& group) {
    const TimerId timer = runtime.call_at(
        runtime.now() + group->function.options.max_wait, [self = shared_from_this(), group, &runtime] {
          runtime.post_or_refuse([self, group] {
            std::vector<BatchedCallItem> items;
            {
              MutexLock lock(self->mutex_);
              items = self->take(*group);
            }
            if (items.empty()) return;  // it was filled meanwhile
            if (const char* const why = refusal()) {
              for (BatchedCallItem& item : items)
                answer_error(item, std::make_exception_ptr(Overloaded(
                                       str("batched function '", group->function.entry->name, "': ", why))));
              return;
            }
            self->run(group->function, group->object, std::move(items));
          });
        });
    MutexLock lock(mutex_);
    group->timer = timer;
  }

  void run(const BatchedFunction& f, void* object, std::vector<BatchedCallItem> items) {
    for (BatchedCallItem& item : items) {
      if (!item.context.cancelled()) continue;
      left_out.fetch_add(1, std::memory_order_relaxed);
      answer_error(item, std::make_exception_ptr(
                             Cancelled(str("'", f.entry->name, "' was not run: its caller had given up"))));
      item.finisher = nullptr;
    }
    std::erase_if(items, [](const BatchedCallItem& item) { return !item.finisher; });
    if (items.empty()) return;
    std::vector<std::vector<Tensor>> rows;
    try {
      runs.fetch_add(1, std::memory_order_relaxed);
      rows = joined_rows(f, object, items);
    } catch (...) {
      if (f.options.apart_after_error && items.size() > 1) {
        for (BatchedCallItem& item : items) {
          std::vector<BatchedCallItem> alone;
          alone.push_back(std::move(item));
          run(f, object, std::move(alone));
        }
        return;
      }
      for (BatchedCallItem& item : items) answer_error(item, std::current_exception());
      return;
    }
    for (size_t i = 0; i < items.size(); ++i) {
      const CallScope scope(items[i].context);
      f.finish(*items[i].finisher, std::move(rows[i]));
    }
  }

  /// Runs the function once and splits its results, by caller.
  static std::vector<std::vector<Tensor>> joined_rows(const BatchedFunction& f, void* object,
                                                      const std::vector<BatchedCallItem>& items) {
    static const auto never = std::make_shared<const std::atomic<bool>>(false);
    CallContext context;  // of no caller: its nested calls are recorded in no context
    context.endpoint = items.front().context.endpoint;
    context.deadline = items.front().context.deadline;
    context.given_up = never;
    std::vector<const std::vector<Tensor>*> callers;
    int64_t total = 0;
    for (const BatchedCallItem& item : items) {
      context.deadline = std::max(context.deadline, item.context.deadline);
      callers.push_back(&item.tensors);
      total += rows_of(item);
    }
    const CallScope scope(std::move(context));
    std::vector<Tensor> joined = BatchedGraph::join(callers);
    const std::vector<Tensor> results = f.run(object, items.front().values.get(), joined);
    for (const Tensor& y : results)
      if (!y.defined() || y.dim() == 0 || y.size(0) != total)
        throw ShapeError(str("batched function '", f.entry->name, "' returned ",
                             y.defined() ? str("sizes ", y.sizes()) : std::string("an undefined tensor"),
                             " for ", total, " rows"));
    const auto graph = std::make_shared<const BatchedGraph>(std::move(joined), results);
    std::vector<std::vector<Tensor>> rows;
    int64_t first = 0;
    for (const BatchedCallItem& item : items) {
      rows.push_back(graph->rows(first, rows_of(item), item.tensors, item.context.autograd_context >= 0));
      first += rows_of(item);
    }
    return rows;
  }

  Mutex mutex_;
  std::vector<std::weak_ptr<Group>> open_ WEFT_GUARDED_BY(mutex_);
};

struct BatchSlot {
  explicit BatchSlot(Agent&) : table(std::make_shared<BatchTable>()) {}
  const std::shared_ptr<BatchTable> table;
};

}  // namespace

void detail::submit_batched(const BatchedFunction& function, void* object, BatchedCallItem item) {
  try {
    check_batched(function, item);
  } catch (...) {
    return answer_error(item, std::current_exception());
  }
  Agent* const agent = agent_of(item.context.endpoint.get());
  agent->slot<BatchSlot>().table->submit(function, object, std::move(item));
}

void install_batches(Agent& agent) {
  agent.add_debug_info(
      [weak = std::weak_ptr<BatchTable>(agent.slot<BatchSlot>().table)](std::map<std::string, int64_t>& out) {
        const auto table = weak.lock();
        if (!table) return;
        out["batch.calls"] = table->calls;
        out["batch.runs"] = table->runs;
        out["batch.left_out"] = table->left_out;
        out["batch.waiting"] = table->waiting();
      });
}

}  // namespace weft::rpc
