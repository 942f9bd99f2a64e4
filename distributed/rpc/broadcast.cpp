// The messages of broadcast.h: one encoding for all receivers that can share it, and the rows of a scatter.
// A receiver with another device map gets an encoding of its own.
#include <weft/distributed/rpc/broadcast.h>

#include <algorithm>

#include <weft/autograd/ops/ops.h>

namespace weft::rpc {

namespace {

/// Copies once the tensors that sealing would copy for each message: detached parameters, and views of little
/// of their memory. A leaf that requires grad stays one, and is copied for each message.
void copy_once(Message& message) {
  for (Tensor& t : message.tensors) {
    if (!t.device().is_cpu() || t.requires_grad()) continue;
    if (t.body().storage->history_is_leaf()) t = t.clone();
    else if (!t.is_contiguous()) t = t.contiguous();
  }
}

/// Whether a message of tensors that stay on the CPU is the right one for another worker.
bool fits(Agent& agent, const Message& message, WorkerId other) {
  for (const Tensor& t : message.tensors)
    if (agent.target_device(other, false, t.device()) != t.device()) return false;
  return true;
}

}  // namespace

void detail::send_to_many(Agent& agent, const std::vector<std::string>& names,
                          const std::function<Message(Life to)>& write,
                          const std::function<void(Life to, Message message)>& send) {
  if (names.empty()) throw ValueError("broadcast: no workers are named");
  std::vector<Life> peers;
  for (const std::string& name : names) peers.push_back(agent.life_of(agent.worker_info_id(name)));
  Message shared = write(peers.front());
  const bool shareable = shared.settled.empty() && shared.places.empty();
  if (!shareable) {
    send(peers.front(), std::move(shared));
    for (size_t i = 1; i < peers.size(); ++i) send(peers[i], write(peers[i]));
    return;
  }
  copy_once(shared);
  for (const Life& to : peers) send(to, fits(agent, shared, to.id) ? shared : write(to));
}

Tensor detail::rows_for(const Tensor& whole, size_t index, size_t parts) {
  if (!whole.defined() || whole.dim() == 0)
    throw ValueError("scatter: a tensor without dims has no rows to split");
  const auto n = static_cast<int64_t>(parts), i = static_cast<int64_t>(index), rows = whole.size(0);
  if (rows < n) throw ValueError(str("scatter: ", rows, " rows cannot be split over ", n, " workers"));
  const int64_t first = i * (rows / n) + std::min(i, rows % n);
  return whole.narrow(0, first, rows / n + (i < rows % n ? 1 : 0));
}

void detail::check_same_rows(const std::vector<Tensor>& tensors) {
  for (const Tensor& t : tensors) {
    rows_for(t, 0, 1);
    if (t.size(0) != tensors.front().size(0))
      throw ValueError(str("scatter: tensors of ", tensors.front().size(0), " and ", t.size(0), " rows"));
  }
}

}  // namespace weft::rpc
