// A callback for exceptions thrown by functions that this worker serves. The caller gets the exception; the
// serving worker writes no log. With this callback a program writes its own:
//
//   rpc::on_served_error(*rpc::default_agent(), [](const rpc::ServedError& e) {
//     std::cerr << "worker " << e.caller.name << " called " << e.function << ": " << e.text << "\n";
//   });
//
// The callback sees calls, methods of remote references and creations by rpc::remote. The callback also sees
// requests refused before their function ran. debug_info() counts them as "agent.served_errors".
#pragma once

#include <functional>
#include <string>

#include <weft/distributed/rpc/agent.h>

namespace weft::rpc {

/// A request that ended in an exception.
struct ServedError {
  WorkerInfo caller;
  std::string function;  ///< registered name; the request's kind if no function was found
  std::string text;      ///< what() of the exception
  std::exception_ptr error;
};

/// Calls `f` for every request of this agent that ends in an exception, before the answer leaves. `f`
/// runs on the answering thread, concurrently for several requests. It must be short and must not
/// block; its exceptions are dropped. Several callbacks run in the order of their registration.
/// Thread safety: any thread.
WEFT_API void on_served_error(Agent& agent, std::function<void(const ServedError&)> f);

namespace detail {
/// Calls the callbacks with the error of a request that is not answered yet.
void tell_served_error(const Responder::Served& served, const std::exception_ptr& error) noexcept;
}  // namespace detail

}  // namespace weft::rpc
