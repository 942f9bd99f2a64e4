// DeviceCalls. No thread waits for the device: a call's work is ordered between streams by events. So its
// errors are found later, by the watching thread, and thrown by the next call. That thread looks while work
// is queued. It lets a stream without work follow the group's stream, and queries whether that stream is
// done. An event would serve as well, but its query may throw the faults of kernels, which belong to the
// threads that issued them. The clock of a call begins when this device has reached it. The work in front of
// it may take any time.
#include <weft/distributed/collectives/inner/device_calls.h>

#include <algorithm>

#include <weft/autograd/tape/grad_mode.h>
#include <weft/distributed/collectives/inner/process_group_impl.h>

namespace weft::dist::inner {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr rpc::Duration kLookAtCalls = milliseconds(100);
/// For work under way when the connection of another process has ended. Work that has not begun has longer.
constexpr rpc::Duration kGrace = milliseconds(1000);

/// A pause that grows from round to round of a wait.
void pause(rpc::Runtime& runtime, rpc::Duration& length) {
  length = std::min<rpc::Duration>(length + microseconds(20), milliseconds(1));
  runtime.sleep_for(length);
}

/// The calls of several threads one after another, for the length of a scope.
class Turn {
 public:
  Turn(std::atomic<bool>& busy, rpc::Runtime& runtime) : busy_(busy) {
    for (rpc::Duration length{}; busy_.exchange(true, std::memory_order_acquire);) pause(runtime, length);
  }
  ~Turn() { busy_.store(false, std::memory_order_release); }
  Turn(const Turn&) = delete;

 private:
  std::atomic<bool>& busy_;
};

}  // namespace

DeviceCalls::DeviceCalls(ProcessGroup::Impl& group, const EngineOptions& options, Device device,
                         const std::string& id)
    : group_(group),
      options_(options),
      device_(device),
      stream_(device, true),
      marker_(device),
      front_(device),
      wake_(*options.runtime, "a collective on a device") {
  stream_.wait_stream(cuda::default_stream(device));  // so the device is this thread's, as NCCL expects
  engine_ = make_nccl(options, stream_.handle(), id);
  service_ = options.runtime->start_service("device collectives", [this] { watch(); });
}

DeviceCalls::~DeviceCalls() { finish(); }

void DeviceCalls::check_ready(const std::string& call) const {
  throw_if_failed();
  if (accelerator(device_).recording(Context{cuda::current_stream(device_).handle()}))
    throw CudaError(str(call, ": the calling thread records a graph, which cannot have collectives"));
}

void DeviceCalls::throw_if_failed() const {
  const rpc::MutexLock lock(mutex_);
  if (failed_) std::rethrow_exception(failed_);
}

rpc::Future<void> DeviceCalls::issue(const std::string& what, const std::vector<Tensor>& tensors,
                                     const std::function<void(Engine&)>& move_data) {
  const NoGrad off;
  const Turn turn(busy_, *options_.runtime);
  rpc::Future<void> done(group_.runtime);
  try {
    cuda::Event front = cuda::current_stream(device_).record_event();
    stream_.wait_event(front);
    {
      const rpc::MutexLock lock(mutex_);
      if (failed_) std::rethrow_exception(failed_);
      calls_.push_back({issued_ + 1, what, std::move(front)});
      if (calls_.size() == 1) wake_.set();
    }
    for (const Tensor& t : tensors)
      if (t.numel() > 0) cuda::record_stream(t, stream_);
    const cuda::StreamGuard guard(stream_);
    move_data(*engine_);
    {
      const rpc::MutexLock lock(mutex_);
      ++issued_;
    }
    done.set_result();  // with a mark of the current streams, for the waiters
  } catch (...) {
    fail(group_.named(what, std::current_exception()));
    const rpc::MutexLock lock(mutex_);
    done.set_error(failed_);
  }
  return done;
}

void DeviceCalls::wait(const std::string& call) {
  check_ready(call);
  {
    const Turn turn(busy_, *options_.runtime);
    stream_.wait_stream(cuda::current_stream(device_));
  }
  wait_for_calls();
}

void DeviceCalls::wait_for_calls() {
  for (rpc::Duration length{}; true; pause(*options_.runtime, length)) {
    throw_if_failed();
    if (stream_.query()) break;
  }
  throw_if_failed();
}

void DeviceCalls::fail(const std::exception_ptr& why) {
  {
    const rpc::MutexLock lock(mutex_);
    if (failed_) return;
    failed_ = why;
  }
  engine_->close();
  group_.push([&group = group_, why] { group.fail(why); });
}

bool DeviceCalls::finish() noexcept {
  bool done = true;
  if (!service_) return done;
  try {
    wait_for_calls();
  } catch (const std::exception&) {  // its calls have thrown it, or were not waited for
    done = false;
  }
  {
    const rpc::MutexLock lock(mutex_);
    ended_ = true;
  }
  wake_.set();
  service_->join();
  service_.reset();
  return done;
}

// ---- the watching thread

void DeviceCalls::watch() {
  const rpc::Duration between =
      std::clamp<rpc::Duration>(options_.timeout / 4, milliseconds(1), kLookAtCalls);
  while (true) {
    bool idle = false;
    {
      const rpc::MutexLock lock(mutex_);
      if (ended_) return;
      idle = failed_ || calls_.empty();
      wake_.reset();
    }
    if (idle) {
      wake_.wait();
    } else {
      look();
      wake_.wait_until(options_.runtime->now() + between);
    }
  }
}

void DeviceCalls::look() {
  std::string what;
  std::exception_ptr why;
  bool ask = false;
  try {
    follow_progress();
    {
      const rpc::MutexLock lock(mutex_);
      if (calls_.empty()) return;
      what = calls_.front().what;
    }
    engine_->check();
    const rpc::TimePoint now = options_.runtime->now();
    follow_first(now);
    if (begun_ && now - *begun_ >= options_.timeout)
      throw Timeout(str("the devices were not done within ",
                        std::chrono::duration_cast<milliseconds>(options_.timeout).count(), " ms"));
    const rpc::MutexLock lock(mutex_);
    if (suspicion_ && suspected_ == first_) {
      const rpc::TimePoint end = begun_ ? std::max(suspected_at_, *begun_) + kGrace
                                        : suspected_at_ + std::max(options_.timeout, kGrace);
      if (now >= end) why = suspicion_;
    } else {
      ask = now - first_at_ >= kLookAtCalls && !asking_;
    }
    asking_ = asking_ || ask;
  } catch (...) {
    why = group_.named(what, std::current_exception());
  }
  if (why) return fail(why);
  if (ask) group_.push([&group = group_] { group.look_for_lost(); });
}

void DeviceCalls::follow_progress() {
  if (marked_ == 0) {
    {
      const rpc::MutexLock lock(mutex_);
      marked_ = issued_;
    }
    marker_.wait_stream(stream_);
  }
  if (!marker_.query()) return;
  const rpc::MutexLock lock(mutex_);
  while (!calls_.empty() && calls_.front().number <= marked_) calls_.pop_front();
  marked_ = 0;
}

void DeviceCalls::follow_first(rpc::TimePoint now) {
  const Call* first = nullptr;  // this thread alone takes calls away
  bool issuing = false;         // the library waits for other processes before it queues the work
  {
    const rpc::MutexLock lock(mutex_);
    first = &calls_.front();
    issuing = first->number > issued_;
  }
  if (first_ != first->number) {
    first_ = first->number;
    first_at_ = now;
    begun_.reset();
    front_.wait_event(first->front);
  }
  if (!issuing && !front_.query()) begun_.reset();
  else if (!begun_) begun_ = now;
}

void DeviceCalls::suspect(const std::exception_ptr& loss) {
  const rpc::MutexLock lock(mutex_);
  asking_ = false;
  if (!loss || calls_.empty() || (suspicion_ && suspected_ == calls_.front().number)) return;
  suspicion_ = loss;
  suspected_ = calls_.front().number;
  suspected_at_ = options_.runtime->now();
}

}  // namespace weft::dist::inner
