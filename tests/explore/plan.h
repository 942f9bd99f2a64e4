// A schedule of the explorer: random programs and the faults that meet them, as plain lists. A failing
// schedule is shrunk by leaving entries out. Every list of entries is a valid schedule: an index counts
// modulo the number of things that are there.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace weft::explore {

/// One step of a program. `a`, `b` choose values or references, `worker` a table or a worker.
struct Step {
  enum class Op {
    kLocal,      ///< a new value from two values, at the driver
    kCall,       ///< the same by a method of a table, with its parameters
    kFree,       ///< the same by a function of a worker, without parameters
    kChain,      ///< through the tables of `way`, by nested calls
    kFreeChain,  ///< through the workers of `way`
    kAsync,      ///< kCall whose result is awaited later
    kAwait,      ///< the oldest result of kAsync
    kForget,     ///< drops the oldest future of kAsync
    kRemote,     ///< a reference to the result of a function that a worker runs
    kHold,       ///< a reference to a value that a table makes at its worker
    kParameter,  ///< a reference to a parameter of a table
    kThird,      ///< a reference that a worker lets another one make
    kFetch,      ///< the value of a reference
    kUse,        ///< a call with a reference as argument, fetched there
    kForward,    ///< a reference sent through a table and back
    kKeep,       ///< a reference that a table keeps
    kGive,       ///< one that a table has kept
    kDropRef,
    kDropValue,
    kBackward,        ///< a loss of one or two values
    kRemoteBackward,  ///< a loss that lies at a worker
    kStep,            ///< the optimizer's step
    kBurst,           ///< large requests at once, more than a worker with a small budget has room for. Each
                      ///< makes a nested call to the driver, and that one a call back
    kCancel,          ///< a call through the workers of `way` that ends when it is cancelled
    kResults,         ///< large results at once, more than a worker with a small budget keeps
  };
  Op op = Op::kLocal;
  int kind = 0, a = 0, b = 0, worker = 0;
  std::vector<int> way{};
};

/// The program of one trainer: iterations, each in an autograd context of its own.
struct Program {
  int driver = 0;
  bool optimizer = false;
  bool two_phase = false;  ///< the optimizer steps in two phases
  /// Passes run in FAST mode. Nothing is dropped, and every loss is the sum of all values so far.
  bool fast = false;
  std::vector<std::vector<Step>> iterations{};
};

/// A fault at the n-th message of the network. In an elastic group that number counts from the start of the
/// program, and `at_us` may stand in its place.
struct Fault {
  enum class Kind { kDrop, kDouble, kDelay, kCut, kIsolate, kKill, kReplace, kPart, kStore };
  Kind kind = Kind::kDrop;
  int message = 0;
  int worker = 0;       ///< kCut, kIsolate, kKill, kReplace, kPart
  int64_t us = 0;       ///< kDelay: the delay; cuts, kStore: how long; kKill: until the successor joins
  int64_t late_us = 0;  ///< a successor's members learn of it within this time
  /// Elastic groups, positive: the time since the start. There kCut is one from the store, kPart one from the
  /// members, kIsolate both. kReplace is a kCut of `us` during which a successor asks for the name. kStore
  /// ends the store, which comes back with its log.
  int64_t at_us = 0;
  int point = 0;  ///< positive: at that point of the steps in two phases in place of a message
};

struct Plan {
  uint64_t seed = 1;  ///< of the order of tasks and of the latencies
  int workers = 3;
  int64_t jitter_us = 50;
  double drop = 0, duplicate = 0;  ///< for all other messages
  bool shutdown = false;           ///< a graceful shutdown at the end
  int small = -1;                  ///< the worker with a small budget of bytes; negative: none
  bool elastic = false;            ///< an elastic group (elastic.cpp)
  std::vector<Program> programs{};
  std::vector<Fault> faults{};
};

/// The schedule of a seed. `workers` 0: 2 to 4, by the seed. `plain`: the schedule that the seed had before
/// there were FAST mode, steps in two phases, small budgets, elastic groups and cancelled calls.
Plan make_plan(uint64_t seed, int workers = 0, bool plain = false);
/// A small program over all workers without faults, for the systematic exploration.
Plan make_small_plan(uint64_t seed, int workers);
/// The schedule as lines of text.
std::string to_string(const Plan& plan);
/// Number of steps and faults.
size_t size_of(const Plan& plan);

}  // namespace weft::explore
