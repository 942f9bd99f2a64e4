// Handing over a tensor's memory to another process by a CUDA IPC handle. The other process is this program,
// started once more (--ipc-owner): it owns the tensor and sends a handle for each byte that it reads. This
// one opens and closes the memory. Everything that waits for the other process has a deadline.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>

#include "bench.h"

extern char** environ;

namespace weft::bench {

namespace {

constexpr int64_t kShared = int64_t{1} << 24;  // 64 MiB of float32, a segment of its own
constexpr float kContents = 3;
constexpr int kPatience = 30000;  // ms
static_assert(std::is_trivially_copyable_v<SharedBlock>);

/// Reads `bytes` from a pipe before the deadline; false at its end.
bool read_all(int file, void* to, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    pollfd wait{file, POLLIN, 0};
    if (poll(&wait, 1, kPatience) != 1) return false;
    const ssize_t n = read(file, static_cast<char*>(to) + done, bytes - done);
    if (n <= 0) return false;
    done += static_cast<size_t>(n);
  }
  return true;
}

/// The process that owns the memory; ended and awaited by the destructor.
class Owner {
 public:
  Owner() {
    int questions[2] = {-1, -1}, answers[2] = {-1, -1};
    if (pipe2(questions, O_CLOEXEC) != 0 || pipe2(answers, O_CLOEXEC) != 0)
      throw IoError(str("bench_gpu: no pipe: ", std::strerror(errno)));
    ask_ = questions[1], answer_ = answers[0];
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, questions[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, answers[1], STDOUT_FILENO);
    char self[] = "/proc/self/exe", flag[] = "--ipc-owner";
    char* const arguments[] = {self, flag, nullptr};
    const int error = posix_spawn(&process_, self, &actions, nullptr, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(questions[0]), close(answers[1]);
    if (error != 0) process_ = -1;
    signal(SIGPIPE, SIG_IGN);  // a process that has ended is an error of write()
  }
  ~Owner() {
    close(ask_), close(answer_);
    if (process_ < 0) return;
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
  }
  Owner(const Owner&) = delete;
  /// A handle that is exported for this call. Throws: IoError if the process has ended or does not answer.
  SharedBlock next() const {
    SharedBlock block;
    const char question = 1;
    if (process_ < 0 || write(ask_, &question, 1) != 1 || !read_all(answer_, &block, sizeof block))
      throw IoError("the process that owns the memory sent no handle (it prints its reason)");
    return block;
  }

 private:
  pid_t process_ = -1;
  int ask_ = -1, answer_ = -1;
};

}  // namespace

int own_shared_memory() {
  try {
    const Tensor x = full({kShared}, kContents, {.device = gpu});
    cuda::synchronize(gpu);
    for (char question; read(STDIN_FILENO, &question, 1) == 1;) {
      const SharedBlock block = accelerator(gpu).share(x.raw());
      if (write(STDOUT_FILENO, &block, sizeof block) != static_cast<ssize_t>(sizeof block)) return 1;
    }
    return 0;
  } catch (const Error& e) {
    std::fprintf(stderr, "bench_gpu --ipc-owner: %s\n", e.what());
    return 1;
  }
}

namespace {

/// A call that not every device and container supports. Nullopt if this one does not; `reason` says so.
template <class F> auto if_supported(const F& call, std::string& reason) {
  std::optional<decltype(call())> result;
  try {
    result = call();
  } catch (const CudaError& e) {
    reason = e.what();  // with the name of the error, as cudaErrorNotSupported
    if (reason.find("NotSupported") == std::string::npos && reason.find("Unsupported") == std::string::npos)
      throw;
  }
  return result;
}

}  // namespace

void sharing(Bench& b) {
  const char* const rows[] = {"Ipc/Export/64MiB", "Ipc/Open/64MiB", "Ipc/OpenAgain/64MiB",
                              "Ipc/HandOver/64MiB"};
  if (std::none_of(std::begin(rows), std::end(rows), [&](const char* name) { return b.wants(name); })) return;
  Accelerator& device = accelerator(gpu);
  try {
    const Tensor mine = empty({kShared}, {.device = gpu});
    std::string reason;
    if (!if_supported([&] { return device.share(mine.raw()); }, reason)) return b.leave_out("Ipc", reason);
    const Owner owner;
    const SharedBlock block = owner.next();
    const auto handed_over = [&](const SharedBlock& given) {
      void* const p = device.open_shared(given);
      device.close_shared(p);
    };
    const std::optional<void*> p = if_supported([&] { return device.open_shared(block); }, reason);
    if (!p) return b.leave_out("Ipc", reason);
    float seen = 0;
    Context context;
    device.copy_to_host(context, *p, &seen, sizeof seen);
    device.close_shared(*p);
    if (seen != kContents) return b.fail("Ipc", ValueError(str("the memory holds ", seen)));
    // The calls of the process that gives, of the one that takes, and of both with the pipes between them. To
    // open memory of a segment that is open already (a second tensor, or this one again) opens no handle.
    b.run_on_host(rows[0], [&] { device.share(mine.raw()); });
    b.run_on_host(rows[1], [&] { handed_over(block); });
    void* const held = device.open_shared(block);
    b.run_on_host(rows[2], [&] { handed_over(block); });
    device.close_shared(held);
    b.run_on_host(rows[3], [&] { handed_over(owner.next()); });
  } catch (const Error& e) {
    b.fail("Ipc", e);
  }
}

}  // namespace weft::bench
