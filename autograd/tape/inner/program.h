// A recorded program: the calls of a Backend that one run of a function made, with the memory of each view
// named by its place. A replay makes the calls again. Temporaries lie in one arena, results in fresh blocks.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <weft/autograd/tape/node.h>
#include <weft/kernels/backend.h>
#include <weft/tensor/generator.h>
#include <weft/tensor/tensor.h>

namespace weft::trace {

/// The memory of a view: a block that the program makes, an argument, or a captured tensor's storage.
struct Place {
  enum class Kind : uint8_t { kAbsent, kEmpty, kBlock, kArgument, kCaptured };
  Kind kind = Kind::kAbsent;
  uint32_t index = 0;
  int64_t offset = 0;  ///< bytes from the block's begin, or from the argument's first element
  friend bool operator==(const Place&, const Place&) = default;
};

/// One call with its arguments. Subclasses are made by calls.h.
class Call {
 public:
  explicit Call(std::string op) : op(std::move(op)) {}
  virtual ~Call() = default;
  virtual void run(Backend& backend, Context& context) = 0;
  virtual void each_view(const std::function<void(View&)>& f) = 0;
  virtual PhiloxKey* key() { return nullptr; }
  /// Of an optimizer's step: throws unless a replay can take it; and makes its functors (Tracer::stepping).
  virtual void check_step() {}
  virtual void next_step(uint64_t /*replay*/) {}
  virtual bool same_method(const Call& other) const = 0;
  /// Of two calls of one method: whether all numbers have the same bits. Views and keys do not count.
  virtual bool same_numbers(const Call& other) const = 0;

  const std::string op;       ///< for messages
  std::vector<Place> places;  ///< of the views, in the order of each_view
  int draw = -1;              ///< the draw of its key
};

struct Block {
  size_t bytes = 0;
  std::vector<std::byte> constant;  ///< its bytes before the first call, if the host wrote them
  bool written = false;             ///< by a call
  bool fixed = true;                ///< by no call, or only with numbers
  bool result = false;              ///< it is made anew by each replay
  size_t first = 0, last = 0;       ///< the first and the last call that use it
  std::byte* at = nullptr;
};

/// The storage of a tensor that is neither made by the program nor an argument.
struct Captured {
  const Storage* storage = nullptr;  ///< alive unless Program::is_current() is false
  void* data = nullptr;
  size_t bytes = 0;
  bool written = false;
  uint32_t bumps = 0;             ///< of the version, by one run
  const void* history = nullptr;  ///< of the storage: whose it is tells whether the tensor requires grad
};

struct Result {
  Place place;
  Shape sizes, strides;
  DType dtype = kFloat32;
  bool itself = false;  ///< the argument, not a view of it
};

/// A leaf whose grad() the program sets.
struct LeafGrad {
  Ref<Node> node;             ///< the leaf's AccumulateGrad, which does not keep the leaf alive
  bool starts_empty = false;  ///< it has no grad() before the run; else the run clears it first
  Result grad;
};

/// An argument's part in the program.
struct ArgumentUse {
  bool written = false;
  uint32_t bumps = 0;
};

class Program {
 public:
  Program();
  ~Program();
  Program(const Program&) = delete;

  std::vector<std::unique_ptr<Call>> calls;
  std::vector<Block> blocks;  ///< in the order of their first use
  std::vector<Captured> captured;
  std::vector<ArgumentUse> arguments;
  std::vector<Result> results;
  std::vector<LeafGrad> leaves;
  bool steps = false;          ///< a call is an optimizer's step
  std::vector<int64_t> draws;  ///< the counts of default_generator()'s draws

  /// Watches the captured storages, which the caller keeps until then.
  void watch();
  /// Places the temporaries in the arena. No call is added afterwards.
  void lay_out();
  size_t arena_bytes() const { return arena_bytes_; }

  /// Whether every captured storage is alive, where it was, and part of the same history or of none, and the
  /// kernels are those of the recording.
  bool is_current() const;
  /// Whether no leaf has a grad() to which f would add.
  bool grads_are_empty() const;
  /// The grad() of each leaf.
  std::vector<Tensor> leaf_grads() const;
  /// Throws: ValueError if an optimizer's step cannot be taken.
  void check_steps() const;
  /// Whether a run changes an argument, a captured tensor, a grad() or an optimizer.
  bool writes_outside() const;
  /// Whether an argument shares memory with a captured tensor.
  bool overlaps_captured(std::span<const Tensor* const> arguments) const;

  /// Makes the calls. The keys of the draws come from default_generator(). With `keys`, a repetition of a run
  /// of f, they are these. Then no version counts the writes, optimizers repeat their last step, and the
  /// gradients of leaves come after the results.
  std::vector<Tensor> run(std::span<const Tensor* const> arguments, const Draws* keys = nullptr);

 private:
  Tensor tensor_of(const Result& r, std::span<const Tensor* const> arguments,
                   const std::vector<Ref<Storage>>& fresh) const;
  struct Patch {
    View* view;
    Place place;
  };
  const Backend* const backend_;             ///< the calls depend on its kernels (set_cpu_isa)
  std::shared_ptr<std::atomic<bool>> gone_;  ///< a captured storage is destroyed
  std::byte* arena_ = nullptr;
  size_t arena_bytes_ = 0;
  std::vector<Patch> patches_;    ///< views of arguments and results
  std::vector<size_t> made_;      ///< the blocks of results
  std::vector<size_t> restored_;  ///< constants in the arena that calls write to
  struct Keyed {
    PhiloxKey* key;
    size_t draw;
  };
  std::vector<Keyed> keyed_;
};

/// The difference of two programs.
struct Difference {
  enum class Kind : uint8_t { kNone, kNumber, kOther };
  Kind kind = Kind::kNone;
  std::string text;
};
Difference compare(Program& a, Program& b);

}  // namespace weft::trace
