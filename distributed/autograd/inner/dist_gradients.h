// The gradients of one context on one worker. The gradients of a pass stay separate until its initiator
// reports its end. So the failure of a pass takes back its own and no others. A row-wise gradient is kept
// packed (autograd/tape/inner/packed_rows.h). Internal to distributed autograd.
#pragma once

#include <unordered_map>
#include <utility>
#include <vector>

#include <weft/distributed/autograd/inner/dist_nodes.h>

namespace weft::dist_autograd::detail {

/// Leaves with the sums of their gradients.
class LeafGradients {
 public:
  /// In the grad mode of the pass.
  void add(const Tensor& leaf, Tensor grad, bool may_steal);
  void add(const Tensor& leaf, RowGrad grad, bool may_steal);
  bool empty() const { return sums_.empty(); }

 private:
  friend class ContextGradients;
  std::unordered_map<TensorBody*, std::pair<Tensor, Tensor>> sums_;
};

/// Not thread safe: the context's mutex guards it.
class ContextGradients {
 public:
  /// Adds the gradients that a pass has computed here. It makes no device work: a reader adds up.
  void add(MadeId pass, LeafGradients part);
  /// Takes back the part of a pass. The caller frees the result without the lock.
  std::vector<Tensor> drop(MadeId pass);
  /// Joins the parts of an initiator's passes below `settled`: they have ended well or were dropped.
  void settle(Life initiator, int64_t settled);
  /// The gradient of a leaf; an undefined tensor without one. It is the same tensor until a pass changes it.
  Tensor of(const Tensor& leaf);
  std::vector<std::pair<Tensor, Tensor>> all();

 private:
  struct Entry {
    Tensor leaf;
    Tensor base;  ///< of settled passes; undefined: none
    std::vector<std::pair<MadeId, Tensor>> parts;
    Tensor sum;  ///< of base and parts; undefined: not added up yet
  };
  static Tensor sum_of(Entry& entry);
  std::unordered_map<TensorBody*, Entry> entries_;
};

}  // namespace weft::dist_autograd::detail
