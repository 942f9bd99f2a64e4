// The registry of functions. The macros of function.h fill it before main(); every served call reads it.
// Errors of registration are kept, and check_registry throws them.
#include <weft/distributed/rpc/function.h>

#include <algorithm>
#include <unordered_map>

#include <weft/distributed/rpc/rpc_error.h>
#include <weft/distributed/runtime/sync.h>

namespace weft::rpc {

namespace {

using Functions = std::unordered_map<uint64_t, const FunctionEntry*>;
struct Registry {
  Mutex mutex;
  std::unordered_map<uint64_t, std::unique_ptr<FunctionEntry>> by_id WEFT_GUARDED_BY(mutex);
  /// Copies of `by_id` that calls read without the lock; those that were read once stay.
  std::vector<std::unique_ptr<const Functions>> copies WEFT_GUARDED_BY(mutex);
  std::atomic<const Functions*> newest{nullptr};
  std::vector<std::string> errors WEFT_GUARDED_BY(mutex);
};
Registry& registry() {
  static auto* r = new Registry;  // never destroyed: static objects may register or call at any time
  return *r;
}

}  // namespace

uint64_t stable_hash(std::string_view text) {
  uint64_t h = 0xCBF29CE484222325u;
  for (const char c : text) h = (h ^ static_cast<uint8_t>(c)) * 0x100000001B3u;
  return h;
}

const FunctionEntry* find_function(uint64_t id) {
  Registry& r = registry();
  const Functions* known = r.newest.load(std::memory_order_acquire);
  if (known != nullptr)
    if (const auto found = known->find(id); found != known->end()) return found->second;
  const inner::KeepRunning whole;  // a second run in this process may find it without the lock
  MutexLock lock(r.mutex);
  known = r.newest.load(std::memory_order_relaxed);
  if (known == nullptr || known->size() < r.by_id.size()) {
    auto copy = std::make_unique<Functions>();
    for (const auto& [key, entry] : r.by_id) copy->emplace(key, entry.get());
    r.copies.push_back(std::move(copy));
    r.newest = r.copies.back().get();
  }
  const auto found = r.by_id.find(id);
  return found == r.by_id.end() ? nullptr : found->second.get();
}

const FunctionEntry* find_function(std::string_view name) { return find_function(stable_hash(name)); }

std::vector<const FunctionEntry*> all_functions() {
  std::vector<const FunctionEntry*> all;
  {
    MutexLock lock(registry().mutex);
    for (const auto& [id, entry] : registry().by_id) all.push_back(entry.get());
  }
  std::sort(all.begin(), all.end(), [](const auto* a, const auto* b) { return a->signature < b->signature; });
  return all;
}

void check_registry() {
  MutexLock lock(registry().mutex);
  if (!registry().errors.empty()) throw ValueError(registry().errors.front());
}

void put_function(Encoder& out, const FunctionEntry& function) {
  out.number(function.id);
  out.number(function.signature_hash);
}

std::shared_ptr<void> Outcome::box() {
  if (object) return object;
  if (value == nullptr) return nullptr;
  if (type->box == nullptr)
    throw ValueError(str("a value of type ", type->name(), " can be neither moved nor copied"));
  return type->box(value, may_move);
}

namespace detail {

const FunctionEntry* add_function(FunctionEntry entry) {
  // This may run inside the initialisation of a static variable. There a simulated task must not be
  // preempted, nor draw random numbers that a second run in the same process would not draw.
  const inner::KeepRunning whole;
  MutexLock lock(registry().mutex);
  auto& kept = registry().by_id[entry.id];
  if (kept && (kept->prepare != entry.prepare || kept->name != entry.name))
    registry().errors.push_back(str("function '", entry.name, "' is registered twice: as '", kept->signature,
                                    "' and as '", entry.signature, "'"));
  else if (kept && kept->idempotent != entry.idempotent)
    registry().errors.push_back(
        str("function '", entry.name, "' is registered twice: once as idempotent, once not"));
  if (!kept) kept = std::make_unique<FunctionEntry>(std::move(entry));
  return kept.get();
}

void throw_unregistered(const char* pretty) {
  // GCC's text ends with "[with auto F = app::shout]", or "[with T = app::Table; auto M =
  // &app::Table::find]". Clang's is similar.
  const std::string_view text = pretty;
  const bool method = text.find("method_entry") != std::string_view::npos;
  const size_t equals = text.rfind(method ? "M = " : "F = ");
  std::string name(equals == std::string_view::npos ? text : text.substr(equals + 4));
  if (name.ends_with(']')) name.pop_back();
  if (name.starts_with('&')) name.erase(0, 1);
  throw UnknownFunction(str(method ? "the method '" : "the function '", name,
                            "' is not registered in this program; ",
                            method ? "WEFT_RPC_CLASS(Class, methods...) registers methods"
                                   : "WEFT_RPC(name) registers a function"));
}

}  // namespace detail

}  // namespace weft::rpc
