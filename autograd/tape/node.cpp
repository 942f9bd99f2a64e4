// Creation and destruction of nodes. Destroying a node releases its edges and saved tensors, which may hold
// the last references to other nodes. These nodes wait in a thread-local list, so destruction does not
// recurse.
#include <weft/autograd/tape/node.h>

#include <weft/autograd/tape/inner/extras.h>
#include <weft/tensor/inner/free_list.h>

namespace weft {

void* Node::operator new(size_t bytes) { return pool_allocate(bytes); }
void Node::operator delete(void* p, size_t bytes) noexcept { pool_free(p, bytes); }

uint64_t Node::next_sequence() {
  static constinit std::atomic<uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

Node::~Node() { delete extras.load(std::memory_order_relaxed); }

void Node::destroy(Node* n) noexcept {
  // the list is linked through sequence_, which a destroyed node no longer needs
  static constinit thread_local Node* waiting = nullptr;
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
