// DistributedDataParallel between real processes, against one process with the joined batch.
#include <csignal>
#include <map>

#include "training.h"

namespace {

using namespace weft;
using namespace weft::test;
using dist::DataParallelOptions;
using dist::DistributedDataParallel;

// ---- jobs of the children

void match(int rank) {
  const Group group = join(rank);
  train(group, rank, {}, 1);
  train(group, rank, {.overlap = false}, 1);
  train(group, rank, {.bucket_cap_mb = 1e-6, .first_bucket_cap_mb = 1e-6}, 6);
  train(group, rank, {.bucket_cap_mb = 520.0 / (1 << 20), .first_bucket_cap_mb = 16.0 / (1 << 20)}, 3);
  rpc::shutdown();
}

void add_up(int rank) {
  const Group group = join(rank);
  Net net(7);
  const Net whole(7);
  DistributedDataParallel parallel(net, group);
  Tensor sum;
  for (int64_t step = 0; step < 3; ++step) {
    const Batch batch = batch_of(step, group->size()), part = batch.part(rank);
    const Tensor loss = mse_loss(net.forward(part.x), part.y);
    if (step < 2) {
      const auto local = parallel.no_sync();
      if (step == 0) loss.backward();
      else parallel.backward(loss);
      EXPECT_FALSE(same_everywhere(group, net.first.weight.grad()));
    } else {
      parallel.backward(loss);
    }
    mse_loss(whole.forward(batch.x), batch.y).backward();
  }
  for (size_t i = 0; i < net.parameters().size(); ++i) {
    const Tensor g = net.parameters()[i].grad();
    EXPECT_TRUE(g.allclose(whole.parameters()[i].grad(), 1e-10, 1e-12)) << i;
    EXPECT_TRUE(same_everywhere(group, g)) << i;
  }
  rpc::shutdown();
}

/// Rank 0 uses `first` and `second`, the others `first` alone; none uses `last`.
void leave_out(int rank) {
  const Group group = join(rank);
  const Tensor x = full({2, 5}, rank + 1, kFloat64);
  const auto loss_of = [&](const Net& net) {
    Tensor y = net.first.forward(x);
    if (rank == 0) y = net.second.forward(y);
    return y.sum();
  };
  Net net(3);
  {
    DistributedDataParallel strict(net, group);
    const std::string text = error_of<AutogradError>([&] { strict.backward(loss_of(net)); });
    EXPECT_TRUE(has(text, str("4 parameters have no gradient in all processes: 'second.weight' (1 of ",
                              group->size(), "), 'second.bias'")));
    EXPECT_TRUE(has(text, "'last.weight' (0 of ") && has(text, "find_unused_parameters = true"));
    EXPECT_FALSE(same_everywhere(group, net.first.bias.grad()));  // as each process computed it
    EXPECT_FALSE(net.last.weight.grad().defined());
  }
  net.zero_grad();
  DistributedDataParallel parallel(net, group, {.find_unused_parameters = true});
  parallel.backward(loss_of(net));
  EXPECT_FALSE(net.last.weight.grad().defined());
  const Tensor bias = net.second.bias.grad();  // 2 rows in rank 0, nothing in the others
  EXPECT_TRUE(bias.allclose(full({8}, 2.0 / group->size(), kFloat64), 1e-12, 1e-12)) << bias;
  for (const Tensor& p : {net.first.weight, net.first.bias, net.second.weight, net.second.bias})
    EXPECT_TRUE(same_everywhere(group, p.grad()));
  rpc::shutdown();
}

void refuse(int rank) {
  const Group group = join(rank);
  {
    nn::Linear other(3, rank == 1 ? 4 : 2);
    const std::string text = error_of<ValueError>([&] { DistributedDataParallel bad(other, group); });
    EXPECT_TRUE(has(text,
                    "the processes differ: rank 1 has parameter 'weight' of float32 [4, 3] where rank 0 "
                    "has parameter 'weight' of float32 [2, 3]"));
    nn::Linear frozen(3, 2);
    frozen.requires_grad(false);
    EXPECT_TRUE(has(error_of<ValueError>([&] { DistributedDataParallel bad(frozen, group); }),
                    "no parameter that requires grad"));
  }
  Net net(5);
  const std::string options =
      error_of<ValueError>([&] { DistributedDataParallel bad(net, group, {.overlap = rank == 0}); });
  EXPECT_TRUE(has(options, "rank 1 has options bucket_cap_mb = 25, first_bucket_cap_mb = 1,"));
  EXPECT_TRUE(has(options, "overlap = false where rank 0 has options"));
  const auto refused = [&](const DataParallelOptions& o) {
    return error_of<ValueError>([&] { DistributedDataParallel bad(net, group, o); });
  };
  EXPECT_TRUE(
      has(refused({.bucket_cap_mb = rank == 1 ? 0.0 : 25.0}), "rank 1 has options bucket_cap_mb = 0,"));
  EXPECT_TRUE(has(refused({.first_bucket_cap_mb = 0}), "the size of a bucket must be positive"));
  if (rank == 1) {  // no process waits for one that cannot take part
    static const std::vector<double> fixed(2);
    net.scale = from_blob(fixed.data(), {2});
  }
  EXPECT_TRUE(has(refused({}), "rank 1 has buffer 'scale' of float64 [2] without grad in read-only memory"));
  net.scale = full({2}, 5, kFloat64);
  const Batch part = batch_of(0, group->size()).part(rank);
  {
    DistributedDataParallel parallel(net, group);
    const Tensor loss = mse_loss(net.forward(part.x), part.y);
    EXPECT_TRUE(has(error_of<AutogradError>([&] { loss.backward(); }), "call its backward(loss)"));
    EXPECT_TRUE(
        has(error_of<AutogradError>([&] { parallel.backward(part.x.sum()); }), "does not require grad"));
    net.zero_grad();
    parallel.backward(mse_loss(net.forward(part.x), part.y));  // nothing was sent, so the group goes on
    EXPECT_TRUE(same_everywhere(group, net.first.weight.grad()));
    net.to(kFloat32);
    const Tensor narrow = net.forward(part.x.to(kFloat32)).sum();
    EXPECT_TRUE(has(error_of<ValueError>([&] { parallel.backward(narrow); }),
                    "parameter 'first.weight' was of float64 [8, 5] on cpu and is of float32"));
  }
  net.forward(part.x.to(kFloat32)).sum().backward();  // plain again
  rpc::shutdown();
}

/// A parameter that two checkpoints use gets two gradients in a pass.
void repeat(int rank) {
  const Group group = join(rank);
  struct Shared : nn::Module {
    nn::Linear layer{3, 3};
    Shared() { add("layer", layer); }
    Tensor forward(const Tensor& x) const {
      const auto part = [this](const std::vector<Tensor>& in) {
        return std::vector<Tensor>{tanh(layer.forward(in[0]))};
      };
      return checkpoint(part, checkpoint(part, {x}))[0];
    }
  };
  Shared net;
  const Tensor x = full({2, 3}, rank, {.requires_grad = true});
  {
    DistributedDataParallel parallel(net, group, {.overlap = false});
    parallel.backward(net.forward(x).sum());
    EXPECT_TRUE(same_everywhere(group, net.layer.weight.grad()));
    EXPECT_FALSE(same_everywhere(group, x.grad()));  // a leaf of this process's own
  }
  DistributedDataParallel parallel(net, group);
  const std::string text = error_of<AutogradError>([&] { parallel.backward(net.forward(x).sum()); });
  EXPECT_TRUE(has(text, "gets a second gradient after its bucket was sent; set overlap = false"));
  EXPECT_THROW(group->barrier(), RpcError);
  rpc::shutdown();
}

/// Rank 1 fails in a pass whose first bucket has been sent. The group is lost, so it needs one for each try.
template <class Error> void break_off_by(int rank, Error thrown) {
  const Group group = dist::new_group();
  Net net(5);
  DistributedDataParallel parallel(net, group, {.bucket_cap_mb = 1e-6, .first_bucket_cap_mb = 1e-6});
  const Batch part = batch_of(0, group->size()).part(rank);
  const Tensor h = tanh(net.first.forward(part.x));
  if (rank == 1) h.register_hook([thrown](const Tensor&) -> Tensor { throw thrown; });
  const Tensor loss = mse_loss(net.last.forward(tanh(net.second.forward(h))), part.y);
  if (rank == 1) {
    EXPECT_THROW(parallel.backward(loss), Error);
    EXPECT_TRUE(has(error_of<RpcError>([&] { group->barrier(); }), "a backward pass failed: "));
  } else {
    EXPECT_TRUE(has(error_of<PeerLost>([&] { parallel.backward(loss); }), "the connection to worker"));
  }
}

void break_off(int rank) {
  rpc::init_rpc(str("worker", rank));
  break_off_by(rank, ValueError("the hook fails"));
  break_off_by(rank, 42);
  rpc::shutdown();
}

void run_out(int rank) {
  const Group group = join(rank);
  train_unevenly(group, rank, {});
  train_unevenly(group, rank, {.bucket_cap_mb = 1e-6, .first_bucket_cap_mb = 1e-6});
  train_unevenly(group, rank, {.find_unused_parameters = true, .overlap = false});
  rpc::shutdown();
}

void run_out_uncleared(int rank) {
  const Group group = join(rank);
  train_unevenly(group, rank, {}, false);
  train_unevenly(group, rank, {.find_unused_parameters = true}, false);
  rpc::shutdown();
}

/// Both use all layers. Then rank 0 uses `first` alone, and rank 1 joins with its gradients from before.
void run_out_with_gradients(int rank) {
  const Group group = join(rank);
  Net net(3);
  DistributedDataParallel parallel(net, group, {.find_unused_parameters = true});
  parallel.backward(net.forward(full({2, 5}, rank + 1, kFloat64)).sum());
  if (rank == 0) {
    net.zero_grad();
    parallel.backward(net.first.forward(ones({2, 5}, kFloat64)).sum());
  } else {
    EXPECT_TRUE(parallel.join());
  }
  const Tensor bias = net.first.bias.grad();  // 2 rows in rank 0, zero in rank 1
  EXPECT_TRUE(bias.allclose(ones({8}, kFloat64))) << bias;
  for (int i = 0; i < 2; ++i) EXPECT_FALSE(parallel.join());
  EXPECT_TRUE(net.first.bias.grad().equal(bias));
  for (const Tensor& p : {net.second.weight, net.second.bias, net.last.weight, net.last.bias})
    EXPECT_FALSE(p.grad().defined());
  if (rank == 0) {
    parallel.backward(net.forward(ones({2, 5}, kFloat64)).sum());
  } else {
    const auto local = parallel.no_sync();
    net.forward(ones({2, 5}, kFloat64)).sum().backward();
    EXPECT_TRUE(parallel.join());  // the averages replace these gradients
  }
  for (const Tensor& p : net.parameters()) EXPECT_TRUE(same_everywhere(group, p.grad()));
  EXPECT_TRUE(net.last.bias.grad().allclose(ones({2}, kFloat64))) << net.last.bias.grad();
  rpc::shutdown();
}

/// Rank 1 ends in the middle of its pass.
void lose_in_join(int rank) {
  const Group group = join(rank);
  Net net(3);
  DistributedDataParallel parallel(net, group, {.bucket_cap_mb = 1e-6, .first_bucket_cap_mb = 1e-6});
  rpc::barrier();  // all have the values
  if (rank == 1) {
    const Tensor h = tanh(net.first.forward(ones({2, 5}, kFloat64)));
    h.register_hook([](const Tensor&) -> Tensor {
      std::raise(SIGKILL);
      return {};
    });
    parallel.backward(net.last.forward(tanh(net.second.forward(h))).sum());
  }
  const std::string text = error_of<PeerLost>([&] { parallel.join(); });
  EXPECT_TRUE(has(text, "the connection to worker")) << text;
  EXPECT_EQ(error_of<PeerLost>([&] { parallel.join(); }), text);
  rpc::shutdown({.graceful = false});
}

/// Rank 1 makes no call while rank 0 waits.
void join_in_vain(int rank) {
  const Group group = join(rank, {.timeout = std::chrono::seconds(3)});
  Net net(3);
  rpc::barrier();
  DistributedDataParallel parallel(net, group);
  if (rank == 0) {
    const std::string text = error_of<Timeout>([&] { parallel.join(); });
    EXPECT_TRUE(has(text, "all_reduce sum in group 'default', worker0: no answer")) << text;
  }
  rpc::barrier();
  if (rank == 1) {
    EXPECT_TRUE(has(error_of<PeerLost>([&] { parallel.join(); }), "worker0"));
  }
  rpc::shutdown();
}

/// Ranks 0 and 1 have a batch in which 1 leaves layers out, rank 2 has none.
void run_out_and_leave_out(int rank) {
  const Group group = join(rank);
  Net net(3);
  DistributedDataParallel parallel(net, group);
  const Tensor x = full({2, 5}, rank, kFloat64);
  const std::string text = error_of<AutogradError>([&] {
    if (rank == 2) parallel.join();
    else parallel.backward(rank == 0 ? net.forward(x).sum() : net.first.forward(x).sum());
  });
  EXPECT_TRUE(has(text, "4 parameters have no gradient in all processes: 'second.weight' (1 of 2)")) << text;
  EXPECT_FALSE(parallel.join());  // the group goes on
  rpc::shutdown();
}

/// Rank 1 runs out of inputs and makes another call.
void call_otherwise(int rank) {
  const Group group = join(rank, {.timeout = std::chrono::seconds(20)});
  Net net(3);
  DistributedDataParallel parallel(net, group);
  const Batch part = batch_of(0, group->size()).part(rank);
  parallel.backward(mse_loss(net.forward(part.x), part.y));
  const std::string text = error_of<ValueError>([&] {
    if (rank == 0) parallel.backward(mse_loss(net.forward(part.x), part.y));
    else group->barrier();
  });
  EXPECT_TRUE(has(text, "worker1 calls barrier, worker0 all_reduce")) << text;
  rpc::barrier();  // rank 1 has not left
  rpc::shutdown();
}

void look_up(int rank) {
  const Group group = join(rank);
  nn::Embedding table(6, 2, {.sparse = true});
  DistributedDataParallel parallel(table, group);
  const Tensor ids = tensor({rank, 5}).to(kInt64);
  for (int pass = 1; pass <= 2; ++pass) {
    if (pass == 2) {
      const auto local = parallel.no_sync();
      table.zero_grad();
      table.forward(ids).sum().backward();
      EXPECT_TRUE(table.weight.row_grad().defined());
    }
    parallel.backward(table.forward(ids).sum());
    Tensor wanted = zeros({6, 2});
    for (int r = 0; r < group->size(); ++r) wanted[r].fill_(1.0 * pass / group->size());
    wanted[5].fill_(pass);
    EXPECT_TRUE(table.weight.grad().allclose(wanted)) << table.weight.grad();
    EXPECT_FALSE(table.weight.row_grad().defined());
  }
  rpc::shutdown();
}

/// A table on worker 0, and in each of the others a layer of which all have the same values.
nn::Embedding& table() {
  static auto* const one = [] {
    auto* made = new nn::Embedding(12, 5);
    made->to(kFloat64);
    const NoGrad off;
    made->weight.copy_(linspace(-1, 1, 60).to(kFloat64).view({12, 5}));
    return made;
  }();
  return *one;
}
Tensor look_up_rows(const Tensor& ids) { return table().forward(ids); }
WEFT_RPC(look_up_rows);
std::vector<rpc::RRef<Tensor>> table_parameters() { return {rpc::RRef<Tensor>(table().weight)}; }
WEFT_RPC(table_parameters);
Tensor table_values() { return table().weight.detach().clone(); }
WEFT_RPC(table_values);

/// Trainer 0 has 4 batches, trainer 1 has `inputs`.
void train_beside_a_server(int rank, int64_t inputs) {
  rpc::init_rpc(str("worker", rank));
  if (rank == 0) {
    rpc::serve_until_done();
    return;
  }
  const Group group = dist::new_group({"worker1", "worker2"});
  Net net(3);
  DistributedDataParallel parallel(net, group);
  optim::SGD sgd(net.parameters(), {.lr = 0.1});
  auto on_server = dist_optim::make<optim::SGDRule>(rpc::rpc_sync<table_parameters>("worker0"), {.lr = 0.1});
  const Net whole(3);
  nn::Embedding whole_table(12, 5);
  whole_table.to(kFloat64);
  whole_table.load_state_dict(table().state_dict());
  optim::SGD reference(whole.parameters(), {.lr = 0.1}), table_reference({whole_table.weight}, {.lr = 0.2});
  const int64_t mine = group->rank() == 0 ? 4 : inputs;
  int64_t step = 0;
  for (;; ++step) {
    const Tensor ids = (arange(2 * kRows) * 5 + step).to(kInt64) % 12;
    const Batch batch = batch_of(step, 2);
    const auto ids_of = [&](int64_t r) { return ids.narrow(0, r * kRows, kRows); };
    if (step < mine) {
      const dist_autograd::Context context;
      const Tensor rows = rpc::rpc_sync<look_up_rows>("worker0", ids_of(group->rank()));
      const Tensor here = rows.detach().requires_grad_();
      parallel.backward(mse_loss(net.forward(here), batch.part(group->rank()).y));
      context.backward({(rows * here.grad()).sum()});
      group->barrier();  // no step before both have read the table
      on_server.step(context.id());
    } else {
      if (!parallel.join()) break;
      group->barrier();
    }
    sgd.step();
    sgd.zero_grad();
    group->barrier();
    for (int64_t r = 0; r < (step < inputs ? 2 : 1); ++r)
      (mse_loss(whole.forward(whole_table.forward(ids_of(r))), batch.part(r).y) / 2).backward();
    reference.step(), table_reference.step();  // the sum of two means is twice their average
    reference.zero_grad(), table_reference.zero_grad();
  }
  EXPECT_EQ(step, 4);
  EXPECT_TRUE(rpc::rpc_sync<table_values>("worker0").allclose(whole_table.weight.detach(), 1e-9, 1e-9));
  for (size_t i = 0; i < net.parameters().size(); ++i)
    EXPECT_TRUE(net.parameters()[i].detach().allclose(whole.parameters()[i].detach(), 1e-9, 1e-9)) << i;
  rpc::shutdown();
}

int trainer_child(const std::string& job, int rank) {
  const std::map<std::string, void (*)(int)> jobs{
      {"match", match},
      {"add up", add_up},
      {"leave out", leave_out},
      {"refuse", refuse},
      {"repeat", repeat},
      {"break off", break_off},
      {"look up", look_up},
      {"run out", run_out},
      {"run out uncleared", run_out_uncleared},
      {"run out with gradients", run_out_with_gradients},
      {"lose in join", lose_in_join},
      {"join in vain", join_in_vain},
      {"run out and leave out", run_out_and_leave_out},
      {"call otherwise", call_otherwise},
      {"hybrid", [](int r) { train_beside_a_server(r, 4); }},
      {"uneven hybrid", [](int r) { train_beside_a_server(r, 2); }}};
  jobs.at(job)(rank);
  return testing::Test::HasFailure() ? 1 : 0;
}

void run(const std::string& job, int workers) {
  expect_ended(start_job("DataParallel.a_process_started_by_these_tests_does_its_job", job, workers));
}

// ---- tests

TEST(DataParallel, a_process_started_by_these_tests_does_its_job) { do_job(trainer_child); }

TEST(DataParallel, two_and_three_processes_train_as_one_with_the_joined_batch) {
  NEEDS_GLOO;
  run("match", 2);
  run("match", 3);
}
TEST(DataParallel, gradients_without_sync_add_up_here_and_are_averaged_with_the_next) {
  NEEDS_GLOO;
  run("add up", 2);
}
TEST(DataParallel, a_missing_gradient_is_an_error_everywhere_or_counts_as_zero) {
  NEEDS_GLOO;
  run("leave out", 3);
}
TEST(DataParallel, other_modules_plain_passes_and_moved_parameters_are_refused) {
  NEEDS_GLOO;
  run("refuse", 2);
}
TEST(DataParallel, a_second_gradient_of_a_sent_bucket_is_refused_and_fits_without_overlap) {
  NEEDS_GLOO;
  run("repeat", 2);
}
TEST(DataParallel, a_pass_that_fails_in_one_process_ends_those_of_the_others) {
  NEEDS_GLOO;
  run("break off", 3);
}
TEST(DataParallel, row_wise_gradients_become_dense) {
  NEEDS_GLOO;
  run("look up", 3);
}

TEST(DataParallel, trainers_average_their_part_beside_a_server_with_the_rest) {
  NEEDS_GLOO;
  run("hybrid", 3);
}

// DdpUnderDistAutograd.test_backward_ddp_outside_uneven_inputs
TEST(DataParallel, trainers_beside_a_server_may_have_uneven_numbers_of_inputs) {
  NEEDS_GLOO;
  run("uneven hybrid", 3);
}

// DdpComparison.test_ddp_comparison_uneven_inputs
TEST(DataParallel, a_process_without_inputs_joins_the_steps_of_the_others) {
  NEEDS_GLOO;
  run("run out", 2);
  run("run out", 3);
}
TEST(DataParallel, a_process_without_inputs_counts_as_zero_whatever_its_gradients_hold) {
  NEEDS_GLOO;
  run("run out uncleared", 3);
  run("run out with gradients", 2);
}
TEST(DataParallel, the_end_of_a_process_is_named_to_those_without_inputs) {
  NEEDS_GLOO;
  expect_ended(start_job("DataParallel.a_process_started_by_these_tests_does_its_job", "lose in join", 3),
               {1});
}
TEST(DataParallel, the_silence_of_a_process_is_a_timeout_of_one_without_inputs) {
  NEEDS_GLOO;
  run("join in vain", 2);
}
TEST(DataParallel, a_missing_gradient_is_named_to_processes_without_inputs_too) {
  NEEDS_GLOO;
  run("run out and leave out", 3);
}
TEST(DataParallel, another_call_of_a_process_without_inputs_is_named_at_once) {
  NEEDS_GLOO;
  run("call otherwise", 2);
}

TEST(DataParallel, in_a_group_of_one_it_changes_no_gradient) {
  const auto served = rpc::serve_store("127.0.0.1:0");
  Net net(3);
  const Net plain(3);
  DistributedDataParallel parallel(net, dist::new_group(served.store, 0, 1));
  const Batch batch = batch_of(0, 1);
  parallel.backward(mse_loss(net.forward(batch.x), batch.y));
  mse_loss(plain.forward(batch.x), batch.y).backward();
  for (size_t i = 0; i < net.parameters().size(); ++i)
    EXPECT_TRUE(net.parameters()[i].grad().equal(plain.parameters()[i].grad()));
  EXPECT_TRUE(has(error_of<ValueError>([&] { DistributedDataParallel bad(net, nullptr); }), "no group"));
}

}  // namespace
