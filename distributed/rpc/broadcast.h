// One call to many workers: broadcast sends the same arguments to all, scatter sends each worker its rows.
//
//   auto calls = rpc::broadcast<load_weights>({"w1", "w2", "w3"}, weights);
//   calls.all().wait();                                  // all are done; the first error is thrown at once
//   auto parts = rpc::scatter<forward>({{"w1", "w2"}, 5s}, batch);  // rows 0 to n/2 to w1, the rest to w2
//   Tensor y = cat(parts.take(), 0);                     // in the order of the names
//
// The arguments of broadcast are encoded once, and its messages share the memory of the tensors. Only a leaf
// that requires grad is copied for each message. Remote references, and tensors that a device map moves, are
// encoded for each receiver separately. Inside an autograd context every call is recorded, so gradients flow
// back from all workers, and add up. Thread safety: any thread.
#pragma once

#include <weft/distributed/rpc/rpc.h>

namespace weft::rpc {

/// Destinations of one call, by name, and its timeout as in To. A name may occur twice.
struct ToMany {
  ToMany(std::vector<std::string> workers, std::optional<Duration> limit = {})
      : names(std::move(workers)), timeout(limit) {}
  ToMany(std::initializer_list<std::string> workers) : names(workers) {}
  std::vector<std::string> names;
  std::optional<Duration> timeout;
};

/// The calls of a broadcast or scatter.
template <class R> struct ManyCalls {
  std::vector<std::string> names;
  std::vector<Future<R>> each;  ///< in the order of the names
  /// A future of all results in that order, of void without results. It fails as soon as one fails.
  auto all() const { return collect(each); }
  /// Blocks until all are done and returns the results. Throws: the first error, at once.
  auto take() const { return all().take(); }
  /// As Future::cancel, for all that are not done.
  void cancel() const {
    for (const Future<R>& one : each) one.cancel();
  }
};

namespace detail {

/// Sends the messages of a broadcast; `write` makes the message for a receiver. Calls `send` in the order of
/// the names. Throws: ValueError without names or for a worker outside the group.
WEFT_API void send_to_many(Agent& agent, const std::vector<std::string>& names,
                           const std::function<Message(Life to)>& write,
                           const std::function<void(Life to, Message message)>& send);

/// The rows of part `index` of `parts`, sizes as equal as possible. Throws: ValueError for fewer rows than
/// parts, and for a tensor without dims.
WEFT_API Tensor rows_for(const Tensor& whole, size_t index, size_t parts);

/// Checks that the tensors of a scatter have the same number of rows.
WEFT_API void check_same_rows(const std::vector<Tensor>& tensors);

}  // namespace detail

/// Runs F(args...) on every named worker. Throws (at the call): ValueError without names or for a worker
/// outside the group; errors of the arguments. Each future throws the errors of its own call.
template <auto F, class... Args>
auto broadcast(const ToMany& to, const Args&... args)
    -> ManyCalls<typename detail::FunctionTraits<F>::Answer> {
  using R = typename detail::FunctionTraits<F>::Answer;
  const FunctionEntry& function = function_entry<F>();
  const std::shared_ptr<Agent> agent = current_agent();
  ManyCalls<R> calls{to.names, {}};
  const auto write = [&](Life peer) {
    Message message;
    Encoder out(message, agent.get(), peer);
    put_function(out, function);
    put_arguments<F>(out, args...);
    out.finish();
    return message;
  };
  const auto send = [&](Life peer, Message message) {
    calls.each.push_back(
        send_call<R>(*agent, peer, Kind::kCall, std::move(message), {to.timeout, function.name.c_str()}));
    if (WaitAll* scope = WaitAll::current())
      scope->add(calls.each.back().then_inline([](const Future<R>& f) {
        if (f.has_error()) std::rethrow_exception(f.error());
      }));
  };
  try {
    detail::send_to_many(*agent, to.names, write, send);
  } catch (...) {
    calls.cancel();
    throw;
  }
  return calls;
}

/// Runs F on every named worker with its part of the rows of each Tensor argument; other arguments go to all.
/// Throws (at the call): as broadcast; ValueError for tensors of different numbers of rows, or for fewer rows
/// than workers.
template <auto F, class... Args>
auto scatter(const ToMany& to, const Args&... args) -> ManyCalls<typename detail::FunctionTraits<F>::Answer> {
  using R = typename detail::FunctionTraits<F>::Answer;
  static_assert((std::is_same_v<Args, Tensor> || ...), "scatter splits the rows of its Tensor arguments");
  std::vector<Tensor> tensors;
  const auto note = [&](const auto& arg) {
    if constexpr (std::is_same_v<std::decay_t<decltype(arg)>, Tensor>) tensors.push_back(arg);
  };
  (note(args), ...);
  detail::check_same_rows(tensors);
  if (to.names.empty()) throw ValueError("scatter: no workers are named");
  for (const Tensor& t : tensors) detail::rows_for(t, 0, to.names.size());
  const std::shared_ptr<Agent> agent = current_agent();
  for (const std::string& name : to.names) agent->worker_info_id(name);
  ManyCalls<R> calls{to.names, {}};
  for (size_t i = 0; i < to.names.size(); ++i) {
    const auto part = [&](const auto& arg) -> decltype(auto) {
      if constexpr (std::is_same_v<std::decay_t<decltype(arg)>, Tensor>)
        return detail::rows_for(arg, i, to.names.size());
      else return (arg);
    };
    const To one = to.timeout ? To(to.names[i], *to.timeout) : To(to.names[i]);
    calls.each.push_back(rpc_async<F>(one, part(args)...));
  }
  return calls;
}

}  // namespace weft::rpc
