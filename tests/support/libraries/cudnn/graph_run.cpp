// The graphs that the emulated cuDNN takes, and their numbers, in plain loops.
#include "support/libraries/cudnn/graph.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include <weft/kernels/error.h>
#include "support/libraries/libraries.h"
#include "support/simt/thread.h"

namespace weft::cuda::libraries {

namespace {

using Values = std::vector<double>;

DType stored(cudnnDataType_t t) {
  return t == CUDNN_DATA_HALF ? kFloat16 : t == CUDNN_DATA_BFLOAT16 ? kBFloat16 : kFloat32;
}
double rounded_to(cudnnDataType_t t, double v) {
  return t == CUDNN_DATA_INT32 || t == CUDNN_DATA_BOOLEAN ? v : rounded(stored(t), v);
}

/// Calls f(indices, linear index) for each element.
template <class F> void each(const Sizes& sizes, const F& f) {
  int64_t i = 0;
  Sizes at{};
  for (at[0] = 0; at[0] < sizes[0]; ++at[0])
    for (at[1] = 0; at[1] < sizes[1]; ++at[1])
      for (at[2] = 0; at[2] < sizes[2]; ++at[2])
        for (at[3] = 0; at[3] < sizes[3]; ++at[3]) f(at, i++);
}
int64_t offset(const Sizes& at, const Sizes& strides) {
  int64_t sum = 0;
  for (size_t d = 0; d < 4; ++d) sum += at[d] * strides[d];
  return sum;
}
/// The linear index of an element of a tensor whose sizes of 1 repeat.
size_t repeated(const Sizes& at, const Sizes& sizes) {
  int64_t i = 0;
  for (size_t d = 0; d < 4; ++d) i = i * sizes[d] + (sizes[d] == 1 ? 0 : at[d]);
  return static_cast<size_t>(i);
}

struct Run {
  const std::map<int64_t, void*>& memory;
  const std::map<int64_t, double>& numbers;
  std::map<int64_t, Values> results;

  Values read(const GraphTensor& t) {
    if (t.number) return {numbers.at(t.id)};
    if (const auto found = results.find(t.id); found != results.end()) return found->second;
    if (t.between) throw simt::Fault(str("cudnnBackendExecute: tensor ", t.id, " is read before it is made"));
    Values v(static_cast<size_t>(t.numel()));
    const auto size = size_of(stored(t.type));
    each(t.sizes, [&](const Sizes& at, int64_t i) {
      v[static_cast<size_t>(i)] =
          load(stored(t.type), static_cast<char*>(memory.at(t.id)) + offset(at, t.strides) * size, 1)[0];
    });
    return v;
  }
  void write(const GraphTensor& t, Values v) {
    for (double& x : v) x = rounded_to(t.type, x);
    if (t.in_memory()) {
      const auto size = size_of(stored(t.type));
      each(t.sizes, [&](const Sizes& at, int64_t i) {
        store(stored(t.type), static_cast<char*>(memory.at(t.id)) + offset(at, t.strides) * size,
              &v[static_cast<size_t>(i)], 1);
      });
    }
    results[t.id] = std::move(v);
  }

  void multiply(const GraphOperation& op) {
    const Values a = read(op.a), b = read(op.b);
    Values y(static_cast<size_t>(op.y.numel()));
    const int64_t middle = op.a.sizes[3];
    each(op.y.sizes, [&](Sizes at, int64_t i) {
      double sum = 0;
      for (int64_t m = 0; m < middle; ++m)
        sum += a[repeated({at[0], at[1], at[2], m}, op.a.sizes)] *
               b[repeated({at[0], at[1], m, at[3]}, op.b.sizes)];
      y[static_cast<size_t>(i)] = sum;
    });
    write(op.y, std::move(y));
  }
  void pointwise(const GraphOperation& op) {
    const int inputs = inputs_of(op.mode);
    const Values a = read(op.a), b = inputs > 1 ? read(op.b) : Values(),
                 choice = inputs > 2 ? read(op.choice) : Values();
    Values y(static_cast<size_t>(op.y.numel()));
    each(op.y.sizes, [&](const Sizes& at, int64_t i) {
      const double x = a[repeated(at, op.a.sizes)], z = inputs > 1 ? b[repeated(at, op.b.sizes)] : 0;
      double& to = y[static_cast<size_t>(i)];
      switch (op.mode) {
        case CUDNN_POINTWISE_MUL: to = x * z; break;
        case CUDNN_POINTWISE_ADD: to = x + z; break;
        case CUDNN_POINTWISE_SUB: to = x - z; break;
        case CUDNN_POINTWISE_DIV: to = x / z; break;
        case CUDNN_POINTWISE_EXP: to = std::exp(x); break;
        case CUDNN_POINTWISE_LOG: to = std::log(x); break;
        case CUDNN_POINTWISE_CMP_GE: to = x >= z; break;
        case CUDNN_POINTWISE_GEN_INDEX: to = static_cast<double>(at[static_cast<size_t>(op.axis)]); break;
        case CUDNN_POINTWISE_BINARY_SELECT: to = choice[repeated(at, op.choice.sizes)] != 0 ? x : z; break;
        default: to = x;
      }
    });
    write(op.y, std::move(y));
  }
  void reduce(const GraphOperation& op) {
    const bool most = op.fold == CUDNN_REDUCE_TENSOR_MAX;
    const Values x = read(op.a);
    Values y(static_cast<size_t>(op.y.numel()), most ? -std::numeric_limits<double>::infinity() : 0);
    each(op.a.sizes, [&](const Sizes& at, int64_t i) {
      double& to = y[repeated(at, op.y.sizes)];
      const double value = x[static_cast<size_t>(i)];
      to = most ? std::max(to, value) : to + value;
    });
    write(op.y, std::move(y));
  }
  /// Here always a transpose of the last two dims.
  void reshape(const GraphOperation& op) {
    const Values x = read(op.a);
    Values y(x.size());
    each(op.y.sizes, [&](const Sizes& at, int64_t i) {
      y[static_cast<size_t>(i)] = x[repeated({at[0], at[1], at[3], at[2]}, op.a.sizes)];
    });
    write(op.y, std::move(y));
  }
};

int64_t count(const GraphOperations& all, const std::function<bool(const GraphOperation&)>& which) {
  return std::count_if(all.begin(), all.end(), which);
}
bool is(const GraphOperation& op, cudnnPointwiseMode_t mode) {
  return op.kind == GraphOperation::kPointwise && op.mode == mode;
}

}  // namespace

int inputs_of(cudnnPointwiseMode_t mode) {
  switch (mode) {
    case CUDNN_POINTWISE_EXP:
    case CUDNN_POINTWISE_LOG:
    case CUDNN_POINTWISE_IDENTITY:
    case CUDNN_POINTWISE_GEN_INDEX: return 1;
    case CUDNN_POINTWISE_MUL:
    case CUDNN_POINTWISE_ADD:
    case CUDNN_POINTWISE_SUB:
    case CUDNN_POINTWISE_DIV:
    case CUDNN_POINTWISE_CMP_GE: return 2;
    case CUDNN_POINTWISE_BINARY_SELECT: return 3;
    default: return 0;
  }
}

std::map<int64_t, GraphTensor> places_of(const GraphOperations& all) {
  std::map<int64_t, GraphTensor> places;
  for (const GraphOperation& op : all)
    for (const GraphTensor* t : {&op.a, &op.b, &op.choice, &op.y})
      if (t->id != 0 && !t->between) places[t->id] = *t;
  return places;
}

std::string refusal_of(const GraphOperations& all) {
  const int64_t products = count(all, [](const auto& op) { return op.kind == GraphOperation::kMultiply; });
  const int64_t logs = count(all, [](const auto&op) { return is(op, CUDNN_POINTWISE_LOG); }),
                folds = count(all, [](const auto&op) { return op.kind == GraphOperation::kReduce; }),
                turns = count(all, [](const auto&op) { return op.kind == GraphOperation::kReshape; }),
                choices = count(all, [](const auto&op) { return is(op, CUDNN_POINTWISE_BINARY_SELECT); }),
                ends = count(all, [](const auto&op) { return is(op, CUDNN_POINTWISE_IDENTITY); });
  const bool forward = products == 2 && folds == 2 && logs == 1 && turns == 0 && ends == 0,
             backward = products == 5 && folds == 1 && logs == 0 && turns == 3 && ends <= 1;
  if ((!forward && !backward) || choices > 1) return "no pattern of attention";
  const cudnnDataType_t half = places_of(all).begin()->second.type;
  if (half != CUDNN_DATA_HALF && half != CUDNN_DATA_BFLOAT16) return "it is of no half type";
  for (const GraphOperation& op : all) {
    if (op.kind != GraphOperation::kMultiply) continue;
    for (const GraphTensor* t : {&op.a, &op.b})
      if (t->type != half && !(backward && t == &op.a && op.b.between))  // ds of the product for dq
        return "the factors of a product differ in type";
  }
  for (const auto& [id, t] : places_of(all)) {
    if (t.sizes[0] > 65535 || t.sizes[1] > 65535) return "too many heads";
    if (!t.in_memory() || t.type == CUDNN_DATA_FLOAT) continue;
    const bool turned = t.strides[2] == 1;
    const int64_t width = t.sizes[turned ? 2 : 3];
    if ((!turned && t.strides[3] != 1) || width % 8 != 0 || width > 256) return "a width that is not taken";
    for (const size_t d : {size_t{0}, size_t{1}, turned ? size_t{3} : size_t{2}})
      if (t.strides[d] % 8 != 0) return "rows that are no whole packs";
  }
  return {};
}

int64_t work_of(const GraphOperations& all) {
  const bool ordered = !is(all.back(), CUDNN_POINTWISE_IDENTITY);
  const int64_t least = 256 + settings().extra_work;
  const GraphTensor& product = all.front().y;
  if (count(all, [](const auto& op) { return op.kind == GraphOperation::kMultiply; }) == 2 || !ordered)
    return least;
  for (const GraphOperation& op : all)
    if (op.kind == GraphOperation::kMultiply && op.y.between) return op.y.numel() * 2 + least;
  return product.numel() * 2 + least;
}

void run_graph(const GraphOperations& all, const std::map<int64_t, void*>& memory,
               const std::map<int64_t, double>& numbers) {
  Run run{memory, numbers, {}};
  for (const GraphOperation& op : all) switch (op.kind) {
      case GraphOperation::kMultiply: run.multiply(op); break;
      case GraphOperation::kPointwise: run.pointwise(op); break;
      case GraphOperation::kReduce: run.reduce(op); break;
      case GraphOperation::kReshape: run.reshape(op); break;
    }
}

}  // namespace weft::cuda::libraries
