// The workers of an explored program: tables with two parameters each, and functions over the network. A
// program runs in one of two worlds: over a group, or in one process with the engine alone.
#pragma once

#include <atomic>
#include <map>
#include <optional>

#include <weft/distributed/autograd/dist_autograd.h>
#include <weft/distributed/optim/dist_optimizer.h>

#include "explore/plan.h"

namespace weft::explore {

using rpc::RRef;
using Numbers = std::vector<double>;

/// The three operations of a program; each uses another set of its operands.
Tensor mix(int64_t kind, const Tensor& a, const Tensor& b);
Tensor mix(int64_t kind, const Tensor& a, const Tensor& b, const std::vector<Tensor>& parameters);
/// A value repeated to 64 KiB, and an operation on it that has a small result.
Tensor wide(const Tensor& a);
Tensor wide_mix(int64_t kind, const Tensor& a, const Tensor& b);
/// Number of requests of a burst, and of large results.
inline constexpr int kBurst = 24;
/// A planted fault: the nested calls of a burst count as calls from outside a handler.
inline std::atomic<bool> nested_waits{false};
/// The name of the function of Step::Op::kCancel.
inline constexpr char kUntilCancelled[] = "explore_until_cancelled";
/// The name of the function of Step::Op::kResults.
inline constexpr char kLargeResult[] = "explore_large_result";
/// Number of its calls that ran twice.
inline std::atomic<int> ran_twice{0};
/// A leaf whose values depend on the number alone.
Tensor numbered_leaf(int64_t number);

/// Parameters of one program on one worker, behind a reference: a successor of its worker has none of it.
class Table {
 public:
  explicit Table(int64_t worker);
  Table(const Table&) = delete;
  ~Table() { --living; }
  Tensor apply(int64_t kind, const Tensor& a, const Tensor& b) const { return mix(kind, a, b, parameters_); }
  Tensor chain(int64_t kind, const Tensor& a, const Tensor& b, const std::vector<RRef<Table>>& rest) const;
  Tensor use(int64_t kind, const RRef<Tensor>& a, const Tensor& b) const;
  RRef<Tensor> hold(int64_t kind, const Tensor& a, const Tensor& b) const;
  RRef<Tensor> parameter(int64_t which) const;
  RRef<Tensor> pass(const RRef<Tensor>& r) const { return r; }
  void keep(const RRef<Tensor>& r) { kept_.push_back(r); }
  RRef<Tensor> give() const { return kept_.back(); }
  void clear() { kept_.clear(); }
  /// Those of the parameters in a context; empty where there is none.
  std::vector<Numbers> gradients(int64_t context) const;
  std::vector<Numbers> values() const;
  static inline std::atomic<int> living{0};

 private:
  std::vector<Tensor> parameters_;
  std::vector<RRef<Tensor>> kept_;
};
WEFT_RPC_CLASS(Table, apply, chain, use, hold, parameter, pass, keep, give, clear, gradients, values);

/// A program over a group, at its driver and in its agent's scope.
class RemoteWorld {
 public:
  using Ref = RRef<Tensor>;
  using Pending = rpc::Future<Tensor>;
  RemoteWorld(int workers, const Program& program);
  void begin() { context_.emplace(), passes_ = 0; }
  void end();
  Tensor call(int t, int kind, const Tensor& a, const Tensor& b);
  Tensor free(int worker, int kind, const Tensor& a, const Tensor& b);
  Tensor chain(const std::vector<int>& way, int kind, const Tensor& a, const Tensor& b);
  Tensor free_chain(const std::vector<int>& way, int kind, const Tensor& a, const Tensor& b);
  Pending async(int t, int kind, const Tensor& a, const Tensor& b);
  Tensor await(Pending p) { return p.wait(); }
  Ref remote(int worker, int kind, const Tensor& a, const Tensor& b);
  Ref hold(int t, int kind, const Tensor& a, const Tensor& b);
  Ref parameter(int t, int which);
  Ref third(int worker, int other, int kind, const Tensor& a, const Tensor& b);
  Tensor fetch(const Ref& r) { return r.to_here(); }
  Tensor use(int t, int kind, const Ref& r, const Tensor& b);
  Ref forward(int t, const Ref& r);
  void keep(int t, const Ref& r);
  Ref give(int t);
  /// When the pass fails, its gradients must be nowhere. Throws: std::logic_error when they are somewhere.
  void backward(const std::vector<Tensor>& roots, bool retain);
  void remote_backward(int worker, const Tensor& value, bool retain);
  Tensor burst(int worker, int kind, const Tensor& a, const Tensor& b);
  /// A result that its worker had no room for may be missing. Throws: std::logic_error for a wrong one.
  void results(int worker);
  /// Throws: std::logic_error when the call ends without an error.
  void cancel(const std::vector<int>& way, int kind);
  std::vector<Numbers> gradients(const std::vector<Tensor>& leaves);
  std::vector<Numbers> values();
  /// When a step in two phases fails, all owners have stepped or none. Throws: std::logic_error when some
  /// have.
  void step();

 private:
  const RRef<Table>& table(int t) const { return tables_[static_cast<size_t>(t)]; }
  dist_autograd::BackwardOptions pass_options(bool retain) const;
  std::vector<Numbers> own_gradients() const;
  void check_taken_back(const std::vector<Numbers>& before) const;
  void check_one_step(bool none) const;
  bool is_one_step(bool none) const;
  bool is_behind(const dist_optim::DistributedOptimizer::Owner& owner) const;
  std::vector<RRef<Table>> tables_;
  std::optional<dist_optim::DistributedOptimizer> optimizer_;
  std::optional<dist_autograd::Context> context_;
  const bool two_phase_, fast_;
  int passes_ = 0;                 ///< of the context
  std::vector<bool> given_;        ///< the parameters with a gradient, at the last look
  std::vector<int64_t> versions_;  ///< of the parameters
};

/// The same in one process: the oracle.
class LocalWorld {
 public:
  using Ref = Tensor;
  using Pending = Tensor;
  LocalWorld(int workers, const Program& program);
  void begin() {}
  void end();
  Tensor call(int t, int kind, const Tensor& a, const Tensor& b) { return mix(kind, a, b, at(t)); }
  Tensor free(int, int kind, const Tensor& a, const Tensor& b) { return mix(kind, a, b); }
  Tensor chain(const std::vector<int>& way, int kind, const Tensor& a, const Tensor& b);
  Tensor free_chain(const std::vector<int>& way, int kind, const Tensor& a, const Tensor& b);
  Pending async(int t, int kind, const Tensor& a, const Tensor& b) { return call(t, kind, a, b); }
  Tensor await(Pending p) { return p; }
  Ref remote(int, int kind, const Tensor& a, const Tensor& b) { return mix(kind, a, b); }
  Ref hold(int t, int kind, const Tensor& a, const Tensor& b) { return call(t, kind, a, b); }
  Ref parameter(int t, int which) { return at(t)[static_cast<size_t>(which)]; }
  Ref third(int, int, int kind, const Tensor& a, const Tensor& b) { return mix(kind, a, b); }
  Tensor fetch(const Ref& r) { return r; }
  Tensor use(int t, int kind, const Ref& r, const Tensor& b) { return call(t, kind, r, b); }
  Ref forward(int, const Ref& r) { return r; }
  void keep(int t, const Ref& r) { kept_[t].push_back(r); }
  Ref give(int t) { return kept_[t].back(); }
  void backward(const std::vector<Tensor>& roots, bool) { losses_.push_back(roots); }
  void remote_backward(int, const Tensor& value, bool) { losses_.push_back({value.sum()}); }
  Tensor burst(int worker, int kind, const Tensor& a, const Tensor& b);
  void results(int) {}
  void cancel(const std::vector<int>&, int) {}
  std::vector<Numbers> gradients(const std::vector<Tensor>& leaves);
  std::vector<Numbers> values();
  void step();

 private:
  std::vector<Tensor>& at(int t) { return tables_[static_cast<size_t>(t)]; }
  const bool optimizer_;
  std::vector<std::vector<Tensor>> tables_;
  std::map<int, std::vector<Tensor>> kept_;
  std::vector<std::vector<Tensor>> losses_;
  std::vector<std::vector<std::vector<Tensor>>> past_;  // the parameters before the steps of this iteration
  std::vector<std::vector<Numbers>> sums_;              // the gradients of the parameters in this iteration
};

}  // namespace weft::explore
