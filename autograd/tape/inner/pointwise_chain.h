// Chains of pointwise calls in a recorded program. All calls of a chain have the same number of elements, and
// element i of a result depends on the elements i of the operands. So a chain runs block by block: all calls
// for the first elements, then all for the next ones. A temporary of the chain alone has the room of one
// block, and never travels through memory. The kernels are those of the calls, so the bits are too.
#pragma once

#include <cstdint>
#include <vector>

#include <weft/autograd/tape/inner/program.h>

namespace weft::trace {

class PointwiseChain {
 public:
  /// The chains of a program, in the order of its calls. The calls outlive them.
  static std::vector<PointwiseChain> find(const Program& program);

  size_t begin() const { return begin_; }                ///< the number of its first call
  size_t end() const { return begin_ + steps_.size(); }  ///< the number behind its last call
  /// Blocks of the program that are temporaries of the chain. No memory is needed for them.
  const std::vector<uint32_t>& temporaries() const { return temporaries_; }

  /// Runs the calls at the addresses that their views have now.
  void run(Backend& backend) const;

 private:
  struct Operand {
    View* view = nullptr;
    Place place;
    bool written = false;
    int64_t period = 0;  ///< elements after which it repeats; all elements unless it is broadcast
    int64_t width = 0;   ///< bytes of an element
    int slot = -1;       ///< of a temporary, or of the copies of a broadcast operand
  };
  struct Step {
    Call* call = nullptr;
    std::vector<Operand> operands;  ///< in the order of each_view
  };
  struct Slot {
    int64_t width = 0;
    int64_t period = 0;  ///< of a broadcast operand
    bool free = false;
  };

  static Step step_of(const Program& program, size_t number);
  static bool mixed(const Program& program, const Operand& a, const Operand& b);
  bool admits(const Program& program, const Step& step) const;
  bool pays() const;
  void place_operands(const Program& program);
  int take_slot(const Slot& wanted);
  void run_range(Backend& backend, int64_t begin, int64_t end) const;
  void* locate(const Operand& o, int64_t at, int64_t count, int64_t block, std::byte* const* rooms) const;

  size_t begin_ = 0;
  int64_t count_ = 0;  ///< elements of each call
  int64_t block_ = 0;  ///< elements that run at a time
  std::vector<Step> steps_;
  std::vector<Slot> slots_;
  std::vector<Operand> repeated_;  ///< the broadcast operands, one per slot
  std::vector<uint32_t> temporaries_;
};

}  // namespace weft::trace
