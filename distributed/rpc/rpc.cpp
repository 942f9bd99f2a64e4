// The public functions of rpc.h over the current agent, and WaitAll. init_rpc and shutdown
// are in launch/init.cpp.
#include <weft/distributed/rpc/rpc.h>

namespace weft::rpc {

namespace {
const FiberLocal& wait_all_slot() {
  static const FiberLocal slot;
  return slot;
}
}  // namespace

WaitAll::WaitAll() : before_(wait_all_slot().get()) { wait_all_slot().set(this); }
WaitAll::~WaitAll() { wait_all_slot().set(before_); }
WaitAll* WaitAll::current() { return static_cast<WaitAll*>(wait_all_slot().get()); }

Life detail::destination_life(const Agent& agent, const To& to) {
  const WorkerId id = agent.worker_info_id(to);
  return to.incarnation().value != 0 ? Life(id, to.incarnation()) : agent.life_of(id);
}

Future<void> detail::done_with(FutureCore& state) {
  auto done = std::make_shared<FutureState<void>>(state.runtime());
  const auto pass_on = [state = &state, done] {
    if (state->failed()) done->try_set_error(state->error());
    else done->try_set();
  };
  state.on_done(pass_on, false);
  return Future<void>(done);
}

void WaitAll::wait() {
  const std::vector<Future<void>> futures = std::exchange(futures_, {});
  wait_all(futures);
}

WorkerInfo get_worker_info() { return current_agent()->self(); }
WorkerInfo get_worker_info(const To& who) { return current_agent()->worker_info(who); }
std::vector<WorkerInfo> get_worker_infos() { return current_agent()->worker_infos(); }
void barrier(std::vector<std::string> names, Duration timeout) {
  current_agent()->barrier(std::move(names), timeout);
}
Duration get_rpc_timeout() { return current_agent()->rpc_timeout(); }
void set_rpc_timeout(Duration timeout) { current_agent()->set_rpc_timeout(timeout); }
std::map<std::string, int64_t> debug_info() { return current_agent()->debug_info(); }

}  // namespace weft::rpc
