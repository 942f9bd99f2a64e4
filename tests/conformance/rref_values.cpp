#include "conformance/rref_values.h"

namespace weft::test {

using namespace rpc;

Tensor row_add(const Tensor& a, const Tensor& b) { return add(a, b); }
Tensor row_add_rrefs(const RRef<Tensor>& a, const RRef<Tensor>& b) { return add(a.to_here(), b.to_here()); }
RRef<Tensor> row_nested_remote(int64_t to, const Tensor& a, const Tensor& b) {
  return remote<row_add>(static_cast<int>(to), a, b);
}
RRef<RRef<Tensor>> row_nested_rref(int64_t to, const Tensor& a) {
  return RRef<RRef<Tensor>>(remote<row_add>(static_cast<int>(to), a, ones({2})));
}
std::vector<RRef<Tensor>> row_local_rrefs(int64_t n) {
  std::vector<RRef<Tensor>> all;
  for (int64_t i = 0; i < n; ++i) all.push_back(RRef<Tensor>(full({2}, static_cast<double>(i))));
  return all;
}
double row_value(const RRef<Tensor>& r) { return r.to_here().sum().item<double>(); }
double row_forward(const RRef<Tensor>& r, int64_t ttl) {
  if (ttl == 0) return row_value(r);
  const int next =
      (current_agent()->self().id.value + 1) % static_cast<int>(current_agent()->worker_infos().size());
  return rpc_sync<row_forward>(next, r, ttl - 1);
}
bool row_confirmed(const RRef<Tensor>& r) { return r.confirmed_by_owner(); }
Tensor row_fail(const Tensor& a) { throw ValueError(str("expected error with ", a.numel(), " numbers")); }
Gate& row_gate() {
  static Gate gate;
  return gate;
}
Tensor row_slow(int64_t ms) {
  if (ms == kAtGate) row_gate().pass();
  else current_runtime()->sleep_for(std::chrono::milliseconds(ms));
  return ones({2});
}
int64_t row_never_registered(int64_t n) { return n; }

RowCounter::RowCounter(int64_t start, int64_t slow_ms) : value_(start) { row_slow(slow_ms); }
int64_t RowCounter::slow_add(int64_t n, int64_t ms) {
  const int64_t before = value_;
  row_slow(ms);
  return value_ = before + n;
}

Future<Tensor> RowServer::push(const Tensor& gradient) {
  std::vector<Future<Tensor>> all;
  Future<Tensor> mine;
  Tensor now;
  {
    MutexLock lock(mutex_);
    sum_ = sum_.defined() ? add(sum_, gradient) : gradient;
    waiting_.push_back(mine);
    if (++arrived_ == trainers_) {
      weight_ = sub(weight_, div(sum_, static_cast<double>(trainers_)));
      arrived_ = 0;
      sum_ = Tensor();
      all.swap(waiting_);
    }
    now = weight_;
  }
  for (const auto& f : all) f.set_result(now);
  return mine;
}

double row_train(const RRef<RowServer>& server, int64_t steps) {
  Tensor weight = server.rpc_sync<&RowServer::weight>();
  for (int64_t i = 0; i < steps; ++i) weight = server.rpc_sync<&RowServer::push>(ones({3}));
  return weight.sum().item<double>();
}

double row_episode(const RRef<RowAgent>& agent, int64_t steps) {
  double good = 0;
  for (int64_t i = 0; i < steps; ++i) {
    const double observation = i % 3 == 0 ? -0.5 : 0.25;
    const int64_t action = agent.rpc_sync<&RowAgent::choose>(observation);
    const bool right = (action == 1) == (observation > 0);
    good += right;
    agent.rpc_sync<&RowAgent::reward>(observation, action, right ? 0.0 : -1.0);
  }
  return good / static_cast<double>(steps);
}

}  // namespace weft::test
