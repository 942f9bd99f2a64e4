// The errors of rounded gradients in checkpoints. The hard part is their
// identity: a key has lives, which a resumed run does not have.
#include <weft/distributed/optim/inner/edge_errors.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include <weft/distributed/autograd/inner/dist_context.h>
#include <weft/distributed/rpc/agent.h>
#include <weft/distributed/rpc/current_agent.h>
#include <weft/tensor/factories.h>

namespace weft::dist_optim::detail {
namespace {

using dist_autograd::detail::ContextTable;
using dist_autograd::detail::KeptError;
using dist_autograd::detail::same_life;
using rpc::Life;

constexpr const char* kCount = "count";

Life life_now(const rpc::Agent& agent, rpc::WorkerId id) {
  return id == agent.self().id ? agent.life() : agent.life_of(id);
}

/// A worker as a set writes it; empty for a life that has a successor and for a worker that has left.
std::string peer_text(const rpc::Agent& agent, const std::vector<Life>& members, Life life) {
  for (size_t i = 0; i < members.size(); ++i)
    if (members[i].id == life.id) return same_life(members[i], life) ? str('@', i) : std::string();
  if (!same_life(life_now(agent, life.id), life)) return {};
  for (const rpc::WorkerInfo& w : agent.worker_infos())
    if (w.id == life.id) return w.name;
  return {};
}

/// False if the text is no number.
bool read_number(std::string_view text, int64_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() && number >= 0;
}

/// The worker of such a text; none if it is not in the group. False if the text is no worker.
bool read_peer(const rpc::Agent& agent, const std::vector<Life>& members, std::string_view text,
               std::optional<Life>& life) {
  if (int64_t i = 0; text.starts_with('@')) {
    if (!read_number(text.substr(1), i) || i >= static_cast<int64_t>(members.size())) return false;
    life = members[static_cast<size_t>(i)];
    return true;
  }
  for (const rpc::WorkerInfo& w : agent.worker_infos())
    if (w.name == text) life = life_now(agent, w.id);
  return !text.empty();
}

std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> out;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find('/', at), text.size());
    out.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return out;
}

}  // namespace

std::vector<Life> members_of(const ShardTerms& terms) {
  if (terms.workers.size() != terms.incarnations.size())
    throw ValueError("checkpoint: the list of its workers has no lives");
  std::vector<Life> out;
  for (size_t i = 0; i < terms.workers.size(); ++i)
    out.push_back(
        {rpc::WorkerId{static_cast<int32_t>(terms.workers[i])}, rpc::Incarnation{terms.incarnations[i]}});
  return out;
}

optim::StateDict edge_errors(const std::vector<Life>& members) {
  const auto agent = rpc::current_agent();
  optim::StateDict out;
  for (const KeptError& e : ContextTable::of(*agent)->codecs.errors()) {
    const std::string to = peer_text(*agent, members, e.key.to),
                      maker = peer_text(*agent, members, e.key.maker);
    if (to.empty() || maker.empty()) continue;
    out.emplace_back(str(out.size(), '/', to, '/', maker, '/', e.key.ordinal, '/', e.key.slot), e.error);
  }
  const auto count = static_cast<int64_t>(out.size());
  out.emplace_back(kCount, from_vector(std::vector<int64_t>{count}, {1}));
  return out;
}

std::vector<KeptError> read_edge_errors(const optim::StateDict& state, const std::vector<Life>& members) {
  const auto agent = rpc::current_agent();
  std::vector<std::pair<int64_t, KeptError>> read;
  for (const auto& [name, error] : state) {
    if (name == kCount) continue;
    const auto fields = split(name);
    int64_t number = 0;
    KeptError e{.key = {}, .error = error.detach()};
    std::optional<Life> to, maker;
    if (fields.size() != 5 || !read_number(fields[0], number) || !read_peer(*agent, members, fields[1], to) ||
        !read_peer(*agent, members, fields[2], maker) || !read_number(fields[3], e.key.ordinal) ||
        !read_number(fields[4], e.key.slot) || error.dtype() != kFloat32)
      throw ValueError(str("checkpoint: '", name, "' is no error of a rounded gradient"));
    if (!to || !maker) continue;
    e.key.to = *to, e.key.maker = *maker;
    read.emplace_back(number, std::move(e));
  }
  std::sort(read.begin(), read.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<KeptError> out;
  for (auto& entry : read) out.push_back(std::move(entry.second));
  return out;
}

void set_edge_errors(std::vector<KeptError> errors) {
  ContextTable::of(*rpc::current_agent())->codecs.set_errors(std::move(errors));
}

}  // namespace weft::dist_optim::detail
