// The thread pool. A caller creates a Job on its stack and publishes it in a short list under the mutex.
// Caller and workers take chunks from an atomic counter. A worker enters and leaves a job under the mutex
// (`inside`). The caller removes the job from the list and waits for inside == 0. So no worker can touch a
// job after the call returns. The caller does not depend on workers: it can finish all chunks alone. Workers
// spin briefly on `generation_` before they sleep.
#include <weft/kernels/cpu/pool.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include <weft/kernels/cpu/limits.h>
#include <weft/kernels/cpu_settings.h>
#include <weft/kernels/error.h>

namespace weft::kernels {

namespace {

constexpr int kMaxThreads = 1024;
constexpr int kSpins = 2000;

thread_local bool in_chunk = false;
thread_local int scope_threads = 0;  // number of the innermost ThreadScope; 0: none

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

int default_threads() {
  if (const char* text = std::getenv("OMP_NUM_THREADS")) {
    const int n = std::atoi(text);
    if (n >= 1) return std::min(n, kMaxThreads);
  }
  return std::min(usable_cpus(), kMaxThreads);
}

struct Job {
  Job(int64_t size, int64_t grain_size, FunctionRef<void(int64_t, int64_t)> function)
      : n(size), grain(grain_size), chunks((size + grain_size - 1) / grain_size), f(function) {}

  /// Runs chunks until none is left.
  void work() {
    const bool outer = in_chunk;
    in_chunk = true;
    for (int64_t c; (c = next.fetch_add(1, std::memory_order_relaxed)) < chunks;) {
      try {
        f(c * grain, std::min(n, (c + 1) * grain));
      } catch (...) {
        const std::lock_guard lock(error_mutex);
        if (!error || c < error_chunk) {
          error = std::current_exception();
          error_chunk = c;
        }
        // chunks are taken in order: all before c have been taken
        next.store(chunks, std::memory_order_relaxed);
      }
    }
    in_chunk = outer;
  }
  bool exhausted() const { return next.load(std::memory_order_relaxed) >= chunks; }

  const int64_t n, grain, chunks;
  const FunctionRef<void(int64_t, int64_t)> f;
  std::atomic<int64_t> next{0};
  int inside = 0;  // workers in work(); guarded by the pool's mutex
  int places = 0;  // workers that may still enter; guarded by the pool's mutex
  std::mutex error_mutex;
  std::exception_ptr error;
  int64_t error_chunk = 0;
};

class Pool {
 public:
  int threads() const { return scope_threads ? scope_threads : threads_.load(std::memory_order_relaxed); }
  void set_threads(int n) { threads_.store(n, std::memory_order_relaxed); }

  void run(Job& job) {
    const int helpers = static_cast<int>(std::min<int64_t>(threads() - 1, job.chunks - 1));
    {
      const std::lock_guard lock(mutex_);
      start_workers(helpers);
      job.places = helpers;
      jobs_.push_back(&job);
      generation_.fetch_add(1, std::memory_order_release);
      for (int i = std::min(helpers, sleeping_); i > 0; --i) wake_.notify_one();
    }
    job.work();
    std::unique_lock lock(mutex_);
    jobs_.erase(std::find(jobs_.begin(), jobs_.end(), &job));
    for (int spins = 0; job.inside > 0;) {
      if (spins++ < 64) {
        lock.unlock();
        for (int i = 0; i < 32; ++i) pause_cpu();
        lock.lock();
      } else {
        done_.wait(lock);
      }
    }
  }

 private:
  /// A failure to start a thread is no error, since fewer threads can do the work too.
  void start_workers(int wanted) {
    while (workers_ < wanted) {
      try {
        std::thread([this] { worker(); }).detach();
      } catch (const std::system_error&) {
        return;
      }
      ++workers_;
    }
  }

  void worker() {
    std::unique_lock lock(mutex_);
    for (;;) {
      Job* job = nullptr;
      for (Job* candidate : jobs_)
        if (candidate->places > 0 && !candidate->exhausted()) {
          job = candidate;
          break;
        }
      if (job) {
        --job->places;
        ++job->inside;
        lock.unlock();
        job->work();
        lock.lock();
        if (--job->inside == 0) done_.notify_all();
        continue;
      }
      const uint64_t seen = generation_.load(std::memory_order_relaxed);
      lock.unlock();
      for (int i = 0; i < kSpins && generation_.load(std::memory_order_acquire) == seen; ++i) pause_cpu();
      lock.lock();
      if (generation_.load(std::memory_order_relaxed) == seen) {
        ++sleeping_;
        wake_.wait(lock);
        --sleeping_;
      }
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::vector<Job*> jobs_;
  std::atomic<uint64_t> generation_{0};
  std::atomic<int> threads_{default_threads()};
  int workers_ = 0, sleeping_ = 0;
};

Pool& pool() {
  // never destroyed: its detached workers sleep on it until the process ends
  static Pool* const object = new Pool;
  return *object;
}

}  // namespace

namespace detail {
void run_chunks(int64_t n, int64_t grain, FunctionRef<void(int64_t, int64_t)> f) {
  if (in_chunk || pool().threads() == 1) {
    for (int64_t begin = 0; begin < n; begin += grain) f(begin, std::min(n, begin + grain));
    return;
  }
  Job job(n, grain, f);
  pool().run(job);
  if (job.error) std::rethrow_exception(job.error);
}
}  // namespace detail

}  // namespace weft::kernels

namespace weft {

namespace {
void check_threads(const char* what, int n) {
  if (n < 1 || n > kernels::kMaxThreads)
    throw ValueError(str(what, ": takes 1 to ", kernels::kMaxThreads, ", got ", n));
}
}  // namespace

int num_threads() { return kernels::pool().threads(); }

void set_num_threads(int n) {
  check_threads("set_num_threads", n);
  kernels::pool().set_threads(n);
}

ThreadScope::ThreadScope(int n) : before_(kernels::scope_threads) {
  check_threads("ThreadScope", n);
  kernels::scope_threads = n;
}
ThreadScope::~ThreadScope() { kernels::scope_threads = before_; }

}  // namespace weft
