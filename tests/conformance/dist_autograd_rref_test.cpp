// The claims of docs/conformance.md on graphs that go through references, and on passes that begin at one.
#include "conformance/dist_autograd_values.h"
#include "conformance/fixture.h"

#include "support/golden.h"

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace weft::test;
using dist_autograd::Backward;
using dist_autograd::Context;
using weft::testing::same_bits;

WEFT_CONFORMANCE(DistAutogradRRef);

/// A leaf on `owner`, added to one of ours on `callee`; the gradients of both equal the local ones.
void add_through(int callee, int owner) {
  const Tensor mine = randn({3, 3}).requires_grad_(), local_mine = mine.detach().clone().requires_grad_(),
               local_theirs = full({3, 3}, 3.0).requires_grad_();
  (local_theirs + local_mine).square().sum().backward();
  Context context;
  const RRef<Tensor> theirs = remote<da_own_leaf>(owner);
  const RRef<Tensor> sum = callee == owner ? remote<da_add_rref>(callee, theirs, mine)
                                           : remote<da_nested_add_rref>(callee, int64_t{owner}, theirs, mine);
  context.backward({sum.to_here().square().sum()});
  EXPECT_TRUE(same_bits(context.gradient(mine), local_mine.grad()));
  const std::optional<Tensor> there = rpc_sync<da_gradient_of>(owner, context.id(), theirs);
  ASSERT_TRUE(there.has_value());
  EXPECT_TRUE(same_bits(*there, local_theirs.grad()));
}

// test_backward_rref
TEST_P(DistAutogradRRef, a_value_used_on_its_owner_gets_its_gradient_there) {
  Cluster c(options());
  c.run_all([](int rank) { add_through((rank + 1) % 4, (rank + 1) % 4); });
}

// test_backward_rref_multi
TEST_P(DistAutogradRRef, several_workers_values_used_by_one_worker_get_theirs) {
  Cluster c(options());
  c.run_all([](int rank) {
    if (rank > 0) add_through(0, rank);
  });
}

// test_backward_rref_nested
TEST_P(DistAutogradRRef, a_value_used_through_a_third_worker_gets_its_gradient) {
  Cluster c(options());
  c.run_all([](int rank) { add_through((rank + 1) % 4, (rank + 2) % 4); });
}

// test_owner_rref_backward: the local form
TEST_P(DistAutogradRRef, an_owners_reference_starts_a_local_pass_into_grad) {
  Cluster c(options());
  c.run(0, [] {
    const Tensor a = leaf({2}, 3), b = leaf({2}, 4);
    const RRef<Tensor> root(da_loss(a, b));
    root.backward({}, {.retain_graph = true});
    EXPECT_TRUE(same_bits(a.grad(), full({2}, 4.0)));
    root.backward();
    EXPECT_TRUE(same_bits(a.grad(), full({2}, 8.0)));
    EXPECT_TRUE(same_bits(b.grad(), full({2}, 6.0)));
    text_of<AutogradError>([&] { root.backward(); });  // the graph was freed
    text_of<AutogradError>([] { RRef<Tensor>(ones({})).backward(); });
    EXPECT_THROW(RRef<Tensor>(leaf({2}) * 2.0).backward(), Error);
  });
}

// test_owner_rref_backward: in a context
TEST_P(DistAutogradRRef, an_owners_reference_starts_a_pass_into_a_context) {
  Cluster c(options());
  for (const Backward mode : {Backward::kFast, Backward::kSmart})
    c.run(0, [&] {
      const Tensor a = leaf({2}, 3), b = leaf({2}, 4);
      Context context;
      const RRef<Tensor> root(rpc_sync<da_mul>("worker1", a, b).sum());
      root.backward(context.id(), {.retain_graph = true, .mode = mode});
      EXPECT_TRUE(same_bits(context.gradient(a), full({2}, 4.0)));
      root.backward(context.id(), {.mode = mode});
      EXPECT_TRUE(same_bits(context.gradient(a), full({2}, 8.0)));
      EXPECT_TRUE(same_bits(context.gradient(b), full({2}, 6.0)));
      EXPECT_FALSE(a.grad().defined());
      text_of<AutogradError>([&] { root.backward(context.id(), {.mode = mode}); });  // the graph was freed
    });
}

// test_owner_rref_backward: its errors
TEST_P(DistAutogradRRef, an_owners_reference_that_is_no_root_is_refused) {
  Cluster c(options());
  c.run(0, [] {
    const RRef<Tensor> good(da_loss(leaf({2}), leaf({2})));
    EXPECT_TRUE(has(text_of<AutogradError>([&] { good.backward(12345); }),
                    "could not find autograd context with id 12345"));
    EXPECT_TRUE(has(text_of<AutogradError>([&] { good.backward(-1); }),
                    "could not find autograd context with id -1"));
    Context context;
    EXPECT_TRUE(has(text_of<AutogradError>([&] { RRef<Tensor>(ones({})).backward(context.id()); }),
                    "does not require grad"));
    EXPECT_TRUE(has(text_of<AutogradError>([&] { RRef<Tensor>(leaf({2}) * 2.0).backward(context.id()); }),
                    "is not a scalar"));
    EXPECT_TRUE(has(text_of<AutogradError>([&] { RRef<Tensor>(leaf({})).backward(context.id()); }),
                    "no gradient function"));
    EXPECT_TRUE(has(text_of<RpcError>([&] { RRef<Tensor>().backward(context.id()); }), "empty RRef"));
    good.backward(context.id());  // and is none the worse for it
  });
}

// test_user_rref_backward
TEST_P(DistAutogradRRef, a_users_reference_starts_the_pass_on_its_owner) {
  Cluster c(options());
  for (const Backward mode : {Backward::kFast, Backward::kSmart})
    c.run(0, [&] {
      const Tensor a = leaf({2}, 3), b = leaf({2}, 4);
      Context context;
      const RRef<Tensor> root = remote<da_loss>("worker1", a, b);
      root.backward(context.id(), {.retain_graph = true, .mode = mode});
      EXPECT_TRUE(same_bits(context.gradient(a), full({2}, 4.0)));
      root.backward(context.id(), {.mode = mode});
      EXPECT_TRUE(same_bits(context.gradient(a), full({2}, 8.0)));
      EXPECT_TRUE(same_bits(context.gradient(b), full({2}, 6.0)));
      EXPECT_FALSE(a.grad().defined());
    });
  EXPECT_TRUE(eventually(c, [&] { return counted(c, "dist_autograd.num_autograd_contexts") == 0; }));
}

TEST_P(DistAutogradRRef, a_third_worker_starts_the_pass_of_a_reference_it_was_given) {
  Cluster c(options());
  c.run(0, [] {
    const Tensor a = leaf({2}, 3), b = leaf({2}, 4);
    Context context;
    const RRef<Tensor> root = remote<da_loss>("worker1", a, b);
    rpc_sync<da_backward_from>("worker2", context.id(), root);
    EXPECT_TRUE(same_bits(context.gradient(a), full({2}, 4.0)));
  });
}

// test_user_rref_backward: its errors (that the value is a tensor is the compiler's to check)
TEST_P(DistAutogradRRef, a_users_reference_that_is_no_root_is_refused) {
  Cluster c(options());
  c.run(0, [] {
    const RRef<Tensor> root = remote<da_loss>("worker1", leaf({2}), leaf({2}));
    EXPECT_TRUE(has(text_of<AutogradError>([&] { root.backward(); }), "give the id of an autograd context"));
    EXPECT_TRUE(has(text_of<AutogradError>([&] { root.backward(12345); }),
                    "On worker 'worker1': could not find autograd context with id 12345"));
    Context context;
    EXPECT_TRUE(has(text_of<AutogradError>(
                        [&] { remote<da_add>("worker1", leaf({2}), leaf({2})).backward(context.id()); }),
                    "is not a scalar"));
    EXPECT_TRUE(has(text_of<AutogradError>(
                        [&] { remote<da_loss>("worker1", ones({2}), ones({2})).backward(context.id()); }),
                    "does not require grad"));
    EXPECT_TRUE(has(text_of<ValueError>([&] { remote<da_raise_tensor>("worker1").backward(context.id()); }),
                    "raised at the creation"));
  });
}

}  // namespace
