// Finished graphs of the emulated cuDNN, without its descriptors (graph.cpp), and their numbers
// (graph_run.cpp).
#pragma once

#include <cudnn.h>

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace weft::cuda::libraries {

using Sizes = std::array<int64_t, 4>;

struct GraphTensor {
  int64_t id = 0;
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  Sizes sizes{}, strides{};
  bool between = false, number = false;  ///< virtual; by value

  int64_t numel() const { return sizes[0] * sizes[1] * sizes[2] * sizes[3]; }
  bool in_memory() const { return !between && !number; }
};

struct GraphOperation {
  enum Kind { kMultiply, kPointwise, kReduce, kReshape } kind = kMultiply;
  cudnnPointwiseMode_t mode = CUDNN_POINTWISE_IDENTITY;
  cudnnReduceTensorOp_t fold = CUDNN_REDUCE_TENSOR_ADD;
  int64_t axis = -1;
  GraphTensor a = {}, b = {}, choice = {}, y = {};  ///< b and choice have id 0 if they are absent
};

using GraphOperations = std::vector<GraphOperation>;

/// Number of the inputs of a mode; 0 if it is not emulated.
int inputs_of(cudnnPointwiseMode_t mode);

/// Empty if cuDNN has an engine for the operations, else its reason to have none. It recognises attention
/// alone: two products with a softmax and its logarithm between them, or the five of a backward.
std::string refusal_of(const GraphOperations& all);
/// Bytes of workspace of an accepted graph.
int64_t work_of(const GraphOperations& all);
/// All tensors of a graph that a run needs an address for, by id.
std::map<int64_t, GraphTensor> places_of(const GraphOperations& all);

/// Runs the operations one by one in double, rounding each result to its type. `numbers`: values by id.
void run_graph(const GraphOperations& all, const std::map<int64_t, void*>& memory,
               const std::map<int64_t, double>& numbers);

}  // namespace weft::cuda::libraries
