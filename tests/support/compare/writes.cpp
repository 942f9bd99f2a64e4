// Rows for in-place methods, masked writes and index lists. A row ending in _ answers with the written tensor
// and, as a second output, its whole storage. A row ending in _.recorded writes to a copy with a history.
#include <optional>
#include <sstream>

#include "support/compare/rows.h"

namespace weft::test {
namespace {

Tensor storage_of(const Tensor& x) {
  const int64_t bytes = x.body().storage->bytes();
  return alias(x.detach(), {bytes / size_of(x.dtype())}, {1}, 0);
}

// Each method twice: on the given memory without recording, and on a view of a recorded copy.
template <auto method, class... A> void in_place(Rows& rows, const std::string& name) {
  row(rows, (name + "_").c_str(), [](Tensor x, A... args) {
    method(x, args...);
    return Outputs{x, storage_of(x)};
  });
  row(rows, (name + "_.recorded").c_str(), [](Tensor x, bool through_view, A... args) {
    Tensor copy = x.clone();
    Tensor written = through_view && x.dim() > 0 && x.size(0) > 1 ? copy.narrow(0, 1, x.size(0) - 1) : copy;
    method(written, args...);
    return Outputs{copy, written};
  });
}

void add_in_place(Rows& rows) {
  in_place<[](Tensor& x) { x.zero_(); }>(rows, "zero");
  in_place<[](Tensor& x) { x.relu_(); }>(rows, "relu");
  in_place<[](Tensor& x, Scalar s) { x.fill_(s); }, Scalar>(rows, "fill");
  in_place<[](Tensor& x, Scalar s) { x.add_(s); }, Scalar>(rows, "add.number");
  in_place<[](Tensor& x, Scalar s) { x.sub_(s); }, Scalar>(rows, "sub.number");
  in_place<[](Tensor& x, Scalar s) { x.mul_(s); }, Scalar>(rows, "mul.number");
  in_place<[](Tensor& x, Scalar s) { x.div_(s); }, Scalar>(rows, "div.number");
  in_place<[](Tensor& x, Scalar a, Scalar b) { x.clamp_(a, b); }, Scalar, Scalar>(rows, "clamp");
  in_place<[](Tensor& x, const Tensor& y) { x.copy_(y); }, Tensor>(rows, "copy");
  in_place<[](Tensor& x, const Tensor& y, Scalar s) { x.add_(y, s); }, Tensor, Scalar>(rows, "add");
  in_place<[](Tensor& x, const Tensor& y) { x.sub_(y); }, Tensor>(rows, "sub");
  in_place<[](Tensor& x, const Tensor& y) { x.mul_(y); }, Tensor>(rows, "mul");
  in_place<[](Tensor& x, const Tensor& y) { x.div_(y); }, Tensor>(rows, "div");
  in_place<[](Tensor& x) { x.exp_(); }>(rows, "exp");
  in_place<[](Tensor& x) { x.neg_(); }>(rows, "neg");
  in_place<[](Tensor& x, Scalar s) { x.pow_(s); }, Scalar>(rows, "pow.number");
  in_place<[](Tensor& x, const Tensor& y) { x.pow_(y); }, Tensor>(rows, "pow");
  in_place<[](Tensor& x, Scalar s) { x.remainder_(s); }, Scalar>(rows, "remainder.number");
  in_place<[](Tensor& x, const Tensor& y) { x.remainder_(y); }, Tensor>(rows, "remainder");
  in_place<[](Tensor& x, int64_t d, const Tensor& i, const Tensor& y) { x.scatter_(d, i, y); }, int64_t,
           Tensor, Tensor>(rows, "scatter");
  in_place<[](Tensor& x, int64_t d, const Tensor& i, const Tensor& y) { x.scatter_add_(d, i, y); }, int64_t,
           Tensor, Tensor>(rows, "scatter_add");
  in_place<[](Tensor& x, int64_t d, const Tensor& i, const Tensor& y) { x.index_add_(d, i, y); }, int64_t,
           Tensor, Tensor>(rows, "index_add");
  in_place<[](Tensor& x, Scalar s) { x.bitwise_and_(s); }, Scalar>(rows, "bitwise_and.number");
  in_place<[](Tensor& x, Scalar s) { x.bitwise_or_(s); }, Scalar>(rows, "bitwise_or.number");
  in_place<[](Tensor& x, Scalar s) { x.bitwise_xor_(s); }, Scalar>(rows, "bitwise_xor.number");
  in_place<[](Tensor& x, const Tensor& y) { x.bitwise_and_(y); }, Tensor>(rows, "bitwise_and");
  in_place<[](Tensor& x, const Tensor& y) { x.bitwise_or_(y); }, Tensor>(rows, "bitwise_or");
  in_place<[](Tensor& x, const Tensor& y) { x.bitwise_xor_(y); }, Tensor>(rows, "bitwise_xor");
}

void add_masked(Rows& rows) {
  row(rows, "masked_scatter", [](Tensor x, Tensor m, Tensor source) { return masked_scatter(x, m, source); });
  in_place<[](Tensor& x, const Tensor& m, Scalar s) { x.masked_fill_(m, s); }, Tensor, Scalar>(rows,
                                                                                               "masked_fill");
  in_place<[](Tensor& x, const Tensor& m, const Tensor& source) { x.masked_scatter_(m, source); }, Tensor,
           Tensor>(rows, "masked_scatter");
}

std::optional<int64_t> bound(const std::string& text) {
  return text.empty() ? std::nullopt : std::optional<int64_t>(std::stoll(text));
}

/// An index list of words that commas separate. A word is a number, a slice `start:stop:step` with bounds
/// that may be absent, `None`, `...`, or `t` for the next of the tensors.
std::vector<TensorIndex> list_of(const std::string& text, const std::vector<Tensor>& tensors) {
  std::vector<TensorIndex> list;
  size_t next = 0;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) {
    if (word == "None") {
      list.emplace_back(None);
    } else if (word == "...") {
      list.emplace_back(Ellipsis);
    } else if (word == "t") {
      if (next == tensors.size()) throw FrameError("an index list names more tensors than it has");
      list.emplace_back(tensors[next++]);
    } else if (word.find(':') != std::string::npos) {
      std::optional<int64_t> part[3];
      std::istringstream parts(word);
      std::string number;
      for (auto& p : part)
        if (std::getline(parts, number, ':')) p = bound(number);
      list.emplace_back(Slice(part[0], part[1], part[2]));
    } else {
      list.emplace_back(std::stoll(word));
    }
  }
  return list;
}

using List = std::vector<Tensor>;

void add_index_lists(Rows& rows) {
  row(rows, "index", [](Tensor x, std::string at, List tensors) { return index(x, list_of(at, tensors)); });
  row(rows, "index_put", [](Tensor x, std::string at, List tensors, Tensor values, bool accumulate) {
    return index_put(x, list_of(at, tensors), values, accumulate);
  });
  in_place<[](Tensor& x, const std::string& at, const List& tensors, const Tensor& values, bool accumulate) {
    x.index_put_(list_of(at, tensors), values, accumulate);
  },
           std::string, List, Tensor, bool>(rows, "index_put");
  in_place<[](Tensor& x, const std::string& at, const List& tensors, Scalar value, bool accumulate) {
    x.index_put_(list_of(at, tensors), value, accumulate);
  },
           std::string, List, Scalar, bool>(rows, "index_put.number");
}

// The written tensor and the one read overlap: x[1:] op= x[:-1].
void add_overlapping(Rows& rows) {
  row(rows, "add_.overlapping", [](Tensor x, int64_t gap) {
    Tensor late = x.narrow(0, gap, x.size(0) - gap);
    late.add_(x.narrow(0, 0, x.size(0) - gap));
    return Outputs{x};
  });
  row(rows, "copy_.overlapping", [](Tensor x, int64_t gap) {
    Tensor late = x.narrow(0, gap, x.size(0) - gap);
    late.copy_(x.narrow(0, 0, x.size(0) - gap));
    return Outputs{x};
  });
  row(rows, "copy_.transposed_onto_itself", [](Tensor x) {
    x.copy_(x.transpose(0, 1));
    return Outputs{x};
  });
}

}  // namespace

void add_writes(Rows& rows) {
  add_in_place(rows);
  add_masked(rows);
  add_index_lists(rows);
  add_overlapping(rows);
}

}  // namespace weft::test
