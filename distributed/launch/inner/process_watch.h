// Tells when a process of this host has ended: evidence that a worker is lost, sooner than its lease. A
// process announces its identity to the group; the others watch it by a pidfd. The kernel makes this readable
// at the end of that process and of no later one with the same number. Where the kernel refuses one, the
// reports of the launcher count (exit_reports.h).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <thread>

#include <weft/distributed/runtime/sync.h>

namespace weft::rpc::inner {

/// The identity of this process: the host's boot, the namespace of its process numbers, its number and its
/// start time. Empty where /proc does not show it.
std::string process_identity();
/// The same for another process of this host.
std::string process_identity(int pid);

/// Watches processes on one thread, which the first of them starts. Thread safety: watch and unwatch may be
/// called from any thread, stop from any but the callbacks.
class ProcessWatch {
 public:
  ProcessWatch() = default;
  ~ProcessWatch() { stop(); }
  ProcessWatch(const ProcessWatch&) = delete;
  /// Calls `ended` once, on the watch's thread, when that process has ended. It must be short. Returns a
  /// number for unwatch. 0, and never a call: the process is on another host or in another namespace, or
  /// neither the kernel nor a launcher can report.
  uint64_t watch(const std::string& identity, std::function<void()> ended);
  /// Ends a watch and frees its file. A callback that has begun goes on. An unknown number has no effect.
  void unwatch(uint64_t number);
  /// Ends the thread. No callback runs after the return.
  void stop();

 private:
  bool start() WEFT_REQUIRES(mutex_);
  uint64_t watch_reports(const std::string& identity, std::function<void()> ended);
  void run();
  struct Watched {
    int process = -1;        ///< pidfd; negative: the launcher reports the end
    std::string identity{};  ///< for reports
    std::function<void()> ended{};
  };
  static constexpr uint64_t kFirstNumber = 3;  ///< kWake and kReports stand below it
  rpc::Mutex mutex_;
  std::map<uint64_t, Watched> watched_ WEFT_GUARDED_BY(mutex_);  ///< by number
  uint64_t next_ WEFT_GUARDED_BY(mutex_) = kFirstNumber;
  bool hears_reports_ WEFT_GUARDED_BY(mutex_) = false;
  int poll_ WEFT_GUARDED_BY(mutex_) = -1;  ///< epoll of the pidfds, of wake_ and of the reports
  int wake_ WEFT_GUARDED_BY(mutex_) = -1;
  bool stopped_ WEFT_GUARDED_BY(mutex_) = false;
  std::thread thread_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::rpc::inner
