// The encoding of exceptions: type name, fields and text. Each type that survives the transfer has a row; all
// others arrive as RemoteError.
#include <weft/distributed/rpc/rpc_error.h>

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <stdexcept>
#include <typeinfo>

#include <weft/distributed/rpc/fenced.h>
#include <weft/distributed/rpc/result_dropped.h>
#include <weft/distributed/rpc/step_errors.h>
#include <weft/distributed/wire/codec.h>

namespace weft::rpc {

namespace {

struct Row {
  const char* name;
  const std::type_info* type;
  std::exception_ptr (*make)(const std::string& text);
};
template <class E> constexpr Row row(const char* name) {
  return {name, &typeid(E), [](const std::string& text) { return std::make_exception_ptr(E(text)); }};
}
const Row kRows[] = {
    row<ShapeError>("ShapeError"),
    row<DTypeError>("DTypeError"),
    row<DeviceError>("DeviceError"),
    row<IndexError>("IndexError"),
    row<ValueError>("ValueError"),
    row<AutogradError>("AutogradError"),
    row<IoError>("IoError"),
    row<CudaError>("CudaError"),
    row<OutOfMemoryError>("OutOfMemoryError"),
    row<Timeout>("Timeout"),
    row<Cancelled>("Cancelled"),
    row<UnknownFunction>("UnknownFunction"),
    row<SignatureMismatch>("SignatureMismatch"),
    row<NotAllowed>("NotAllowed"),
    row<Fenced>("Fenced"),
    row<WireError>("WireError"),
    row<Overloaded>("Overloaded"),
    row<ResultDropped>("ResultDropped"),
    row<StaleStep>("StaleStep"),
    row<StepInDoubt>("StepInDoubt"),
    row<RpcError>("RpcError"),
    row<Error>("Error"),
    row<std::invalid_argument>("std::invalid_argument"),
    row<std::out_of_range>("std::out_of_range"),
    row<std::domain_error>("std::domain_error"),
    row<std::length_error>("std::length_error"),
    row<std::logic_error>("std::logic_error"),
    row<std::range_error>("std::range_error"),
    row<std::overflow_error>("std::overflow_error"),
    row<std::underflow_error>("std::underflow_error"),
};

std::string type_name(const std::type_info& type) {
  for (const Row& r : kRows)
    if (*r.type == type) return r.name;
  int status = 0;
  char* text = abi::__cxa_demangle(type.name(), nullptr, nullptr, &status);
  std::string name = status == 0 ? text : type.name();
  std::free(text);
  return name;
}

struct Parts {
  std::string kind, text, peer;
};

Parts take_apart(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const RemoteError& e) {
    return {e.kind, e.what(), {}};
  } catch (const OwnerLost& e) {
    return {"OwnerLost", e.what(), e.peer};
  } catch (const PeerLost& e) {
    return {"PeerLost", e.what(), e.peer};
  } catch (const SignatureMismatch& e) {
    return {"SignatureMismatch", e.what(), e.signature};
  } catch (const std::bad_alloc&) {
    return {"OutOfMemoryError", "out of memory", {}};
  } catch (const std::exception& e) {
    return {type_name(typeid(e)), e.what(), {}};
  } catch (...) {
    const std::type_info* type = abi::__cxa_current_exception_type();
    return {type ? type_name(*type) : "unknown", "an exception that is not a std::exception", {}};
  }
}

/// True if an error of that kind keeps its type; all others become a RemoteError.
bool has_type_of_its_own(const std::string& kind) {
  const auto is = [&](const Row& r) { return kind == r.name; };
  return kind == "PeerLost" || kind == "OwnerLost" || std::any_of(std::begin(kRows), std::end(kRows), is);
}

std::exception_ptr make(const Parts& parts, const std::string& worker) {
  if (parts.kind == "PeerLost") return std::make_exception_ptr(PeerLost(parts.peer, parts.text));
  if (parts.kind == "OwnerLost") return std::make_exception_ptr(OwnerLost(parts.peer, parts.text));
  for (const Row& r : kRows)
    if (parts.kind == r.name) return r.make(parts.text);
  return std::make_exception_ptr(RemoteError(worker, parts.kind, parts.text));
}

}  // namespace

std::exception_ptr no_thread_error(const std::string& worker) {
  return std::make_exception_ptr(Overloaded(str("worker '", worker, "' ", refusal())));
}

void put_error(Encoder& out, const std::exception_ptr& error) {
  const Parts parts = take_apart(error);
  out.put(parts.kind);
  out.put(parts.text);
  out.put(parts.peer);
}

std::exception_ptr get_error(Decoder& in, const std::string& worker, const char* function,
                             const std::string& signature) {
  const std::string kind = in.get<std::string>();
  const std::string there = in.get<std::string>();
  const std::string peer = in.get<std::string>();
  const bool says_its_type =
      has_type_of_its_own(kind) || there.starts_with("On worker '");  // by the type, or by a hop before
  const std::string text = str("On worker '", worker, "': ", says_its_type ? "" : kind + ": ", there);
  // The callee sends these two without a text: only the caller knows the name or its own signature.
  if (there.empty() && kind == "UnknownFunction")
    return std::make_exception_ptr(
        UnknownFunction(str(text, "no function '", function ? function : "?", "' is registered there")));
  if (there.empty() && kind == "SignatureMismatch") {
    const std::string here = !signature.empty() ? signature : function ? function : "?";
    return std::make_exception_ptr(SignatureMismatch(
        str("signatures differ: here '", here, "', on worker '", worker, "' '", peer, "'"), peer));
  }
  return make({kind, text, peer}, worker);
}

std::exception_ptr with_text(const std::exception_ptr& error, const std::string& text) {
  std::string worker;
  try {
    std::rethrow_exception(error);
  } catch (const RemoteError& e) {
    worker = e.worker;
  } catch (...) {
  }
  Parts parts = take_apart(error);
  parts.text = text;
  return make(parts, worker);
}

std::string error_text(const std::exception_ptr& error) { return take_apart(error).text; }

}  // namespace weft::rpc
