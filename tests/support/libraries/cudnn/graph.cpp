// The graph API of the emulated cuDNN: descriptors with the attributes that cuDNN documents for tensors,
// operations, graphs, lists of engines, plans and addresses. An attribute of another descriptor, of another
// type or with another number of elements is CUDNN_STATUS_BAD_PARAM, and so is a descriptor that lacks one or
// refers to an unfinished one. graph_run.cpp has the graphs that an engine takes, and their numbers.
#include "support/libraries/cudnn/graph.h"

#include <cudnn.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "support/libraries/cudnn/handle.h"
#include "support/libraries/libraries.h"
#include "support/simt/thread.h"

namespace weft::cuda::libraries {
namespace {

struct Node;
using NodeRef = std::shared_ptr<const Node>;

struct Attribute {
  int64_t count = 0;
  std::vector<std::byte> bytes = {};
  std::vector<NodeRef> nodes = {};
  template <class T> T at(int64_t i = 0) const {
    T value;
    std::memcpy(&value, bytes.data() + static_cast<size_t>(i) * sizeof(T), sizeof(T));
    return value;
  }
};
struct Node {
  cudnnBackendDescriptorType_t type;
  bool finished = false;
  std::map<cudnnBackendAttributeName_t, Attribute> set = {};
  // of a finished one
  GraphTensor tensor = {};
  GraphOperation operation = {};
  GraphOperations all = {};

  const Attribute* find(cudnnBackendAttributeName_t name) const {
    const auto found = set.find(name);
    return found == set.end() ? nullptr : &found->second;
  }
  template <class T> T get(cudnnBackendAttributeName_t name) const { return set.at(name).template at<T>(); }
  const Node& node(cudnnBackendAttributeName_t name, size_t i = 0) const { return *set.at(name).nodes[i]; }
  GraphTensor tensor_of(cudnnBackendAttributeName_t name) const {
    const Attribute* const a = find(name);
    return a ? a->nodes[0]->tensor : GraphTensor{};
  }
};

struct Rule {
  cudnnBackendAttributeName_t name;
  cudnnBackendAttributeType_t type;
  int64_t least, most;
  bool needed = true;
  std::optional<cudnnBackendDescriptorType_t> of = {};  // of the descriptors
};

Rule tensor_rule(cudnnBackendAttributeName_t name, bool needed = true) {
  return {name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1, needed, CUDNN_BACKEND_TENSOR_DESCRIPTOR};
}

const std::map<cudnnBackendDescriptorType_t, std::vector<Rule>>& rules() {
  static const std::map<cudnnBackendDescriptorType_t, std::vector<Rule>> all{
      {CUDNN_BACKEND_TENSOR_DESCRIPTOR,
       {{CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, 1},
        {CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, 1},
        {CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, 4},
        {CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, 4},
        {CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, 1},
        {CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, 1, false},
        {CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, 1, false}}},
      {CUDNN_BACKEND_MATMUL_DESCRIPTOR, {{CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, 1}}},
      {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR,
       {{CUDNN_ATTR_OPERATION_MATMUL_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1, true,
         CUDNN_BACKEND_MATMUL_DESCRIPTOR},
        tensor_rule(CUDNN_ATTR_OPERATION_MATMUL_ADESC),
        tensor_rule(CUDNN_ATTR_OPERATION_MATMUL_BDESC),
        tensor_rule(CUDNN_ATTR_OPERATION_MATMUL_CDESC)}},
      {CUDNN_BACKEND_POINTWISE_DESCRIPTOR,
       {{CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, 1},
        {CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, 1},
        {CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, 1, false}}},
      {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
       {{CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1, true,
         CUDNN_BACKEND_POINTWISE_DESCRIPTOR},
        tensor_rule(CUDNN_ATTR_OPERATION_POINTWISE_XDESC),
        tensor_rule(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, false),
        tensor_rule(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, false),
        tensor_rule(CUDNN_ATTR_OPERATION_POINTWISE_YDESC)}},
      {CUDNN_BACKEND_REDUCTION_DESCRIPTOR,
       {{CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, 1},
        {CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, 1}}},
      {CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR,
       {{CUDNN_ATTR_OPERATION_REDUCTION_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1, true,
         CUDNN_BACKEND_REDUCTION_DESCRIPTOR},
        tensor_rule(CUDNN_ATTR_OPERATION_REDUCTION_XDESC),
        tensor_rule(CUDNN_ATTR_OPERATION_REDUCTION_YDESC)}},
      {CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR,
       {tensor_rule(CUDNN_ATTR_OPERATION_RESHAPE_XDESC), tensor_rule(CUDNN_ATTR_OPERATION_RESHAPE_YDESC)}},
      {CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR,
       {{CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, 1},
        {CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 64}}},
      {CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR,
       {{CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1, true,
         CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR},
        {CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, 1}}},
      {CUDNN_BACKEND_ENGINE_DESCRIPTOR, {}},  // they come from cuDNN alone, and so do configurations
      {CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, {}},
      {CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR,
       {{CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, 1},
        {CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1, true,
         CUDNN_BACKEND_ENGINECFG_DESCRIPTOR}}},
      {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR,
       {{CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 1, 64},
        {CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 1, 64},
        {CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, 1}}},
  };
  return all;
}

size_t bytes_of(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_BOOLEAN: return sizeof(bool);
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR: return 8;
    default: return sizeof(int);  // an enum
  }
}

std::shared_ptr<Node>& node_of(cudnnBackendDescriptor_t d) { return *static_cast<std::shared_ptr<Node>*>(d); }

bool finish_tensor(Node& n) {
  GraphTensor& t = n.tensor;
  t.id = n.get<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID);
  t.type = n.get<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE);
  for (size_t d = 0; d < 4; ++d) {
    t.sizes[d] = n.set.at(CUDNN_ATTR_TENSOR_DIMENSIONS).at<int64_t>(static_cast<int64_t>(d));
    t.strides[d] = n.set.at(CUDNN_ATTR_TENSOR_STRIDES).at<int64_t>(static_cast<int64_t>(d));
    if (t.sizes[d] < 1 || t.strides[d] < 1) return false;
  }
  const auto is = [&](cudnnBackendAttributeName_t name) { return n.find(name) && n.get<bool>(name); };
  t.between = is(CUDNN_ATTR_TENSOR_IS_VIRTUAL), t.number = is(CUDNN_ATTR_TENSOR_IS_BY_VALUE);
  const int64_t alignment = n.get<int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
  return t.id > 0 && alignment == 16 && !(t.between && t.number) && !(t.number && t.numel() != 1);
}

/// Whether b's sizes are y's or 1.
bool repeats_to(const Sizes& b, const Sizes& y) {
  for (size_t d = 0; d < 4; ++d)
    if (b[d] != y[d] && b[d] != 1) return false;
  return true;
}

bool finish_operation(Node& n) {
  GraphOperation& op = n.operation;
  switch (n.type) {
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR: {
      if (n.node(CUDNN_ATTR_OPERATION_MATMUL_DESC).get<cudnnDataType_t>(CUDNN_ATTR_MATMUL_COMP_TYPE) !=
          CUDNN_DATA_FLOAT)
        return false;
      op = {.kind = GraphOperation::kMultiply,
            .a = n.tensor_of(CUDNN_ATTR_OPERATION_MATMUL_ADESC),
            .b = n.tensor_of(CUDNN_ATTR_OPERATION_MATMUL_BDESC),
            .y = n.tensor_of(CUDNN_ATTR_OPERATION_MATMUL_CDESC)};
      const Sizes &a = op.a.sizes, &b = op.b.sizes, &y = op.y.sizes;
      return a[0] == y[0] && a[1] == y[1] && b[0] == y[0] && b[1] == y[1] && a[2] == y[2] && b[3] == y[3] &&
             a[3] == b[2];
    }
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR: {
      const Node& mode = n.node(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
      op = {.kind = GraphOperation::kPointwise,
            .mode = mode.get<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE),
            .a = n.tensor_of(CUDNN_ATTR_OPERATION_POINTWISE_XDESC),
            .b = n.tensor_of(CUDNN_ATTR_OPERATION_POINTWISE_BDESC),
            .choice = n.tensor_of(CUDNN_ATTR_OPERATION_POINTWISE_TDESC),
            .y = n.tensor_of(CUDNN_ATTR_OPERATION_POINTWISE_YDESC)};
      const bool index = op.mode == CUDNN_POINTWISE_GEN_INDEX, compares = op.mode == CUDNN_POINTWISE_CMP_GE;
      if (index)
        op.axis = mode.find(CUDNN_ATTR_POINTWISE_AXIS) ? mode.get<int64_t>(CUDNN_ATTR_POINTWISE_AXIS) : -1;
      if (index && (op.axis < 0 || op.axis > 3 || op.y.type != CUDNN_DATA_INT32)) return false;
      if (compares != (op.y.type == CUDNN_DATA_BOOLEAN)) return false;
      if (mode.get<cudnnDataType_t>(CUDNN_ATTR_POINTWISE_MATH_PREC) !=
          (compares ? CUDNN_DATA_BOOLEAN : CUDNN_DATA_FLOAT))
        return false;
      const int inputs = inputs_of(op.mode);
      return (op.b.id != 0) == (inputs > 1) && (op.choice.id != 0) == (inputs > 2) &&
             (inputs < 3 || op.choice.type == CUDNN_DATA_BOOLEAN) && repeats_to(op.a.sizes, op.y.sizes) &&
             (inputs < 2 || repeats_to(op.b.sizes, op.y.sizes)) &&
             (inputs < 3 || repeats_to(op.choice.sizes, op.y.sizes)) && inputs > 0;
    }
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR: {
      const Node& how = n.node(CUDNN_ATTR_OPERATION_REDUCTION_DESC);
      op = {.kind = GraphOperation::kReduce,
            .fold = how.get<cudnnReduceTensorOp_t>(CUDNN_ATTR_REDUCTION_OPERATOR),
            .a = n.tensor_of(CUDNN_ATTR_OPERATION_REDUCTION_XDESC),
            .y = n.tensor_of(CUDNN_ATTR_OPERATION_REDUCTION_YDESC)};
      return how.get<cudnnDataType_t>(CUDNN_ATTR_REDUCTION_COMP_TYPE) == CUDNN_DATA_FLOAT &&
             (op.fold == CUDNN_REDUCE_TENSOR_ADD || op.fold == CUDNN_REDUCE_TENSOR_MAX) &&
             repeats_to(op.y.sizes, op.a.sizes);
    }
    case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR: {
      op = {.kind = GraphOperation::kReshape,
            .a = n.tensor_of(CUDNN_ATTR_OPERATION_RESHAPE_XDESC),
            .y = n.tensor_of(CUDNN_ATTR_OPERATION_RESHAPE_YDESC)};
      const Sizes &a = op.a.sizes, &y = op.y.sizes, &s = op.a.strides, &t = op.y.strides;
      return a[0] == y[0] && a[1] == y[1] && a[2] == y[3] && a[3] == y[2] && s[2] == t[3] && s[3] == t[2];
    }
    default: return true;
  }
}

/// Whether every tensor without memory is made before it is read, and each id is one tensor.
bool in_order(const GraphOperations& all) {
  std::map<int64_t, GraphTensor> seen;
  for (const GraphOperation& op : all) {
    for (const GraphTensor* t : {&op.a, &op.b, &op.choice})
      if (t->between && !seen.count(t->id)) return false;
    for (const GraphTensor* t : {&op.a, &op.b, &op.choice, &op.y}) {
      if (t->id == 0) continue;
      const auto [at, fresh] = seen.try_emplace(t->id, *t);
      if (!fresh &&
          (at->second.sizes != t->sizes || at->second.strides != t->strides || at->second.type != t->type))
        return false;
    }
    if (op.y.number) return false;
  }
  return true;
}

bool is_operation(cudnnBackendDescriptorType_t type) {
  return type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR ||
         type == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR ||
         type == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR ||
         type == CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR;
}

cudnnStatus_t finish(Node& n) {
  for (const Rule& rule : rules().at(n.type))
    if (rule.needed && !n.find(rule.name)) return CUDNN_STATUS_BAD_PARAM;
  switch (n.type) {
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR:
      if (!finish_tensor(n)) return CUDNN_STATUS_BAD_PARAM;
      break;
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
      for (const NodeRef& op : n.set.at(CUDNN_ATTR_OPERATIONGRAPH_OPS).nodes) {
        if (!is_operation(op->type)) return CUDNN_STATUS_BAD_PARAM;
        n.all.push_back(op->operation);
      }
      if (!in_order(n.all)) return CUDNN_STATUS_BAD_PARAM;
      RETURN_ASKED("cudnnBackendFinalize: graph");
      break;
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
      n.all = n.node(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH).all;
      break;
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
      n.all = n.node(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG).all;
      RETURN_ASKED("cudnnBackendFinalize: plan");
      if (!may_allocate("cudnnBackendFinalize")) return CUDNN_STATUS_INTERNAL_ERROR;  // it loads a kernel
      ++counts().attention_plans;
      break;
    case CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR:
      if (n.set.at(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS).count !=
          n.set.at(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS).count)
        return CUDNN_STATUS_BAD_PARAM;
      break;
    default:
      if (is_operation(n.type) && !finish_operation(n)) return CUDNN_STATUS_BAD_PARAM;
  }
  n.finished = true;
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace
}  // namespace weft::cuda::libraries

using namespace weft::cuda::libraries;
using weft::cuda::simt::Fault;

void cudnnGetLastErrorString(char* message, size_t size) {
  if (size > 0) message[0] = '\0';
}
cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t* d) {
  RETURN_ASKED("cudnnBackendCreateDescriptor");
  if (!d) return CUDNN_STATUS_BAD_PARAM;
  if (!rules().count(type)) return CUDNN_STATUS_NOT_SUPPORTED;
  *d = new std::shared_ptr<Node>(new Node{type});
  ++counts().graph_nodes;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t d) {
  counts().graph_nodes -= d != nullptr;
  delete static_cast<std::shared_ptr<Node>*>(d);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count, const void* values) {
  RETURN_ASKED("cudnnBackendSetAttribute");
  if (!d || node_of(d)->finished || !values) return CUDNN_STATUS_BAD_PARAM;
  const auto& known = rules().at(node_of(d)->type);
  const auto rule = std::find_if(known.begin(), known.end(), [&](const Rule& r) { return r.name == name; });
  if (rule == known.end() || rule->type != type || count < rule->least || count > rule->most)
    return CUDNN_STATUS_BAD_PARAM;
  Attribute a{.count = count};
  const auto* const from = static_cast<const std::byte*>(values);
  a.bytes.assign(from, from + static_cast<size_t>(count) * bytes_of(type));
  for (int64_t i = 0; type == CUDNN_TYPE_BACKEND_DESCRIPTOR && i < count; ++i) {
    const auto of = a.at<cudnnBackendDescriptor_t>(i);
    if (!of || !node_of(of)->finished || (rule->of && node_of(of)->type != *rule->of))
      return CUDNN_STATUS_BAD_PARAM;
    a.nodes.push_back(node_of(of));
  }
  node_of(d)->set[name] = std::move(a);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t d) {
  RETURN_ASKED("cudnnBackendFinalize");
  if (!d || node_of(d)->finished) return CUDNN_STATUS_BAD_PARAM;
  return finish(*node_of(d));
}
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t asked_for, int64_t* count,
                                       void* to) {
  RETURN_ASKED("cudnnBackendGetAttribute");
  if (!d || !node_of(d)->finished || !count || !to || asked_for < 1) return CUDNN_STATUS_BAD_PARAM;
  const Node& n = *node_of(d);
  const auto into = [&](cudnnBackendDescriptorType_t wanted, int64_t i = 0) -> Node* {
    const auto target = static_cast<cudnnBackendDescriptor_t*>(to)[i];
    return type == CUDNN_TYPE_BACKEND_DESCRIPTOR && target && node_of(target)->type == wanted
               ? node_of(target).get()
               : nullptr;
  };
  if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS && n.type == CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR) {
    const bool some =
        refusal_of(n.all).empty() && asked("cudnnBackendGetAttribute: engines") == CUDNN_STATUS_SUCCESS;
    *count = some ? settings().found : 0;  // it may be more than there is room for
    for (int64_t i = 0; i < std::min(*count, asked_for); ++i) {
      Node* const config = into(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, i);
      if (!config) return CUDNN_STATUS_BAD_PARAM;
      config->all = n.all, config->finished = true;
    }
    return CUDNN_STATUS_SUCCESS;
  }
  if (name == CUDNN_ATTR_ENGINECFG_ENGINE && n.type == CUDNN_BACKEND_ENGINECFG_DESCRIPTOR) {
    Node* const engine = into(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    if (!engine) return CUDNN_STATUS_BAD_PARAM;
    engine->finished = true, *count = 1;
    return CUDNN_STATUS_SUCCESS;
  }
  if (name == CUDNN_ATTR_ENGINE_NUMERICAL_NOTE && n.type == CUDNN_BACKEND_ENGINE_DESCRIPTOR &&
      type == CUDNN_TYPE_NUMERICAL_NOTE) {
    const bool loose = asked("cudnnBackendGetAttribute: ordered") != CUDNN_STATUS_SUCCESS;
    *count = settings().found;
    for (int64_t i = 0; i < std::min(*count, asked_for); ++i)
      static_cast<cudnnBackendNumericalNote_t*>(to)[i] =
          loose ? CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC : CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
    return CUDNN_STATUS_SUCCESS;
  }
  if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE && type == CUDNN_TYPE_INT64 &&
      n.type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
    *static_cast<int64_t*>(to) = work_of(n.all);
    *count = 1;
    return CUDNN_STATUS_SUCCESS;
  }
  return CUDNN_STATUS_BAD_PARAM;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack) {
  RETURN_ASKED("cudnnBackendExecute");
  const Use use(handle, "cudnnBackendExecute");
  if (!plan || !pack || !node_of(plan)->finished || !node_of(pack)->finished ||
      node_of(plan)->type != CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR ||
      node_of(pack)->type != CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)
    return CUDNN_STATUS_BAD_PARAM;
  const Node &run = *node_of(plan), &where = *node_of(pack);
  if (run.get<cudnnHandle_t>(CUDNN_ATTR_EXECUTION_PLAN_HANDLE)->device != handle->device)
    return CUDNN_STATUS_BAD_PARAM;
  const Attribute &ids = where.set.at(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS),
                  &places = where.set.at(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  std::map<int64_t, void*> given, memory;
  for (int64_t i = 0; i < ids.count; ++i) given[ids.at<int64_t>(i)] = places.at<void*>(i);
  std::map<int64_t, double> numbers;
  const auto wanted = places_of(run.all);
  if (given.size() != wanted.size()) return CUDNN_STATUS_BAD_PARAM;
  for (const auto& [id, tensor] : wanted) {
    const auto found = given.find(id);
    if (found == given.end() || !found->second) return CUDNN_STATUS_BAD_PARAM;
    if (tensor.number) {
      numbers[id] = static_cast<double>(*static_cast<const float*>(found->second));
      continue;
    }
    expect_device(found->second, 16, "cudnnBackendExecute");
    memory[id] = found->second;
  }
  void* const work = where.get<void*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
  const auto bytes = static_cast<size_t>(work_of(run.all));
  expect_device(work, 16, "cudnnBackendExecute: workspace");
  const auto products = std::count_if(run.all.begin(), run.all.end(), [](const GraphOperation& op) {
    return op.kind == GraphOperation::kMultiply;
  });
  ++(products == 2 ? counts().attention_forward : counts().attention_backward);
  issue(handle, "cudnnBackendExecute", [all = run.all, memory, numbers, work, bytes] {
    std::memset(work, 0xC3, bytes);
    run_graph(all, memory, numbers);
  });
  return CUDNN_STATUS_SUCCESS;
}
