// Hearing, where a function ran, of what it threw. Its caller gets the exception; the worker that served it keeps no log of its own, and here a
// program writes one:
//
//   rpc::on_served_error(*rpc::default_agent(), [](const rpc::ServedError& e) {
//     std::cerr << "worker " << e.caller.name << " called " << e.function << ": " << e.text << "\n";
//   });
//
// Calls, methods of references and creations by rpc::remote are told of, also those refused before their function ran; debug_info() counts them
// as "agent.served_errors".
#pragma once

#include <functional>
#include <string>

#include <weft/distributed/agent.h>

namespace weft::rpc {

struct ServedError {
  WorkerInfo caller;
  std::string function;  ///< its registered name; the kind of the request when that was not reached
  std::string text;      ///< what() of the exception
  std::exception_ptr error;
};

/// Calls `f` for every request of this agent that ends in an exception, before the answer leaves: on the thread that answers, at once for several
/// requests. It must be short and must not block; what it throws is dropped. Several are called in the order they were added.
WEFT_API void on_served_error(Agent& agent, std::function<void(const ServedError&)> f);

namespace detail {
/// Tells of what a request ended in, which has not been answered yet.
void tell_served_error(const Responder::Served& served, const std::exception_ptr& error) noexcept;
}  // namespace detail

}  // namespace weft::rpc
