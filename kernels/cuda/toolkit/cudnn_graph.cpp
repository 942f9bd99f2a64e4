// The descriptors of a graph of cuDNN, its plan and its run. Each descriptor is set, finished and never
// changed. cuDNN lists the engines that run a graph, the fastest by its own estimate first; an engine may
// still refuse when the plan is made. Empty in a build without cuDNN.
#if defined(WEFT_WITH_CUDNN)

#include <weft/kernels/cuda/toolkit/cudnn_graph.h>

#include <algorithm>
#include <optional>

#include <weft/kernels/error.h>

namespace weft::cuda::cudnn {

GraphNode::GraphNode(const Library& lib, cudnnBackendDescriptorType_t type, const char* what)
    : lib_(lib), what_(what) {
  check_call(lib.cudnnBackendCreateDescriptor(type, &node_), "cudnnBackendCreateDescriptor");
}
void GraphNode::set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
                    const void* values) {
  check_call(lib_.cudnnBackendSetAttribute(node_, name, type, count, values), "cudnnBackendSetAttribute");
}
void GraphNode::finish() { check_call(lib_.cudnnBackendFinalize(node_), "cudnnBackendFinalize"); }
int64_t GraphNode::get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
                       void* to) const {
  int64_t found = 0;  // all that there are
  check_call(lib_.cudnnBackendGetAttribute(node_, name, type, count, &found, to), "cudnnBackendGetAttribute");
  return std::min(found, count);
}
void GraphNode::check_call(cudnnStatus_t status, const char* call) const {
  if (status != CUDNN_STATUS_SUCCESS) check(status, str(call, " of ", what_).c_str());
}

Graph::Sizes dense(const Graph::Sizes& sizes) {
  return {sizes[1] * sizes[2] * sizes[3], sizes[2] * sizes[3], sizes[3], 1};
}

Graph::Tensor Graph::tensor(int64_t id, cudnnDataType_t type, const Sizes& sizes, const Sizes& strides,
                            cudnnBackendAttributeName_t kind) {
  GraphNode& node = add(CUDNN_BACKEND_TENSOR_DESCRIPTOR, "a tensor");
  const int64_t alignment = 16;
  const bool yes = true;
  node.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, {&id, 1});
  node.set(CUDNN_ATTR_TENSOR_DATA_TYPE, type);
  node.set(CUDNN_ATTR_TENSOR_DIMENSIONS, sizes);
  node.set(CUDNN_ATTR_TENSOR_STRIDES, strides);
  node.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, {&alignment, 1});
  if (kind != CUDNN_ATTR_TENSOR_UNIQUE_ID) node.set(kind, CUDNN_TYPE_BOOLEAN, 1, &yes);
  node.finish();
  return {node.get(), sizes};
}
Graph::Tensor Graph::between(cudnnDataType_t type, const Sizes& sizes) {
  return between(type, sizes, dense(sizes));
}

void Graph::multiply(const Tensor& a, const Tensor& b, const Tensor& c) {
  GraphNode& how = add(CUDNN_BACKEND_MATMUL_DESCRIPTOR, "a product's type");
  how.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT);
  how.finish();
  GraphNode& node = add(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, "a product");
  node.set(CUDNN_ATTR_OPERATION_MATMUL_DESC, how.get());
  node.set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, a.node);
  node.set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, b.node);
  node.set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, c.node);
  operation(node);
}

void Graph::pointwise(cudnnPointwiseMode_t mode, const Tensor& x, const Tensor& b, const Tensor& y,
                      cudnnDataType_t math, const Tensor& choice) {
  GraphNode& how = add(CUDNN_BACKEND_POINTWISE_DESCRIPTOR, "a pointwise mode");
  how.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
  how.set(CUDNN_ATTR_POINTWISE_MATH_PREC, math);
  how.finish();
  pointwise(how, x, b, choice, y);
}
void Graph::index(int64_t axis, const Tensor& x, const Tensor& y) {
  const cudnnPointwiseMode_t mode = CUDNN_POINTWISE_GEN_INDEX;
  GraphNode& how = add(CUDNN_BACKEND_POINTWISE_DESCRIPTOR, "an index");
  how.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
  how.set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_DATA_FLOAT);
  how.set(CUDNN_ATTR_POINTWISE_AXIS, {&axis, 1});
  how.finish();
  pointwise(how, x, {}, {}, y);
}
void Graph::pointwise(GraphNode& mode, const Tensor& x, const Tensor& b, const Tensor& choice,
                      const Tensor& y) {
  GraphNode& node = add(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, "a pointwise operation");
  node.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, mode.get());
  node.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x.node);
  if (b.node) node.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b.node);
  if (choice.node) node.set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, choice.node);
  node.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y.node);
  operation(node);
}

void Graph::reduce(cudnnReduceTensorOp_t fold, const Tensor& x, const Tensor& y) {
  GraphNode& how = add(CUDNN_BACKEND_REDUCTION_DESCRIPTOR, "a reduction's type");
  how.set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT);
  how.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &fold);
  how.finish();
  GraphNode& node = add(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, "a reduction");
  node.set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, how.get());
  node.set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x.node);
  node.set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y.node);
  operation(node);
}
void Graph::reshape(const Tensor& x, const Tensor& y) {
  GraphNode& node = add(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, "a reshape");
  node.set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x.node);
  node.set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y.node);
  operation(node);
}

namespace {

/// Whether all runs of the configuration give the same bits.
bool repeats(const Library& lib, const GraphNode& config) {
  GraphNode engine(lib, CUDNN_BACKEND_ENGINE_DESCRIPTOR, "an engine");
  cudnnBackendDescriptor_t into = engine.get();
  config.get(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &into);
  std::array<cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TYPE_COUNT> notes;
  const int64_t count = engine.get(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                   static_cast<int64_t>(notes.size()), notes.data());
  return std::find(notes.begin(), notes.begin() + count, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) ==
         notes.begin() + count;
}

}  // namespace

Graph::Plan Graph::plan(const GraphTarget& target, int64_t workspace, bool ordered) {
  GraphNode& graph = add(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, "the graph");
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
            static_cast<int64_t>(operations_.size()), operations_.data());
  if (target.handle) graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &target.handle);
  graph.finish();

  constexpr int64_t kMost = 32;  // configurations to try
  GraphNode& list = add(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, "the list of engines");
  const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
  list.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph.get());
  list.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
  if (target.device) list.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, target.device);
  list.finish();
  std::vector<std::unique_ptr<GraphNode>> configs;
  std::vector<cudnnBackendDescriptor_t> into;
  for (int64_t i = 0; i < kMost; ++i) {
    configs.push_back(
        std::make_unique<GraphNode>(lib_, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, "a configuration"));
    into.push_back(configs.back()->get());
  }
  configs.resize(static_cast<size_t>(
      list.get(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, kMost, into.data())));

  std::string refusals;
  for (auto& config : configs) {
    try {
      if (ordered && !repeats(lib_, *config)) {
        refusals += "; it does not repeat its bits";
        continue;
      }
      auto plan = std::make_unique<GraphNode>(lib_, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, "a plan");
      plan->set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config->get());
      if (target.handle) plan->set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &target.handle);
      else plan->set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, target.device);
      plan->finish();
      int64_t bytes = 0;
      plan->get(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &bytes);
      if (bytes > workspace) {
        refusals += str("; its workspace has ", bytes, " bytes");
        continue;
      }
      Plan made{std::move(nodes_), bytes};
      made.nodes.push_back(std::move(config));
      made.nodes.push_back(std::move(plan));
      return made;
    } catch (const CudaError& e) {
      refusals += str("; ", e.what());
    }
  }
  throw CudaError(str("cudnn: none of ", configs.size(), " engines runs the graph", refusals));
}

void run(const Library& lib, cudnnHandle_t handle, const Graph::Plan& plan,
         std::span<const std::pair<int64_t, void*>> places, void* workspace) {
  std::vector<int64_t> ids;
  std::vector<void*> addresses;
  for (const auto& [id, address] : places) ids.push_back(id), addresses.push_back(address);
  GraphNode pack(lib, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, "the addresses");
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, ids);
  pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, static_cast<int64_t>(addresses.size()),
           addresses.data());
  pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
  pack.finish();
  check(lib.cudnnBackendExecute(handle, plan.get(), pack.get()), "cudnnBackendExecute");
}

}  // namespace weft::cuda::cudnn

#endif
