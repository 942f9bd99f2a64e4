// The state of a ProcessGroup; process_group.cpp has its protocol, new_group.cpp makes it.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

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
  /// Steps 2 to 4 of a collective, as a call of the queue. `move_data` may be empty.
  rpc::Future<void> collective(const std::string& call, const Tensor& tensor,
                               std::function<void(inner::Engine&)> move_data);
  /// Thread of the group only: ends the connections, and fails every later call with `why`.
  void fail(std::exception_ptr why);

  const int rank;
  const std::vector<std::string> names;  ///< of the processes, by rank
  const std::string name;
  const std::shared_ptr<rpc::Runtime> runtime;
  // Both are used by the thread of the group only.
  std::unique_ptr<inner::Engine> engine;  ///< null in a group of one
  std::exception_ptr failed;

 private:
  struct Queued {
    std::function<void()> run;
    rpc::Future<void> done;
  };
  void serve();
  void run_one(Queued& one);
  void on_engine(const std::string& what, const std::function<void(inner::Engine&)>& use);

  rpc::Mutex mutex_;
  std::deque<Queued> queue_ WEFT_GUARDED_BY(mutex_);
  bool ended_ WEFT_GUARDED_BY(mutex_) = false;
  rpc::Event wake_;
  std::unique_ptr<rpc::Service> service_;
};

}  // namespace weft::dist
