// spawn: posix_spawn of /proc/self/exe. The parent has the writing end of a pipe, each child the reading
// end. When the parent ends, for any reason, the pipe closes. The kernel then sends each child SIGKILL,
// which the child requested on its descriptor. Unlike PR_SET_PDEATHSIG this does not depend on the
// parent's thread that called spawn. Each child also has a socket, by which the parent reports the ends of
// the other children (inner/exit_reports.h).
#include <weft/distributed/launch/spawn.h>

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>

#include <weft/distributed/launch/inner/exit_reports.h>
#include <weft/distributed/launch/inner/group_certificates.h>
#include <weft/distributed/launch/inner/store_variable.h>
#include <weft/distributed/launch/store_service.h>
#include <weft/distributed/runtime/sync.h>

extern char** environ;

namespace weft::rpc {
namespace {

/// The pipe's descriptor in the child, the parent's process, and the descriptor of the reports.
constexpr char kPipeVariable[] = "WEFT_SPAWN_PIPE";

std::vector<std::string> own_command() {
  std::ifstream in("/proc/self/cmdline", std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  std::vector<std::string> words;
  for (size_t at = 0; at < bytes.size();) {
    const size_t end = std::min(bytes.find('\0', at), bytes.size());
    words.push_back(bytes.substr(at, end - at));
    at = end + 1;
  }
  if (words.empty()) words.push_back("weft");
  return words;
}

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> out;
  for (auto& w : words) out.push_back(w.data());
  out.push_back(nullptr);
  return out;
}

/// Initialises and frees the attributes of posix_spawn.
struct Attributes {
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_t actions;
  Attributes() {
    posix_spawnattr_init(&attributes);
    posix_spawn_file_actions_init(&actions);
  }
  ~Attributes() {
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
  }
};

bool failed(const ChildState& c) { return !c.running && (c.exit_code != 0 || c.signal != 0); }

}  // namespace

/// Starts the processes of one spawn, each of them any number of times.
struct inner::ProcessStarter {
  explicit ProcessStarter(const SpawnOptions& o);
  ~ProcessStarter();
  ProcessStarter(const ProcessStarter&) = delete;
  /// Throws: RpcError.
  pid_t start(int rank);

  SpawnOptions options;
  std::optional<ReservedPort> port{};
  int master_port = 0;
  std::optional<GroupCertificates> certificates{};
  ServedStore store{};
  std::vector<std::string> words = own_command();
  int reading = -1, writing = -1;  // ends of the pipe; closing the second one kills the children
  ExitTeller exits{};
};

inner::ProcessStarter::ProcessStarter(const SpawnOptions& o) : options(o) {
  if (options.master_port) master_port = *options.master_port;
  else master_port = port.emplace().port();
  for (int rank = 0; options.tls && o.names.empty() && rank < options.world_size; ++rank)
    options.names.push_back(str("worker", rank));
  if (options.tls) {
    if (std::ssize(options.names) != options.world_size)
      throw ValueError(str("spawn: ", options.names.size(), " names for ", options.world_size, " workers"));
    certificates.emplace(options.names);
  }
  if (options.elastic) {
    StoreNetwork network;
    if (certificates) network.tls = certificates->of(options.names.front());
    store = serve_store(options.store, store_of_group(options.store_log), network);
    options.environment[kStoreVariable] = store.address;
  }
  if (!options.own_arguments) words.resize(1);
  words.insert(words.end(), options.arguments.begin(), options.arguments.end());
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw RpcError(str("spawn: no pipe: ", std::strerror(errno)));
  reading = ends[0], writing = ends[1];
}

inner::ProcessStarter::~ProcessStarter() {
  if (reading >= 0) close(reading);
  if (writing >= 0) close(writing);
}

pid_t inner::ProcessStarter::start(int rank) {
  constexpr int kChildPipe = 3, kChildReports = 4;  // descriptors in the child
  const auto [mine, of_child] = ExitTeller::make_socket();
  Attributes a;
  sigset_t blocked;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGINT);  // until spawned_rank() ignores it for good
  posix_spawnattr_setsigmask(&a.attributes, &blocked);
  posix_spawnattr_setflags(&a.attributes, POSIX_SPAWN_SETSIGMASK);
  posix_spawn_file_actions_adddup2(&a.actions, reading, kChildPipe);
  posix_spawn_file_actions_adddup2(&a.actions, of_child, kChildReports);

  std::map<std::string, std::string> variables = options.environment;
  variables["RANK"] = variables["LOCAL_RANK"] = std::to_string(rank);
  variables["WORLD_SIZE"] = variables["LOCAL_WORLD_SIZE"] = std::to_string(options.world_size);
  variables["MASTER_ADDR"] = "127.0.0.1";
  variables["MASTER_PORT"] = std::to_string(master_port);
  variables[kPipeVariable] = str(kChildPipe, ":", getpid(), ":", kChildReports);
  if (certificates)
    for (auto& [name, file] : certificates->variables(options.names[static_cast<size_t>(rank)]))
      variables[name] = file;
  std::vector<std::string> environment;
  for (char** e = environ; *e != nullptr; ++e) {
    const std::string entry = *e, name = entry.substr(0, entry.find('='));
    // the store of this process's group is not that of the new one
    if (variables.count(name) == 0 && name != kStoreVariable) environment.push_back(entry);
  }
  for (const auto& [name, value] : variables) environment.push_back(name + "=" + value);
  std::vector<std::string> command = words;
  auto argv = pointers(command), envp = pointers(environment);
  pid_t pid = 0;
  const int error = posix_spawn(&pid, "/proc/self/exe", &a.actions, &a.attributes, argv.data(), envp.data());
  close(of_child);
  if (error != 0) {
    close(mine);
    throw RpcError(str("spawn: rank ", rank, " could not be started: ", std::strerror(error)));
  }
  exits.started(pid, mine);
  return pid;
}

std::string to_string(const ChildState& c) {
  const std::string who = str("rank ", c.rank, " (pid ", c.pid, ") ");
  if (c.running) return who + "is running";
  if (c.signal == 0) return who + str("exited with status ", c.exit_code);
  const char* name = sigabbrev_np(c.signal);
  return who + str("was killed by signal ", c.signal, name != nullptr ? str(" (SIG", name, ")") : "");
}

Children spawn(const SpawnOptions& options) {
  if (options.world_size < 1) throw ValueError(str("spawn: world_size is ", options.world_size));
  if (options.first_rank < 0 || options.first_rank > options.world_size) {
    throw ValueError(str("spawn: first_rank is ", options.first_rank, ", not in 0..", options.world_size));
  }
  if (options.restarts < 0) throw ValueError(str("spawn: restarts is ", options.restarts));
  if (!options.elastic && !options.store_log.empty())
    throw ValueError("spawn: store_log is for the store of an elastic group; set elastic = true");
  Children result;
  result.starter_ = std::make_unique<inner::ProcessStarter>(options);
  // when one throws, the destructor of `result` kills the others
  for (int rank = options.first_rank; rank < options.world_size; ++rank)
    result.children_.push_back({.rank = rank, .pid = result.starter_->start(rank)});
  return result;
}

Children::Children() = default;

Children::Children(Children&& other) noexcept
    : children_(std::move(other.children_)), starter_(std::move(other.starter_)) {
  other.children_.clear();
}

Children::~Children() { kill_all(); }

std::optional<TlsOptions> Children::tls(int rank) const {
  if (!starter_->certificates) return std::nullopt;
  return starter_->certificates->of(starter_->options.names.at(static_cast<size_t>(rank)));
}

int Children::master_port() const { return starter_->master_port; }

std::shared_ptr<Store> Children::store() const { return starter_->store.store; }

std::string Children::store_address() const { return starter_->store.address; }

const std::vector<ChildState>& Children::poll() {
  for (auto& c : children_) {
    if (c.running) {
      int status = 0;
      const pid_t got = waitpid(c.pid, &status, WNOHANG);
      if (got == 0 || (got < 0 && errno == EINTR)) continue;
      c.running = false;
      if (got < 0) {
        c.exit_code = -1;  // another part of the program has waited for it
      } else if (WIFSIGNALED(status)) {
        c.signal = WTERMSIG(status);
      } else {
        c.exit_code = WEXITSTATUS(status);
      }
    }
    if (failed(c) && c.restarts < starter_->options.restarts) {
      ++c.restarts;
      c = {.rank = c.rank, .pid = starter_->start(c.rank), .restarts = c.restarts};
    }
  }
  return children_;
}

void Children::end_restarts() { starter_->options.restarts = 0; }

void Children::wait(Runtime& runtime, TimePoint deadline) {
  Duration pause = std::chrono::milliseconds(1);
  while (true) {
    bool running = false;
    const ChildState* bad = nullptr;
    for (const auto& c : poll()) {
      running = running || c.running;
      if (failed(c) && bad == nullptr) bad = &c;
    }
    if (bad != nullptr) {
      const ChildState first = *bad;
      std::string text = "spawn: ";
      for (const auto& c : children_) {
        if (failed(c)) text += to_string(c) + "; ";
      }
      terminate(runtime);
      throw ChildError(first, text + "the others were ended");
    }
    if (!running) return;
    if (runtime.now() >= deadline) {
      std::string text;
      for (const auto& c : children_) {
        if (c.running) text += (text.empty() ? "" : "; ") + to_string(c);
      }
      terminate(runtime);
      throw Timeout("spawn: not all have ended in time: " + text);
    }
    runtime.sleep_for(std::min<Duration>(
        pause, std::max<Duration>(deadline == kNever ? pause : deadline - runtime.now(), Duration(1))));
    pause = std::min<Duration>(pause * 2, std::chrono::milliseconds(20));
  }
}

void Children::terminate(Runtime& runtime, Duration grace) {
  end_restarts();
  for (const auto& c : poll()) {
    if (c.running) ::kill(c.pid, SIGTERM);
  }
  const TimePoint end = runtime.now() + grace;
  while (runtime.now() < end) {
    bool running = false;
    for (const auto& c : poll()) running = running || c.running;
    if (!running) return;
    runtime.sleep_for(std::chrono::milliseconds(5));
  }
  kill_all();
}

void Children::kill_all() noexcept {
  for (auto& c : children_) {
    if (!c.running) continue;
    ::kill(c.pid, SIGKILL);
    int status = 0;
    while (waitpid(c.pid, &status, 0) < 0 && errno == EINTR) {
    }
    c.running = false;
    c.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  }
}

std::optional<int> spawned_rank() {
  static const std::optional<int> rank = []() -> std::optional<int> {
    const char* pipe = std::getenv(kPipeVariable);
    const char* text = std::getenv("RANK");
    if (pipe == nullptr || text == nullptr) return std::nullopt;
    int fd = -1, parent = 0, reports = -1;
    const char* end = pipe + std::strlen(pipe);
    const auto first = std::from_chars(pipe, end, fd);
    if (first.ec != std::errc() || first.ptr == end) return std::nullopt;
    const auto second = std::from_chars(first.ptr + 1, end, parent);
    if (second.ec != std::errc()) return std::nullopt;
    if (second.ptr != end) std::from_chars(second.ptr + 1, end, reports);
    if (getppid() != parent) {  // a grandchild that inherited the variable, or the parent is gone
      if (fcntl(fd, F_GETFD) < 0 || getppid() != 1) return std::nullopt;
      ::raise(SIGKILL);
    }
    struct sigaction ignore {};
    ignore.sa_handler = SIG_IGN;
    sigaction(SIGINT, &ignore, nullptr);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
    // All children share this open file description with their parent. The signal is requested on a
    // description of this child's own.
    const int shared =
        std::exchange(fd, open(str("/proc/self/fd/", fd).c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    close(shared);
    if (reports >= 0 && fcntl(reports, F_SETFD, FD_CLOEXEC) == 0)
      inner::ExitReports::of_process().read_from(reports);
    fcntl(fd, F_SETOWN, getpid());
    fcntl(fd, F_SETSIG, SIGKILL);
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_ASYNC);
    if (getppid() != parent) ::raise(SIGKILL);  // it died before the signal was requested
    int value = 0;
    std::from_chars(text, text + std::strlen(text), value);
    return value;
  }();
  return rank;
}

}  // namespace weft::rpc
