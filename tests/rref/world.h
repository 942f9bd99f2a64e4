// The world of these tests: a class that counts its living objects, functions that pass references on, and
// checks that none is left.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <vector>

#include <weft/distributed/rref/rref.h>

#include "support/cluster.h"

namespace weft::test {

using rpc::RRef;

/// Neither copyable nor movable; knows how many of it live, and whether it is alive itself.
class Cell {
 public:
  explicit Cell(int64_t value) : value_(value) { ++living; }
  Cell(const Cell&) = delete;
  ~Cell() {
    alive_ = false;
    --living;
  }
  int64_t get() const {
    if (!alive_) throw std::logic_error("a cell was used after its end");
    return value_;
  }
  int64_t add(int64_t n) { return value_ += n; }
  /// A reference to this cell's value as a new value, made here.
  RRef<int64_t> share() const { return RRef<int64_t>(get()); }
  static inline std::atomic<int> living{0};

 private:
  int64_t value_;
  bool alive_ = true;
};
WEFT_RPC_CLASS(Cell, get, add, share);

/// A reference with the value that it must give.
struct Known {
  int64_t value = 0;
  RRef<Cell> cell;
};
WEFT_FIELDS(Known, value, cell)

int64_t read_cell(const RRef<Cell>& cell);
WEFT_RPC(read_cell);
/// Keeps a reference in this worker's bag.
void keep_cell(const Known& known);
WEFT_RPC(keep_cell);
/// One out of this worker's bag.
std::vector<Known> give_cell(int64_t which);
WEFT_RPC(give_cell);
/// Passes it on over the listed workers; the last one reads it.
int64_t pass_cell(const Known& known, const std::vector<int64_t>& way);
WEFT_RPC(pass_cell);
/// The same reference back.
Known return_cell(const Known& known);
WEFT_RPC(return_cell);
/// Makes one here and gives it away.
Known make_cell(int64_t value);
WEFT_RPC(make_cell);
RRef<Cell> cell_of(const Known& known);
WEFT_RPC(cell_of);
int64_t fail_to_make(int64_t value);
WEFT_RPC(fail_to_make);
int64_t make_slowly(int64_t ms);
WEFT_RPC(make_slowly);
int64_t read_slowly(const RRef<Cell>& cell, int64_t ms);
WEFT_RPC(read_slowly);

std::vector<Known>& bag(int rank);
void clear_bags();

/// The counters of references that are not zero, by worker; empty when nothing is left.
std::string left_over(Cluster& cluster, const std::vector<int>& ranks);
/// Lets all that is under way come to its end.
void settle(Cluster& cluster);

/// Keeps the body of a worker's last call.
class LastCall final : public rpc::Interceptor {
 public:
  void request_sending(rpc::Agent&, rpc::Life, rpc::Kind kind, const char*, rpc::Message& message) override {
    if (kind == rpc::Kind::kCall) body = message.body();
  }
  std::string body;
};

}  // namespace weft::test
