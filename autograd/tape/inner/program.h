// A recorded program: the calls of a Backend that one run of a function made. The memory of each view is
// named by its place. A replay makes the calls again. Temporaries lie in one arena, results in fresh blocks.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <weft/autograd/tape/node.h>
#include <weft/kernels/backend.h>
#include <weft/tensor/generator.h>
#include <weft/tensor/inner/tracer.h>
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
  /// For an optimizer's step: throws unless a replay can take the step, and sets the number for StepReplay.
  virtual void check_step() {}
  virtual void begin(uint64_t /*replay*/) {}
  /// Whether each element of the last view, which is written, depends only on the elements of the other views
  /// at the same place.
  virtual bool is_pointwise() const { return false; }
  /// For a pointwise call: runs `count` elements. The operands, in the order of each_view, are contiguous at
  /// these addresses. Several threads may do so at once.
  virtual void run_part(Backend& /*backend*/, Context& /*context*/, void* const* /*operands*/,
                        int64_t /*count*/) const {}
  virtual bool same_method(const Call& other) const = 0;
  /// For two calls of one method: whether all numbers have the same bits. Views and keys do not count.
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
  const void* history = nullptr;  ///< of the storage: its owner shows whether the tensor requires grad
};

struct Result {
  /// The tensor whose view it is, to which later writes through either matter (Slot::base).
  enum class Base : uint8_t { kNone, kArgument, kResult, kHidden };
  Place place;
  Shape sizes, strides;
  DType dtype = kFloat32;
  bool itself = false;  ///< the argument, not a view of it
  Base base = Base::kNone;
  uint32_t base_index = 0;  ///< of the result, or of Program::hidden
  int64_t same_as = -1;     ///< an earlier result that is the same tensor
  friend bool operator==(const Result&, const Result&) = default;
};

/// A leaf whose grad() the program sets.
struct LeafGrad {
  Ref<Node> node;             ///< the leaf's AccumulateGrad, which does not keep the leaf alive
  bool starts_empty = false;  ///< it has no grad() before the run; else the run clears it first
  size_t cleared = 0;         ///< else: the number of calls before that
  int64_t argument = -1;      ///< the leaf is this argument
  Result grad;
};

/// An argument's part in the program.
struct ArgumentUse {
  bool written = false;
  uint32_t bumps = 0;
  const void* first = nullptr;  ///< its first element in the recording
};

/// Copies of storages, on which a replay may work in their place.
class Copies {
 public:
  void add(void* data, size_t bytes);
  /// The place of an address in its copy; itself if there is none.
  std::byte* at(void* p) const;
  /// Whether the storages have the bytes of the copies now.
  bool match() const;

 private:
  struct Part {
    std::byte* data;
    size_t bytes;
    Ref<Storage> copy;
  };
  std::vector<Part> parts_;
};

class PointwiseChain;

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
  std::vector<Result> hidden;  ///< tensors that are no results, of which several results are views
  std::vector<LeafGrad> leaves;
  bool steps = false;  ///< a call is an optimizer's step
  std::vector<DrawSource> draws;

  /// Watches the captured storages, which the caller keeps until then.
  void watch();
  /// Finds the chains of pointwise calls, and places the other temporaries in the arena. No call is added
  /// afterwards.
  void lay_out();
  size_t arena_bytes() const { return arena_bytes_; }
  /// Pointwise calls that run in chains.
  int64_t fused_calls() const;

  /// Adds a reference to each captured storage. False if one is destroyed.
  bool hold(std::vector<Ref<Storage>>& held) const;
  /// Whether a replay may follow. Every captured storage, which the caller holds, is where it was, and part
  /// of the same history or of none. Every generator exists. The kernels are those of the recording.
  bool is_current() const;
  /// Whether the leaves among the arguments are those of the recording.
  bool has_leaves(std::span<const Tensor* const> arguments) const;
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

  /// Of the storages that a run writes to.
  Copies copies_of_written(std::span<const Tensor* const> arguments) const;

  /// Makes the calls. The keys of the draws come from their generators. With `keys`, a repetition of a run
  /// of f, they are these. Then it works on `copies`, if they are given, and no version counts the writes.
  /// Optimizers repeat their last step, and the gradients of leaves come after the results. An error leaves
  /// draws and steps as an error of f would.
  std::vector<Tensor> run(std::span<const Tensor* const> arguments, const Draws* keys = nullptr,
                          const Copies* copies = nullptr);

 private:
  Tensor tensor_of(const Result& r, std::span<const Tensor* const> arguments,
                   const std::vector<Ref<Storage>>& fresh) const;
  /// Sets the addresses of captured tensors, or of their copies.
  void point_at_captured(const Copies* copies);
  /// Clears the gradients that f clears before the call of this number.
  void clear_grads(size_t calls_made) const;
  void make_results(std::span<const Tensor* const> arguments, const std::vector<Ref<Storage>>& fresh,
                    std::vector<Tensor>& out) const;
  struct Patch {
    View* view;
    Place place;
  };
  Backend* const backend_;  ///< the calls depend on its kernels (set_cpu_isa)
  const std::shared_ptr<detail::StorageWatch> watch_ = std::make_shared<detail::StorageWatch>();
  std::byte* arena_ = nullptr;
  size_t arena_bytes_ = 0;
  std::vector<PointwiseChain> chains_;
  std::vector<Patch> patches_;    ///< views of arguments and results
  std::vector<size_t> made_;      ///< the blocks of results
  std::vector<size_t> restored_;  ///< constants in the arena that calls write to
};

/// The difference of two programs.
struct Difference {
  enum class Kind : uint8_t { kNone, kNumber, kOther };
  Kind kind = Kind::kNone;
  std::string text;
};
Difference compare(Program& a, Program& b);

}  // namespace weft::trace
