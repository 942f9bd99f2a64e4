// The recorded graph in the DOT language of Graphviz. Nodes are numbered in breadth-first order from the
// roots; each edge is labelled with the position of its input.
#include <weft/autograd/tape/dot.h>

#include <unordered_map>

#include <weft/autograd/tape/node.h>

namespace weft {

std::string to_dot(const std::vector<Tensor>& roots) {
  std::unordered_map<const Node*, int64_t> ids;
  std::vector<const Node*> order;
  const auto visit = [&](const Node* node) {
    const auto [at, fresh] = ids.emplace(node, static_cast<int64_t>(ids.size()));
    if (fresh) order.push_back(node);
    return at->second;
  };
  std::string arrows;
  std::vector<Edge> held;
  for (size_t i = 0; i < roots.size(); ++i) {
    Edge edge = gradient_edge(roots[i]);
    if (!edge.node) continue;
    arrows += str("  root", static_cast<int64_t>(i), " -> n", visit(edge.node.get()), ";\n");
    held.push_back(std::move(edge));
  }
  if (held.empty()) throw AutogradError("to_dot: none of the tensors has a history");
  std::string boxes;
  for (size_t at = 0; at < order.size(); ++at) {
    const Node& node = *order[at];
    std::string sizes;
    for (const SlotMeta& meta : node.slots()) sizes += str("\\n", meta.sizes, " ", meta.dtype);
    boxes += str("  n", static_cast<int64_t>(at), " [shape=", node.is_accumulate() ? "ellipse" : "box",
                 ", label=\"", node.is_accumulate() ? "leaf" : node.name(), sizes, "\"];\n");
    for (size_t i = 0; i < node.edges().size(); ++i)
      if (const Edge& e = node.edges()[i]; e.node)
        arrows += str("  n", static_cast<int64_t>(at), " -> n", visit(e.node.get()), " [label=\"",
                      static_cast<int64_t>(i), "\"];\n");
  }
  return str("digraph tape {\n", boxes, arrows, "}\n");
}

}  // namespace weft
