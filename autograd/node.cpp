// Life and death of nodes. Destroying a node releases its edges and its saved tensors, which may be the last references to further nodes;
// those wait in a thread-local list instead of on the call stack.
#include <weft/autograd/node.h>

#include <weft/autograd/extras.h>
#include <weft/tensor/free_list.h>

namespace weft {

void* Node::operator new(size_t bytes) { return pool_allocate(bytes); }
void Node::operator delete(void* p, size_t bytes) noexcept { pool_free(p, bytes); }

uint64_t Node::next_sequence() {
  static constinit std::atomic<uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

Node::~Node() { delete extras.load(std::memory_order_relaxed); }

void Node::destroy(Node* n) noexcept {
  static constinit thread_local Node* waiting =
      nullptr;  // linked through sequence_, which a dead node needs no more
  static constinit thread_local bool busy = false;
  if (busy) {
    n->sequence_ = reinterpret_cast<uint64_t>(waiting);
    waiting = n;
    return;
  }
  busy = true;
  while (n) {
    delete n;
    n = waiting;
    if (n) waiting = reinterpret_cast<Node*>(n->sequence_);
  }
  busy = false;
}

}  // namespace weft
