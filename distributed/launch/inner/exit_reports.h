// The ends of processes as their launcher reports them: evidence of a loss where the kernel gives no pidfd.
// The launcher (spawn) keeps one end of a socket to each child, and writes the identity of each child that
// has ended. Only the launcher has these ends of the sockets, so no other process can report.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <weft/distributed/runtime/sync.h>

namespace weft::rpc::inner {

/// The reports that this process has. Thread safety: any thread.
class ExitReports {
 public:
  /// Those of this process. They live until its end.
  static ExitReports& of_process();
  /// The launcher of this process reports through that socket, which stays open.
  void read_from(int socket);
  /// This process is a launcher itself.
  void expect_own();
  /// Somebody reports.
  bool expected() const;
  /// The socket to wait for; -1: none.
  int socket() const;
  /// Takes all reports that have come. False: the launcher has ended.
  bool read();
  void add(const std::string& identity);
  bool has(const std::string& identity) const;
  /// Each new report writes to that eventfd until it is removed.
  void add_wake(int event);
  void remove_wake(int event);

 private:
  mutable Mutex mutex_;
  int socket_ WEFT_GUARDED_BY(mutex_) = -1;
  bool own_ WEFT_GUARDED_BY(mutex_) = false;
  std::set<std::string> ended_ WEFT_GUARDED_BY(mutex_);
  std::set<int> wakes_ WEFT_GUARDED_BY(mutex_);
};

/// The launcher's side: watches its children on a thread, and reports each end to the others and to this
/// process. It leaves the status of a child to waitpid. Thread safety: one thread at a time.
class ExitTeller {
 public:
  ExitTeller() = default;
  ~ExitTeller();
  ExitTeller(const ExitTeller&) = delete;
  /// The two ends of a new child's socket: the launcher's, and the child's, whose number is above those of
  /// standard streams and of spawn. Throws: RpcError.
  static std::pair<int, int> make_socket();
  /// A child has started; `socket` is the launcher's end. The first call starts the thread.
  void started(pid_t pid, int socket);

 private:
  struct Child {
    pid_t pid;
    std::string identity;  ///< empty: unknown
    int socket;
    bool closed = false;  ///< the child's end of its socket
  };
  void run();
  /// The time until the next look at all children, in milliseconds.
  int look();

  Mutex mutex_;
  std::vector<Child> children_ WEFT_GUARDED_BY(mutex_);
  bool stopped_ WEFT_GUARDED_BY(mutex_) = false;
  int wake_ = -1;
  std::thread thread_;
};

}  // namespace weft::rpc::inner
