// A call to all owners of a distributed optimizer. It is sent to all at once and awaited for each, with one
// error that names every owner that failed.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <weft/distributed/rpc/rpc_error.h>
#include <weft/distributed/wire/future.h>

namespace weft::dist_optim::detail {

/// The errors of a call to all owners.
class OwnerErrors {
 public:
  explicit OwnerErrors(size_t owners) : errors_(owners) {}
  /// Records the current exception of an owner; its later ones are ignored.
  void note(size_t owner, const std::string& name) {
    if (errors_[owner].first) return;
    errors_[owner] = {std::current_exception(), name};
  }
  /// Throws: the first error in the order of owners. With several owners its text names all that failed.
  void check(const char* what, const char* others = "the other owners have done it") const {
    std::exception_ptr first;
    std::string failed;
    size_t count = 0;
    for (const auto& [error, name] : errors_) {
      if (!error) continue;
      if (!first) first = error;
      failed += str(count++ == 0 ? "" : "; ", "'", name, "': ", rpc::error_text(error));
    }
    if (!first) return;
    if (errors_.size() == 1) std::rethrow_exception(first);
    std::rethrow_exception(rpc::with_text(
        first,
        str("distributed optimizer: ", what, " failed on ", count == errors_.size() ? "every owner, " : "",
            failed, count == errors_.size() ? std::string() : str(" (", others, ")"))));
  }

 private:
  std::vector<std::pair<std::exception_ptr, std::string>> errors_;
};

/// Calls all owners at once and waits for each. Throws as OwnerErrors::check.
template <class R, class Owners, class Call>
std::vector<R> on_owners(const Owners& owners, const char* what, Call&& call,
                         const char* others = "the other owners have done it") {
  OwnerErrors errors(owners.size());
  std::vector<std::optional<rpc::Future<R>>> futures(owners.size());
  for (size_t o = 0; o < owners.size(); ++o) {
    try {
      futures[o] = call(owners[o]);
    } catch (const std::exception&) {  // for example, an owner known to be lost
      errors.note(o, owners[o].name);
    }
  }
  std::vector<R> out;
  for (size_t o = 0; o < owners.size(); ++o) {
    try {
      if (futures[o]) out.push_back(futures[o]->take());
    } catch (const std::exception&) {
      errors.note(o, owners[o].name);
    }
  }
  errors.check(what, others);
  return out;
}

/// Gives a void call a value, so that one loop serves both.
inline rpc::Future<bool> flagged(rpc::Future<void> f) {
  return f.then_inline([] { return true; });
}

}  // namespace weft::dist_optim::detail
