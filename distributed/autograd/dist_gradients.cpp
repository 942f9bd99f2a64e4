// The gradients of a context: one part per pass, joined when the pass has ended at its initiator. A leaf with
// one part needs no copy. Each further pass over a leaf costs two copies until the next pass begins. Sums
// keep the graphs of gradients that a pass with create_graph made.
#include <weft/distributed/autograd/inner/dist_gradients.h>

#include <algorithm>

#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/grad_mode.h>
#include <weft/autograd/tape/inner/grad_math.h>
#include <weft/autograd/tape/inner/packed_rows.h>

namespace weft::dist_autograd::detail {
namespace {

/// Both may be row-wise; a dense one makes the sum dense.
Tensor added(const Tensor& a, const Tensor& b) {
  const bool rows = weft::detail::is_row_wise(a) || weft::detail::is_row_wise(b);
  return rows ? weft::detail::add_gradients(a, b) : a + b;
}

}  // namespace

void LeafGradients::add(const Tensor& leaf, Tensor grad, bool may_steal) {
  auto& [kept, sum] = sums_[leaf.body_ptr()];
  if (!sum.defined()) {
    kept = leaf;
    sum = may_steal ? std::move(grad) : grad_enabled() ? grad.clone() : grad.detach().clone();
  } else {
    sum = added(sum, grad);
  }
}

void LeafGradients::add(const Tensor& leaf, RowGrad grad, bool may_steal) {
  if (!may_steal) grad.values = grad.values.detach().clone();
  add(leaf, weft::detail::pack_rows(grad), true);
}

void ContextGradients::add(MadeId pass, LeafGradients part) {
  for (auto& [body, one] : part.sums_) {
    Entry& entry = entries_[body];
    entry.leaf = std::move(one.first);
    entry.parts.emplace_back(pass, std::move(one.second));
    entry.sum = Tensor();
  }
}

std::vector<Tensor> ContextGradients::drop(MadeId pass) {
  std::vector<Tensor> gone;
  for (auto at = entries_.begin(); at != entries_.end();) {
    Entry& entry = at->second;
    const auto part = std::find_if(entry.parts.begin(), entry.parts.end(),
                                   [&](const auto& one) { return one.first == pass; });
    if (part != entry.parts.end()) {
      gone.push_back(std::move(part->second));
      gone.push_back(std::exchange(entry.sum, Tensor()));
      entry.parts.erase(part);
    }
    if (entry.parts.empty() && !entry.base.defined()) {
      gone.push_back(std::move(entry.leaf));
      at = entries_.erase(at);
    } else {
      ++at;
    }
  }
  return gone;
}

void ContextGradients::settle(Life initiator, int64_t settled) {
  for (auto& [body, entry] : entries_) {
    const auto kept = std::stable_partition(entry.parts.begin(), entry.parts.end(), [&](const auto& part) {
      return part.first.maker() == initiator && part.first.id < settled;
    });
    if (kept == entry.parts.begin()) continue;
    Entry joined{{}, entry.base, {entry.parts.begin(), kept}, {}};
    entry.base = kept == entry.parts.end() ? sum_of(entry) : sum_of(joined);
    entry.parts.erase(entry.parts.begin(), kept);
  }
}

Tensor ContextGradients::sum_of(Entry& entry) {
  if (entry.sum.defined()) return entry.sum;
  const rpc::DefaultStreams streams;  // as the passes that made the parts
  bool recorded = entry.base.defined() && entry.base.requires_grad();
  for (const auto& [pass, part] : entry.parts) recorded = recorded || part.requires_grad();
  const GradMode mode(recorded);
  entry.sum = entry.base;
  for (const auto& [pass, part] : entry.parts)
    entry.sum = entry.sum.defined() ? added(entry.sum, part) : part;
  return entry.sum;
}

Tensor ContextGradients::of(const Tensor& leaf) {
  const auto found = entries_.find(leaf.body_ptr());
  return found == entries_.end() ? Tensor() : sum_of(found->second);
}

std::vector<std::pair<Tensor, Tensor>> ContextGradients::all() {
  std::vector<std::pair<Tensor, Tensor>> out;
  for (auto& [body, entry] : entries_) out.emplace_back(entry.leaf, sum_of(entry));
  return out;
}

}  // namespace weft::dist_autograd::detail
