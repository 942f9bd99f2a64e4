// Reachability that a reply takes along: which sends of its receiver a pass reaches through each tensor. With
// it, SMART marks without asking (dist_smart.cpp). Internal to distributed autograd.
#pragma once

#include <optional>
#include <string_view>
#include <utility>

#include <weft/distributed/autograd/inner/dist_nodes.h>

namespace weft::dist_autograd::detail {

/// For each edge of a send node: the sends of `receiver` whose tensors lead there, with their slots. None
/// where another worker's tensors do too, or where the graph is larger than a reply should pay for.
std::optional<Reach> reach_of(const EdgeList& edges, Life receiver);
std::string pack_reach(const Reach& reach);
/// Throws: WireError for malformed bytes.
Reach unpack_reach(std::string_view bytes);

}  // namespace weft::dist_autograd::detail
