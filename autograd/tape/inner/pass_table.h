// The data of one Pass: the rows of its nodes, a hash table from Node* to a row, and the heap of ready rows.
// The hash table has open addressing. A thread keeps one for its next pass, with the memory of its lists. Few
// rows are searched one by one, without the hash table.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include <weft/autograd/tape/node.h>
#include <weft/tensor/inner/free_list.h>

namespace weft::detail {

/// One marked node.
struct PassRow {
  Node* node;
  uint32_t awaited = 0;   ///< deliveries still expected
  uint32_t place = 0;     ///< position of this row in the hash table, where it is used
  uint32_t children = 0;  ///< position of its edges' rows in PassTable::children
  int32_t wanted = -1;    ///< first capture of this node, or -1
  bool walked = false;    ///< its children are listed
  bool marked = false;    ///< counted as pending until executed
  bool executed = false;
  bool leads = true;   ///< with captures: a wanted edge is reachable through it
  bool needed = true;  ///< with captures: it is wanted, or leads to a wanted edge
  uint64_t seen = 0;   ///< boundary nodes: slots already reported
  GradList buffers;    ///< by slot
  explicit PassRow(Node* n) : node(n) {}
};

class PassTable {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  static void* operator new(size_t bytes) { return pool_allocate(bytes); }
  static void operator delete(void* p, size_t bytes) noexcept { pool_free(p, bytes); }

  std::vector<PassRow> rows;
  std::vector<uint32_t> children;
  std::vector<Ref<Node>> roots;  ///< they keep all nodes of the pass alive
  std::vector<uint32_t> stack;   ///< rows that marking has still to visit

  uint32_t find(const Node* node) const {
    if (rows.size() <= kSearched) {
      for (size_t r = 0; r < rows.size(); ++r)
        if (rows[r].node == node) return static_cast<uint32_t>(r);
      return kNone;
    }
    for (size_t i = hash(node);; i = (i + 1) & (slots_.size() - 1)) {
      if (slots_[i] == kNone) return kNone;
      if (rows[slots_[i]].node == node) return slots_[i];
    }
  }
  /// The node's row, appended if it is new.
  uint32_t insert(Node* node) {
    if (rows.size() <= kSearched) {
      if (const uint32_t found = find(node); found != kNone) return found;
      if (rows.size() < kSearched) {
        rows.emplace_back(node);
        return static_cast<uint32_t>(rows.size() - 1);
      }
      if (slots_.empty()) grow();
      else file_rows();
    } else if ((rows.size() + 1) * 2 > slots_.size()) {
      grow();
    }
    size_t i = hash(node);
    for (; slots_[i] != kNone; i = (i + 1) & (slots_.size() - 1))
      if (rows[slots_[i]].node == node) return slots_[i];
    slots_[i] = static_cast<uint32_t>(rows.size());
    rows.emplace_back(node).place = static_cast<uint32_t>(i);
    return slots_[i];
  }

  /// Clears the table for the next pass. Returns false if it is too large to keep.
  bool reset() {
    if (slots_.size() > 4096) return false;
    if (rows.size() > kSearched)
      for (const PassRow& row : rows) slots_[row.place] = kNone;
    rows.clear();
    children.clear();
    ready_.clear();
    stack.clear();
    roots.clear();
    return true;
  }
  void clear_ready() { ready_.clear(); }

  // Ready rows, the most recently created node first: late nodes free their buffers before early ones
  // allocate.
  bool ready_empty() const { return ready_.empty(); }
  void push_ready(uint32_t row) {
    ready_.push_back({rows[row].node->sequence(), row});
    if (ready_.size() > 1) std::push_heap(ready_.begin(), ready_.end());
  }
  uint32_t pop_ready() {
    if (ready_.size() > 1) std::pop_heap(ready_.begin(), ready_.end());
    const uint32_t row = ready_.back().row;
    ready_.pop_back();
    return row;
  }

 private:
  struct Ready {
    uint64_t sequence;
    uint32_t row;
    bool operator<(const Ready& o) const {
      return sequence != o.sequence ? sequence < o.sequence : row > o.row;
    }
  };
  size_t hash(const Node* node) const {
    return (reinterpret_cast<uintptr_t>(node) * 0x9E3779B97F4A7C15u >> 20) & (slots_.size() - 1);
  }
  void grow() {
    slots_.assign(slots_.empty() ? 32 : slots_.size() * 2, kNone);
    file_rows();
  }
  /// Enters all rows into the empty table.
  void file_rows() {
    for (uint32_t r = 0; r < rows.size(); ++r) {
      size_t i = hash(rows[r].node);
      while (slots_[i] != kNone) i = (i + 1) & (slots_.size() - 1);
      slots_[i] = r;
      rows[r].place = static_cast<uint32_t>(i);
    }
  }
  static constexpr size_t kSearched = 8;
  std::vector<uint32_t> slots_;
  std::vector<Ready> ready_;
};

}  // namespace weft::detail
