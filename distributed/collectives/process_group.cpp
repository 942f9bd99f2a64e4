// ProcessGroup: a queue of collectives and the thread that runs them in order on the engine.
//   1. A call checks its own tensor, and joins the queue.
//   2. Its turn come, the engine gathers a Head from each process: the call, the dtype and the sizes.
//   3. If a Head differs from rank 0's, all processes throw the same error and stay in step.
//   4. Else the engine moves the data. Its error fails the group: connections end, later calls throw it.
// A call on the device queues its work at once (device_calls.cpp). Steps 2 and 3 come behind it, and an error
// there fails the group. At its end such a group gathers a last Head, so that no process leaves while
// another's device is behind. The group may outlive its agent, so it has its own runtime.
#include <weft/distributed/collectives/process_group.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>

#include <weft/autograd/tape/grad_mode.h>
#include <weft/distributed/collectives/inner/engine.h>
#include <weft/distributed/collectives/inner/process_group_impl.h>
#include <weft/tensor/factories.h>

namespace weft::dist {

const char* to_string(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum: return "sum";
    case ReduceOp::kAvg: return "avg";
    case ReduceOp::kProduct: return "product";
    case ReduceOp::kMin: return "min";
    case ReduceOp::kMax: return "max";
  }
  return "?";
}

namespace {

/// The call of a process that destroys its group.
constexpr const char* kPart = "the end of the group";
/// At most, for the others to come to theirs.
constexpr rpc::Duration kPartWithin = std::chrono::seconds(10);

/// A collective as the processes compare it.
struct Head {
  std::array<char, 32> call{};
  int32_t dtype = -1;  ///< negative: a call without a tensor
  int16_t dims = 0;
  int16_t on_device = 0;  ///< the tensor does not lie on the CPU
  std::array<int64_t, kMaxDims> sizes{};

  Head(const std::string& name, const Tensor& tensor) {
    name.copy(call.data(), call.size() - 1);
    if (!tensor.defined()) return;
    dtype = static_cast<int32_t>(tensor.dtype());
    dims = static_cast<int16_t>(tensor.dim());
    on_device = !tensor.device().is_cpu();
    std::copy(tensor.sizes().begin(), tensor.sizes().end(), sizes.begin());
  }
  /// Of another process, so no number is taken for granted.
  std::string text() const {
    const std::string out(call.data(), strnlen(call.data(), call.size()));
    if (dtype < 0) return out;
    if (dtype >= kDTypeCount || dims < 0 || dims > kMaxDims) return str(out, " of an unknown tensor");
    Shape shape;
    for (int i = 0; i < dims; ++i) shape.push_back(sizes[static_cast<size_t>(i)]);
    return str(out, " of ", static_cast<DType>(dtype), " ", shape, on_device ? " on a device" : "");
  }
};
static_assert(std::is_trivially_copyable_v<Head>);

/// Another process makes another call. All throw the same error, so all have compared the same heads.
void check_same(const std::vector<Head>& heads, const std::vector<std::string>& names) {
  const Head& first = heads.front();
  for (size_t r = 1; r < heads.size(); ++r) {
    const Head& other = heads[r];
    if (std::memcmp(&first, &other, sizeof(Head)) == 0) continue;
    const std::string text =
        str("collective: ", names[r], " calls ", other.text(), ", ", names[0], " ", first.text());
    if (other.call != first.call || other.on_device != first.on_device) throw ValueError(text);
    if (other.dtype != first.dtype) throw DTypeError(text);
    throw ShapeError(text);
  }
}

/// A process that has come to the end of the group makes no call any more.
void check_present(ProcessGroup::Impl& group, const std::string& call, const std::vector<Head>& heads) {
  const Head part(kPart, {});
  for (size_t r = 0; r < heads.size(); ++r) {
    if (heads[r].call != part.call) continue;
    const std::exception_ptr error = std::make_exception_ptr(
        PeerLost(group.names[r], str(group.where(call), group.names[r], " has left the group")));
    group.fail(error);
    std::rethrow_exception(error);
  }
}

/// Steps 2 and 3, on the thread of the group.
void compare(ProcessGroup::Impl& group, const std::string& call, const Head& head) {
  std::vector<Head> heads(group.names.size(), head);
  group.on_engine(call, [&](inner::Engine& e) { e.all_gather(&head, sizeof head, heads.data()); });
  check_present(group, call, heads);
  try {
    check_same(heads, group.names);
  } catch (...) {
    const std::exception_ptr error = std::current_exception();
    const auto queued = [](const Head& h) { return h.on_device != 0; };
    if (std::any_of(heads.begin(), heads.end(), queued)) {  // that work cannot be taken back
      try {  // all have the heads behind this: the end of a connection may lose bytes
        if (group.engine) group.engine->all_gather(&head, sizeof head, heads.data());
      } catch (const std::exception&) {
      }
      group.fail(error);
    }
    std::rethrow_exception(error);
  }
}

void check_tensor(const ProcessGroup::Impl& group, const char* what, const Tensor& tensor, bool written) {
  if (!tensor.defined()) throw ValueError(str(what, ": the tensor is undefined"));
  const Device at = tensor.device();
  if (!at.is_cpu() && !(group.devices && group.devices->device() == at))
    throw DeviceError(str(what, ": the tensor lies on ", at, ", and the group takes tensors on the CPU",
                          group.devices ? str(" and on ", group.devices->device())
                                        : "; the option `device` of new_group adds a device"));
  if (!written) return;
  if (tensor.body().storage->is_read_only())
    throw ValueError(str(what, ": the tensor ", tensor.body().storage->read_only_reason()));
  for (int d = 0; d < tensor.dim(); ++d)
    if (tensor.strides()[d] == 0 && tensor.sizes()[d] > 1)
      throw ValueError(str(what, ": the tensor shows elements twice, sizes ", tensor.sizes(), ", strides ",
                           tensor.strides()));
}

/// The elements of `tensor` in a row: itself, or a copy that write_back copies back.
Tensor in_a_row(const Tensor& tensor) { return tensor.detach().contiguous(); }

void write_back(const Tensor& row, const Tensor& tensor) {
  if (!row.shares_storage(tensor)) tensor.detach().copy_(row);
}

/// Counts a write into `tensor` itself, also one that ends in an error: it may have begun.
struct Write {
  const Tensor &row, &tensor;
  ~Write() {
    if (row.shares_storage(tensor)) tensor.body().storage->bump_version();
  }
};

size_t bytes_of(const Tensor& row) { return static_cast<size_t>(row.numel() * size_of(row.dtype())); }

}  // namespace

// ---- the queue

ProcessGroup::Impl::Impl(int my_rank, std::vector<std::string> ranks, std::string group_name)
    : rank(my_rank),
      names(std::move(ranks)),
      name(std::move(group_name)),
      runtime(rpc::make_threaded_runtime({.threads = 1})),
      wake_(*runtime, "a collective") {
  service_ = runtime->start_service("collectives", [this] { serve(); });
}

ProcessGroup::Impl::~Impl() {
  if (devices) {
    const bool done = devices->finish();
    try {  // behind the comparisons, which the other processes need for their own calls
      push([this, done] {
        if (done) part();
      }).wait();
    } catch (const std::exception&) {  // the group has failed, or another process has not come
    }
  }
  {
    rpc::MutexLock lock(mutex_);
    ended_ = true;
  }
  wake_.set();
  service_->join();
  service_.reset();
}

rpc::Future<void> ProcessGroup::Impl::push(std::function<void()> run) {
  rpc::Future<void> done(runtime);
  {
    rpc::MutexLock lock(mutex_);
    queue_.push_back({std::move(run), done});
  }
  wake_.set();
  return done;
}

void ProcessGroup::Impl::serve() {
  while (true) {
    std::deque<Queued> next;
    bool ended = false;
    {
      rpc::MutexLock lock(mutex_);
      ended = ended_;
      if (queue_.empty() && !ended) wake_.reset();
      if (ended) next.swap(queue_);
      else if (!queue_.empty()) {
        next.push_back(std::move(queue_.front()));
        queue_.pop_front();
      }
    }
    // The connections stay until the destructor: closed now, they would lose bytes that are on their way.
    if (ended && !failed) failed = std::make_exception_ptr(RpcError(str("group '", name, "' was destroyed")));
    for (Queued& one : next) run_one(one);
    if (ended) return;
    if (next.empty()) wake_.wait();
  }
}

void ProcessGroup::Impl::run_one(Queued& one) {
  try {
    if (failed) std::rethrow_exception(failed);
    one.run();
  } catch (...) {
    one.run = nullptr;  // a waiter finds nothing of the call alive
    one.done.set_error(std::current_exception());
    return;
  }
  one.run = nullptr;
  one.done.set_result();
}

void ProcessGroup::Impl::fail(std::exception_ptr why) {
  failed = std::move(why);
  if (engine) engine->close();
  if (devices) devices->fail(failed);
}

std::string ProcessGroup::Impl::where(const std::string& call) const {
  return str(call, " in group '", name, "', ", names[static_cast<size_t>(rank)], ": ");
}

std::exception_ptr ProcessGroup::Impl::named(const std::string& call, const std::exception_ptr& error) const {
  try {
    std::rethrow_exception(error);
  } catch (const inner::ConnectionLost& e) {
    const std::string lost = e.rank < 0 ? std::string() : names[static_cast<size_t>(e.rank)];
    return std::make_exception_ptr(PeerLost(
        lost,
        str(where(call), "the connection to ", lost.empty() ? "another process" : lost,
            " has ended; its process has ended, or has left the group after an error (", e.what(), ")")));
  } catch (const Timeout& e) {
    return std::make_exception_ptr(Timeout(str(where(call), e.what())));
  } catch (...) {
    return std::current_exception();
  }
}

void ProcessGroup::Impl::on_engine(const std::string& call, const std::function<void(inner::Engine&)>& use) {
  if (!engine) return;  // a group of one
  try {
    use(*engine);
  } catch (...) {  // the others have moved on, or wait for this process
    const std::exception_ptr error = named(call, std::current_exception());
    fail(error);
    std::rethrow_exception(error);
  }
}

void ProcessGroup::Impl::look_for_lost() {
  std::exception_ptr loss;
  try {
    if (engine) engine->check();
  } catch (...) {
    loss = named("a collective on a device", std::current_exception());
  }
  devices->suspect(loss);
}

void ProcessGroup::Impl::part() {
  if (!engine) return;
  engine->end_calls_at(runtime->now() + kPartWithin);
  const Head head(kPart, {});
  std::vector<Head> heads(names.size(), head);
  engine->all_gather(&head, sizeof head, heads.data());
}

rpc::Future<void> ProcessGroup::Impl::collective(const std::string& call, const std::vector<Tensor>& tensors,
                                                 const std::function<void(inner::Engine&)>& move_data) {
  const Head head(call, tensors.empty() ? Tensor() : tensors.front());
  if (head.on_device == 0)
    return push([this, call, head, move_data] {
      const NoGrad off;
      compare(*this, call, head);
      if (move_data) on_engine(head.text(), move_data);
    });
  devices->check_ready(call);
  push([this, call, head] { compare(*this, call, head); });
  return devices->issue(head.text(), tensors, move_data);
}

// ---- the collectives

ProcessGroup::ProcessGroup(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ProcessGroup::~ProcessGroup() = default;

int ProcessGroup::rank() const { return impl_->rank; }
int ProcessGroup::size() const { return static_cast<int>(impl_->names.size()); }
const std::string& ProcessGroup::name() const { return impl_->name; }
Device ProcessGroup::device() const { return impl_->devices ? impl_->devices->device() : kCpu; }

rpc::Future<void> ProcessGroup::all_reduce_async(const Tensor& tensor, ReduceOp op) {
  check_tensor(*impl_, "all_reduce", tensor, true);
  if (tensor.dtype() == kBool) throw DTypeError("all_reduce: takes numbers, got bool");
  if (op == ReduceOp::kAvg && !tensor.is_floating_point())
    throw DTypeError(str("all_reduce: an average needs a floating dtype, got ", tensor.dtype()));
  const auto move_data = [tensor, op, count = size()](inner::Engine& e) {
    Tensor row = in_a_row(tensor);
    const bool average = op == ReduceOp::kAvg;
    const Write counted{row, tensor};
    e.all_reduce(row.address(), static_cast<size_t>(row.numel()), row.dtype(), average ? ReduceOp::kSum : op);
    if (average) row.div_(count);
    write_back(row, tensor);
  };
  return impl_->collective(str("all_reduce ", to_string(op)), {tensor}, move_data);
}

void ProcessGroup::all_reduce(const Tensor& tensor, ReduceOp op) { all_reduce_async(tensor, op).wait(); }

void ProcessGroup::broadcast(const Tensor& tensor, int src) {
  check_tensor(*impl_, "broadcast", tensor, true);
  if (src < 0 || src >= size())
    throw ValueError(str("broadcast: there is no rank ", src, " in a group of ", size()));
  const auto move_data = [tensor, src](inner::Engine& e) {
    const Tensor row = in_a_row(tensor);
    const Write counted{row, tensor};
    if (row.numel() > 0) e.broadcast(row.address(), bytes_of(row), src);
    write_back(row, tensor);
  };
  impl_->collective(str("broadcast from ", src), {tensor}, move_data).wait();
}

std::vector<Tensor> ProcessGroup::all_gather(const Tensor& tensor) {
  check_tensor(*impl_, "all_gather", tensor, false);
  Shape sizes = tensor.sizes();
  if (sizes.size() == kMaxDims)
    throw ShapeError(str("all_gather: takes at most ", kMaxDims - 1, " dims, got sizes ", sizes));
  sizes.insert(0, size());
  const NoGrad off;
  const Tensor all = zeros(sizes, {.dtype = tensor.dtype(), .device = tensor.device()});
  if (size() == 1) all[0].copy_(tensor.detach());
  const auto move_data = [all, tensor](inner::Engine& e) {
    const Tensor mine = in_a_row(tensor);
    if (mine.numel() > 0) e.all_gather(mine.address(), bytes_of(mine), all.address());
  };
  impl_->collective("all_gather", {tensor, all}, move_data).wait();
  return all.unbind();
}

void ProcessGroup::barrier() {
  if (impl_->devices) impl_->devices->wait("barrier");
  impl_->collective("barrier", {}, {}).wait();
}

void ProcessGroup::abort(const std::string& why) {
  impl_->push([impl = impl_.get(), why] {
    impl->fail(std::make_exception_ptr(RpcError(str("group '", impl->name, "' has failed: ", why))));
  });
}

}  // namespace weft::dist
