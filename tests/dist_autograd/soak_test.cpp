// Many references and many steps over live gRPC: the counters go back to zero and memory stays flat.
// WEFT_TEST_SCALE=250 makes a million references and a hundred thousand steps of it.
#include <gtest/gtest.h>

#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include <weft/autograd/ops/ops.h>
#include <weft/distributed/optim/dist_optimizer.h>
#include <weft/tensor/factories.h>

#include "support/cluster.h"

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace weft::test;
using namespace std::chrono_literals;

// freed memory that the allocator, or a sanitizer, may keep
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int64_t kFreedMib = 1 << 20;
#else
constexpr int64_t kFreedMib = 64;
#endif

int64_t test_scale() {
  const char* text = std::getenv("WEFT_TEST_SCALE");
  return text ? std::max<int64_t>(1, std::atoll(text)) : 1;
}
/// Memory of this process in MiB.
int64_t resident_mib() {
  int64_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * sysconf(_SC_PAGESIZE) >> 20;
}

struct SoakValue {
  explicit SoakValue(int64_t n) : number(n), w(full({4}, 0.5).requires_grad_()) {}
  int64_t get() const { return number; }
  Tensor forward(const Tensor& x) const { return tanh(x * w); }
  RRef<Tensor> parameter() const { return RRef<Tensor>(w); }
  int64_t number;
  Tensor w;
};
WEFT_RPC_CONSTRUCTOR(SoakValue, int64_t);
WEFT_RPC_CLASS(SoakValue, get, forward, parameter);
int64_t soak_read(const RRef<SoakValue>& r) { return r.rpc_sync<&SoakValue::get>(); }
WEFT_RPC(soak_read);

std::string kept(Cluster& c) {
  std::string out;
  for (int rank = 0; rank < c.size(); ++rank)
    for (const auto& [name, count] : c.agent(rank)->debug_info())
      if (count != 0 && (name.starts_with("num_") || name == "dist_autograd.num_autograd_contexts"))
        out += str(rank, ": ", name, " ", count, "\n");
  return out;
}
void expect_nothing_kept(Cluster& c) {
  for (int i = 0; i < 600 && !kept(c).empty(); ++i) c.runtime().sleep_for(50ms);
  EXPECT_EQ(kept(c), "");
}

/// Runs `part` ten times and checks that memory grows little after the second.
void expect_flat(const char* what, const std::function<void()>& part) {
  std::string course;
  int64_t early = 0, late = 0;
  for (int tenth = 0; tenth < 10; ++tenth) {
    part();
    late = resident_mib();
    if (tenth == 1) early = late;
    course += str(" ", late);
  }
  std::printf("%s: MiB after each tenth:%s\n", what, course.c_str());
  EXPECT_LE(late, early + early / 4 + kFreedMib) << what << ":" << course;
}

TEST(Soak, references_that_are_made_shared_and_dropped_leave_nothing) {
  Cluster c({.over = Over::kGrpc, .size = 3});
  c.run(0, [&] {
    int64_t n = 0;
    expect_flat("references", [&] {
      for (int64_t i = 0; i < 400 * test_scale(); i += 40) {
        std::vector<RRef<SoakValue>> made;
        std::vector<Future<int64_t>> read;
        for (int k = 0; k < 40; ++k) {
          made.push_back(remote<SoakValue>("worker1", n + k));
          read.push_back(rpc_async<soak_read>("worker2", made.back()));
        }
        for (auto& one : read) ASSERT_EQ(one.wait(), n++);
      }
    });
  });
  expect_nothing_kept(c);
}

TEST(Soak, training_steps_leave_nothing) {
  Cluster c({.over = Over::kGrpc, .size = 3});
  c.run(0, [&] {
    const auto a = remote<SoakValue>("worker1", 1), b = remote<SoakValue>("worker2", 2);
    auto optimizer = dist_optim::make<optim::SGDRule>(
        {a.rpc_sync<&SoakValue::parameter>(), b.rpc_sync<&SoakValue::parameter>()}, {.lr = 1e-6});
    expect_flat("steps", [&] {
      for (int64_t i = 0; i < 40 * test_scale(); ++i) {
        const dist_autograd::Context context;
        const Tensor y = a.rpc_sync<&SoakValue::forward>(full({4}, 0.1));
        context.backward({b.rpc_sync<&SoakValue::forward>(y).sum()});
        optimizer.step(context.id());
      }
    });
  });
  expect_nothing_kept(c);
}

}  // namespace
