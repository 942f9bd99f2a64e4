// Records the calls that the calling thread makes to the CPU backend, and forwards them. It takes the
// backend's place by kernels::replaced_cpu_backend. Its kernel methods come from kernel_methods.inc, so it
// has each new one. It has no rows (Backend::row), so it sees small operations too.
// - A call has addresses alone. As a Tracer the recorder is notified of each block that is made, used and
//   dropped. Other threads pay one load of a global number for that, in Storage::data().
// - The host's reads and writes of values have no call. item, to_vector, data, host factories, gradients of
//   leaves and generators report themselves. A block that is read before a call has written it, or that
//   outlives the run, ends the recording. So does a first replay with other bits than the run's.
// - A program holds no captured tensor, since it would look alive then: a mark in the Storage makes its
//   destruction known.
// - f may also capture a tensor that it gets as an argument. So a program takes an argument in another
//   storage only when two recordings with different ones agree.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <weft/autograd/tape/inner/calls.h>
#include <weft/kernels/cpu/cpu_backend.h>
#include <weft/tensor/inner/tracer.h>

namespace weft::trace {

class Recorder final : public Backend, public Tracer {
 public:
  /// The arguments outlive the recorder.
  explicit Recorder(std::span<const Tensor* const> arguments);
  ~Recorder() override;

  /// Notes the versions of the tensors that an earlier run has captured, which the caller holds. So a write
  /// by something else is noticed, even before their first use.
  void expect(const Program& earlier);
  /// Runs f and returns its results.
  std::vector<Tensor> record(const std::function<std::vector<Tensor>()>& f);
  /// The program of the run; null with a reason.
  std::unique_ptr<Program> finish(const std::vector<Tensor>& results);
  const std::string& reason() const { return reason_; }
  const Draws& keys() const { return keys_; }

  void made(const Storage& s, void* data) override;
  bool owns(const Storage& s, const void* data) const override;
  void dropped(const Storage& s, const void* data) noexcept override;
  void used(const Storage& s, void* data) override;
  void filled(const Tensor& y) override;
  bool is_fixed(const void* data) const override;
  void grad_read(const Tensor& x) override;
  void grad_cleared(const Tensor& leaf) override;
  void grad_added(TensorBody& leaf, bool has_grad) override;
  void stepping(std::vector<size_t> functor_bytes, StepReplay replay) override;
  void refuse(const char* why) noexcept override;

  Device device() const override { return kCpu; }
  void* allocate(size_t bytes) override { return real_.allocate(bytes); }
  void deallocate(void* p, size_t bytes) noexcept override { real_.deallocate(p, bytes); }
  void copy_from_host(Context&, const void* host, void* device, size_t bytes) override;
  void copy_to_host(Context&, const void* device, void* host, size_t bytes) override;
#include <weft/kernels/inner/kernel_methods.inc>
  bool has_attention(DType t, int64_t width, int64_t values) const override {
    return real_.has_attention(t, width, values);
  }
  Shape rnn_reserve(Context&, const RnnLayer&, const RnnInputs&) override;
  std::optional<RnnStackRoom> rnn_stack(Context&, const RnnStack&, const RnnStackInputs&) override;
  void clip_norm(Context&, double max_norm, double p, std::span<const View> xs, View norm,
                 View factor) override;
  void unscale(Context&, std::span<const View> xs, View state) override;
  void update_scale(Context&, double growth, double backoff, int64_t interval, View state) override;
  void synchronize() override { real_.synchronize(); }

 private:
  struct Live {  // a block of this recording
    uintptr_t end;
    const Storage* storage;
    int64_t index = -1;  // in the program, from its first use
    size_t bytes;
    std::vector<std::byte> constant;
    bool filled = false;
  };
  struct Outside {  // a captured storage
    Ref<Storage> kept;
    void* data;
    size_t bytes;
    uint32_t version;
    int64_t index = -1;
  };
  /// Makes the call, and adds it unless the result is false. Returns the result, if any.
  template <auto Method, class... A>
  auto call(Context& context, const std::string& op, std::string_view roles, const A&... args);
  /// Adds a call that was made. `roles`: each view reads (r), is written (w) or both (b), in order.
  template <auto Method, class... A>
  void add(const std::string& op, std::string_view roles, const A&... args);
  void note(std::unique_ptr<Call> call, std::string_view roles);
  Place place_of(const View& v);
  uint32_t index_of(Live& block);
  void note_use(const Place& place, char role, bool fills);
  void count_steps(const Call& step);
  bool find_result(const Tensor& y, Result& to);
  void find_results(const std::vector<Tensor>& results);
  void find_bases(const std::vector<Tensor>& results);
  void find_writes();
  void find_leaf_grads(std::vector<Tensor>& grads);

  kernels::CpuBackend& real_;
  std::span<const Tensor* const> arguments_;
  struct Range {
    uintptr_t begin, end, first;  // `first`: the address of the first element
  };
  std::vector<Range> ranges_;       // of the arguments' elements
  std::vector<uint32_t> versions_;  // of the arguments
  std::vector<bool> require_grad_;
  std::unique_ptr<Program> program_;
  std::map<uintptr_t, Live> blocks_;  // by address, destroyed blocks until their memory is used again
  std::map<uintptr_t, Outside> outside_;
  std::unordered_map<const Storage*, uint32_t> expected_;
  struct Leaf {
    Tensor kept;
    bool starts_empty;
    size_t cleared = 0;  // else: after so many calls
  };
  std::vector<Leaf> leaves_;  // whose grad() f sets or clears, in that order
  Leaf* noted(const TensorBody& leaf);
  struct Stepping {
    std::vector<size_t> functor_bytes;
    StepReplay replay;
  };
  std::optional<Stepping> stepping_;
  Draws keys_;
  std::vector<DrawSource> sources_;
  bool open_ = false;  // f runs
  std::string reason_;
};

}  // namespace weft::trace
