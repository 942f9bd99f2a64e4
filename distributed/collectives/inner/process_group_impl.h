// The state of a ProcessGroup; process_group.cpp has its protocol, new_group.cpp makes it.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <weft/distributed/collectives/inner/device_calls.h>
#include <weft/distributed/collectives/inner/engine.h>
#include <weft/distributed/collectives/process_group.h>
#include <weft/distributed/runtime/sync.h>

namespace weft::dist {

struct ProcessGroup::Impl {
  Impl(int my_rank, std::vector<std::string> ranks, std::string group_name);
  ~Impl();
  Impl(const Impl&) = delete;

  /// Adds a call to the queue; the thread of the group runs it after those before it.
  rpc::Future<void> push(std::function<void()> run);
  /// Steps 2 to 4 of a collective, whose first tensor is compared. `move_data` may be empty.
  rpc::Future<void> collective(const std::string& call, const std::vector<Tensor>& tensors,
                               const std::function<void(inner::Engine&)>& move_data);
  /// The begin of an error's text: the call, the group and this process.
  std::string where(const std::string& call) const;
  /// An error of an engine with the name of the call, the group and this process; others as they are.
  std::exception_ptr named(const std::string& call, const std::exception_ptr& error) const;

  // Thread of the group only.
  /// Uses the engine for the CPU, whose errors are those of the group.
  void on_engine(const std::string& call, const std::function<void(inner::Engine&)>& use);
  /// Ends the connections, and fails every later call with `why`.
  void fail(std::exception_ptr why);
  /// Tells the calls on the device whether the process of another rank has ended.
  void look_for_lost();
  /// Waits until all processes have come to the end of the group, for a short time. Throws: as the engine.
  void part();

  const int rank;
  const std::vector<std::string> names;  ///< of the processes, by rank
  const std::string name;
  const std::shared_ptr<rpc::Runtime> runtime;
  // These two are used by the thread of the group only.
  std::unique_ptr<inner::Engine> engine;  ///< null in a group of one
  std::exception_ptr failed;
  std::unique_ptr<inner::DeviceCalls> devices;  ///< null in a group for the CPU alone

 private:
  struct Queued {
    std::function<void()> run;
    rpc::Future<void> done;
  };
  void serve();
  void run_one(Queued& one);

  rpc::Mutex mutex_;
  std::deque<Queued> queue_ WEFT_GUARDED_BY(mutex_);
  bool ended_ WEFT_GUARDED_BY(mutex_) = false;
  rpc::Event wake_;
  std::unique_ptr<rpc::Service> service_;
};

}  // namespace weft::dist
