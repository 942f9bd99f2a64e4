// The two runtimes: waits, timers, compensation for blocked tasks, stopping; and the promises of the
// simulated one alone.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include <weft/distributed/runtime/runtime.h>
#include <weft/distributed/runtime/sync.h>
#include <weft/distributed/sim/sim_runtime.h>

namespace weft::rpc {
namespace {

using namespace std::chrono_literals;

/// `width` chains of `depth` tasks, each of which blocks until the next one has ended. The last ones wait for
/// those of the other chains.
int run_nested(Runtime& rt, int width, int depth) {
  std::atomic<int> leaves{0}, chains{0};
  Event all(rt, "all chains"), deep(rt, "the ends of all chains");
  std::function<void(int)> go = [&](int left) {
    if (left == 0) {
      if (++leaves == width) deep.set();
      deep.wait();
      return;
    }
    Event inner(rt, "the inner task");
    rt.post([&] {
      go(left - 1);
      inner.set();
    });
    inner.wait();
  };
  for (int i = 0; i < width; ++i) {
    rt.post([&] {
      go(depth);
      if (++chains == width) all.set();
    });
  }
  EXPECT_TRUE(all.wait_until(rt.now() + 60s));
  return leaves;
}

TEST(ThreadedRuntime, nested_blocking_tasks_beyond_the_thread_count_complete) {
  auto rt = make_threaded_runtime({.threads = 2});
  EXPECT_EQ(run_nested(*rt, 13, 11), 13);
  EXPECT_GT(rt->pool_stats().peak_threads, 13);
  EXPECT_EQ(rt->stop(), 0);
}

TEST(ThreadedRuntime, idle_threads_end_after_the_limit) {
  auto rt = make_threaded_runtime({.threads = 2, .idle_limit = 5ms});
  run_nested(*rt, 7, 5);
  for (int i = 0; i < 12000 && rt->pool_stats().threads > 0; ++i) rt->sleep_for(5ms);
  EXPECT_EQ(rt->pool_stats().threads, 0);
  EXPECT_EQ(run_nested(*rt, 2, 2), 2) << "and the pool starts anew when it is needed";
}

TEST(ThreadedRuntime, a_task_without_a_thread_is_refused_when_all_threads_are_blocked_and_others_wait) {
  for (const bool limit : {true, false}) {
    ThreadedOptions options{.threads = 2};
    if (limit) options.max_threads = 3;
    else options.may_start = [](int threads) { return threads < 3; };
    auto rt = make_threaded_runtime(options);
    Event release(*rt), second(*rt);
    std::atomic<int> blocked{0}, waited{0};
    for (int i = 0; i < 3; ++i)
      rt->post([&] {
        ++blocked;
        release.wait();
      });
    for (int i = 0; i < 12000 && rt->pool_stats().blocked < 3; ++i) rt->sleep_for(5ms);
    EXPECT_EQ(blocked, 3);
    rt->post([&] {
      EXPECT_EQ(refusal(), nullptr);
      ++waited;
    });
    std::string why;
    int depth = 0, deepest = 0;
    rt->post_or_refuse([&] {  // refused at once, on this thread
      ++depth;
      why = refusal() ? refusal() : "";
      EXPECT_THROW(release.wait(), Error);  // it must not block
      rt->post_or_refuse([&] { deepest = std::max(deepest, ++depth), --depth; });
      --depth;
    });
    EXPECT_TRUE(why.starts_with("cannot start another thread: 3 run, all blocked; ")) << why;
    EXPECT_NE(why.find(limit ? "max_threads is 3" : "the system gives no more"), std::string::npos) << why;
    EXPECT_EQ(deepest, 1);  // one after another, however long the chain
    EXPECT_EQ(refusal(), nullptr);
    EXPECT_EQ(waited, 0);
    release.set();
    for (int i = 0; i < 12000 && waited == 0; ++i) rt->sleep_for(5ms);
    EXPECT_EQ(waited, 1);
    rt->post_or_refuse([&] { second.set(); });
    EXPECT_TRUE(second.wait_until(rt->now() + 60s));
    EXPECT_EQ(rt->stop(), 0);
  }
}

TEST(ThreadedRuntime, a_task_queued_behind_a_thread_that_blocks_is_refused_by_it) {
  auto rt = make_threaded_runtime({.threads = 1, .max_threads = 1});
  Event go(*rt), release(*rt), refused(*rt);
  rt->post([&] {
    while (!go.is_set()) std::this_thread::yield();
    release.wait();
  });
  rt->post_or_refuse([&] {
    if (refusal()) refused.set();
  });
  EXPECT_FALSE(refused.is_set());  // the thread runs: the task may wait for it
  go.set();
  EXPECT_TRUE(refused.wait_until(rt->now() + 60s));
  release.set();
  EXPECT_EQ(rt->stop(), 0);
}

TEST(ThreadedRuntime, at_most_the_given_number_of_tasks_compute_at_once) {
  auto rt = make_threaded_runtime({.threads = 3});
  std::atomic<int> now{0}, most{0}, done{0};
  Event all(*rt);
  for (int i = 0; i < 101; ++i) {
    rt->post([&] {
      const int n = ++now;
      int seen = most;
      while (seen < n && !most.compare_exchange_weak(seen, n)) {
      }
      std::this_thread::yield();
      --now;
      if (++done == 101) all.set();
    });
  }
  all.wait();
  EXPECT_LE(most.load(), 3);
}

TEST(ThreadedRuntime, timers_fire_in_order_and_can_be_cancelled) {
  auto rt = make_threaded_runtime();
  Mutex mutex;
  std::vector<int> order;
  Event last(*rt);
  const TimePoint start = rt->now();
  auto note = [&](int n) {
    MutexLock lock(mutex);
    order.push_back(n);
  };
  rt->call_at(start + 60ms, [&] {
    note(3);
    last.set();
  });
  rt->call_at(start + 10ms, [&] {
    note(1);
    // none fires before this one has returned
    const TimerId dropped = rt->call_at(start + 20ms, [&] { note(2); });
    EXPECT_TRUE(rt->cancel(dropped));
    EXPECT_FALSE(rt->cancel(dropped));
  });
  last.wait();
  EXPECT_GE(rt->now(), start + 60ms);
  EXPECT_EQ(order, (std::vector<int>{1, 3}));
}

TEST(ThreadedRuntime, a_wait_ends_at_its_deadline_or_when_set) {
  auto rt = make_threaded_runtime();
  Event event(*rt);
  const TimePoint start = rt->now();
  EXPECT_FALSE(event.wait_until(start + 5ms));
  EXPECT_GE(rt->now(), start + 5ms);
  EXPECT_FALSE(event.wait_until(start));
  rt->call_at(rt->now() + 2ms, [&] { event.set(); });
  EXPECT_TRUE(event.wait_until(rt->now() + 30s));
  event.reset();
  EXPECT_FALSE(event.is_set());
}

TEST(ThreadedRuntime, several_threads_wait_for_one_event) {
  auto rt = make_threaded_runtime({.threads = 1});
  Event go(*rt), all(*rt);
  std::atomic<int> woken{0};
  for (int i = 0; i < 11; ++i) {
    rt->post([&] {
      go.wait();
      if (++woken == 11) all.set();
    });
  }
  rt->post([&] { go.set(); });
  EXPECT_TRUE(all.wait_until(rt->now() + 30s));
}

TEST(ThreadedRuntime, stop_ends_every_wait_with_an_error) {
  auto rt = make_threaded_runtime({.threads = 2});
  std::atomic<int> stopped{0};
  std::vector<std::unique_ptr<Service>> services;
  for (int i = 0; i < 5; ++i) {
    auto wait = [&] {
      Event never(*rt, "what never comes");
      try {
        never.wait();
      } catch (const RuntimeStopped&) {
        ++stopped;
      }
    };
    rt->post(wait);
    services.push_back(rt->start_service("waiter", wait));
  }
  while (rt->pool_stats().blocked < 5) rt->sleep_for(1ms);
  EXPECT_EQ(rt->stop(), 0);
  services.clear();
  EXPECT_EQ(stopped, 10);
  Event later(*rt);
  EXPECT_THROW(later.wait(), RuntimeStopped);
  rt->post([] { ADD_FAILURE() << "ran after stop"; });
}

TEST(ThreadedRuntime, stop_does_not_wait_for_ever_for_a_computing_task) {
  std::atomic<bool> release{false}, ended{false};
  {
    auto rt = make_threaded_runtime();
    Event begun(*rt);
    rt->post([&] {
      begun.set();
      while (!release) std::this_thread::yield();
      ended = true;
    });
    begun.wait();
    EXPECT_EQ(rt->stop(1ms), 1);
    release = true;
    rt.reset();
  }
  while (!ended) std::this_thread::yield();
  EXPECT_TRUE(ended);
}

TEST(ThreadedRuntime, options_out_of_range_are_refused) {
  EXPECT_THROW(make_threaded_runtime({.threads = 0}), ValueError);
  EXPECT_THROW(make_threaded_runtime({.threads = 5, .max_threads = 3}), ValueError);
}

TEST(Runtimes, a_callback_that_blocks_gets_an_error) {
  auto rt = make_threaded_runtime();
  Event told(*rt), never(*rt, "never");
  std::string text;
  rt->call_at(rt->now(), [&] {
    try {
      never.wait();
    } catch (const Error& e) {
      text = e.what();
    }
    told.set();
  });
  told.wait();
  EXPECT_EQ(text, "wait for never inside a timer callback, which must not block");
}

TEST(Runtimes, an_exception_from_a_task_does_no_harm) {
  auto rt = make_threaded_runtime({.threads = 1});
  rt->post([] { throw std::runtime_error("lost"); });
  rt->post([] { throw 3; });
  Event after(*rt);
  rt->post([&] { after.set(); });
  EXPECT_TRUE(after.wait_until(rt->now() + 30s));
}

const FiberLocal test_local;

TEST(Runtimes, fiber_locals_belong_to_one_task) {
  auto check = [](Runtime& rt) {
    int here = 0;
    std::atomic<int> good{0}, done{0};
    Event all(rt);
    test_local.set(&here);
    for (int i = 0; i < 7; ++i) {
      rt.post([&] {
        int mine = 0;
        const bool fresh = test_local.get() == nullptr;
        FiberLocalScope scope(test_local, &mine);
        rt.sleep_for(1ms);
        if (fresh && test_local.get() == &mine) ++good;
        if (++done == 7) all.set();
      });
    }
    all.wait();
    EXPECT_EQ(good, 7);
    EXPECT_EQ(test_local.get(), &here);
    test_local.set(nullptr);
  };
  auto rt = make_threaded_runtime({.threads = 2});
  check(*rt);
  SimRuntime sim;
  check(sim);
}

thread_local uint64_t test_mode = 5;

TEST(SimRuntime, registered_thread_locals_follow_their_fiber) {
  register_thread_state({[] { return test_mode; }, [](uint64_t v) { test_mode = v; }, 5});
  SimRuntime rt({.seed = 3});
  int good = 0;
  test_mode = 11;
  for (uint64_t i = 0; i < 7; ++i) {
    rt.post([&, i] {
      const bool fresh = test_mode == 5;
      test_mode = 100 + i;
      rt.sleep_for(1ms);
      if (fresh && test_mode == 100 + i) ++good;
    });
  }
  rt.run_until_idle();
  EXPECT_EQ(good, 7);
  EXPECT_EQ(test_mode, 11u);
  test_mode = 5;
}

uint64_t chatter(uint64_t seed, std::vector<std::string>* log = nullptr) {
  SimRuntime rt({.seed = seed});
  for (int i = 0; i < 13; ++i) {
    rt.post([&rt, i] {
      for (int k = 0; k < 3; ++k) {
        rt.trace(str("task ", i, " round ", k));
        rt.sleep_for(Duration(static_cast<int64_t>(rt.random() % 1000)));
      }
    });
  }
  rt.run_until_idle();
  if (log != nullptr) *log = rt.log();
  return rt.log_hash();
}

TEST(SimRuntime, one_seed_replays_the_same_log_and_another_does_not) {
  std::vector<std::string> first, second;
  EXPECT_EQ(chatter(7, &first), chatter(7, &second));
  EXPECT_EQ(first, second);
  EXPECT_EQ(first.size(), 39u);
  EXPECT_NE(chatter(7), chatter(8));
}

/// 20 tasks count up in two critical sections each, which lets others in between; how many were counted.
int counted_in_two_steps(const SimOptions& options, bool callbacks) {
  SimRuntime rt(options);
  Mutex mutex;
  int count = 0;
  const auto add = [&] {
    int seen = 0;
    {
      MutexLock lock(mutex);
      seen = count;
    }
    MutexLock lock(mutex);
    count = seen + 1;
  };
  for (int i = 0; i < 20; ++i) {
    if (callbacks) rt.call_at(rt.now(), add);
    else rt.post(add);
  }
  rt.run_until_idle();
  return count;
}

TEST(SimRuntime, a_task_may_be_switched_out_between_two_critical_sections) {
  int fewer = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const int count = counted_in_two_steps({.seed = seed}, false);
    fewer += count < 20;
    EXPECT_EQ(counted_in_two_steps({.seed = seed}, false), count);
    EXPECT_EQ(counted_in_two_steps({.seed = seed, .preempt = 0}, false), 20);
    EXPECT_EQ(counted_in_two_steps({.seed = seed}, true), 20) << "a callback is left whole";
  }
  EXPECT_GE(fewer, 5);
}

TEST(SimRuntime, a_task_that_holds_a_lock_goes_on) {
  SimRuntime rt({.preempt = 1});
  Mutex outer, inner;
  bool inside = false;
  for (int i = 0; i < 20; ++i)
    rt.post([&] {
      MutexLock lock(outer);
      EXPECT_FALSE(std::exchange(inside, true));
      { MutexLock nested(inner); }
      inside = false;
    });
  rt.run_until_idle();
}

TEST(SimRuntime, nested_blocking_tasks_complete) {
  SimRuntime rt({.seed = 5});
  EXPECT_EQ(run_nested(rt, 101, 23), 101);
}

TEST(SimRuntime, hours_cost_nothing) {
  SimRuntime rt;
  int ticks = 0;
  std::function<void()> tick = [&] {
    if (++ticks < 3600) rt.call_at(rt.now() + 1s, [&] { tick(); });
  };
  tick();
  rt.run_for(3600s);
  EXPECT_EQ(ticks, 3600);
  EXPECT_EQ(rt.now().time_since_epoch(), 3600s);
}

TEST(SimRuntime, a_deadlock_is_an_error_that_names_the_waits) {
  SimRuntime rt;
  Event a(rt, "the reply of w1"), b(rt, "the barrier");
  rt.post([&] { a.wait(); });
  try {
    rt.run_until_idle();
    FAIL() << "no Deadlock";
  } catch (const Deadlock& e) {
    EXPECT_NE(std::string(e.what()).find("waits for the reply of w1"), std::string::npos) << e.what();
  }
  try {
    b.wait();
    FAIL() << "no Deadlock";
  } catch (const Deadlock& e) {
    EXPECT_NE(std::string(e.what()).find("the driver waits for the barrier"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("waits for the reply of w1"), std::string::npos) << e.what();
  }
  a.set();
  rt.run_until_idle();
  EXPECT_TRUE(rt.blocked().empty());
}

TEST(SimRuntime, tasks_that_never_let_time_pass_are_a_livelock_error) {
  SimRuntime rt({.max_steps_at_once = 1000});
  std::function<void()> again = [&] { rt.post([&] { again(); }); };
  again();
  EXPECT_THROW(rt.run_until_idle(), Deadlock);
}

TEST(SimRuntime, a_wait_inside_a_catch_block_keeps_the_exception) {
  SimRuntime rt;
  std::vector<std::string> texts;
  for (int i = 0; i < 5; ++i) {
    rt.post([&, i] {
      try {
        throw std::runtime_error(std::to_string(i));
      } catch (...) {
        rt.sleep_for(Duration(1000 - i));
        try {
          throw;
        } catch (const std::exception& e) {
          texts.push_back(e.what());
        }
      }
    });
  }
  rt.run_until_idle();
  EXPECT_EQ(texts, (std::vector<std::string>{"4", "3", "2", "1", "0"}));
}

TEST(SimRuntime, stop_unwinds_blocked_tasks) {
  int unwound = 0;
  struct Count {
    int& n;
    ~Count() { ++n; }
  };
  SimRuntime rt;
  Event never(rt, "never");
  for (int i = 0; i < 3; ++i) {
    rt.post([&] {
      Count count{unwound};
      never.wait();
    });
  }
  rt.run_for(1ms);
  EXPECT_EQ(rt.pool_stats().blocked, 3);
  EXPECT_EQ(rt.stop(), 0);
  EXPECT_EQ(unwound, 3);
}

}  // namespace
}  // namespace weft::rpc
