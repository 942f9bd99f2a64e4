// Reachability for replies: the walk that finds which received tensors lead to a reply's tensors, and the
// bytes of the result. dist_record.cpp calls both. The walk stops at kMostVisited nodes.
#include <weft/distributed/autograd/inner/dist_reach.h>

#include <unordered_set>

#include <weft/distributed/wire/codec.h>

namespace weft::dist_autograd::detail {

namespace {

/// Most nodes that are visited for one reply. A larger graph is marked by asking, which costs two messages.
constexpr size_t kMostVisited = 128;

}  // namespace

std::optional<Reach> reach_of(const EdgeList& edges, Life receiver) {
  Reach reach;
  size_t visited = 0;
  std::unordered_set<const Node*> seen;
  std::vector<const Node*> stack;
  for (const Edge& root : edges) {
    std::map<int64_t, SlotSet> sends;
    seen.clear();
    bool foreign = false;
    const auto arrive = [&](const Edge& e) {
      if (!e.node) return;
      if (e.node->is_boundary()) {
        const auto& recv = static_cast<const RecvNode&>(*e.node);
        foreign = foreign || recv.from != receiver;
        SlotSet& slots = sends[recv.message];
        if (slots.size() <= e.slot) slots.resize(e.slot + 1);
        slots[e.slot] = true;
      } else if (seen.insert(e.node.get()).second) {
        stack.push_back(e.node.get());
      }
    };
    arrive(root);
    while (!stack.empty() && !foreign && ++visited <= kMostVisited) {
      const Node* const node = stack.back();
      stack.pop_back();
      for (const Edge& e : node->edges()) arrive(e);
    }
    if (foreign || visited > kMostVisited) return std::nullopt;
    reach.emplace_back(sends.begin(), sends.end());
  }
  return reach;
}

std::string pack_reach(const Reach& reach) {
  rpc::Message bytes;
  {
    rpc::Encoder out(bytes);
    out.size(reach.size());
    for (const auto& sends : reach) {
      out.size(sends.size());
      for (const auto& [message, slots] : sends) {
        out.number(message);
        out.put(slots);
      }
    }
  }
  return std::string(bytes.body());
}

Reach unpack_reach(std::string_view bytes) {
  rpc::Message message;
  message.bytes.resize(rpc::kEnvelopeBytes);
  message.bytes += bytes;
  message.body_end = message.bytes.size();
  rpc::Decoder in(message);
  Reach reach(in.size());
  for (auto& sends : reach)
    for (size_t n = in.size(); n > 0; --n) {
      const auto number = in.number<int64_t>();
      sends.emplace_back(number, in.get<SlotSet>());
    }
  in.expect_end();
  return reach;
}

}  // namespace weft::dist_autograd::detail
