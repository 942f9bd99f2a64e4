// cuDNN's graph API: operations on tensors of rank 4 as one graph, and the plan that runs it.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <weft/kernels/cuda/toolkit/cudnn.h>

namespace weft::cuda::cudnn {

/// A descriptor of the graph API. Its errors name the call and the descriptor.
class GraphNode {
 public:
  /// `what`: a literal.
  GraphNode(const Library& lib, cudnnBackendDescriptorType_t type, const char* what);
  ~GraphNode() { lib_.cudnnBackendDestroyDescriptor(node_); }
  GraphNode(const GraphNode&) = delete;
  cudnnBackendDescriptor_t get() const { return node_; }

  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
           const void* values);
  void set(cudnnBackendAttributeName_t name, cudnnBackendDescriptor_t node) {
    set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &node);
  }
  void set(cudnnBackendAttributeName_t name, cudnnDataType_t type) {
    set(name, CUDNN_TYPE_DATA_TYPE, 1, &type);
  }
  void set(cudnnBackendAttributeName_t name, std::span<const int64_t> numbers) {
    set(name, CUDNN_TYPE_INT64, static_cast<int64_t>(numbers.size()), numbers.data());
  }
  void finish();
  /// Reads up to `count` elements; returns the number that it has read.
  int64_t get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
              void* to) const;

 private:
  void check_call(cudnnStatus_t status, const char* call) const;

  const Library& lib_;
  const char* what_;
  cudnnBackendDescriptor_t node_ = nullptr;
};

/// The device that runs a plan: that of a handle, or one that a CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR
/// describes.
struct GraphTarget {
  cudnnHandle_t handle = nullptr;
  cudnnBackendDescriptor_t device = nullptr;
};

using GraphSizes = std::array<int64_t, 4>;
struct GraphTensor {
  cudnnBackendDescriptor_t node = nullptr;
  GraphSizes sizes{};
};

/// Operations on tensors, in the order in which they were added.
class Graph {
 public:
  using Sizes = GraphSizes;
  using Tensor = GraphTensor;
  explicit Graph(const Library& lib) : lib_(lib) {}

  /// In device memory, 16 bytes aligned; a run has its address under `id`, which is positive.
  Tensor memory(int64_t id, cudnnDataType_t type, const Sizes& sizes, const Sizes& strides) {
    return tensor(id, type, sizes, strides, CUDNN_ATTR_TENSOR_UNIQUE_ID);
  }
  /// A number; a run has its address on the host under `id`.
  Tensor number(int64_t id, cudnnDataType_t type) {
    return tensor(id, type, {1, 1, 1, 1}, {1, 1, 1, 1}, CUDNN_ATTR_TENSOR_IS_BY_VALUE);
  }
  /// A result that another operation reads, without memory of its own.
  Tensor between(cudnnDataType_t type, const Sizes& sizes);
  Tensor between(cudnnDataType_t type, const Sizes& sizes, const Sizes& strides) {
    return tensor(++last_, type, sizes, strides, CUDNN_ATTR_TENSOR_IS_VIRTUAL);
  }

  /// c = a b for the matrices of the last two dims.
  void multiply(const Tensor& a, const Tensor& b, const Tensor& c);
  /// y = mode(x, b): sizes of 1 repeat; `math` is the type of the arithmetic. With `choice`, y is x where
  /// that is true and b elsewhere.
  void pointwise(cudnnPointwiseMode_t mode, const Tensor& x, const Tensor& b, const Tensor& y,
                 cudnnDataType_t math = CUDNN_DATA_FLOAT, const Tensor& choice = {});
  void pointwise(cudnnPointwiseMode_t mode, const Tensor& x, const Tensor& y) { pointwise(mode, x, {}, y); }
  /// y = the index of each element of x along `axis`.
  void index(int64_t axis, const Tensor& x, const Tensor& y);
  /// Sums, or another fold, over the dims in which y has size 1.
  void reduce(cudnnReduceTensorOp_t fold, const Tensor& x, const Tensor& y);
  /// y has the elements of x with other sizes and strides.
  void reshape(const Tensor& x, const Tensor& y);

  /// A plan that runs the operations so far, and the bytes of workspace that it needs.
  struct Plan {
    std::vector<std::unique_ptr<GraphNode>> nodes;  // the last is the plan
    int64_t workspace = 0;
    cudnnBackendDescriptor_t get() const { return nodes.back()->get(); }
  };
  /// The first plan of cuDNN's own order that needs at most `workspace` bytes; with `ordered`, one whose runs
  /// repeat their bits. Throws: CudaError if there is none; OutOfMemoryError.
  Plan plan(const GraphTarget& target, int64_t workspace, bool ordered);

 private:
  Tensor tensor(int64_t id, cudnnDataType_t type, const Sizes& sizes, const Sizes& strides,
                cudnnBackendAttributeName_t kind);
  GraphNode& add(cudnnBackendDescriptorType_t type, const char* what) {
    return *nodes_.emplace_back(std::make_unique<GraphNode>(lib_, type, what));
  }
  void operation(GraphNode& node) {
    node.finish();
    operations_.push_back(node.get());
  }
  void pointwise(GraphNode& mode, const Tensor& x, const Tensor& b, const Tensor& choice, const Tensor& y);

  const Library& lib_;
  std::vector<std::unique_ptr<GraphNode>> nodes_;
  std::vector<cudnnBackendDescriptor_t> operations_;
  int64_t last_ = 100;  // id of the last tensor without memory
};

/// Contiguous strides.
Graph::Sizes dense(const Graph::Sizes& sizes);

/// Runs a plan on the handle's stream. `places`: the addresses of all ids.
void run(const Library& lib, cudnnHandle_t handle, const Graph::Plan& plan,
         std::span<const std::pair<int64_t, void*>> places, void* workspace);

}  // namespace weft::cuda::cudnn
