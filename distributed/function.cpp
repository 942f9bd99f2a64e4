// The registry of functions: filled before main() by the macros of function.h, read by every served call.
#include <weft/distributed/function.h>

#include <algorithm>
#include <unordered_map>

#include <weft/distributed/rpc_error.h>
#include <weft/distributed/sync.h>

namespace weft::rpc {

namespace {

struct Registry {
  Mutex mutex;
  std::unordered_map<uint64_t, std::unique_ptr<FunctionEntry>> by_id WEFT_GUARDED_BY(mutex);
  std::vector<std::string> errors WEFT_GUARDED_BY(mutex);
};
Registry& registry() {
  static auto* r = new Registry;  // outlives every static object that registers or is called
  return *r;
}

}  // namespace

uint64_t stable_hash(std::string_view text) {
  uint64_t h = 0xCBF29CE484222325u;
  for (const char c : text) h = (h ^ static_cast<uint8_t>(c)) * 0x100000001B3u;
  return h;
}

const FunctionEntry* find_function(uint64_t id) {
  MutexLock lock(registry().mutex);
  const auto found = registry().by_id.find(id);
  return found == registry().by_id.end() ? nullptr : found->second.get();
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
  // At a first use, inside the initialisation of a static variable: a simulated task is not switched out there, and draws nothing that a
  // second run in the same process would not.
  const inner::KeepRunning whole;
  MutexLock lock(registry().mutex);
  auto& kept = registry().by_id[entry.id];
  if (kept && (kept->prepare != entry.prepare || kept->name != entry.name))
    registry().errors.push_back(str("function '", entry.name, "' is registered twice: as '", kept->signature,
                                    "' and as '", entry.signature, "'"));
  if (!kept) kept = std::make_unique<FunctionEntry>(std::move(entry));
  return kept.get();
}

void throw_unregistered(const char* pretty) {
  throw UnknownFunction(
      str("this function is not registered here, it needs WEFT_RPC or WEFT_RPC_CLASS: ", pretty));
}

}  // namespace detail

}  // namespace weft::rpc
