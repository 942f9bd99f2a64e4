// DistributedDataParallel. Gradients reach the parameters' grad() through a sink of the pass, which counts
// them per bucket. A full bucket is flattened, divided by the number of processes and summed by an
// all_reduce, beside the rest of the pass. All processes send buckets in the same order, even if a later
// bucket is full first. After the pass the rest is sent, with zeros for gradients that are missing. A last
// all_reduce counts the processes that have each gradient, and the processes that made a pass. join() takes
// part without a pass, and sends zeros. The buckets of a device queue their work there, beside the pass. Only
// the counts are on the CPU.
#include <weft/distributed/collectives/data_parallel.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <optional>
#include <unordered_map>

#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/engine.h>
#include <weft/autograd/tape/grad_mode.h>
#include <weft/autograd/tape/hooks.h>
#include <weft/autograd/tape/inner/backward_to.h>
#include <weft/tensor/factories.h>

namespace weft::dist {
namespace {

constexpr size_t kMostNamed = 10;  // parameters in an error

/// The devices of two processes may differ in their numbers.
std::string line_of(const char* kind, const std::string& name, const Tensor& t, Device of_group) {
  return str(kind, " '", name, "' of ", t.dtype(), " ", t.sizes(),
             t.device().is_cpu()      ? ""
             : t.device() == of_group ? " on the device"
                                      : " on another device",
             t.requires_grad() ? "" : " without grad",
             t.body().storage->is_read_only() ? " in read-only memory" : "", "\n");
}

/// A text from each process, by rank.
std::vector<std::string> gather_texts(ProcessGroup& group, const std::string& mine) {
  int64_t most = 0;
  std::vector<int64_t> lengths;
  for (const Tensor& n : group.all_gather(full({1}, static_cast<int64_t>(mine.size()), kInt64))) {
    lengths.push_back(n.item<int64_t>());
    most = std::max(most, lengths.back());
  }
  const Tensor text = zeros({most}, kUInt8);
  std::memcpy(text.address(), mine.data(), mine.size());
  std::vector<std::string> out;
  for (const Tensor& t : group.all_gather(text))
    out.emplace_back(static_cast<const char*>(t.address()), static_cast<size_t>(lengths[out.size()]));
  return out;
}

/// The first line in which two texts differ: that of `a`, else "nothing".
std::string first_difference(const std::string& a, const std::string& b) {
  size_t from = 0;
  while (from < a.size() && from < b.size()) {
    const size_t end = a.find('\n', from);
    if (a.compare(from, end - from + 1, b, from, end - from + 1) != 0) break;
    from = end + 1;
  }
  const std::string line = a.substr(from, a.find('\n', from) - from);
  return line.empty() ? "nothing" : line;
}

}  // namespace

struct DistributedDataParallel::Impl {
  struct Parameter {
    std::string name;
    Tensor tensor;
    SlotMeta meta;  ///< sizes, dtype and device at the construction
    size_t bucket = 0;
  };
  struct Bucket {
    DType dtype;
    Device device;
    int64_t numel = 0;
    std::vector<size_t> parameters{};
  };

  std::shared_ptr<ProcessGroup> group;
  DataParallelOptions options;
  std::vector<Parameter> parameters{};
  std::vector<Bucket> buckets{};
  std::unordered_map<const TensorBody*, size_t> index{};
  std::atomic<int> local{0};          ///< NoSync scopes
  std::atomic<bool> reducing{false};  ///< backward() is under way
  std::deque<ScopedHook> hooks{};

  void check_modules(const nn::Module& module) const {
    const Device at = group->device();
    std::string mine = str("options bucket_cap_mb = ", options.bucket_cap_mb,
                           ", first_bucket_cap_mb = ", options.first_bucket_cap_mb,
                           ", find_unused_parameters = ", options.find_unused_parameters,
                           ", overlap = ", options.overlap, "\n");
    for (const auto& [name, p] : module.named_parameters()) mine += line_of("parameter", name, p, at);
    for (const auto& [name, b] : module.named_buffers()) mine += line_of("buffer", name, b, at);
    const std::vector<std::string> all = gather_texts(*group, mine);
    for (size_t r = 1; r < all.size(); ++r)
      if (all[r] != all[0])
        throw ValueError(str("DistributedDataParallel: the processes differ: rank ", r, " has ",
                             first_difference(all[r], all[0]), " where rank 0 has ",
                             first_difference(all[0], all[r])));
    // all processes have the same, so all throw
    if (!(options.bucket_cap_mb > 0) || !(options.first_bucket_cap_mb > 0))
      throw ValueError("DistributedDataParallel: the size of a bucket must be positive");
    for (const auto& [name, p] : module.named_parameters()) check_memory("parameter", name, p);
    for (const auto& [name, b] : module.named_buffers()) check_memory("buffer", name, b);
  }

  void check_memory(const char* kind, const std::string& name, const Tensor& t) const {
    if (!t.device().is_cpu() && t.device() != group->device())
      throw DeviceError(str("DistributedDataParallel: ", kind, " '", name, "' lies on ", t.device(),
                            ", which is neither the CPU nor the option `device` of new_group"));
    if (t.body().storage->is_read_only())
      throw ValueError(str("DistributedDataParallel: ", kind, " '", name, "' has read-only memory"));
  }

  /// Fills the buckets from the last parameter on: its gradient tends to come first.
  void make_buckets() {
    double mb = 0;
    for (size_t i = parameters.size(); i-- > 0;) {
      Parameter& p = parameters[i];
      const double limit = buckets.size() <= 1 ? options.first_bucket_cap_mb : options.bucket_cap_mb;
      if (buckets.empty() || buckets.back().dtype != p.meta.dtype || buckets.back().device != p.meta.device ||
          mb >= limit) {
        buckets.push_back({p.meta.dtype, p.meta.device});
        mb = 0;
      }
      p.bucket = buckets.size() - 1;
      buckets.back().parameters.push_back(i);
      buckets.back().numel += p.tensor.numel();
      mb += static_cast<double>(p.tensor.numel() * size_of(p.tensor.dtype())) / (1 << 20);
    }
  }

  void check_unmoved() const {
    for (const Parameter& p : parameters)
      if (p.tensor.dtype() != p.meta.dtype || p.tensor.sizes() != p.meta.sizes ||
          p.tensor.device() != p.meta.device)
        throw ValueError(str("DistributedDataParallel: parameter '", p.name, "' was of ", p.meta.dtype, " ",
                             p.meta.sizes, " on ", p.meta.device, " and is of ", p.tensor.dtype(), " ",
                             p.tensor.sizes(), " on ", p.tensor.device(),
                             "; move the module before it is made parallel"));
  }
};

namespace {

/// One synchronised pass. `passes`: this process computes gradients; else it sends zeros and ignores grad().
class Reduction final : public GradSink {
 public:
  Reduction(DistributedDataParallel::Impl& ddp, bool passes)
      : ddp_(ddp), passes_(passes), ready_(ddp.parameters.size()), sent_(ddp.buckets.size()) {
    for (const auto& bucket : ddp.buckets) missing_.push_back(bucket.parameters.size());
  }

  void accumulate(const Tensor& leaf, Tensor grad, bool may_steal) override {
    const auto at = ddp_.index.find(&leaf.body());
    if (at != ddp_.index.end()) {
      const auto& p = ddp_.parameters[at->second];
      if (p.bucket < next_)
        throw AutogradError(str("DistributedDataParallel: parameter '", p.name,
                                "' gets a second gradient after its bucket was sent; set overlap = false"));
    }
    local_sink().accumulate(leaf, std::move(grad), may_steal);
    if (at == ddp_.index.end() || ready_[at->second]) return;
    ready_[at->second] = true;
    --missing_[ddp_.parameters[at->second].bucket];
    while (ddp_.options.overlap && next_ < sent_.size() && missing_[next_] == 0) send_next();
  }

  bool has_sent() const { return next_ > 0; }

  // After the pass, in this order.

  /// Sends the rest, and counts the processes that have each gradient.
  void send_rest() {
    const NoGrad off;
    while (next_ < sent_.size()) send_next();
    // Another call of a process is an error of a bucket. A count queued behind it would be compared with the
    // next call of that process. The abort() of a failed pass would wait for that call. The group's thread
    // runs its calls in order, so this wait costs a change of threads and no message.
    for (const Sent& one : sent_) one.done->wait();
    const Tensor counts = zeros({static_cast<int64_t>(ready_.size()) + 1}, kInt32);
    for (size_t i = 0; i < ready_.size(); ++i) counts.data<int32_t>()[i] = has_gradient(i);
    counts.data<int32_t>()[ready_.size()] = passes_;
    ddp_.group->all_reduce(counts);
    have_ = counts.to_vector<int32_t>();
    passed_ = have_.back();
    have_.pop_back();
  }

  /// Processes that had a pass.
  int32_t passed() const { return passed_; }

  /// Throws the same in all processes, which stay in step.
  void check_used() const {
    if (!strict()) return;
    std::string names;
    size_t count = 0;
    for (size_t i = 0; i < have_.size(); ++i) {
      if (have_[i] == passed_) continue;
      if (++count <= kMostNamed)
        names +=
            str(names.empty() ? "'" : ", '", ddp_.parameters[i].name, "' (", have_[i], " of ", passed_, ")");
    }
    if (count == 0) return;
    throw AutogradError(str("DistributedDataParallel: ", count,
                            " parameters have no gradient in all processes: ", names,
                            count > kMostNamed ? ", ..." : "",
                            "; set find_unused_parameters = true to take a missing one as zero"));
  }

  /// Replaces the gradients by their averages.
  void take_averages() {
    const NoGrad off;
    for (size_t b = 0; b < sent_.size(); ++b) {
      int64_t at = 0;
      for (const size_t i : ddp_.buckets[b].parameters) {
        const Tensor& p = ddp_.parameters[i].tensor;
        if (have_[i] > 0) set(p, sent_[b].flat.narrow(0, at, p.numel()).view(p.sizes()));
        else if (!passes_) p.zero_grad();  // the others have none
        at += p.numel();
      }
    }
  }

 private:
  struct Sent {
    Tensor flat;
    std::optional<rpc::Future<void>> done{};
  };

  void send_next() {
    const NoGrad off;
    const Tensor flat = flat_of(ddp_.buckets[next_]);
    sent_[next_] = {flat, ddp_.group->all_reduce_async(flat)};
    ++next_;
  }

  /// The share of this process in a bucket's averages.
  Tensor flat_of(const DistributedDataParallel::Impl::Bucket& bucket) const {
    const TensorOptions options{.dtype = bucket.dtype, .device = bucket.device};
    if (!passes_) return zeros({bucket.numel}, options);
    std::vector<Tensor> parts;
    for (const size_t i : bucket.parameters) {
      const Tensor& p = ddp_.parameters[i].tensor;
      const Tensor g = p.grad();  // those of no_sync() included
      parts.push_back(g.defined() ? g.detach().reshape({p.numel()}) : zeros({p.numel()}, options));
    }
    Tensor flat = cat(parts);  // one launch on a device
    flat.div_(ddp_.group->size());
    return flat;
  }

  bool has_gradient(size_t i) const {
    return passes_ && (ready_[i] || (!strict() && ddp_.parameters[i].tensor.grad().defined()));
  }

  static void set(const Tensor& p, const Tensor& average) {
    Tensor g = p.grad();
    const bool plain = g.defined() && g.is_contiguous() && !g.requires_grad();
    if (plain && !g.body().storage->is_read_only()) g.copy_(average);
    else p.set_grad(average.clone());  // the dense copy of a row-wise gradient is read-only
  }

  bool strict() const { return !ddp_.options.find_unused_parameters; }

  DistributedDataParallel::Impl& ddp_;
  const bool passes_;
  std::vector<bool> ready_;      ///< by parameter: it has had a gradient in this pass
  std::vector<size_t> missing_;  ///< parameters of each bucket without a gradient
  std::vector<Sent> sent_;
  std::vector<int32_t> have_{};  ///< by parameter: processes that have its gradient
  int32_t passed_ = 0;
  size_t next_ = 0;  ///< the first bucket that was not sent
};

/// One step of all processes; an empty `pass`: this one computes no gradients. False: none has done so.
bool reduce(DistributedDataParallel::Impl& me, const std::function<void(Reduction&)>& pass = {}) {
  me.check_unmoved();
  Reduction reduction(me, pass != nullptr);
  const auto fail = [&](const char* why) {
    me.reducing = false;
    if (reduction.has_sent()) me.group->abort(str("a backward pass failed: ", why));
  };
  const auto try_to = [&](const auto& part) {  // the others wait for its calls
    try {
      part();
    } catch (const std::exception& e) {
      fail(e.what());
      throw;
    } catch (...) {  // of a hook
      fail("an exception of another type");
      throw;
    }
  };
  if (pass) try_to([&] { pass(reduction); });
  me.reducing = false;
  try_to([&] { reduction.send_rest(); });
  if (reduction.passed() == 0) return false;
  reduction.check_used();
  try_to([&] { reduction.take_averages(); });
  return true;
}

}  // namespace

DistributedDataParallel::DistributedDataParallel(nn::Module& module, std::shared_ptr<ProcessGroup> group,
                                                 const DataParallelOptions& options)
    : impl_(std::make_shared<Impl>()) {
  if (!group) throw ValueError("DistributedDataParallel: no group");
  Impl& me = *impl_;
  me.group = std::move(group);
  me.options = options;
  for (const auto& [name, p] : module.named_parameters()) {
    if (!p.requires_grad() || !me.index.emplace(&p.body(), me.parameters.size()).second) continue;
    me.parameters.push_back({name, p, {p.sizes(), p.dtype(), p.device()}});
  }
  me.check_modules(module);
  if (me.parameters.empty())
    throw ValueError("DistributedDataParallel: the module has no parameter that requires grad");
  for (const Tensor& p : module.parameters()) me.group->broadcast(p);
  for (const auto& [name, b] : module.named_buffers()) me.group->broadcast(b);
  me.make_buckets();
  for (const Impl::Parameter& p : me.parameters)
    me.hooks.emplace_back(register_post_accumulate_hook(p.tensor, [ddp = &me](const Tensor&) {
      if (!ddp->reducing && ddp->local.load() == 0)
        throw AutogradError(
            "backward: this parameter belongs to a DistributedDataParallel, whose gradients "
            "must be averaged: call its backward(loss), or hold a no_sync()");
    }));
}

DistributedDataParallel::~DistributedDataParallel() = default;

void DistributedDataParallel::backward(const Tensor& loss, bool retain_graph) {
  backward({&loss, 1}, {}, retain_graph);
}

void DistributedDataParallel::backward(std::span<const Tensor> roots, std::span<const Tensor> gradients,
                                       bool retain_graph) {
  Impl& me = *impl_;
  if (me.local.load() > 0) return weft::backward(roots, gradients, retain_graph);
  reduce(me, [&](Reduction& reduction) {
    me.reducing = true;
    detail::backward_to(reduction, roots, gradients, retain_graph);
  });
}

bool DistributedDataParallel::join() { return reduce(*impl_); }

// ---- scopes without averages

struct DistributedDataParallel::NoSync::Scope {
  explicit Scope(std::shared_ptr<Impl> impl) : ddp(std::move(impl)) { ++ddp->local; }
  ~Scope() { --ddp->local; }
  Scope(const Scope&) = delete;
  const std::shared_ptr<Impl> ddp;
};

DistributedDataParallel::NoSync::NoSync(std::unique_ptr<Scope> scope) : scope_(std::move(scope)) {}
DistributedDataParallel::NoSync::NoSync(NoSync&& other) noexcept = default;
DistributedDataParallel::NoSync::~NoSync() = default;

DistributedDataParallel::NoSync DistributedDataParallel::no_sync() {
  return NoSync(std::make_unique<NoSync::Scope>(impl_));
}

std::vector<std::vector<std::string>> DistributedDataParallel::buckets() const {
  std::vector<std::vector<std::string>> out;
  for (const Impl::Bucket& bucket : impl_->buckets) {
    out.emplace_back();
    for (const size_t i : bucket.parameters) out.back().push_back(impl_->parameters[i].name);
  }
  return out;
}

const std::shared_ptr<ProcessGroup>& DistributedDataParallel::group() const { return impl_->group; }

}  // namespace weft::dist
