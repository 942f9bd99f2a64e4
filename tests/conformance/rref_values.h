// Functions and classes that the conformance rows of references call. Registered once, in rref_values.cpp.
#pragma once

#include <weft/autograd/ops/ops.h>
#include <weft/distributed/rref/rref.h>
#include <weft/distributed/runtime/sync.h>
#include <weft/tensor/factories.h>

#include "support/cluster.h"

namespace weft::test {

using rpc::Future;
using rpc::RRef;

Tensor row_add(const Tensor& a, const Tensor& b);
WEFT_RPC(row_add);
Tensor row_add_rrefs(const RRef<Tensor>& a, const RRef<Tensor>& b);
WEFT_RPC(row_add_rrefs);
/// Adds by a call back to worker `to` from within.
RRef<Tensor> row_nested_remote(int64_t to, const Tensor& a, const Tensor& b);
WEFT_RPC(row_nested_remote);
RRef<RRef<Tensor>> row_nested_rref(int64_t to, const Tensor& a);
WEFT_RPC(row_nested_rref);
std::vector<RRef<Tensor>> row_local_rrefs(int64_t n);
WEFT_RPC(row_local_rrefs);
double row_value(const RRef<Tensor>& r);
WEFT_RPC(row_value);
/// Forwards the reference `ttl` times over the next workers, then reads it.
double row_forward(const RRef<Tensor>& r, int64_t ttl);
WEFT_RPC(row_forward);
bool row_confirmed(const RRef<Tensor>& r);
WEFT_RPC(row_confirmed);
Tensor row_fail(const Tensor& a);
WEFT_RPC(row_fail);
/// Waits so long, or at the gate where ms is kAtGate.
inline constexpr int64_t kAtGate = -1;
Gate& row_gate();
Tensor row_slow(int64_t ms);
WEFT_RPC(row_slow);
int64_t row_never_registered(int64_t n);

/// A value that methods change; one call at a time.
class RowCounter {
 public:
  using rpc_serialized = void;
  explicit RowCounter(int64_t start) : value_(start) {}
  RowCounter(int64_t start, int64_t slow_ms);
  int64_t add(int64_t n) { return value_ += n; }
  int64_t slow_add(int64_t n, int64_t ms);
  int64_t value() const { return value_; }
  Tensor times(const Tensor& t) const { return mul(t, static_cast<double>(value_)); }
  int64_t unregistered() const { return value_; }

 private:
  int64_t value_;
};
WEFT_RPC_CLASS(RowCounter, add, slow_add, value, times);

/// Holds a reference, so that two of them can hold each other.
class RowHolder {
 public:
  void hold(const RRef<RowHolder>& other) { other_ = other; }
  bool holds() const { return static_cast<bool>(other_); }

 private:
  RRef<RowHolder> other_;
};
WEFT_RPC_CLASS(RowHolder, hold, holds);

/// The two parameter servers of upstream's tests: averaging through a reference, and batched updates that
/// release all trainers at once.
class RowServer {
 public:
  explicit RowServer(int64_t trainers) : trainers_(trainers), weight_(zeros({3})) {}
  Tensor weight() const { return weight_; }
  Future<Tensor> push(const Tensor& gradient);

 private:
  rpc::Mutex mutex_;
  const int64_t trainers_;
  int64_t arrived_ = 0;
  Tensor weight_, sum_;
  std::vector<Future<Tensor>> waiting_;
};
WEFT_RPC_CLASS(RowServer, weight, push);
double row_train(const RRef<RowServer>& server, int64_t steps);
WEFT_RPC(row_train);

/// An agent that learns from observers to answer 1 for a positive observation.
class RowAgent {
 public:
  using rpc_serialized = void;
  int64_t choose(double observation) const { return observation * weight_ > 0 ? 1 : 0; }
  void reward(double observation, int64_t action, double reward) {
    weight_ += reward * observation * (action == 1 ? 1 : -1);
  }

 private:
  double weight_ = -1;
};
WEFT_RPC_CLASS(RowAgent, choose, reward);
double row_episode(const RRef<RowAgent>& agent, int64_t steps);
WEFT_RPC(row_episode);

}  // namespace weft::test
