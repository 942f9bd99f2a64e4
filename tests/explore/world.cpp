// The functions of explored programs, and their two worlds (world.h).
#include "explore/world.h"

#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/engine.h>
#include <weft/distributed/rpc/fenced.h>
#include <weft/distributed/rpc/result_dropped.h>
#include <weft/distributed/rpc/rpc.h>
#include <weft/distributed/rpc/step_errors.h>
#include <weft/distributed/runtime/runtime.h>
#include <weft/tensor/factories.h>

#include <mutex>
#include <set>

namespace weft::explore {

namespace {

constexpr double kRate = 0.05;

std::vector<Tensor> parameters_of(int64_t worker) {
  return {numbered_leaf(100 + 2 * worker), numbered_leaf(101 + 2 * worker)};
}

Tensor free_mix(int64_t kind, const Tensor& a, const Tensor& b) { return mix(kind, a, b); }
WEFT_RPC_AS("explore_free_mix", &free_mix);

Tensor free_chain_of(int64_t kind, const Tensor& a, const Tensor& b, const std::vector<int64_t>& rest);
WEFT_RPC_AS("explore_free_chain", &free_chain_of);
Tensor free_chain_of(int64_t kind, const Tensor& a, const Tensor& b, const std::vector<int64_t>& rest) {
  const Tensor y = mix(kind, a, b);
  if (rest.empty()) return y;
  return rpc::rpc_sync<free_chain_of>(static_cast<int>(rest.front()), kind, y, b,
                                      std::vector<int64_t>(rest.begin() + 1, rest.end()));
}

RRef<Tensor> third_party(int64_t kind, const Tensor& a, const Tensor& b, int64_t other) {
  return rpc::remote<free_mix>(static_cast<int>(other), kind, a, b);
}
WEFT_RPC_AS("explore_third_party", &third_party);

/// The context of a nested call.
rpc::CallContext nested_context() {
  rpc::CallContext context = rpc::capture_context();
  if (nested_waits) context.serving = 0;
  return context;
}

/// The number of elements, and of those that the worker `back` counts in a call from here.
int64_t nested_size(const Tensor& t, int64_t back);
WEFT_RPC_AS("explore_nested_size", &nested_size);
int64_t nested_size(const Tensor& t, int64_t back) {
  if (back < 0) return t.numel();
  const rpc::CallScope scope(nested_context());
  return t.numel() + rpc::rpc_sync<nested_size>(static_cast<int>(back), t.narrow(0, 0, 1), int64_t{-1});
}

/// Its time lets the requests of a burst meet. Nested calls, the first with 16 KiB, lead to the caller and
/// back.
Tensor slow_wide_mix(int64_t kind, const Tensor& a, const Tensor& b) {
  rpc::current_runtime()->sleep_for(std::chrono::milliseconds(10));
  {
    const rpc::CallScope scope(nested_context());
    const int64_t here = rpc::current_agent()->self().id.value;
    const int64_t size =
        rpc::rpc_sync<nested_size>(rpc::call_context().caller.value, a.detach().narrow(0, 0, 680), here);
    if (size != 3 * 681) throw std::logic_error("a nested call has another result");
  }
  return wide_mix(kind, a, b);
}
WEFT_RPC_AS("explore_slow_wide_mix", &slow_wide_mix);

/// Runs at the last worker of a way until its caller gives up, and the calls before it as long.
void until_cancelled(const std::vector<int64_t>& rest);
WEFT_RPC_AS(kUntilCancelled, &until_cancelled);
void until_cancelled(const std::vector<int64_t>& rest) {
  if (!rest.empty())
    return rpc::rpc_sync<until_cancelled>(static_cast<int>(rest.front()),
                                          std::vector<int64_t>(rest.begin() + 1, rest.end()));
  while (!rpc::call_context().cancelled()) rpc::current_runtime()->sleep_for(std::chrono::milliseconds(50));
}

/// 64 KiB of the number. A call has a number of its own at its caller.
Tensor large_result(int64_t number) {
  static std::mutex mutex;
  static std::set<std::pair<uint64_t, int64_t>> ran;
  const std::lock_guard lock(mutex);
  if (!ran.emplace(rpc::call_context().caller_life.value, number).second) ++ran_twice;
  return full({8192}, static_cast<double>(number), {.dtype = kFloat64});
}
WEFT_RPC_AS(kLargeResult, &large_result);

Tensor free_sum(const Tensor& a) { return a.sum(); }
WEFT_RPC_AS("explore_free_sum", &free_sum);

Numbers numbers_of(const Tensor& t) { return t.defined() ? t.detach().to_vector<double>() : Numbers(); }

}  // namespace

Tensor mix(int64_t kind, const Tensor& a, const Tensor& b) {
  if (kind == 0) return a * 0.5 + sin(b);
  if (kind == 1) return a * tanh(b);
  return a - b * 0.25;
}

Tensor mix(int64_t kind, const Tensor& a, const Tensor& b, const std::vector<Tensor>& parameters) {
  if (kind == 0) return a * parameters[0] + b;
  if (kind == 1) return tanh(a) * parameters[0] + b * parameters[1];
  return a + sin(b);
}

Tensor wide(const Tensor& a) { return a.reshape({1, 3}) * full({2730, 1}, 1.0, {.dtype = kFloat64}); }

Tensor wide_mix(int64_t kind, const Tensor& a, const Tensor& b) { return mix(kind, a, b).mean(0); }

Tensor numbered_leaf(int64_t number) {
  Numbers values;
  for (int64_t i = 0; i < 3; ++i) values.push_back(std::cos(static_cast<double>(number * 3 + i)));
  return from_vector(values, {3}).requires_grad_();
}

// ---- tables

Table::Table(int64_t worker) : parameters_(parameters_of(worker)) { ++living; }

Tensor Table::chain(int64_t kind, const Tensor& a, const Tensor& b,
                    const std::vector<RRef<Table>>& rest) const {
  const Tensor y = apply(kind, a, b);
  if (rest.empty()) return y;
  return rest.front().rpc_sync<&Table::chain>(kind, y, b,
                                              std::vector<RRef<Table>>(rest.begin() + 1, rest.end()));
}

Tensor Table::use(int64_t kind, const RRef<Tensor>& a, const Tensor& b) const {
  return apply(kind, a.is_owner() ? a.local_value() : a.to_here(), b);
}

RRef<Tensor> Table::hold(int64_t kind, const Tensor& a, const Tensor& b) const {
  return RRef<Tensor>(apply(kind, a, b));
}

RRef<Tensor> Table::parameter(int64_t which) const {
  return RRef<Tensor>(parameters_[static_cast<size_t>(which)]);
}

std::vector<Numbers> Table::gradients(int64_t context) const {
  std::vector<Numbers> out;
  for (const Tensor& p : parameters_) out.push_back(numbers_of(dist_autograd::get_gradient(context, p)));
  return out;
}

std::vector<Numbers> Table::values() const {
  std::vector<Numbers> out;
  for (const Tensor& p : parameters_) out.push_back(numbers_of(p));
  return out;
}

// ---- over a group

RemoteWorld::RemoteWorld(int workers, const Program& program)
    : two_phase_(program.two_phase), fast_(program.fast), versions_(2 * static_cast<size_t>(workers)) {
  for (int w = 0; w < workers; ++w) tables_.push_back(rpc::remote<Table>(w, w));
  if (!program.optimizer) return;
  std::vector<RRef<Tensor>> parameters;
  for (const auto& t : tables_)
    for (int64_t i = 0; i < 2; ++i) parameters.push_back(t.rpc_sync<&Table::parameter>(i));
  optimizer_ = dist_optim::make<optim::SGDRule>(parameters, {.lr = kRate},
                                                {.two_phase = two_phase_, .lease_ms = 2000});
}

void RemoteWorld::end() {
  for (const auto& t : tables_) t.rpc_sync<&Table::clear>();
  context_.reset();
}

Tensor RemoteWorld::call(int t, int kind, const Tensor& a, const Tensor& b) {
  return table(t).rpc_sync<&Table::apply>(kind, a, b);
}
Tensor RemoteWorld::free(int worker, int kind, const Tensor& a, const Tensor& b) {
  return rpc::rpc_sync<free_mix>(worker, kind, a, b);
}
Tensor RemoteWorld::chain(const std::vector<int>& way, int kind, const Tensor& a, const Tensor& b) {
  std::vector<RRef<Table>> rest;
  for (size_t i = 1; i < way.size(); ++i) rest.push_back(table(way[i]));
  return table(way.front()).rpc_sync<&Table::chain>(kind, a, b, rest);
}
Tensor RemoteWorld::free_chain(const std::vector<int>& way, int kind, const Tensor& a, const Tensor& b) {
  return rpc::rpc_sync<free_chain_of>(way.front(), kind, a, b,
                                      std::vector<int64_t>(way.begin() + 1, way.end()));
}
RemoteWorld::Pending RemoteWorld::async(int t, int kind, const Tensor& a, const Tensor& b) {
  return table(t).rpc_async<&Table::apply>(kind, a, b);
}
RRef<Tensor> RemoteWorld::remote(int worker, int kind, const Tensor& a, const Tensor& b) {
  return rpc::remote<free_mix>(worker, kind, a, b);
}
RRef<Tensor> RemoteWorld::hold(int t, int kind, const Tensor& a, const Tensor& b) {
  return table(t).rpc_sync<&Table::hold>(kind, a, b);
}
RRef<Tensor> RemoteWorld::parameter(int t, int which) { return table(t).rpc_sync<&Table::parameter>(which); }
RRef<Tensor> RemoteWorld::third(int worker, int other, int kind, const Tensor& a, const Tensor& b) {
  return rpc::rpc_sync<third_party>(worker, kind, a, b, other);
}
Tensor RemoteWorld::use(int t, int kind, const Ref& r, const Tensor& b) {
  return table(t).rpc_sync<&Table::use>(kind, r, b);
}
RRef<Tensor> RemoteWorld::forward(int t, const Ref& r) { return table(t).rpc_sync<&Table::pass>(r); }
void RemoteWorld::keep(int t, const Ref& r) { table(t).rpc_sync<&Table::keep>(r); }
RRef<Tensor> RemoteWorld::give(int t) { return table(t).rpc_sync<&Table::give>(); }

void RemoteWorld::backward(const std::vector<Tensor>& roots, bool retain) {
  const std::vector<Numbers> before = own_gradients();
  try {
    context_->backward(roots, pass_options(retain));
  } catch (const Error&) {
    check_taken_back(before);
    throw;
  }
  ++passes_;
}
void RemoteWorld::remote_backward(int worker, const Tensor& value, bool retain) {
  rpc::remote<free_sum>(worker, value).backward(context_->id(), pass_options(retain));
  ++passes_;
}

dist_autograd::BackwardOptions RemoteWorld::pass_options(bool retain) const {
  using dist_autograd::Backward;
  return {.retain_graph = retain,
          .mode = fast_ ? Backward::kFast : Backward::kSmart,
          .stall = std::chrono::seconds(30)};
}

std::vector<Numbers> RemoteWorld::own_gradients() const {
  std::vector<Numbers> out;
  for (const auto& [leaf, gradient] : context_->gradients()) out.push_back(numbers_of(gradient));
  std::sort(out.begin(), out.end());
  return out;
}

/// Those of other workers are known only when the pass was the first one. A worker that was lost has none.
void RemoteWorld::check_taken_back(const std::vector<Numbers>& before) const {
  if (own_gradients() != before) throw std::logic_error("a failed pass has left gradients at the driver");
  if (passes_ > 0) return;
  for (const auto& t : tables_) {
    std::vector<Numbers> left;
    try {
      left = t.rpc_sync<&Table::gradients>(context_->id());
    } catch (const Error&) {
      continue;
    }
    for (const Numbers& g : left)
      if (!g.empty()) throw std::logic_error("a failed pass has left gradients at " + t.owner_name());
  }
}
std::vector<Numbers> RemoteWorld::gradients(const std::vector<Tensor>& leaves) {
  std::vector<Numbers> out;
  for (const Tensor& x : leaves) out.push_back(numbers_of(context_->gradient(x)));
  given_.clear();
  for (const auto& t : tables_)
    for (Numbers& g : t.rpc_sync<&Table::gradients>(context_->id())) {
      given_.push_back(!g.empty());
      out.push_back(std::move(g));
    }
  return out;
}
std::vector<Numbers> RemoteWorld::values() {
  std::vector<Numbers> out;
  for (const auto& t : tables_)
    for (Numbers& v : t.rpc_sync<&Table::values>()) out.push_back(std::move(v));
  return out;
}
void RemoteWorld::step() {
  if (!optimizer_) return;
  try {
    optimizer_->step(context_->id());
  } catch (const Error& e) {
    const bool none = std::string(e.what()).find("(no owner has stepped)") != std::string::npos;
    if (two_phase_) check_one_step(none);
    throw;
  }
  for (size_t i = 0; i < versions_.size(); ++i) versions_[i] += given_[i];
}

/// `none`: the error says that nobody has stepped. In an elastic group an owner that was fenced when the
/// commit came asks the store for it within two leases. Without an answer it refuses newer steps.
void RemoteWorld::check_one_step(bool none) const {
  if (is_one_step(none)) return;
  if (none) throw std::logic_error("an owner has taken a step that nobody should have");
  const auto runtime = rpc::current_runtime();
  const rpc::TimePoint until = runtime->now() + std::chrono::seconds(8);
  while (!is_one_step(none) && runtime->now() < until) runtime->sleep_for(std::chrono::milliseconds(500));
  if (is_one_step(none)) return;
  for (const auto& owner : optimizer_->owners()) {
    if (!is_behind(owner)) continue;
    try {
      owner.optimizer.rpc_sync<&dist_optim::OwnerOptimizer::step>(context_->id());
    } catch (const rpc::StepInDoubt&) {
      continue;
    } catch (const PeerLost&) {
      continue;
    } catch (const rpc::Fenced&) {
      continue;
    } catch (const Error&) {
    }
    throw std::logic_error("a step in two phases was taken by some owners only");
  }
}

/// A living owner has a parameter with a gradient that did not step.
bool RemoteWorld::is_behind(const dist_optim::DistributedOptimizer::Owner& owner) const {
  std::vector<int64_t> now;
  try {
    now = owner.optimizer.rpc_sync<&dist_optim::OwnerOptimizer::versions>();
  } catch (const Error&) {
    return false;
  }
  for (size_t i = 0; i < now.size(); ++i)
    if (given_[owner.at[i]] && now[i] == versions_[owner.at[i]]) return true;
  return false;
}

/// All owners have taken the step, or none. One that was lost counts for nothing.
bool RemoteWorld::is_one_step(bool none) const {
  std::optional<bool> first;
  if (none) first = false;
  for (const auto& owner : optimizer_->owners()) {
    std::vector<int64_t> now;
    try {
      now = owner.optimizer.rpc_sync<&dist_optim::OwnerOptimizer::versions>();
    } catch (const Error&) {
      continue;
    }
    for (size_t i = 0; i < now.size(); ++i) {
      const bool stepped = now[i] != versions_[owner.at[i]];
      if (!given_[owner.at[i]] && stepped) throw std::logic_error("a step without a gradient was taken");
      if (given_[owner.at[i]] && first.value_or(stepped) != stepped) return false;
      if (given_[owner.at[i]]) first = stepped;
    }
  }
  return true;
}

Tensor RemoteWorld::burst(int worker, int kind, const Tensor& a, const Tensor& b) {
  const Tensor large = wide(a);
  std::vector<Pending> all;
  for (int i = 0; i < kBurst; ++i) all.push_back(rpc::rpc_async<slow_wide_mix>(worker, kind, large, b));
  Tensor sum = all.front().wait();
  for (size_t i = 1; i < all.size(); ++i) sum = sum + all[i].wait();
  return sum;
}

void RemoteWorld::results(int worker) {
  static std::atomic<int64_t> next{0};
  rpc::CallContext context = rpc::capture_context();
  context.autograd_context = -1;  // a result in a context is kept
  const rpc::CallScope scope(context);
  std::vector<std::pair<int64_t, Pending>> all;
  for (int i = 0; i < kBurst; ++i) {
    const int64_t number = next++;
    all.emplace_back(number, rpc::rpc_async<large_result>(worker, number));
  }
  for (const auto& [number, result] : all) {
    try {
      if (result.wait().to_vector<double>().back() != static_cast<double>(number))
        throw std::logic_error("a large result is that of another call");
    } catch (const rpc::ResultDropped&) {
    }
  }
}

void RemoteWorld::cancel(const std::vector<int>& way, int kind) {
  const rpc::Future<void> running =
      rpc::rpc_async<until_cancelled>(way.front(), std::vector<int64_t>(way.begin() + 1, way.end()));
  if (kind > 0) rpc::current_runtime()->sleep_for(std::chrono::milliseconds(5 * kind));
  const bool cancelled = running.cancel();
  try {
    running.wait();
  } catch (const Cancelled&) {
    if (cancelled) return;
    throw;
  }
  throw std::logic_error("a call that runs until it is cancelled has a result");
}

// ---- in one process

LocalWorld::LocalWorld(int workers, const Program& program) : optimizer_(program.optimizer) {
  for (int w = 0; w < workers; ++w) tables_.push_back(parameters_of(w));
  sums_.assign(tables_.size(), std::vector<Numbers>(2));
}

void LocalWorld::end() { kept_.clear(), losses_.clear(), past_.clear(); }

Tensor LocalWorld::chain(const std::vector<int>& way, int kind, const Tensor& a, const Tensor& b) {
  Tensor y = a;
  for (const int t : way) y = call(t, kind, y, b);
  return y;
}
Tensor LocalWorld::free_chain(const std::vector<int>& way, int kind, const Tensor& a, const Tensor& b) {
  Tensor y = a;
  for (size_t i = 0; i < way.size(); ++i) y = mix(kind, y, b);
  return y;
}

Tensor LocalWorld::burst(int, int kind, const Tensor& a, const Tensor& b) {
  const Tensor large = wide(a);
  Tensor sum = wide_mix(kind, large, b);
  for (int i = 1; i < kBurst; ++i) sum = sum + wide_mix(kind, large, b);
  return sum;
}

std::vector<Numbers> LocalWorld::gradients(const std::vector<Tensor>& leaves) {
  std::vector<Tensor> all = leaves;
  std::vector<size_t> to;  // the place of each in the result: parameters before a step count as the same
  for (size_t i = 0; i < leaves.size(); ++i) to.push_back(i);
  const auto add = [&](const std::vector<std::vector<Tensor>>& tables) {
    for (size_t t = 0; t < tables.size(); ++t)
      for (size_t i = 0; i < 2; ++i) all.push_back(tables[t][i]), to.push_back(leaves.size() + 2 * t + i);
  };
  add(tables_);
  for (const auto& tables : past_) add(tables);
  std::vector<Numbers> out(leaves.size() + 2 * tables_.size());
  for (const auto& roots : losses_) {
    const std::vector<Tensor> got = grad(roots, all, {}, {.retain_graph = true, .allow_unused = true});
    for (size_t i = 0; i < all.size(); ++i) {
      const Numbers g = numbers_of(got[i]);
      Numbers& sum = out[to[i]];
      if (sum.empty()) sum = g;
      else
        for (size_t j = 0; j < g.size(); ++j) sum[j] += g[j];
    }
  }
  for (size_t i = leaves.size(); i < out.size(); ++i)
    sums_[(i - leaves.size()) / 2][(i - leaves.size()) % 2] = out[i];
  return out;
}

std::vector<Numbers> LocalWorld::values() {
  std::vector<Numbers> out;
  for (const auto& t : tables_)
    for (const Tensor& p : t) out.push_back(numbers_of(p));
  return out;
}

void LocalWorld::step() {
  if (!optimizer_) return;
  past_.push_back(tables_);
  for (size_t t = 0; t < tables_.size(); ++t)
    for (size_t i = 0; i < 2; ++i) {
      const Numbers& g = sums_[t][i];
      if (g.empty()) continue;
      Numbers v = numbers_of(tables_[t][i]);
      for (size_t j = 0; j < v.size(); ++j) v[j] -= kRate * g[j];
      tables_[t][i] = from_vector(v, {3}).requires_grad_();
    }
}

}  // namespace weft::explore
