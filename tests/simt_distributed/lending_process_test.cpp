// Device memory lent between real processes, as CUDA IPC does it: the borrower maps the lender's block and
// copies from it.
#include <unistd.h>

#include <csignal>

#include "devices.h"
#include "held.h"
#include "support/process.h"
#include "support/simt/streams.h"

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace weft::test;
using namespace std::chrono_literals;

constexpr int64_t kLarge = 300000, kSmall = 1000;  // 1.2 MB, 4 KB

Tensor borrow_add(const Tensor& x, double y) { return add(x, y); }
WEFT_RPC(borrow_add);
std::atomic<int> sums{0};
double borrow_sum(const Tensor& x) {
  ++sums;
  return x.sum().item<double>();
}
WEFT_RPC(borrow_sum);
/// Lends to the caller.
double borrow_call_back() {
  return rpc_sync<borrow_sum>({"worker0", 90s}, full({kLarge}, 2, {.device = kGpu0}));
}
WEFT_RPC(borrow_call_back);
Tensor borrow_make(double v) { return full({kLarge}, v, {.device = kGpu1}); }
WEFT_RPC(borrow_make);
int64_t borrow_hold(bool hold) {
  if (hold) hold_devices();
  return getpid();
}
WEFT_RPC(borrow_hold);
int64_t borrow_counted(const std::string& key) { return debug_info().at(key); }
WEFT_RPC(borrow_counted);
/// A block of this process as others open it; it stays.
std::pair<std::string, int64_t> borrow_share() {
  static const auto* const kept = new Tensor(full({100}, 8, {.device = kGpu0}));
  const SharedBlock block = accelerator(kGpu0).share(kept->body().storage->data());
  return {std::string(block.handle.begin(), block.handle.end()), block.offset};
}
WEFT_RPC(borrow_share);

int64_t borrow_opened() { return cuda::simt::opened_blocks(); }
WEFT_RPC(borrow_opened);

int64_t counted(const char* key) { return debug_info().at(key); }
bool comes_to(const std::function<int64_t()>& figure, int64_t value) {
  for (int i = 0; i < 3000 && figure() != value; ++i) current_runtime()->sleep_for(10ms);
  return figure() == value;
}
bool loans_end() {
  return comes_to([] { return counted("devices.standing_loans"); }, 0);
}
bool all_are(const Tensor& t, double v) {
  return values(t) == std::vector<float>(static_cast<size_t>(t.numel()), static_cast<float>(v));
}
int blocks() { return cuda::simt::live_blocks(); }

void lend_both_ways() {
  const Tensor x = full({kLarge}, 2, {.device = kGpu0});
  const int64_t through_host = cuda::simt::pinned_bytes();
  const Tensor y = rpc_sync<borrow_add>("worker1", x, 1.0);
  expect(y.device() == kGpu0 && all_are(y, 3), "the sum came back to the device");
  expect(cuda::simt::pinned_bytes() - through_host < kLarge, "none of it passed through host memory");
  expect(counted("devices.lent_tensors") == 1 &&
             rpc_sync<borrow_counted>("worker1", "devices.lent_tensors") == 1,
         "a loan each way");
  const Tensor base = arange(2 * kLarge).to(kFloat32).to(kGpu0);
  const auto middle =
      values(rpc_sync<borrow_add>("worker1", base.slice(0, kLarge / 2, kLarge / 2 + kLarge), 0.0));
  expect(middle.front() == kLarge / 2 && middle.back() == kLarge / 2 + kLarge - 1,
         "a view is lent at its place");
  std::vector<Future<Tensor>> many;
  for (int i = 0; i < 5; ++i) many.push_back(rpc_async<borrow_add>("worker1", x, static_cast<double>(i)));
  for (int i = 0; i < 5; ++i)
    expect(all_are(many[static_cast<size_t>(i)].wait(), 2 + i), "several loans of one block at a time");
  expect(loans_end() && rpc_sync<borrow_opened>("worker1") == 0, "none that is not lent is open there");
  Tensor z = full({kLarge}, 2, {.device = kGpu0});
  z.requires_grad_();
  const dist_autograd::Context context;
  const Tensor out = rpc_sync<borrow_add>("worker1", z, 1.0);
  context.backward({mul(out, out).sum()});
  expect(all_are(context.gradient(z), 6), "gradients go over loans");
  const auto there = remote<borrow_add>("worker1", x, 1.0);
  expect(all_are(there.to_here(), 3), "references too");
  const int64_t lent = counted("devices.lent_tensors");
  const int64_t carried = cuda::simt::pinned_bytes();
  expect(all_are(rpc_sync<borrow_add>("worker1", full({kSmall}, 2, {.device = kGpu0}), 1.0), 3),
         "a small one is carried");
  expect(cuda::simt::pinned_bytes() - carried >= kSmall * 4 && counted("devices.lent_tensors") == lent,
         "through host memory");
  expect(loans_end(), "no loan stands");
}

/// While the borrower's devices stand still: its loan keeps the block that we let go of.
void keep_what_is_lent() {
  const int before = blocks();
  const auto pid = static_cast<pid_t>(rpc_sync<borrow_hold>("worker1", true));
  Tensor x = full({kLarge}, 2, {.device = kGpu0});
  const auto* const storage = x.body().storage.get();
  const Future<double> sum = rpc_async<borrow_sum>("worker1", x);
  expect(storage->saves() > 0 && counted("devices.standing_loans") == 1, "a loan counts as a save");
  x = {};
  const Tensor other = full({kLarge}, 9, {.device = kGpu0});  // in the place of the first, were that free
  expect(blocks() == before + 2, "the lender keeps the block");
  kill(pid, SIGUSR1);
  expect(sum.wait() == 2.0 * kLarge, "the borrower sees what was lent");
  expect(loans_end(), "the loan has ended");
  expect(comes_to([] { return blocks(); }, before + 1), "and the block is free");
}

void lose_the_borrower() {
  const int before = blocks();
  const auto pid = static_cast<pid_t>(rpc_sync<borrow_hold>("worker1", true));
  Tensor x = full({kLarge}, 2, {.device = kGpu0});
  const Future<double> sum = rpc_async<borrow_sum>({"worker1", 90s}, x);
  x = {};
  expect(counted("devices.standing_loans") == 1 && blocks() == before + 1, "a loan stands");
  kill(pid, SIGKILL);
  try {
    sum.wait();
    throw Error("a killed worker has answered");
  } catch (const PeerLost&) {
  }
  expect(loans_end() && comes_to([] { return blocks(); }, before), "what it had borrowed is free");
}

/// A result is lent to us, and its lender killed before we have opened it, or before we could say that we
/// have it.
void lose_the_lender() {
  const auto pid = static_cast<pid_t>(rpc_sync<borrow_hold>("worker1", false));
  const auto [handle, offset] = rpc_sync<borrow_share>("worker1");
  SharedBlock block;
  std::copy(handle.begin(), handle.end(), block.handle.begin());
  block.offset = offset;
  const auto read = [&] {
    void* const p = accelerator(kGpu0).open_shared(block);
    std::vector<float> seen(100);
    weft::Context context;
    accelerator(kGpu0).copy_to_host(context, p, seen.data(), 400);
    accelerator(kGpu0).close_shared(p);
    return seen;
  };
  expect(read() == std::vector<float>(100, 8), "its block is open to us");
  expect(all_are(rpc_sync<borrow_make>("worker1", 4.0), 4) &&
             rpc_sync<borrow_counted>("worker1", "devices.lent_tensors") == 1,
         "its results are lent");
  hold_devices();
  const Future<Tensor> made = rpc_async<borrow_make>({"worker1", 90s}, 5.0);
  // by now the loan is here, most likely, and the thread that reads messages waits
  std::this_thread::sleep_for(300ms);
  kill(pid, SIGKILL);
  go_on();
  try {
    expect(all_are(made.wait(), 5), "a value that comes is whole");
  } catch (const PeerLost&) {
  } catch (const CudaError&) {  // its memory went first
  }
  try {
    rpc_sync<borrow_sum>({"worker1", 90s}, full({kLarge}, 2, {.device = kGpu0}));
    throw Error("a killed worker has answered");
  } catch (const PeerLost&) {
  }
  try {
    read();
    throw Error("memory of a killed process is open");
  } catch (const CudaError& e) {
    expect(std::string(e.what()).find("has ended") != std::string::npos, e.what());
  }
  expect(loans_end(), "no loan stands");
  expect(all_are(add(full({kLarge}, 2, {.device = kGpu0}), 1), 3), "our devices work");
}

/// An argument is lent to us, and its lender killed before we have opened it.
void lose_the_caller() {
  expect(rpc_sync<borrow_call_back>("worker1") == 2.0 * kLarge && sums == 1, "its arguments reach us");
  expect(rpc_sync<borrow_counted>("worker1", "devices.lent_tensors") == 1, "lent");
  const auto pid = static_cast<pid_t>(rpc_sync<borrow_hold>("worker1", false));
  hold_devices();
  const Future<double> sum = rpc_async<borrow_call_back>({"worker1", 90s});
  std::this_thread::sleep_for(300ms);  // as above
  kill(pid, SIGKILL);
  go_on();
  try {
    sum.wait();
    throw Error("a killed worker has answered");
  } catch (const PeerLost&) {
  }
  expect(all_are(add(full({kLarge}, 2, {.device = kGpu0}), 1), 3), "our devices work");
  expect(sums == 1, "a function does not run on what its lender cannot vouch for");
}

/// Exit status of a child; 0 is success.
int lending_child(const std::string& job, int rank) {
  open_devices();
  InitOptions options;
  options.cuda_ipc = true;
  options.device_maps = {{rank == 0 ? "worker1" : "worker0", {{kGpu0, kGpu1}}}};
  init_rpc(str("worker", rank), options);
  if (rank == 0) {
    if (job == "lend") lend_both_ways();
    if (job == "keep") keep_what_is_lent();
    if (job == "lose the borrower") lose_the_borrower();
    if (job == "lose the lender") lose_the_lender();
    if (job == "lose the caller") lose_the_caller();
  } else if (job.rfind("lose", 0) == 0) {
    current_runtime()->sleep_for(10min);
    return 9;
  }
  rpc::shutdown({.graceful = job.rfind("lose", 0) != 0});
  return 0;
}

constexpr const char* kLendingChild = "SimtLendingProcess.a_process_started_by_these_tests_does_its_job";
TEST(SimtLendingProcess, a_process_started_by_these_tests_does_its_job) { do_job(lending_child); }

TEST(SimtLendingProcess, large_tensors_go_both_ways_without_host_memory) {
  expect_ended(start_job(kLendingChild, "lend", 2));
}
TEST(SimtLendingProcess, a_lender_keeps_its_block_until_it_was_given_back) {
  expect_ended(start_job(kLendingChild, "keep", 2));
}
TEST(SimtLendingProcess, a_killed_borrower_gives_its_blocks_back) {
  expect_ended(start_job(kLendingChild, "lose the borrower", 2), {1});
}
TEST(SimtLendingProcess, a_killed_lender_is_a_typed_error_or_a_value_that_is_whole) {
  expect_ended(start_job(kLendingChild, "lose the lender", 2), {1});
}
TEST(SimtLendingProcess, a_function_does_not_run_on_what_a_killed_caller_had_lent) {
  expect_ended(start_job(kLendingChild, "lose the caller", 2), {1});
}

}  // namespace
