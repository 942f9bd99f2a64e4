#include "rref/world.h"

#include <array>
#include <mutex>

namespace weft::test {

using namespace rpc;

namespace {
std::array<std::vector<Known>, 8> bags;
std::mutex bags_mutex;  // over gRPC the handlers are threads; never held over a call
int here() { return current_agent()->self().id.value; }
}  // namespace

std::vector<Known>& bag(int rank) { return bags[static_cast<size_t>(rank)]; }

void clear_bags() {
  for (auto& b : bags) {
    std::vector<Known> old;
    const std::lock_guard lock(bags_mutex);
    old.swap(b);
  }
}

int64_t read_cell(const RRef<Cell>& cell) {
  return cell.is_owner() ? cell.local_value().get() : cell.rpc_sync<&Cell::get>();
}

void keep_cell(const Known& known) {
  if (!known.cell.confirmed_by_owner())
    throw std::logic_error("a function started before its references were confirmed");
  const std::lock_guard lock(bags_mutex);
  bag(here()).push_back(known);
}

std::vector<Known> give_cell(int64_t which) {
  const std::lock_guard lock(bags_mutex);
  auto& mine = bag(here());
  if (mine.empty()) return {};
  return {mine[static_cast<size_t>(which) % mine.size()]};
}

int64_t pass_cell(const Known& known, const std::vector<int64_t>& way) {
  if (!known.cell.confirmed_by_owner())
    throw std::logic_error("a function started before its references were confirmed");
  if (way.empty()) return read_cell(known.cell);
  return rpc_sync<pass_cell>(static_cast<int>(way.front()), known,
                             std::vector<int64_t>(way.begin() + 1, way.end()));
}

Known return_cell(const Known& known) { return known; }
Known make_cell(int64_t value) { return {value, make_rref<Cell>(value)}; }
RRef<Cell> cell_of(const Known& known) { return known.cell; }
int64_t fail_to_make(int64_t value) { throw ValueError(str("no value from ", value)); }

int64_t make_slowly(int64_t ms) {
  current_runtime()->sleep_for(std::chrono::milliseconds(ms));
  return ms;
}
int64_t read_slowly(const RRef<Cell>& cell, int64_t ms) {
  current_runtime()->sleep_for(std::chrono::milliseconds(ms));
  return read_cell(cell);
}

std::string left_over(Cluster& cluster, const std::vector<int>& ranks) {
  std::string out;
  for (const int rank : ranks)
    for (const auto& [key, value] : cluster.agent(rank)->debug_info())
      if (value != 0 && (key == "num_owner_rrefs" || key == "num_forks" || key == "num_pending_users" ||
                         key == "num_pending_children" || key == "num_user_rrefs" || key == "num_shares"))
        out += str("worker", rank, " ", key, " = ", value, "\n");
  return out;
}

void settle(Cluster& cluster) {
  std::vector<int> ranks;
  for (int rank = 0; rank < cluster.size(); ++rank) ranks.push_back(rank);
  if (cluster.simulated()) {
    cluster.sim().run_for(std::chrono::seconds(20));
    return;
  }
  for (int i = 0; i < 6000 && !left_over(cluster, ranks).empty(); ++i)
    cluster.runtime().sleep_for(std::chrono::milliseconds(10));
}

}  // namespace weft::test
