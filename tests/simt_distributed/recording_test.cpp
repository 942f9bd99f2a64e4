// Calls while the calling thread records a graph. The tensors of a message are not part of a
// recording. Waiting for them, and sending tensors that the replays are to make, are refused; neither ends
// the recording nor loses a value. Over gRPC, whose handlers are on other threads.
#include <thread>

#include <weft/tensor/cuda.h>

#include "devices.h"

namespace weft::test {

Tensor recording_twice(const Tensor& x) { return mul(x, 2); }
WEFT_RPC(recording_twice);
Tensor recording_make(int64_t n) { return range(n, 1, kGpu0); }
WEFT_RPC(recording_make);
int64_t recording_next(int64_t n) { return n + 1; }
WEFT_RPC(recording_next);

}  // namespace weft::test

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace weft::test;

class SimtRecording : public testing::Test {
 protected:
  Cluster group_{mapped({{"worker1", {{kGpu0, kGpu0}}}}, 2, Over::kGrpc)};
  void as_worker0(const std::function<void()>& f) {
    group_.run(0, f);
    EXPECT_TRUE(eventually(
        group_, [&] { return group_.agent(0)->debug_info().at("agent.client_active_calls") == 0; }));
    group_.shutdown();
  }
};

TEST_F(SimtRecording, waiting_for_a_future_is_refused_and_the_recording_can_be_abandoned) {
  as_worker0([&] {
    const Tensor x = range(4, 1, kGpu0);
    const Future<Tensor> before = rpc_async<recording_twice>("worker1", x);
    Future<Tensor> within;
    cuda::Graph graph(kGpu0);
    const std::string text = error_of<CudaError>([&] {
      graph.capture([&] {
        add(x, 1);
        within = rpc_async<recording_make>("worker1", 3);
        before.wait();
      });
    });
    EXPECT_TRUE(has(text, "waiting for a future") && has(text, "cuda:0") && has(text, "before begin()"))
        << text;
    EXPECT_FALSE(graph.recorded());
    EXPECT_EQ(cuda::current_stream(kGpu0), cuda::default_stream(kGpu0));
    EXPECT_EQ(values(before.wait()), (std::vector<float>{2, 4, 6, 8}));
    EXPECT_EQ(values(within.wait()), range_values(3, 1));
    Tensor y;
    graph.capture([&] { y = add(x, 1); });
    graph.replay();
    EXPECT_EQ(values(y), range_values(4, 2));
  });
}

TEST_F(SimtRecording, a_recording_goes_on_after_a_refused_wait_and_the_value_is_there_after_it) {
  as_worker0([&] {
    const Tensor x = range(4, 1, kGpu0);
    Tensor y;
    Future<Tensor> within;
    Future<int64_t> number;
    for (const bool reads : {true, false}) {  // this thread or another one takes the replies
      cuda::Graph graph(kGpu0);
      graph.capture([&] {
        y = add(x, 1);
        within = rpc_async<recording_make>("worker1", 3);
        number = rpc_async<recording_next>("worker1", 4);
        if (reads) eventually(group_, [&] { return within.done() && number.done(); });
        for (int i = 0; i < 30000 && !(within.done() && number.done()); ++i)
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        EXPECT_THROW(within.wait(), CudaError);
        EXPECT_THROW(number.wait(), CudaError);
        EXPECT_THROW(within.take(), CudaError);
        EXPECT_THROW(rpc_sync<recording_next>("worker1", 4), CudaError);
        y = mul(y, 2);
      });
      graph.replay();
      EXPECT_EQ(values(y), (std::vector<float>{4, 6, 8, 10}));
      EXPECT_EQ(values(within.wait()), range_values(3, 1));
      EXPECT_EQ(number.wait(), 5);
    }
  });
}

TEST_F(SimtRecording, a_tensor_that_a_replay_is_to_make_cannot_be_sent) {
  as_worker0([&] {
    Tensor x = range(4, 1, kGpu0);
    x.requires_grad_();
    Tensor y;
    const dist_autograd::Context context;
    const Tensor loss = rpc_sync<recording_twice>("worker1", x).sum();
    cuda::Graph graph(kGpu0);
    graph.capture([&] {
      const NoGrad off;
      y = add(x, 1);
      const std::string text = error_of<CudaError>([&] { rpc_async<recording_twice>("worker1", y); });
      EXPECT_TRUE(has(text, "cuda:0 cannot be sent") && has(text, "end()")) << text;
      EXPECT_THROW(remote<recording_twice>("worker1", y), CudaError);
      EXPECT_TRUE(has(error_of<CudaError>([&] { context.backward({loss}); }), "backward"));
    });
    graph.replay();
    EXPECT_EQ(values(rpc_sync<recording_twice>("worker1", y.detach())), (std::vector<float>{4, 6, 8, 10}));
    context.backward({loss});
    EXPECT_EQ(values(context.gradient(x)), (std::vector<float>{2, 2, 2, 2}));
  });
}

TEST_F(SimtRecording, a_future_may_be_completed_within_a_recording) {
  as_worker0([&] {
    const Tensor x = range(4, 1, kGpu0);
    const Future<Tensor> f;
    const Future<Tensor> after = f.then_inline([](const Tensor& t) { return mul(t, 2); });
    cuda::Graph graph(kGpu0);
    graph.capture([&] {
      f.set_result(add(x, 1));
      EXPECT_TRUE(after.done());
      EXPECT_EQ(f.wait().sizes(), (Shape{4}));  // its own work
    });
    graph.replay();
    EXPECT_EQ(values(f.wait()), range_values(4, 2));
    EXPECT_EQ(values(after.wait()), (std::vector<float>{4, 6, 8, 10}));
  });
}

}  // namespace
