// The least times that other rows of the table are compared with, in the same run (scripts/bench/goals.py).
// They are plain loops and system calls, with nothing of weft between. One thread each.
//   floor/product       GFLOP of a large product, by weft's engine
//   floor/copy          a copy of 25M floats, which reads and writes 100 MB each
//   floor/sgd, ...      an optimizer's step over 25M floats as one loop
//   floor/small_adam    that loop over 1,000 arrays of 100 floats
//   floor/two_copies    an array into warm shared memory and out of it
//   floor/small_add     the addition of two numbers whose result has a header and a block of memory
//   floor/socket        a message of 64 bytes and its answer between two processes; idle: after 1 ms asleep;
//                       outstanding_64: 64 of them, as many at once as the system takes
#include <benchmark/benchmark.h>

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include <weft/weft.h>

namespace {

using namespace weft;
using Clock = std::chrono::steady_clock;

// ---- arithmetic and memory

void product(benchmark::State& state) {
  set_num_threads(1);
  const int64_t n = state.range(0);
  const NoGrad quiet;
  const Tensor a = randn({n, n}), b = randn({n, n});
  for (auto _ : state) benchmark::DoNotOptimize(matmul(a, b));
  state.counters["GFLOP/s"] = benchmark::Counter(2e-9 * static_cast<double>(n * n * n),
                                                 benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(product)->Name("floor/product")->Arg(1024)->Arg(2048)->Unit(benchmark::kMillisecond);

constexpr int64_t kArrays = 100, kFloats = 250'000;
using Array = std::vector<float>;
using Arrays = std::vector<Array>;

// The compiler makes vectors of these loops (cmake/programs.cmake has its options).
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define LOOP __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define LOOP
#endif

LOOP void sgd(float* __restrict p, const float* __restrict g, int64_t n) {
  for (int64_t i = 0; i < n; ++i) p[i] -= 1e-3f * g[i];
}
LOOP void momentum(float* __restrict p, const float* __restrict g, float* __restrict v, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    v[i] = 0.9f * v[i] + g[i];
    p[i] -= 1e-3f * v[i];
  }
}
LOOP void adam(float* __restrict p, const float* __restrict g, float* __restrict m, float* __restrict v,
               int64_t n) {
  constexpr float kStep = 1e-3f / (1 - 0.9f), kRoot = 31.62f;  // of the first step
  for (int64_t i = 0; i < n; ++i) {
    m[i] = 0.9f * m[i] + 0.1f * g[i];
    v[i] = 0.999f * v[i] + 0.001f * g[i] * g[i];
    p[i] -= kStep * m[i] / (std::sqrt(v[i]) * kRoot + 1e-8f);
  }
}

Arrays arrays(float value, int64_t count = kArrays, int64_t size = kFloats) {
  return Arrays(static_cast<size_t>(count), Array(static_cast<size_t>(size), value));
}
int64_t length(const Array& a) { return static_cast<int64_t>(a.size()); }

void copy(benchmark::State& state) {
  Arrays to = arrays(0);
  const Arrays from = arrays(1);
  for (auto _ : state)
    for (size_t i = 0; i < from.size(); ++i)
      std::memcpy(to[i].data(), from[i].data(), from[i].size() * sizeof(float));
  state.SetBytesProcessed(state.iterations() * kArrays * kFloats * 8);
}
BENCHMARK(copy)->Name("floor/copy")->Unit(benchmark::kMillisecond);

void sgd_loop(benchmark::State& state) {
  Arrays p = arrays(1);
  const Arrays g = arrays(0.01f);
  for (auto _ : state)
    for (size_t i = 0; i < p.size(); ++i) sgd(p[i].data(), g[i].data(), length(p[i]));
  state.SetBytesProcessed(state.iterations() * kArrays * kFloats * 12);
}
BENCHMARK(sgd_loop)->Name("floor/sgd")->Unit(benchmark::kMillisecond);

void momentum_loop(benchmark::State& state) {
  Arrays p = arrays(1), v = arrays(0);
  const Arrays g = arrays(0.01f);
  for (auto _ : state)
    for (size_t i = 0; i < p.size(); ++i) momentum(p[i].data(), g[i].data(), v[i].data(), length(p[i]));
  state.SetBytesProcessed(state.iterations() * kArrays * kFloats * 20);
}
BENCHMARK(momentum_loop)->Name("floor/momentum")->Unit(benchmark::kMillisecond);

void adam_loop(benchmark::State& state, int64_t count, int64_t size) {
  Arrays p = arrays(1, count, size), m = arrays(0, count, size), v = m;
  const Arrays g = arrays(0.01f, count, size);
  for (auto _ : state)
    for (size_t i = 0; i < p.size(); ++i)
      adam(p[i].data(), g[i].data(), m[i].data(), v[i].data(), length(p[i]));
  state.SetBytesProcessed(state.iterations() * count * size * 28);
}
void large_adam(benchmark::State& state) { adam_loop(state, kArrays, kFloats); }
void small_adam(benchmark::State& state) { adam_loop(state, 1000, 100); }
BENCHMARK(large_adam)->Name("floor/adam")->Unit(benchmark::kMillisecond);
BENCHMARK(small_adam)->Name("floor/small_adam")->Unit(benchmark::kMicrosecond);

/// Blocks of one size by a list of free ones.
class Blocks {
 public:
  explicit Blocks(size_t bytes) : bytes_(bytes) { give(take()); }
  ~Blocks() {
    while (free_) std::free(take());
  }
  Blocks(const Blocks&) = delete;
  void* take() {
    if (!free_) return std::malloc(bytes_);
    return std::exchange(free_, *static_cast<void**>(free_));
  }
  void give(void* block) {
    *static_cast<void**>(block) = free_;
    free_ = block;
  }

 private:
  size_t bytes_;
  void* free_ = nullptr;
};

struct SmallArray {
  float* data;
  int64_t dims, sizes[8], strides[8];
  int references, dtype, device;
};

void small_add(benchmark::State& state) {
  Blocks headers(sizeof(SmallArray)), memory(64);
  const auto made = [&](float value) {
    auto* const x = static_cast<SmallArray*>(headers.take());
    x->data = static_cast<float*>(memory.take());
    x->dims = x->sizes[0] = x->strides[0] = x->references = 1;
    x->dtype = x->device = 0;
    x->data[0] = value;
    return x;
  };
  const auto drop = [&](SmallArray* x) {
    if (--x->references > 0) return;
    memory.give(x->data);
    headers.give(x);
  };
  SmallArray *const a = made(1), *const b = made(2);
  for (auto _ : state) {
    benchmark::DoNotOptimize(a);
    benchmark::DoNotOptimize(b);
    if (a->dtype != b->dtype || a->device != b->device || a->dims != b->dims || a->sizes[0] != b->sizes[0])
      return state.SkipWithError("other sizes");
    SmallArray* sum = made(a->data[0] + b->data[0]);
    benchmark::DoNotOptimize(sum);
    benchmark::ClobberMemory();
    drop(sum);
  }
  drop(a);
  drop(b);
}
BENCHMARK(small_add)->Name("floor/small_add");

void two_copies(benchmark::State& state) {
  const auto bytes = static_cast<size_t>(state.range(0));
  void* const shared =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (shared == MAP_FAILED) return state.SkipWithError("no shared memory");
  std::vector<char> from(bytes, 1), to(bytes, 2);
  for (auto _ : state) {
    std::memcpy(shared, from.data(), bytes);
    benchmark::ClobberMemory();
    std::memcpy(to.data(), shared, bytes);
    benchmark::ClobberMemory();
  }
  munmap(shared, bytes);
}
BENCHMARK(two_copies)
    ->Name("floor/two_copies")
    ->Arg(1 << 20)
    ->Arg(16 << 20)
    ->Arg(64 << 20)
    ->Unit(benchmark::kMicrosecond);

// ---- two processes

/// Sends back each message until the other end is closed. A spinning one never sleeps.
[[noreturn]] void answer(int fd, int flags) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  char message[64];
  while (true) {
    const ssize_t n = recv(fd, message, sizeof message, flags);
    if (n < 0 && errno == EAGAIN) continue;
    if (n <= 0) _exit(0);
    send(fd, message, static_cast<size_t>(n), 0);
  }
}

void socket_round(benchmark::State& state, bool spin, bool idle, int outstanding = 1) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    return state.SkipWithError("no socket");
  const int flags = spin ? MSG_DONTWAIT : 0;
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    answer(ends[1], flags);
  }
  close(ends[1]);
  char message[64] = {};
  for (auto _ : state) {
    if (idle) usleep(1000);
    const auto start = Clock::now();
    for (int sent = 0, back = 0; back < outstanding;) {
      // the system takes few messages ahead, and refuses the next one
      if (sent < outstanding && send(ends[0], message, sizeof message, sent > back ? MSG_DONTWAIT : 0) > 0) {
        ++sent;
        continue;
      }
      while (recv(ends[0], message, sizeof message, flags) < 0) {
      }
      ++back;
    }
    state.SetIterationTime(std::chrono::duration<double>(Clock::now() - start).count());
  }
  close(ends[0]);
  waitpid(child, nullptr, 0);
}
BENCHMARK_CAPTURE(socket_round, spinning, true, false)
    ->Name("floor/socket/spinning")
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(socket_round, blocking, false, false)
    ->Name("floor/socket/blocking")
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(socket_round, outstanding, false, false, 64)
    ->Name("floor/socket/outstanding_64")
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(socket_round, idle, false, true)
    ->Name("floor/socket/idle")
    ->UseManualTime()
    ->Iterations(1000)
    ->Unit(benchmark::kMicrosecond);

}  // namespace
